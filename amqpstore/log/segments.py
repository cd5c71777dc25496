"""One segment: a file of records, and a sparse table of where in it its messages are."""

from __future__ import annotations

import contextlib
import errno
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from itertools import accumulate
from operator import itemgetter

from amqpstore.catalog.tables import OffsetTableRow
from amqpstore.errors import MessageDamagedError, ReadLaterError
from amqpstore.format.limits import LIMITS, PAGE_BYTES, StoreLimits
from amqpstore.format.message import Message
from amqpstore.format.records import (
    HEADER,
    Gap,
    Kind,
    MessageDecoder,
    message_start,
    read_messages,
    scan,
)
from amqpstore.log.large_reads import LargeReads
from amqpstore.system.descriptors import Descriptors, is_shortage
from amqpstore.system.files import File

_MAX_SURVEYED = 4096
"""How many damaged places of one segment are remembered."""


Unread = MessageDamagedError | ReadLaterError
"""The reason why a message could not be read: because of the disk, or for now because of this
process.
"""

TableSteps = tuple[list[int], list[int]]
"""Ids and offsets for an offset table: see `Segment`."""


class Segment:
    """Segment `number` at `path`; `size` bytes of it were written or are about to be.

    Ids ascend in a segment, and those of messages that were published together are contiguous. So
    the offset table, with the ids of some messages and where their records start, is enough to find
    any message: records are walked from the entry before it. `first_id` to `end_id` is the range of
    ids that it may hold. `filled_end` is where the zeros end that its file was filled with ahead of
    use; 0 if it was not.

    Args: seed, of the checksums of the store's records; limits, the store's.
    """

    __slots__ = (
        "_cursor_id",
        "_cursor_offset",
        "_descriptors",
        "_limits",
        "_seed",
        "_survey",
        "_writer",
        "end_id",
        "filled_end",
        "first_id",
        "number",
        "path",
        "size",
        "table_ids",
        "table_offsets",
    )

    def __init__(
        self,
        descriptors: Descriptors,
        path: str,
        number: int,
        seed: int,
        limits: StoreLimits = LIMITS,
    ) -> None:
        self._limits = limits
        self._descriptors = descriptors
        self._seed = seed
        self._writer: File | None = None
        self.path = path
        self.number = number
        self.size = 0
        self.filled_end = 0
        self.first_id = 0
        self.end_id = 0
        self.table_ids = array("Q")
        self.table_offsets = array("Q")
        # Where the last read ended: the next one usually continues there.
        self._cursor_id = 0
        self._cursor_offset = 0
        self._survey: _Survey | None = None

    def restore(self, row: OffsetTableRow) -> None:
        """Restore the offset table from the catalog."""
        self.first_id = row.first_id
        self.end_id = row.end_id
        self.table_ids = array("Q", row.ids)
        self.table_offsets = array("Q", row.offsets)

    def offset_table_row(self) -> OffsetTableRow:
        """Return the offset table for the catalog: a copy."""
        return OffsetTableRow(
            self.first_id, self.end_id, self.table_ids.tolist(), self.table_offsets.tolist()
        )

    @property
    def is_empty(self) -> bool:
        """Whether it holds no message."""
        return self.first_id == self.end_id

    def note(self, message_id: int, offset: int) -> None:
        """Note where a message's record starts. Ids and offsets ascend."""
        offsets = self.table_offsets
        if not offsets or offset >= offsets[-1] + self._limits.table_step_bytes:
            self.table_ids.append(message_id)
            offsets.append(offset)
        if not self.end_id:
            self.first_id = message_id
        self.end_id = message_id + 1

    def note_batch(self, first_id: int, lengths: Sequence[int], offset: int) -> None:
        """Note where the records of contiguous ids start: back to back from `offset` on."""
        self.note_steps(first_id, first_id + len(lengths), self.steps(first_id, lengths, offset))

    def steps(self, first_id: int, lengths: Sequence[int], offset: int) -> TableSteps:
        """Return which of these records the offset table will have.

        Any thread may call this, while none notes anything.
        """
        step_bytes = self._limits.table_step_bytes
        last = self.table_offsets[-1] if self.table_offsets else offset - step_bytes
        ids: list[int] = []
        offsets: list[int] = []
        if offset >= last + step_bytes:
            ids = [first_id]
            offsets = [offset]
            last = offset
        count = len(lengths)
        if count * max(lengths) >= step_bytes:
            ends = list(accumulate(lengths, initial=offset))
            index = 0
            while (index := bisect_right(ends, last + step_bytes, index + 1)) < count:
                last = ends[index]
                ids.append(first_id + index)
                offsets.append(last)
        return ids, offsets

    def note_steps(self, first_id: int, end_id: int, steps: TableSteps) -> None:
        """Note messages of contiguous ids, and the result of `steps` for them."""
        ids, offsets = steps
        if ids:
            self.table_ids.extend(ids)
            self.table_offsets.extend(offsets)
        if not self.end_id:
            self.first_id = first_id
        self.end_id = end_id

    def read(
        self, first_id: int, count: int, decoder: MessageDecoder, large: LargeReads | None = None
    ) -> list[Message] | Unread:
        """Read some, at least one, of `count` messages of contiguous ids: about 1 MiB, in one read.

        If the first of them cannot be read back, returns the error that says why. One that is
        longer is read whole, or by `large`, if that is given.
        """
        try:
            return self._read(first_id, count, decoder, large)
        except (OSError, MemoryError) as error:
            if is_shortage(error):
                return ReadLaterError(self.path, str(error) or "out of memory")
            return self._damaged(first_id, str(error))

    def _read(
        self, first_id: int, count: int, decoder: MessageDecoder, large: LargeReads | None
    ) -> list[Message] | Unread:
        if self._survey and (missing := self._survey.missing(first_id)):
            return self._damaged(first_id, missing)
        offset = self._offset_before(first_id)
        try:
            return self._read_on(offset, first_id, count, decoder, large)
        except OSError as error:
            # EIO is the disk's word about this place. Other errors say nothing about what is stored
            # there.
            if error.errno != errno.EIO:
                raise
            return self._read_around_damage(first_id, str(error), decoder)

    def _read_on(
        self,
        offset: int,
        first_id: int,
        count: int,
        decoder: MessageDecoder,
        large: LargeReads | None,
    ) -> list[Message] | Unread:
        content = self._read_ahead(offset, self._offset_behind(first_id + count))
        messages, read, reason = read_messages(
            content, self.number, self._seed, first_id, count, decoder
        )
        if not messages and reason is None:
            # One record, longer than what is read at once.
            if large and (start := message_start(content, read, self.number, self._seed, first_id)):
                body_offset = offset + read + start.start_bytes
                if begun := large.begin(self.file, first_id, body_offset, start):
                    return begun
            whole = self._record_at(offset + read)
            messages, read, reason = read_messages(
                whole, self.number, self._seed, first_id, 1, decoder
            )
        if messages:
            self._cursor_id = first_id + len(messages)
            self._cursor_offset = offset + read
            return messages
        return self._read_around_damage(first_id, reason or "its record was not found", decoder)

    def _read_ahead(self, offset: int, end: int) -> bytes:
        """Read ahead from an offset to another, or to where the disk can read."""
        file = self.file()
        size = min(self._limits.read_ahead_bytes, end - offset)
        try:
            return file.read(offset, size)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        # The requested record may be before the bad place, and then is fine.
        page_bytes = self._limits.page_bytes
        page_end = (offset // page_bytes + 1) * page_bytes
        content = file.read(offset, min(page_end - offset, size))
        with contextlib.suppress(OSError):
            while len(content) < size and (
                page := file.read(page_end, min(page_bytes, size - len(content)))
            ):
                content += page
                page_end += len(page)
        return content

    def _offset_before(self, message_id: int) -> int:
        """Return where a record starts at or before that of a message."""
        index = bisect_right(self.table_ids, message_id) - 1
        offset = self.table_offsets[index] if index >= 0 else 0
        if self._survey:
            offset = max(offset, self._survey.offset_before(message_id))
        if self._cursor_id <= message_id and self._cursor_offset > offset:
            return self._cursor_offset
        return offset

    def _offset_behind(self, message_id: int) -> int:
        """Return where a record starts, or the segment ends, behind those of all smaller ids."""
        index = bisect_left(self.table_ids, message_id)
        return self.table_offsets[index] if index < len(self.table_ids) else self.size

    def _record_at(self, offset: int) -> bytes:
        """Return a whole record, if its header is sound. Raises: OSError."""
        header = self.file().read(offset, HEADER.size)
        if len(header) < HEADER.size:
            return b""
        # A damaged length may be anything up to 4 GiB: no more is read, nor allocated, than is
        # there.
        length = HEADER.unpack(header)[6]
        return self.file().read(offset, min(HEADER.size + length, self.size - offset))

    def _read_around_damage(
        self, message_id: int, reason: str, decoder: MessageDecoder
    ) -> list[Message] | MessageDamagedError:
        """Read one message of a segment in which the way to it is damaged.

        All of the segment is read for it, and the result is kept, so that the next messages after
        the damage, and in it, do not need that again.
        """
        content, unreadable = read_around(self.file(), self.size, self._limits.page_bytes)
        why = unreadable[0].reason if unreadable else ""
        survey = self._survey = _Survey(content, self.number, self._seed, self.end_id, why)
        if (missing := survey.missing(message_id)) is None:
            rest = content[self._offset_before(message_id) :]
            messages, _, damage = read_messages(
                rest, self.number, self._seed, message_id, 1, decoder
            )
            if messages:
                return messages
            missing = damage or reason
            survey.note_missing(message_id, message_id + 1, missing)
        return self._damaged(message_id, missing)

    def forget_damage(self) -> None:
        """Check damaged places again: the disk may be able to read them by now."""
        self._survey = None

    def _damaged(self, message_id: int, reason: str) -> MessageDamagedError:
        reason = f"segment {self.number} ({self.path}): {reason}"
        return MessageDamagedError(message_id, reason, path=self.path)

    def file(self) -> File:
        """Return the segment's file, to be read before another one's is. Raises: OSError."""
        return self._descriptors.open(self.path)

    @property
    def writer(self) -> File:
        """The file that `create` made, until `seal`. Raises: ValueError."""
        if self._writer is None:
            raise ValueError(f"{self.path} is not open to be written")
        return self._writer

    def create(self) -> None:
        """Create the file, to be appended to. Raises: OSError."""
        self._writer = self._descriptors.files.create(self.path)

    def use(self, spare: File) -> None:
        """Append to a file that has its path by now, and is filled."""
        self._writer = spare
        self.filled_end = spare.size()

    def write_to(self, file: File, size: int) -> None:
        """Append to a file that has its path by now, and that many bytes."""
        self._writer = file
        self.size = size
        self.filled_end = 0

    def forget_from(self, offset: int) -> None:
        """Forget where messages are whose records start at an offset or behind it."""
        index = bisect_left(self.table_offsets, offset)
        del self.table_ids[index:], self.table_offsets[index:]
        self._cursor_id = self._cursor_offset = 0

    def trim(self) -> None:
        """Cut off the zeros behind its end, if there are any. Raises: OSError."""
        if self.filled_end > self.size:
            self.writer.truncate(self.size)
            self.filled_end = 0

    def seal(self) -> None:
        """Close the file for writing: nothing more is appended."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def detach(self) -> File | None:
        """Return the file if it is open for reading, to be closed by the caller: it is not read any
        more.
        """
        return self._descriptors.detach(self.path)

    def close(self) -> None:
        """Close the file if it is open."""
        self.seal()
        if file := self.detach():
            file.close()


class _Survey:
    """The sound parts and the damaged places of a segment: the result of one scan of it.

    Its size is bounded: places after too many damaged ones cost a scan again.
    Args: why, the reason of gaps that the disk could not read; empty if it read everything.
    """

    def __init__(self, content: bytes, number: int, seed: int, end_id: int, why: str) -> None:
        # The first sound message after each damaged place, and where its record starts.
        self._ids = array("Q")
        self._offsets = array("Q")
        # Messages whose records may have been in such a place: ids from here, to before there.
        self._missing: list[tuple[int, int, str]] = []
        next_id, reason = 0, ""
        # Transient ones have numbers beyond all others.
        for item in scan(content, number, seed, most=(1 << 64) - 1):
            if isinstance(item, Gap):
                reason = why or reason or item.reason
            elif item.kind == Kind.MESSAGE:
                if reason:
                    self.note_missing(next_id, item.number, reason)
                    self._ids.append(item.number)
                    self._offsets.append(item.offset)
                    reason = ""
                next_id = item.number + 1
            if len(self._ids) >= _MAX_SURVEYED:
                return
        if reason:
            self.note_missing(next_id, end_id, reason)

    def note_missing(self, first_id: int, end_id: int, reason: str) -> None:
        """Note messages that have no sound record."""
        if first_id < end_id:
            insort(self._missing, (first_id, end_id, reason))

    def missing(self, message_id: int) -> str | None:
        """Return why a message has no sound record; None if unknown."""
        index = bisect_right(self._missing, message_id, key=itemgetter(0)) - 1
        if index >= 0 and message_id < self._missing[index][1]:
            return self._missing[index][2]
        return None

    def offset_before(self, message_id: int) -> int:
        """Return where a record starts at or before that of a message; 0 if unknown."""
        index = bisect_right(self._ids, message_id) - 1
        return self._offsets[index] if index >= 0 else 0


def read_around(file: File, size: int, page_bytes: int = PAGE_BYTES) -> tuple[bytes, list[Gap]]:
    """Return the first bytes of a file, and the pages that the disk cannot read (EIO): they are
    zeros.

    Raises: OSError, any other.
    """
    try:
        return file.read(0, size), []
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    unreadable: list[Gap] = []
    pages = [_page(file, offset, page_bytes, unreadable) for offset in range(0, size, page_bytes)]
    return b"".join(pages)[:size], unreadable


def _page(file: File, offset: int, page_bytes: int, unreadable: list[Gap]) -> bytes:
    try:
        return file.read(offset, page_bytes)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        unreadable.append(Gap(offset, offset + page_bytes, str(error)))
        return bytes(page_bytes)
