"""Segments and index files on disk, each with the catalog's view of it."""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from amqpstore.format.batches import StoredBatch, batches
from amqpstore.format.index import ENTRIES_A_FILE, Entries, IndexState, decode_block
from amqpstore.format.records import Gap, Kind, Record
from amqpstore.format.windows import read_around, scan_file
from amqpstore.identity.identity import SegmentHeader, read_header
from amqpstore.log.segment_accounts import SegmentAccount
from amqpstore.system.filenames import is_compacted
from amqpstore.system.files import Files


class SegmentState(enum.Enum):
    """The role of a segment in the store."""

    OPEN = "open"
    """The last one of the log; its end is not recorded."""
    SEALED = "sealed"
    """An earlier one of the log."""
    COMPACTED = "compacted"
    LEFT_OVER = "left over"
    """Nothing needs it: the next start removes it, or moves it to `quarantine/`."""
    QUARANTINED = "quarantined"
    """In `quarantine/`."""
    MISSING = "missing"
    """The segment is in the catalog, and there is no file."""


@dataclass
class SegmentImage:
    """Segment `number` at `path`, of `size` bytes, or none if it is missing.

    `end` is its recorded end, and `torn_at` where a torn tail begins; bytes after either are not
    part of the store. Its messages have ids from `first_id` to before `end_id`, (0, 0) if unknown;
    `account` says which are live, None if unknown. `table_ids`, ascending, and `table_offsets`
    are its offset table.
    """

    files: Files
    path: str
    number: int
    seed: int
    size: int
    state: SegmentState
    end: int | None = None
    torn_at: int | None = None
    first_id: int = 0
    end_id: int = 0
    account: SegmentAccount | None = None
    table_ids: Sequence[int] = ()
    table_offsets: Sequence[int] = ()
    damage: list[tuple[int, int, str]] = field(default_factory=list)
    """Known before it was read: offset, size and reason."""

    @property
    def is_compacted(self) -> bool:
        """Whether compaction wrote it; otherwise it belongs to the log."""
        return is_compacted(self.number)

    @property
    def sound_size(self) -> int:
        """Bytes that are part of the store."""
        end = self.torn_at if self.end is None else self.end
        return self.size if end is None else min(end, self.size)

    @property
    def live_bytes(self) -> int:
        """Bytes of its size that are needed."""
        account = self.account
        if account is None or self.state in (SegmentState.LEFT_OVER, SegmentState.MISSING):
            return 0
        return max(self.size - account.garbage_bytes, 0)

    @property
    def garbage_bytes(self) -> int:
        """Bytes of its size that are not needed, and that compaction would free."""
        return self.size - self.live_bytes

    def header(self) -> SegmentHeader | Gap:
        """Return its SEGMENT record, or why there is none. Raises: OSError."""
        return read_header(self.files, self.path, self.number)

    def scan(self, start: int = 0, size: int | None = None) -> Iterator[Record | Gap]:
        """Yield its records and the gaps between them, as `records.scan` does, window by window.

        Args: start, where a record starts; size, how much of the file to read, if not everything
        that is part of the store.
        Raises: OSError.
        """
        for found, _ in self.scan_payloads(start, size, kinds=()):
            yield found

    def scan_payloads(
        self,
        start: int = 0,
        size: int | None = None,
        *,
        kinds: Sequence[int] = (Kind.TRANSACTION,),
    ) -> Iterator[tuple[Record | Gap, bytes]]:
        """Scan with the payload of records of some kinds; it is empty for all others."""
        file = self.files.open(self.path)
        size = self.sound_size if size is None else size
        try:
            for found in scan_file(file, size, self.number, self.seed, start=start):
                payload = b""
                if isinstance(found, Record) and found.kind in kinds:
                    payload = read_around(
                        file, found.payload_offset, found.end - found.payload_offset
                    )
                yield found, payload
        finally:
            file.close()

    def batches(self, start: int = 0) -> Iterator[StoredBatch]:
        """Yield its batches, from offset `start` on, where one begins. Raises: OSError."""
        file = self.files.open(self.path)
        try:
            scanned = scan_file(file, self.sound_size, self.number, self.seed, start=start)
            yield from batches(
                scanned,
                lambda found: read_around(
                    file, found.payload_offset, found.end - found.payload_offset
                ),
                start,
                self.sound_size,
            )
        finally:
            file.close()

    def offset_before(self, message_id: int) -> int:
        """Return where a record starts at or before that of a message."""
        index = bisect_right(self.table_ids, message_id) - 1
        return self.table_offsets[index] if index >= 0 else 0


@dataclass
class IndexImage:
    """Index file `number` of a queue; `state` is its row in the catalog, None if there is none."""

    files: Files
    path: str
    queue_id: int
    number: int
    seed: int
    size: int | None
    state: IndexState | None

    def blocks(self, size: int | None = None) -> Iterator[tuple[Record, int, Entries] | Gap]:
        """Yield its INDEX records with the queue that each names, and the gaps between them.

        Args: size, how much of the file to read, by default all.
        Raises: OSError.
        """
        if self.size is None:
            return
        size = self.size if size is None else min(size, self.size)
        count = 0
        file = self.files.open(self.path)
        try:
            for record in scan_file(file, size, self.number, self.seed):
                if isinstance(record, Gap):
                    yield record
                    continue
                payload = file.read(record.payload_offset, record.end - record.payload_offset)
                if record.kind != Kind.INDEX:
                    yield Gap(record.offset, record.end, "a record that is not an INDEX record")
                    continue
                try:
                    queue_id, entries = decode_block(payload)
                except ValueError as error:
                    yield Gap(record.offset, record.end, str(error))
                    continue
                count += len(entries.ids)
                if count > ENTRIES_A_FILE:
                    yield Gap(record.offset, size, f"it has more than {ENTRIES_A_FILE} entries")
                    return
                yield record, queue_id, entries
        finally:
            file.close()
