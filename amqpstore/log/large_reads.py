"""Large messages that are read in parts, for whoever must not hold up others while one is read."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Protocol

from crc32c import crc32c

from amqpstore.errors import MessageDamagedError, PartlyReadError, ReadLaterError
from amqpstore.format.message import Message
from amqpstore.format.records import MessageStart, envelope_of
from amqpstore.system.clock import Clock
from amqpstore.system.files import File

_MAX_READINGS = 2
"""How many messages are read at a time: each has its body in memory, and one part of it is read in
each turn.
"""

_ABANDONED_MS = 1000
"""The time after which a message that was read is given up: its consumer has left, perhaps."""


class MessageSource(Protocol):
    """A source that messages are read from: the log, or transient messages on disk."""

    def read(
        self, first_id: int, count: int, large: LargeReads | None = None
    ) -> list[Message] | MessageDamagedError | ReadLaterError:
        """Read some of `count` messages; of a large one let `large` read a part."""


class _Reading:
    """A message of which a part has been read; its body is at `offset` of the file."""

    def __init__(
        self, file: Callable[[], File], offset: int, start: MessageStart, now_ms: int
    ) -> None:
        self.asked_ms = now_ms
        self._file = file
        self._offset = offset
        self._start = start
        self._checksum = start.checksum
        self._body = BytesIO()

    def read(self, chunk_bytes: int) -> Message | None:
        """Read a part more. Returns the message once it is whole.

        Raises: OSError, MemoryError; ValueError, if it is not sound.
        """
        read_bytes = self._body.tell()
        size = min(chunk_bytes, self._start.body_bytes - read_bytes)
        part = self._file().read(self._offset + read_bytes, size)
        if len(part) < size:
            raise ValueError("the file ends within the record")
        self._checksum = crc32c(part, self._checksum)
        self._body.write(part)
        if read_bytes + size < self._start.body_bytes:
            return None
        if self._checksum != self._start.payload_checksum:
            raise ValueError("the payload's checksum does not match")
        return Message(envelope_of(self._start.head), self._body.getvalue())


class LargeReads:
    """The messages that are being read, each `chunk_bytes` at a time: the caller asks again until
    it has the message.

    A message whose record is damaged, or was moved by compaction meanwhile, is read whole, which
    tells what is wrong with it.
    """

    def __init__(self, chunk_bytes: int, clock: Clock) -> None:
        self._chunk_bytes = chunk_bytes
        self._clock = clock
        self._readings: dict[int, _Reading] = {}

    def read(
        self, source: MessageSource, first_id: int, count: int
    ) -> list[Message] | MessageDamagedError | ReadLaterError:
        """Read as `source` does, but of a large message only a part."""
        reading = self._readings.get(first_id)
        if reading is None:
            return source.read(first_id, count, self)
        reading.asked_ms = self._clock.monotonic_ms()
        try:
            message = reading.read(self._chunk_bytes)
        except (OSError, MemoryError, ValueError):
            del self._readings[first_id]
            return source.read(first_id, count)
        if message is None:
            return _partly_read(first_id)
        del self._readings[first_id]
        return [message]

    def begin(
        self, file: Callable[[], File], message_id: int, offset: int, start: MessageStart
    ) -> PartlyReadError | None:
        """Begin to read a message, whose body is at `offset`, unless enough others are being read.

        Returns None if it is to be read whole.
        """
        if start.body_bytes <= self._chunk_bytes:
            return None
        self.drop_abandoned()
        if len(self._readings) < _MAX_READINGS:
            now_ms = self._clock.monotonic_ms()
            self._readings[message_id] = _Reading(file, offset, start, now_ms)
        return _partly_read(message_id)

    def drop_abandoned(self) -> None:
        """Drop what was read of messages whose read was not continued."""
        if self._readings:
            since_ms = self._clock.monotonic_ms() - _ABANDONED_MS
            self._readings = {
                message_id: reading
                for message_id, reading in self._readings.items()
                if reading.asked_ms >= since_ms
            }


def _partly_read(message_id: int) -> PartlyReadError:
    return PartlyReadError(f"message {message_id}", "it is large, and being read")
