"""The records of a segment, batch by batch, each checked: the part of reading that has to be fast.

Records follow each other, and mostly a message's head (exchange, routing key and properties) is
that of the message before. So a loop over whole windows of the file takes a header apart, looks at
the checksums and cuts the body out; whatever is not as it should be is left to the engine's own
`records.scan`, which tells records from damage.
"""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from struct import Struct

from crc32c import crc32c

from amqpstore.compression import body_size
from amqpstore.filenames import FIRST_COMPACTED
from amqpstore.files import File
from amqpstore.records import (
    COMPRESSED,
    HEADER,
    MAGIC,
    Gap,
    Kind,
    Operation,
    OperationKind,
    Record,
    decode_transaction,
    head_size,
    record_at,
)
from tools.offline.reading import read_around, scan_file

WINDOW_BYTES = 4 << 20

_MOST_MESSAGES = 8192
"""Of a compacted segment that are one batch here: it has none."""

_SLOW_WINDOW_BYTES = 64 << 10

_HEADER = Struct(">QQIIII")
"""A record's header as numbers: magic to batch, number, segment, length, two checksums."""

_MESSAGE = int.from_bytes(MAGIC) << 32 | int(Kind.MESSAGE) << 24
_BATCH_BITS = 0xFFFF


@dataclass
class Batch:
    """Sound messages of one batch, as columns of one length, and its TRANSACTION.

    `ids` ascend. `heads` are numbers of the scanner's `heads`, -1 where a payload does not fit
    together; `bodies` is empty where they were not asked for, and has None where one cannot be
    decompressed. `lsn` is 0 where there is no sound TRANSACTION; it begins at `offset` and ends at
    `end`.
    """

    ids: array[int] = field(default_factory=lambda: array("Q"))
    offsets: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    heads: array[int] = field(default_factory=lambda: array("i"))
    bodies: list[bytes | memoryview | None] = field(default_factory=list)
    lsn: int = 0
    offset: int = -1
    end: int = -1
    time_ms: int = 0
    operations: list[Operation] = field(default_factory=list)

    def is_whole(self) -> bool:
        """Whether its TRANSACTION is there, and each message that it enqueues."""
        return bool(self.lsn) and all(
            bisect_left(self.ids, one.first_id + one.message_count)
            - bisect_left(self.ids, one.first_id)
            == one.message_count
            for one in self.operations
            if one.kind == OperationKind.ENQUEUE
        )


class Scanner:
    """Reads a segment's file: `size` bytes of it, from offset `start` on.

    `heads` are the heads of messages, each once; `gaps` are the places that are no records.
    Args: decompress, of bodies, raises ValueError; want_bodies, whether they are kept.
    """

    def __init__(
        self,
        file: File,
        number: int,
        size: int,
        seed: int,
        *,
        decompress: Callable[[bytes], bytes],
        want_bodies: bool = True,
        start: int = 0,
    ) -> None:
        self._file = file
        self._number = number
        self._is_compacted = number >= FIRST_COMPACTED
        self._size = size
        self._seed = seed
        self._decompress = decompress
        self._want_bodies = want_bodies
        self._base = start
        self._content = b""
        self._last: dict[int, int] = {int(kind): 0 for kind in Kind}
        self._batch = Batch()
        self._tag = -1
        self._ready: list[Batch] = []
        self._numbers: dict[bytes, int] = {}
        self.heads: list[bytes] = []
        self.gaps: list[Gap] = []

    def batches(self) -> Iterator[Batch]:
        """What is in it. A batch without a TRANSACTION is given too. Raises: OSError."""
        offset = self._base
        while offset < self._size:
            place = self._run(offset - self._base)
            offset = self._base + place
            if self._is_compacted and len(self._batch.ids) >= _MOST_MESSAGES:
                self._finish()
            elif offset < self._size:
                if place and self._is_cut(place):
                    self._base = offset
                    self._content = b""
                if not self._content:
                    wanted = min(WINDOW_BYTES, self._size - offset)
                    self._content = read_around(self._file, offset, wanted)
                    if self._content:
                        continue
                offset = self._other(offset)
            yield from self._ready
            self._ready.clear()
        self._finish()
        yield from self._ready

    def _run(self, place: int) -> int:
        """Messages of the batch from a place in the window on. Returns where there is none."""
        content, seed, number = self._content, self._seed, self._number
        batch, want_bodies = self._batch, self._want_bodies
        unpack, checksum, starts = _HEADER.unpack_from, crc32c, content.startswith
        view = memoryview(content)
        ids, offsets, sizes = batch.ids.append, batch.offsets.append, batch.sizes.append
        heads, bodies = batch.heads.append, batch.bodies.append
        head, head_bytes, head_number = b"", 0, -1
        last_id = self._last[Kind.MESSAGE]
        lead = _MESSAGE | self._tag if self._tag >= 0 else -1
        base, last = self._base, len(content) - 32
        while place <= last:
            leads, message_id, written_in, length, header_checksum, payload_checksum = unpack(
                content, place
            )
            start = place + 32
            end = start + length
            if leads != lead:
                if self._tag != -1 or leads & ~_BATCH_BITS != _MESSAGE:
                    break
                lead, self._tag = leads, leads & _BATCH_BITS
            if (
                written_in != number
                or message_id <= last_id
                or end > last + 32
                or checksum(content[place : place + 24], seed) != header_checksum
            ):
                break
            if head_number < 0 or not starts(head, start):
                try:
                    head_bytes = head_size(content[start:end])
                except ValueError:
                    break
                head = content[start : start + head_bytes]
                head_number = self._number_of(head)
            body_at = start + head_bytes
            if want_bodies:
                # A view: the bytes are copied once, into the column.
                body = view[body_at:end]
                if checksum(body, checksum(head, header_checksum)) != payload_checksum:
                    break
                bodies(body)
            elif checksum(view[start:end], header_checksum) != payload_checksum:
                break
            ids(message_id)
            offsets(base + place)
            sizes(end - body_at)
            heads(head_number)
            last_id = message_id
            place = end
            if self._is_compacted and len(batch.ids) >= _MOST_MESSAGES:
                break
        self._last[Kind.MESSAGE] = last_id
        return place

    def _is_cut(self, place: int) -> bool:
        """Whether the window may end before the record at a place, and the file does not."""
        content = self._content
        if self._base + len(content) >= self._size:
            return False
        if len(content) - place < HEADER.size:
            return True
        length = _HEADER.unpack_from(content, place)[3]
        return place + HEADER.size + int(length) > len(content)

    def _other(self, offset: int) -> int:
        """Whatever is at an offset that is no message as the last one. Returns where it ends."""
        content, place = self._content, offset - self._base
        found = record_at(content, place, self._number, self._seed)
        if isinstance(found, Record) and found.number > self._last[found.kind]:
            payload = content[found.payload_offset : found.end]
            record = found._replace(offset=offset, end=offset + found.end - place)
        else:
            scanned = scan_file(
                self._file,
                self._size,
                self._number,
                self._seed,
                start=offset,
                last_numbers=self._last,
                window_bytes=_SLOW_WINDOW_BYTES,
            )
            found = next(scanned, Gap(offset, self._size, "the file ends before it"))
            if isinstance(found, Gap):
                self.gaps.append(found)
                return self._leave(found.end)
            payload = read_around(
                self._file, found.payload_offset, found.end - found.payload_offset
            )
            record = found
        self._record(record, payload)
        return self._leave(record.end)

    def _leave(self, offset: int) -> int:
        """Go on at an offset. Outside of the window, the next one starts there."""
        if offset > self._base + len(self._content):
            self._base = offset
            self._content = b""
        return offset

    def _record(self, record: Record, payload: bytes) -> None:
        self._last[record.kind] = record.number
        if record.kind == Kind.SEGMENT:
            return
        if self._tag not in (-1, record.batch):
            self._finish()
        self._tag = record.batch
        if record.kind == Kind.MESSAGE:
            self._message(record, payload)
        elif record.kind == Kind.TRANSACTION:
            self._batch.lsn = record.number
            self._batch.offset, self._batch.end = record.offset, record.end
            try:
                self._batch.time_ms, self._batch.operations = decode_transaction(payload)
            except ValueError as error:
                self.gaps.append(Gap(record.offset, record.end, str(error)))
                self._batch.lsn = 0
            self._finish()
        else:
            self.gaps.append(Gap(record.offset, record.end, "an INDEX record is in a segment"))

    def _message(self, record: Record, payload: bytes) -> None:
        """One whose body is compressed, or whose payload does not fit together."""
        body: bytes | None = None
        number, size = -1, 0
        with contextlib.suppress(ValueError):
            head_bytes = head_size(payload)
            number = self._number_of(payload[:head_bytes])
            stored = payload[head_bytes:]
            if record.flags & COMPRESSED:
                size = body_size(stored)
                body = self._decompress(stored) if self._want_bodies else b""
            else:
                body, size = stored, len(stored)
        batch = self._batch
        batch.ids.append(record.number)
        batch.offsets.append(record.offset)
        batch.sizes.append(size)
        batch.heads.append(number)
        if self._want_bodies:
            batch.bodies.append(body)

    def _number_of(self, head: bytes) -> int:
        number = self._numbers.get(head)
        if number is None:
            number = self._numbers[head] = len(self.heads)
            self.heads.append(head)
        return number

    def _finish(self) -> None:
        """The batch is over."""
        if self._batch.ids or self._batch.lsn:
            self._ready.append(self._batch)
        self._batch = Batch()
        self._tag = -1
