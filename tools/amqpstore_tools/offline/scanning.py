"""The records of a segment, as fast as Python goes through them.

A segment is mostly MESSAGE records back to back. For these a scanner has a tight loop that does as
little as can be done for what it is after. Whatever is not one of them leaves the loop for
`records.record_at`, the engine's own word on what is sound, and is told here.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

from amqpstore.batches import claimed_by, sound_operations
from amqpstore.records import (
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
"""As `records.HEADER`, with all before the number as one integer."""

BATCH_BITS = 0xFFFF

PLAIN_MESSAGE = int.from_bytes(MAGIC + bytes([Kind.MESSAGE, 0, 0, 0]), "big")
"""That integer, of a MESSAGE that is not compressed, of batch 0."""

WINDOW_BYTES = 512 << 10
"""Read at a time: what fits the processor's cache is checked twice as fast as what does not."""


class RecordScanner(ABC):
    """Goes through one segment from `start` up to `end`, once.

    `gaps` are the places that are not records. Args: read, which takes a file, an offset and a
    size; segment, its number; seed, of the checksums.
    """

    def __init__(
        self, read: Callable[[int, int], bytes], start: int, end: int, *, segment: int, seed: int
    ) -> None:
        self.gaps: list[Gap] = []
        self._read = read
        self._start = start
        self._end = end
        self._segment = segment
        self._seed = seed
        # Where the last whole batch that was read ends: at the end, behind it is what may be torn.
        self.whole_end = start
        self._batch_start = start
        # Messages that the TRANSACTIONs so far enqueue.
        self._claimed = 0
        # What its records say of the batch that they are of: -1 where none did yet.
        self._tag = -1
        self._last = dict.fromkeys(map(int, Kind), 0)
        self._search = Search()
        # What is in memory of the file: `_content` from `_base` on.
        self._content = b""
        self._base = start

    # What a scanner makes of it.

    @abstractmethod
    def _messages(self, offset: int) -> int:
        """Go through sound plain MESSAGE records from an offset in the window on.

        Returns where the first record starts that is none, or is not in the window.
        """

    @abstractmethod
    def _message(self, record: Record, payload: bytes) -> None:
        """A sound MESSAGE that was left to the slow way."""

    @abstractmethod
    def _transaction(self, record: Record, time_ms: int, operations: list[Operation]) -> None:
        """Take a sound TRANSACTION: its batch ends with it."""

    @abstractmethod
    def _malformed_transaction(self, record: Record, reason: str) -> None:
        """Take a TRANSACTION that no store writes: it counts as a gap in its batch."""

    @abstractmethod
    def _is_whole(self) -> bool:
        """Tell whether the batch, which ends here, is whole: see `amqpstore.batches`."""

    @abstractmethod
    def _end_batch(self, end: int) -> None:
        """The batch ends at an offset; what follows is another's."""

    @abstractmethod
    def _header(self, record: Record, payload: bytes) -> None:
        """A sound SEGMENT record."""

    # How it is gone through.

    def _windows(self) -> Iterator[None]:
        """Go through all of it; stops behind each window. Raises: OSError."""
        offset = self._start
        while offset < self._end:
            self._load(offset)
            while self._has_record(offset):
                after = self._messages(offset)
                if after == offset:
                    after = self._other(offset)
                offset = after
            yield
        self._finish(self._end)

    def _finish(self, end: int) -> None:
        if end > self._batch_start:
            self.whole_end = end if self._is_whole() else self._batch_start
        self._batch_start = end
        self._end_batch(end)
        self._tag = -1

    def _load(self, offset: int) -> None:
        """Have the record at `offset` in memory, whole where it can be."""
        size = WINDOW_BYTES
        if offset == self._base and self._content:
            # One longer than the window, as its header says; or where none is sound, all the rest.
            size = self._end - offset
        self._content = self._read(offset, min(size, self._end - offset))
        self._base = offset
        if not self._content:
            # The file has become shorter.
            self._end = offset

    def _has_record(self, offset: int) -> bool:
        """Whether what is in memory holds the record at `offset`, or all that follows."""
        start = offset - self._base
        if self._base + len(self._content) >= self._end:
            return start < len(self._content)
        if start + HEADER.size > len(self._content):
            return False
        # A length that is wrong leads to a damaged record, which is looked at in all the rest.
        length = HEADER.unpack_from(self._content, start)[6]
        return start + HEADER.size + int(length) <= len(self._content)

    def _other(self, offset: int) -> int:
        """Whatever is at `offset`. Returns where it ends."""
        content, base = self._content, self._base
        found = record_at(content, offset - base, self._segment, self._seed)
        if isinstance(found, Record) and (reason := not_next(found.number, self._last[found.kind])):
            found = Gap(found.offset, found.end, reason)
        if isinstance(found, Gap):
            return self._gap(found, offset)
        kind, batch, number, _, start, end, flags = found
        record = Record(kind, batch, number, offset, base + start, base + end, flags)
        payload = content[found.payload_offset : found.end]
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
        """End the batch with its TRANSACTION, if that is one that a store can have written."""
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
            place = offset - self._base + 1
            end = self._base + self._search.next_record(
                self._content, place, self._segment, self._seed
            )
        else:
            end = self._base + gap.end
        gaps = self.gaps
        if gaps and (gaps[-1].end, gaps[-1].reason) == (offset, gap.reason):
            gaps[-1] = gaps[-1]._replace(end=end)
        else:
            gaps.append(Gap(offset, end, gap.reason))
        return end
