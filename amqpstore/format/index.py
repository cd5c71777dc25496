"""Index files: the positions of the messages that wait in one queue, entry by entry.

Only a checkpoint writes them; messages that are published and acked between two checkpoints never
get here. A file holds up to 16,384 entries of one queue in ascending sequence, in blocks: each
checkpoint appends one, and no byte is ever overwritten. Later changes of the entries (acked,
delivered again) are kept in the catalog, as the `IndexState` of the file, and so change atomically
with the checkpoint. A file whose entries are all acked is removed.
"""

from __future__ import annotations

import errno
import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import ge, sub
from typing import Any, NamedTuple

from amqpstore.errors import DamageError, UnreadableFileError
from amqpstore.format.compression import compress_columns, decompress_columns
from amqpstore.format.records import Gap, Kind, encode_record, scan
from amqpstore.format.runs import Run, goes_on
from amqpstore.system.descriptors import open_to_read
from amqpstore.system.filenames import index_path
from amqpstore.system.files import Files

ENTRIES_A_FILE = 16_384

MAX_FILE_BYTES = 128 * ENTRIES_A_FILE
"""The size limit of an index file: a block of one entry, the largest for its content, takes less
per entry.
"""

BLOCK = struct.Struct(">QI4x")
"""queue id, count of entries; at the start of an INDEX record's payload."""

COLUMNS = "QQIQIBBI"
"""sequence, message id, size, expiry, delivery count, priority, flags, size of the body: a column
each, in order. Files of format version 1 do not have the last.

Sequences and ids are stored as differences: usually all of them are one, and compress to nothing.
"""

UNKNOWN_SIZE = (1 << 32) - 1
"""Stands for an unknown size in an entry: no body is as large."""


_ENTRY_BYTES = sum(array(code).itemsize for code in COLUMNS)

_VERSION_1_BYTES = sum(array(code).itemsize for code in COLUMNS[:-1])
"""The size of an entry in version 1."""


class Entries(NamedTuple):
    """Entries of one queue, as columns of one length, ascending in sequence and in id.

    `sizes` are in bytes, of the MESSAGE records without compression, and `body_sizes` of the bodies
    in them; `expires_ms` since 1970.
    """

    sequences: array[int]
    ids: array[int]
    sizes: array[int]
    expires_ms: array[int]
    delivery_counts: array[int]
    priorities: array[int]
    flags: array[int]
    body_sizes: array[int]

    def slice(self, start: int, stop: int) -> Entries:
        """Return those from place `start` to before `stop`."""
        return Entries(*(column[start:stop] for column in self))

    def extend(self, other: Entries) -> None:
        """Add entries after these."""
        for column, more in zip(self, other, strict=True):
            column.extend(more)


class IndexState(NamedTuple):
    """The catalog's row for an index file: everything about it that changes.

    Its committed part is `end_bytes` long and has `entries` entries, from sequence `first` to
    before `end`. Bit n of `acked` is set if entry n is acked (empty: none is), `acked_count` is
    their number. `delivered` has the delivery counts of live entries that were delivered, by place.
    `postponed` are ranges, from a sequence to before another, that were acked while the file could
    not be read, and `postponed_deliveries` ranges with a delivery count from that time. No live
    entry expires before `expires_ms`, or ever if that is 0. The bodies of live entries have
    `body_bytes`; None if unknown.
    """

    number: int
    end_bytes: int
    entries: int
    first: int
    end: int
    acked: bytes = b""
    acked_count: int = 0
    delivered: Mapping[int, int] = {}
    postponed: Sequence[tuple[int, int]] = ()
    expires_ms: int = 0
    body_bytes: int | None = None
    postponed_deliveries: Sequence[tuple[int, int, int]] = ()

    @property
    def live(self) -> int:
        """Entries that are not acked."""
        return self.entries - self.acked_count

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> IndexState:
        """Parse a row of the catalog; keys that a newer version has added are left out."""
        return cls(**{name: row[name] for name in cls._fields if name in row})

    def recounted(self) -> IndexState:
        """Return it with `acked_count` counted again from `acked`: the stored number is not
        trusted.
        """
        return self._replace(acked_count=int.from_bytes(self.acked, "little").bit_count())

    def row(self) -> dict[str, Any]:
        """Return the row for the catalog."""
        return self._asdict() | {
            "delivered": dict(self.delivered),
            "postponed": [list(one) for one in self.postponed],
            "postponed_deliveries": [list(one) for one in self.postponed_deliveries],
        }


class Merged(NamedTuple):
    """Files of a queue, `old`, whose live entries are now in file `new`."""

    queue_id: int
    old: list[IndexState]
    new: int


class PagedFile(NamedTuple):
    """Runs that are in index file `number` only: `live` messages, all that are live in it from
    sequence `first` to before `end`. None of them expires before `expires_ms`, or ever if that is
    0. Their bodies have `body_bytes`; None if unknown.
    """

    number: int
    first: int
    end: int
    live: int
    expires_ms: int
    body_bytes: int | None = None


def no_entries() -> Entries:
    """Return empty columns, to be extended."""
    return Entries(*(array(code) for code in COLUMNS))


def entries_of(run: Run, sizes: array[int], body_sizes: array[int] | None = None) -> Entries:
    """Return the entries of a run that is in the log."""
    count = run.count
    if body_sizes is None:
        body_sizes = unknown_sizes(count)
    return Entries(
        array("Q", range(run.first_sequence, run.end)),
        array("Q", range(run.first_id, run.first_id + count)) if run.ids is None else run.ids[:],
        sizes,
        array("Q", [run.expires_ms]) * count,
        array("I", [run.delivery_count]) * count,
        array("B", [run.priority]) * count,
        array("B", [0]) * count,
        body_sizes,
    )


def unknown_sizes(count: int) -> array[int]:
    """Return a column `body_sizes` of unknown sizes."""
    return array("I", [UNKNOWN_SIZE]) * count


def total_of(body_sizes: array[int]) -> int | None:
    """Return the bytes in bodies of these sizes; None if one is unknown."""
    return None if UNKNOWN_SIZE in body_sizes else sum(body_sizes)


def encode_block(queue_id: int, number: int, entries: Entries, seed: int) -> bytes:
    """Return an INDEX record of index file `number`."""
    sequences, ids, *others = entries
    columns = b"".join(map(_to_bytes, [_differences(sequences), _differences(ids), *others]))
    payload = BLOCK.pack(queue_id, len(sequences)) + compress_columns(columns)
    return encode_record(Kind.INDEX, sequences[0], number, payload, seed=seed)


def decode_block(payload: bytes) -> tuple[int, Entries]:
    """Return queue id and entries. Raises: ValueError, when the payload's lengths are
    inconsistent.
    """
    if len(payload) < BLOCK.size:
        raise ValueError(f"{len(payload)} bytes are not a block of entries")
    queue_id, count = BLOCK.unpack_from(payload)
    # Before the columns are allocated: a forged count would ask for gigabytes.
    if not 0 < count <= ENTRIES_A_FILE:
        raise ValueError(
            f"{count} entries: a file has at least one, and no more than {ENTRIES_A_FILE}"
        )
    content = decompress_columns(
        payload[BLOCK.size :], count * _ENTRY_BYTES, count * _VERSION_1_BYTES
    )
    offset = 0
    columns = []
    codes = COLUMNS if len(content) == count * _ENTRY_BYTES else COLUMNS[:-1]
    for code in codes:
        size = count * array(code).itemsize
        columns.append(_from_bytes(code, content[offset : offset + size], count))
        offset += size
    if codes is not COLUMNS:
        columns.append(unknown_sizes(count))
    sequences, ids, *others = columns
    try:
        return queue_id, Entries(_sums(sequences), _sums(ids), *others)
    except OverflowError:
        raise ValueError("its sequences or ids exceed 64 bits") from None


class IndexReader:
    """Reads the index files of the store in `directory`."""

    def __init__(self, files: Files, directory: str, seed: int) -> None:
        self._files = files
        self._directory = directory
        self._seed = seed

    def entries(self, queue_id: int, state: IndexState) -> Entries:
        """Return all entries of the committed part of an index file. Raises: DamageError,
        OSError.
        """
        path = index_path(self._directory, queue_id, state.number)
        try:
            file = open_to_read(self._files, path)
            try:
                # What is behind that is of a checkpoint that a crash has interrupted.
                content = file.read(0, state.end_bytes)
            finally:
                file.close()
        except OSError as error:
            # Any other (EMFILE, ENOMEM) says nothing of the file.
            if error.errno not in (errno.ENOENT, errno.EIO):
                raise
            raise UnreadableFileError(path, str(error)) from error
        entries = no_entries()
        for record in scan(content, state.number, self._seed):
            if isinstance(record, Gap):
                raise DamageError(path, record.offset, record.reason)
            try:
                of_queue, block = decode_block(content[record.payload_offset : record.end])
            except ValueError as error:
                raise DamageError(path, record.offset, str(error)) from None
            if len(entries.ids) + len(block.ids) > state.entries:
                reason = f"it has more than the {state.entries} entries that were written"
                raise DamageError(path, record.offset, reason)
            if record.kind != Kind.INDEX or of_queue != queue_id:
                raise DamageError(
                    path, record.offset, f"it is not an index file of queue {queue_id}"
                )
            entries.extend(block)
        if len(entries.sequences) != state.entries:
            reason = f"it has {len(entries.sequences)} entries, but {state.entries} were written"
            raise DamageError(path, len(content), reason)
        if (entries.sequences[0], entries.sequences[-1] + 1) != (state.first, state.end):
            reason = f"its entries are not within {state.first} to {state.end - 1}"
            raise DamageError(path, 0, reason)
        if not (ascends(entries.sequences) and ascends(entries.ids)):
            raise DamageError(path, 0, "its entries are not in ascending order")
        return entries


def live_runs(entries: Entries, state: IndexState, first: int, end: int) -> list[Run]:
    """Return the live entries from sequence `first` to before `end`, as runs on disk."""
    acked = Bits.of(state.acked, state.entries)
    sequences, ids = entries.sequences, entries.ids
    runs: list[Run] = []
    start = bisect_left(sequences, first)
    stop = bisect_left(sequences, end)
    for postponed_first, postponed_end in state.postponed:
        first_index = bisect_left(sequences, postponed_first)
        end_index = bisect_left(sequences, postponed_end)
        acked[first_index:end_index] = b"\1" * (end_index - first_index)
    delivered = dict(state.delivered)
    for delivered_first, delivered_end, times in state.postponed_deliveries:
        _note_deliveries(delivered, sequences, delivered_first, delivered_end, times)
    if start == stop:
        return runs
    if not delivered and not acked.count(1, start, stop) and _is_one_run(entries, start, stop):
        run = Run(
            sequences[start],
            stop - start,
            first_id=ids[start],
            expires_ms=entries.expires_ms[start],
            priority=entries.priorities[start],
            body_bytes=total_of(entries.body_sizes[start:stop]) or 0,
        )
        return [run]
    sizes = entries.body_sizes
    # In a run, 0 stands for that.
    if UNKNOWN_SIZE in sizes:
        sizes = array("I", bytes(4 * len(sizes)))
    for index in range(start, stop):
        if acked[index]:
            continue
        run = Run(
            sequences[index],
            1,
            first_id=ids[index],
            delivery_count=delivered.get(index, 0),
            expires_ms=entries.expires_ms[index],
            priority=entries.priorities[index],
            body_bytes=sizes[index],
        )
        if runs and goes_on(runs[-1], run):
            runs[-1].join_stored(run)
        else:
            runs.append(run)
    return runs


def _note_deliveries(
    delivered: dict[int, int], sequences: array[int], first: int, end: int, times: int
) -> None:
    """Set delivery counts, by place, of entries from sequence `first` to before `end`."""
    for index in range(bisect_left(sequences, first), bisect_left(sequences, end)):
        delivered[index] = max(delivered.get(index, 0), times)


class Bits(bytearray):
    """Flags, one byte each, 0 or 1, that are stored as one bit each."""

    @classmethod
    def of(cls, packed: bytes, count: int) -> Bits:
        """Unpack `count` flags: bit n of `packed`, from the lowest of the first byte on, is
        flag n.
        """
        if not packed:
            return cls(count)
        digits = f"{int.from_bytes(packed, 'little'):0{count}b}".encode()
        return cls(digits[::-1].translate(_TO_FLAGS))

    def packed(self) -> bytes:
        """Return the packed bits; empty if no flag is set."""
        if not self.count(1):
            return b""
        digits = self[::-1].translate(_TO_DIGITS)
        return int(bytes(digits), 2).to_bytes((len(self) + 7) // 8, "little")


_TO_FLAGS = bytes.maketrans(b"01", b"\0\1")
_TO_DIGITS = bytes.maketrans(b"\0\1", b"01")


def _is_one_run(entries: Entries, start: int, stop: int) -> bool:
    """Tell whether entries that were never delivered are one run, as they usually are."""
    count = stop - start
    return (
        contiguous(entries.sequences, start, stop)
        and contiguous(entries.ids, start, stop)
        and entries.expires_ms[start:stop].count(entries.expires_ms[start]) == count
        and entries.priorities[start:stop].count(entries.priorities[start]) == count
    )


def contiguous(numbers: Sequence[int], start: int, stop: int) -> bool:
    """Tell whether ascending numbers have no gap from place `start` to before `stop`."""
    return numbers[stop - 1] - numbers[start] == stop - 1 - start


def ascends(column: array[int]) -> bool:
    """Tell whether each number is higher than the one before, usually by one."""
    if not column:
        return True
    first, last = column[0], column[-1]
    if last - first == len(column) - 1 and column == array("Q", range(first, last + 1)):
        return True
    return not any(map(ge, column, column[1:]))


def _differences(column: array[int]) -> array[int]:
    """Return the first of ascending numbers, and then the difference of each following one."""
    return array("Q", [column[0], *map(sub, column[1:], column)])


def _sums(column: array[int]) -> array[int]:
    return array("Q", accumulate(column))


def _to_bytes(column: array[int]) -> bytes:
    if sys.byteorder == "little" and column.itemsize > 1:
        column = array(column.typecode, column)
        column.byteswap()
    return column.tobytes()


def _from_bytes(code: str, content: bytes, count: int) -> array[int]:
    column = array(code)
    if len(content) != count * column.itemsize:
        raise ValueError(f"a column of {count} entries has {len(content)} bytes")
    column.frombytes(content)
    if sys.byteorder == "little":
        column.byteswap()
    return column
