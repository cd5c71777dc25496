"""Transient messages that must leave memory: written to `transient/`, never synced, gone with the
process.

They are not in the log and do not survive a crash; the directory is wiped at the next start. Each
is read back right before it is taken, and then is in memory again: so a segment is removed as soon
as all of its messages were read back or are not needed any more.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from amqpstore.catalog.backing import Backing
from amqpstore.errors import MessageDamagedError
from amqpstore.format.message import Message
from amqpstore.format.records import MessageDecoder, encode_messages
from amqpstore.log.large_reads import LargeReads
from amqpstore.log.segments import Segment, Unread
from amqpstore.system.filenames import TRANSIENT, segment_name, segment_number

FIRST_TRANSIENT = 1 << 63
"""Ids from here on are those of transient messages: no id in the log is as high."""

_FIRST_ID = attrgetter("first_id")


class TransientLog:
    """Segments in `transient/`, ascending in id. Args: segment_bytes, as for `Log`."""

    def __init__(self, backing: Backing, segment_bytes: int) -> None:
        self._files = backing.files
        self._descriptors = backing.descriptors
        self._directory = f"{backing.directory}/{TRANSIENT}"
        self._seed = backing.seed
        self._segment_bytes = segment_bytes
        self._limits = backing.limits
        self._segments: list[Segment] = []
        self._unread: dict[int, int] = {}
        self._next_id = FIRST_TRANSIENT
        self._next_number = 1
        # Bodies are never compressed here, so there are no dictionaries.
        self._decoder = MessageDecoder({}, lambda body: body)

    def wipe(self) -> None:
        """Remove the files of an earlier process. What cannot be removed, such as a directory of
        that name, is left alone. Raises: OSError.
        """
        if self._files.exists(self._directory):
            for name in self._files.list_directory(self._directory):
                if number := segment_number(name):
                    try:
                        self._files.remove(f"{self._directory}/{name}")
                    except OSError:
                        # A file that cannot be removed keeps its number: `create` would fail on it
                        # at the first write.
                        self._next_number = max(self._next_number, number + 1)

    def write(self, messages: Sequence[Message]) -> int:
        """Write messages. Returns the first of their contiguous ids. Raises: OSError."""
        segment = self._segments[-1] if self._segments else None
        if segment is None or segment.size >= self._segment_bytes:
            segment = self._start_segment()
        buffers: list[bytes] = []
        lengths: list[int] = []
        first_id = self._next_id
        encode_messages(
            messages, first_id, segment.number, buffers, lengths, seed=self._seed, batch=0
        )
        try:
            segment.writer.append(buffers)
        except OSError:
            # It is unknown how much of it was written: nothing is written after it.
            segment.size = max(segment.size, self._segment_bytes)
            raise
        segment.note_batch(first_id, lengths, segment.size)
        segment.size += sum(lengths)
        self._next_id += len(messages)
        self._unread[segment.number] += len(messages)
        return first_id

    def read(
        self, first_id: int, count: int, large: LargeReads | None = None
    ) -> list[Message] | Unread:
        """Read some, at least one, of `count` messages of contiguous ids, until they are
        released.
        """
        segment = self._segment_of(first_id)
        if segment is None:
            return MessageDamagedError(first_id, "it no longer exists")
        count = min(count, segment.end_id - first_id)
        return segment.read(first_id, count, self._decoder, large)

    def forget_damage(self) -> None:
        """Look again at what could not be read."""
        for segment in self._segments:
            segment.forget_damage()

    def release(self, first_id: int, count: int) -> None:
        """Release messages that are in memory again, or not needed: each is released once."""
        end_id = first_id + count
        while first_id < end_id:
            segment = self._segment_of(first_id)
            if segment is None:
                return
            released = min(end_id, segment.end_id) - first_id
            self._unread[segment.number] -= released
            first_id += released
            if not self._unread[segment.number]:
                # The file that is being written goes too: the next write begins another.
                self._drop(segment)

    def close(self) -> None:
        """Close all files; they are wiped at the next start."""
        for segment in self._segments:
            segment.close()
        self._segments.clear()

    def _segment_of(self, message_id: int) -> Segment | None:
        index = bisect_right(self._segments, message_id, key=_FIRST_ID) - 1
        if index < 0 or message_id >= self._segments[index].end_id:
            return None
        return self._segments[index]

    def _start_segment(self) -> Segment:
        self._files.make_directory(self._directory)
        if self._segments:
            self._segments[-1].seal()
        number = self._next_number
        self._next_number += 1
        segment = Segment(
            self._descriptors,
            f"{self._directory}/{segment_name(number)}",
            number,
            self._seed,
            self._limits,
        )
        segment.create()
        segment.first_id = segment.end_id = self._next_id
        self._segments.append(segment)
        self._unread[number] = 0
        return segment

    def _drop(self, segment: Segment) -> None:
        self._segments.remove(segment)
        del self._unread[segment.number]
        segment.close()
        with contextlib.suppress(OSError):
            self._files.remove(segment.path)
