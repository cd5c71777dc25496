"""Scans the records of a segment as fast as Python can.

A segment is mostly MESSAGE records back to back. For these a scanner has a tight loop that does as
little as its purpose allows. Anything else leaves the loop for `records.record_at`, the engine's
own decision on what is sound, and is reported here.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

from amqpstore.format.batches import claimed_by, is_blank, sound_operations
from amqpstore.format.records import (
    HEADER,
    MAGIC,
    Gap,
    Kind,
    Operation,
    Record,
    Search,
    not_next,
    record_at,
)

LEADS = struct.Struct(">QQIIII")
"""The layout of `records.HEADER`, with everything before the number as one integer."""

BATCH_BITS = 0xFFFF

PLAIN_MESSAGE = int.from_bytes(MAGIC + bytes([Kind.MESSAGE, 0, 0, 0]), "big")
"""The integer before the number, for an uncompressed MESSAGE of batch 0."""

WINDOW_BYTES = 512 << 10
"""Read at a time: content that fits in the processor's cache is checked twice as fast."""


class RecordScanner(ABC):
    """Scans one segment from `start` up to `end`, once.

    `gaps` are the places that are not records. At the end, `is_blank` says whether only zeros are
    behind the last record: see `amqpstore.format.batches`.
    Args: read, a function of a file, an offset and a size; segment, its number; seed, of the
    checksums; last_lsn, that of the batch before `start`: a copy of an earlier one is a gap.
    """

    def __init__(
        self,
        read: Callable[[int, int], bytes],
        start: int,
        end: int,
        *,
        segment: int,
        seed: int,
        last_lsn: int = 0,
    ) -> None:
        self.gaps: list[Gap] = []
        self._read = read
        self._start = start
        self._end = end
        self._segment = segment
        self._seed = seed
        # Where the last whole batch so far ends; at the end, what follows may be torn.
        self.whole_end = start
        self.is_blank = False
        self._batch_start = start
        # Messages that the TRANSACTIONs so far enqueue.
        self._claimed = 0
        # The batch number in the records of the current batch: -1 if there is none yet.
        self._tag = -1
        self._last = dict.fromkeys(map(int, Kind), 0) | {int(Kind.TRANSACTION): last_lsn}
        self._search = Search()
        # The part of the file in memory: `_content` from `_base` on.
        self._content = b""
        self._base = start

    # Called by the scan, for subclasses.

    @abstractmethod
    def _messages(self, offset: int) -> int:
        """Scan sound plain MESSAGE records from an offset in the window on.

        Returns where the first record starts that is not one, or is not in the window.
        """

    @abstractmethod
    def _message(self, record: Record, payload: bytes) -> None:
        """Handle a sound MESSAGE outside of the tight loop."""

    @abstractmethod
    def _transaction(self, record: Record, time_ms: int, operations: list[Operation]) -> None:
        """Handle a sound TRANSACTION: its batch ends with it."""

    @abstractmethod
    def _malformed_transaction(self, record: Record, reason: str) -> None:
        """Handle a TRANSACTION that no store writes: it counts as a gap in its batch."""

    @abstractmethod
    def _is_whole(self) -> bool:
        """Tell whether the batch that ends here is whole: see `amqpstore.format.batches`."""

    @abstractmethod
    def _end_batch(self, end: int) -> None:
        """End the batch at an offset; what follows belongs to another."""

    @abstractmethod
    def _header(self, record: Record, payload: bytes) -> None:
        """Handle a sound SEGMENT record."""

    # The scan.

    def _windows(self) -> Iterator[None]:
        """Scan everything; yields after each window. Raises: OSError."""
        offset = self._start
        while offset < self._end:
            self._load(offset)
            while self._has_record(offset):
                after = self._messages(offset)
                if after == offset:
                    after = self._other(offset)
                offset = after
            yield
        rest = self._end - self._batch_start
        if self._tag == -1 and rest > 0:
            self.is_blank = is_blank(self._read(self._batch_start, rest))
        self._finish(self._end)

    def _finish(self, end: int) -> None:
        if end > self._batch_start and not self.is_blank:
            self.whole_end = end if self._is_whole() else self._batch_start
        self._batch_start = end
        self._end_batch(end)
        self._tag = -1

    def _load(self, offset: int) -> None:
        """Load the record at `offset` into memory, as a whole if possible."""
        size = WINDOW_BYTES
        if offset == self._base and self._content:
            # A record longer than the window, by its header; or all the rest, if no header is
            # sound.
            size = self._end - offset
        self._content = self._read(offset, min(size, self._end - offset))
        self._base = offset
        if not self._content:
            # The file has become shorter.
            self._end = offset

    def _has_record(self, offset: int) -> bool:
        """Tell whether the memory has the whole record at `offset`, or the rest of the file."""
        start = offset - self._base
        if self._base + len(self._content) >= self._end:
            return start < len(self._content)
        if start + HEADER.size > len(self._content):
            return False
        # A wrong length gives a damaged record, for which all the rest is searched.
        length = HEADER.unpack_from(self._content, start)[6]
        return start + HEADER.size + int(length) <= len(self._content)

    def _other(self, offset: int) -> int:
        """Handle anything else at `offset`. Returns where it ends."""
        content, base = self._content, self._base
        item = record_at(content, offset - base, self._segment, self._seed)
        if isinstance(item, Record) and (reason := not_next(item.number, self._last[item.kind])):
            item = Gap(item.offset, item.end, reason)
        if isinstance(item, Gap):
            return self._gap(item, offset)
        kind, batch, number, _, start, end, flags = item
        record = Record(kind, batch, number, offset, base + start, base + end, flags)
        payload = content[item.payload_offset : item.end]
        self._last[record.kind] = record.number
        if record.kind == Kind.SEGMENT:
            self._header(record, payload)
            return record.end
        if self._tag not in (-1, record.batch):
            self._finish(offset)
        self._tag = record.batch
        if record.kind == Kind.MESSAGE:
            self._message(record, payload)
        elif record.kind == Kind.TRANSACTION:
            self._end_with(record, payload)
        else:
            self.gaps.append(Gap(offset, record.end, "an INDEX record is in a segment"))
        return record.end

    def _end_with(self, record: Record, payload: bytes) -> None:
        """End the batch with its TRANSACTION, if it is one that a store can have written."""
        try:
            time_ms, operations = sound_operations(payload, record.end, self._claimed)
        except ValueError as error:
            self._malformed_transaction(record, str(error))
        else:
            self._claimed += claimed_by(operations)
            self._transaction(record, time_ms, operations)
            self._finish(record.end)

    def _gap(self, gap: Gap, offset: int) -> int:
        if gap.end == gap.offset:
            # The next record may be anywhere.
            if self._base + len(self._content) < self._end:
                self._content = self._read(offset, self._end - offset)
                self._base = offset
            at = offset - self._base + 1
            end = self._base + self._search.next_record(
                self._content, at, self._segment, self._seed
            )
        else:
            end = self._base + gap.end
        gaps = self.gaps
        if gaps and (gaps[-1].end, gaps[-1].reason) == (offset, gap.reason):
            gaps[-1] = gaps[-1]._replace(end=end)
        else:
            gaps.append(Gap(offset, end, gap.reason))
        return end
