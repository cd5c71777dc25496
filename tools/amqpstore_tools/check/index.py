"""Index files compared with their rows: what each queue holds as of the last checkpoint."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import compress
from operator import mul, not_, sub
from typing import NamedTuple

from amqpstore.catalog import tables
from amqpstore.catalog.keys import IndexKey
from amqpstore.catalog.shapes import Rows
from amqpstore.format.index import (
    ENTRIES_A_FILE,
    MAX_FILE_BYTES,
    Bits,
    Entries,
    IndexState,
    ascends,
    decode_block,
    no_entries,
    total_of,
)
from amqpstore.format.records import Gap, Kind, Record, scan
from amqpstore.system.filenames import INDEX, index_key, index_path
from amqpstore.system.files import Files
from amqpstore_tools.check.findings import Findings
from amqpstore_tools.check.reading import StoreFile


class Live(NamedTuple):
    """Live entries of contiguous sequences and ids; `sizes` are those of the messages' records."""

    queue_id: int
    first_sequence: int
    first_id: int
    sizes: array[int]

    @property
    def end_id(self) -> int:
        return self.first_id + len(self.sizes)


class IndexChecker:
    """Checks the index files of a store. Args: seed, of its checksums.

    `is_whole` tells, when all are read, whether it is known what every queue holds.
    """

    def __init__(self, files: Files, directory: str, seed: int, findings: Findings) -> None:
        self._files = files
        self._directory = directory
        self._seed = seed
        self._findings = findings
        self.is_whole = True

    def check_files(
        self, files: Sequence[tuple[IndexKey, IndexState]], last_end: int = 0
    ) -> Iterator[list[Live]]:
        """Check some index files. Yields what is live in each, in the order of queues and
        sequences.

        Args: last_end, where the file before the first one ends, of the same queue.
        """
        last = {files[0][0].queue_id: last_end} if files else {}
        for (queue_id, number), state in files:
            name = index_path("", queue_id, number)
            entries = self._entries(name, queue_id, state)
            if state.first < last.get(queue_id, 0):
                text = f"it begins with sequence {state.first}, which another file contains too"
                self._findings.add("index-order", name, text, 0, queue_id=queue_id)
            last[queue_id] = state.end
            if entries is None:
                self.is_whole = False
            else:
                self._compare(name, queue_id, state, entries)
                yield list(_live(queue_id, state, entries))

    def check_unrowed(self) -> int:
        """Check all index files by themselves, without a catalog. Returns how many there are."""
        names = self._files.list_directory(f"{self._directory}/{INDEX}")
        keys = [key for name in names if (key := index_key(name))]
        for queue_id, number in keys:
            name = index_path("", queue_id, number)
            self._entries(name, queue_id, IndexState(number, -1, 0, 0, 0))
        return len(keys)

    def _entries(self, name: str, queue_id: int, state: IndexState) -> Entries | None:
        """Return the sound entries in the committed part of a file; None if any are damaged.

        If the state's `end_bytes` is -1, the whole file is checked.
        """
        findings = self._findings
        try:
            file = StoreFile(self._files, self._directory, name, findings)
        except FileNotFoundError:
            live = state.live
            text = f"the file is missing, and with it the positions of {live} messages"
            findings.add("index-missing", name, text, queue_id=queue_id, messages=live)
            return None
        try:
            committed = MAX_FILE_BYTES if state.end_bytes < 0 else state.end_bytes
            size = min(file.size, committed)
            content = file.read(0, size)
        finally:
            file.close()
        if file.size < state.end_bytes:
            text = f"it has {file.size} bytes, but {state.end_bytes} were written"
            findings.add(
                "index-damaged", name, text, file.size, queue_id=queue_id, messages=state.live
            )
            return None
        if file.size > size:
            text = f"{file.size - size} bytes were written but not committed: they are ignored"
            findings.add("index-behind-end", name, text, size, queue_id=queue_id)
        return self._decode(name, queue_id, state, content)

    def _decode(
        self, name: str, queue_id: int, state: IndexState, content: bytes
    ) -> Entries | None:
        entries = no_entries()
        is_whole = True
        for record in scan(content, state.number, self._seed):
            reason = self._extend(entries, queue_id, record, content)
            if reason:
                self._findings.add(
                    "index-damaged",
                    name,
                    reason,
                    record.offset,
                    queue_id=queue_id,
                    messages=state.live if is_whole else 0,
                )
                is_whole = False
        for column in (entries.sequences, entries.ids):
            if not ascends(column):
                text = "its entries are not in ascending order"
                self._findings.add("index-order", name, text, 0, queue_id=queue_id)
                return None
        return entries if is_whole else None

    def _extend(self, entries: Entries, queue_id: int, found: Record | Gap, content: bytes) -> str:
        """Add a record's entries. Returns the reason if that is not possible."""
        if isinstance(found, Gap):
            return f"{found.end - found.offset} bytes are not a record: {found.reason}"
        if found.kind != Kind.INDEX:
            return f"a record of kind {found.kind} is in an index file"
        try:
            of_queue, block = decode_block(content[found.payload_offset : found.end])
        except ValueError as error:
            return str(error)
        if of_queue != queue_id:
            return f"it belongs to queue {of_queue}"
        if not block.sequences or block.sequences[0] != found.number:
            return f"its first sequence is not {found.number}"
        if len(entries.ids) + len(block.ids) > ENTRIES_A_FILE:
            return f"it has more than {ENTRIES_A_FILE} entries"
        if block.flags.count(0) != len(block.flags):
            return "entries have unknown flags"
        entries.extend(block)
        return ""

    def _compare(self, name: str, queue_id: int, state: IndexState, entries: Entries) -> None:
        """Compare the row of a file with its content."""
        acked = Bits.of(state.acked, state.entries)
        sequences = entries.sequences
        counted = {
            "entries": len(sequences),
            "first": sequences[0] if sequences else 0,
            "end": sequences[-1] + 1 if sequences else 0,
            "acked_count": acked.count(1),
        }
        for field, value in counted.items():
            if getattr(state, field) != value:
                text = f"{field} is {value}, but its row says {getattr(state, field)}"
                self._findings.add("index-row-differs", name, text, queue_id=queue_id)
        if counted["entries"] != state.entries:
            return
        live = array("I", compress(entries.body_sizes, map(not_, acked)))
        if state.body_bytes not in (None, total_of(live)):
            text = f"the bodies have {total_of(live)} bytes, but its row says {state.body_bytes}"
            self._findings.add("index-row-differs", name, text, queue_id=queue_id)
        if any(acked[index] for index in state.delivered):
            text = "its row has a delivery count for an entry that is not live"
            self._findings.add("index-row-differs", name, text, queue_id=queue_id)
        expires = [
            expires_ms
            for expires_ms, is_acked in zip(entries.expires_ms, acked, strict=True)
            if expires_ms and not is_acked
        ]
        if expires and not 0 < state.expires_ms <= min(expires):
            text = f"an entry expires at {min(expires)}, but its row says {state.expires_ms}"
            self._findings.add("index-row-differs", name, text, queue_id=queue_id)


def in_order(rows: Rows) -> list[tuple[IndexKey, IndexState]]:
    """Return keys and states of index files, ordered by queue and sequence."""
    states = tables.INDEX.read(rows.__getitem__)
    return sorted(states.items(), key=lambda item: (item[0].queue_id, item[1].first))


def _live(queue_id: int, state: IndexState, entries: Entries) -> Iterator[Live]:
    """Yield the entries that are not acked, as accounts count them; postponed ones are included."""
    acked = Bits.of(state.acked, state.entries)
    sequences, ids, sizes = entries.sequences, entries.ids, entries.sizes
    stop = min(len(acked), len(sequences))
    start = acked.find(0, 0, stop)
    while start != -1:
        end = acked.find(1, start, stop)
        end = stop if end == -1 else end
        ends = [*_ends(sequences, ids, start, end), end]
        for index in ends:
            yield Live(queue_id, sequences[start], ids[start], sizes[start:index])
            start = index
        start = acked.find(0, end, stop)


def _ends(sequences: array[int], ids: array[int], start: int, end: int) -> list[int]:
    """Return the places between `start` and `end` where a column does not ascend by one."""
    count = end - 1 - start
    if sequences[end - 1] - sequences[start] == count and ids[end - 1] - ids[start] == count:
        return []
    # As both columns ascend, neither step is 0.
    steps = map(
        mul,
        map(sub, sequences[start + 1 : end], sequences[start : end - 1]),
        map(sub, ids[start + 1 : end], ids[start : end - 1]),
    )
    return [index for index, step in enumerate(steps, start + 1) if step != 1]
