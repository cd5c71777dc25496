"""One segment: a file of records, and the table of where in it each message is."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from amqpstore.errors import MessageDamagedError
from amqpstore.files import File, Files
from amqpstore.message import Envelope, Message
from amqpstore.records import Gap, Kind, decode_message, record_at

NOT_HERE = 0
"""In the offset table: no message of that id in this segment. Offset 0 is the segment's header."""

_READ_AHEAD_BYTES = 1 << 20


class Segment:
    """Segment `number` at `path`; `size` bytes of it were written or are about to be.

    Args: seed, of the checksums of the store's records.

    `offsets` tells, for the message ids from `first_id` on, where each record starts.
    """

    __slots__ = ("_file", "_files", "_seed", "first_id", "number", "offsets", "path", "size")

    def __init__(self, files: Files, path: str, number: int, seed: int) -> None:
        self._files = files
        self._seed = seed
        self._file: File | None = None
        self.path = path
        self.number = number
        self.size = 0
        self.first_id = 0
        self.offsets = array("Q")

    @property
    def end_id(self) -> int:
        """The id after the last that the offset table knows."""
        return self.first_id + len(self.offsets)

    def place(self, message_id: int, offset: int) -> None:
        """Note where a message's record starts. Ids must ascend."""
        if not self.offsets:
            self.first_id = message_id
        while self.end_id < message_id:
            self.offsets.append(NOT_HERE)
        self.offsets.append(offset)

    def place_batch(self, first_id: int, lengths: Iterable[int], offset: int) -> None:
        """Note where the records of contiguous ids start: back to back from `offset` on."""
        if not self.offsets:
            self.first_id = first_id
        append = self.offsets.append
        for length in lengths:
            append(offset)
            offset += length

    def holds(self, message_id: int) -> bool:
        """Whether the offset table has a record of that message."""
        return (
            self.first_id <= message_id < self.end_id
            and self.offsets[message_id - self.first_id] != NOT_HERE
        )

    def read(
        self, first_id: int, count: int, envelopes: dict[bytes, Envelope]
    ) -> list[Message] | MessageDamagedError:
        """Some, at least one, of `count` messages of contiguous ids: about 1 MiB, one read.

        Where the first of them cannot be read back: the error that says why.
        """
        start = first_id - self.first_id
        stop = min(start + count, len(self.offsets))
        base = self.offsets[start]
        if base == NOT_HERE:
            return self._damaged(first_id, "no record of it was found when the store was opened")
        some = start + 1
        while some < stop and base < self.offsets[some] < base + _READ_AHEAD_BYTES:
            some += 1
        try:
            content = self.file().read(base, self._end_of(some - 1) - base)
        except OSError as error:
            return self._damaged(first_id, str(error))
        messages: list[Message] = []
        for place in range(start, some):
            found = self._message(content, place, self.offsets[place] - base, envelopes)
            if isinstance(found, MessageDamagedError):
                return messages or found
            messages.append(found)
        return messages

    def _end_of(self, place: int) -> int:
        """Where the record at `place` ends, or further on: at the next message or at the end."""
        following = (offset for offset in self.offsets[place + 1 : place + 2] if offset)
        return next(following, self.size)

    def _message(
        self, content: bytes, place: int, offset: int, envelopes: dict[bytes, Envelope]
    ) -> Message | MessageDamagedError:
        message_id = self.first_id + place
        found = record_at(content, offset, self.number, self._seed)
        if isinstance(found, Gap):
            return self._damaged(message_id, found.reason)
        if found.kind != Kind.MESSAGE or found.number != message_id:
            return self._damaged(message_id, "another record is in its place")
        try:
            return decode_message(content[found.payload_offset : found.end], envelopes)
        except ValueError as error:
            return self._damaged(message_id, str(error))

    def _damaged(self, message_id: int, reason: str) -> MessageDamagedError:
        return MessageDamagedError(message_id, f"segment {self.number} ({self.path}): {reason}")

    def file(self) -> File:
        """The segment's file, opened for reading where it is not open yet. Raises: OSError."""
        if self._file is None:
            self._file = self._files.open(self.path)
        return self._file

    def create(self) -> None:
        """Make the file, to be appended to. Raises: OSError."""
        self._file = self._files.create(self.path)

    def close(self) -> None:
        """Close the file where it is open."""
        if self._file is not None:
            self._file.close()
            self._file = None
