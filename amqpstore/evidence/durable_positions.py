"""Positions up to which the log was durable: noted about once a second, and in each segment, beside
the log.

A log whose end is lost (a last segment of zeros, cut off, or gone) looks like a shorter one, and
the catalog only knows its last checkpoint, some seconds ago. So the process that writes the log
notes how far it was durable, in files in `trails/` that nothing else depends on. They are not
synced: a power cut takes the last notes, and then less is known. But what they say is true of every
crash: a note is written only once everything before it is durable.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from crc32c import crc32c

from amqpstore.catalog.tables import Position
from amqpstore.system.durability import reason_of
from amqpstore.system.filenames import TRAILS, position_name, position_number
from amqpstore.system.files import File, Files
from amqpstore.terms import term_of

_log = logging.getLogger(__name__)

MAGIC = b"\xc7POS"

NOTE = struct.Struct(">4sIQQQQQQI")
"""magic, segment, offset, LSN, message id, first LSN, first message id, time, checksum."""

_CHECKSUM_BYTES = 4

FILE_BYTES = 64 << 10
"""The size from which on a file gets no further note: some twenty minutes of traffic."""

_FILES = 3
"""How many files are kept. Each start begins a new one, so at least the last two processes' are;
and all, while what they know of is missing and no checkpoint has noted that.
"""

_PAUSE_MS = 1000
_RETRY_MS = 60_000


class DurablePosition(NamedTuple):
    """A position up to which the log was durable at a time, in ms since 1970.

    The process that noted it had written all batches and messages from `first_lsn` and
    `first_message_id` to before `lsn` and `message_id`, without a gap: in one term, as each leader
    of a group skips numbers when it begins.
    """

    segment: int
    offset: int
    lsn: int
    message_id: int
    first_lsn: int
    first_message_id: int
    at_ms: int


class PositionNotes:
    """Notes the positions of an open log; not again before `due_ms`, by the monotonic clock, unless
    the log has gone on in another segment than `segment`: a start that misses that one has to know
    its number.

    Args: seed, of the store's records; first, where the log goes on in this process; may_write,
    tells whether the disk has room; may_remove, whether nothing needs the notes of earlier
    processes.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        seed: int,
        first: Position,
        may_write: Callable[[], bool],
        may_remove: Callable[[], bool],
    ) -> None:
        self._files = files
        self._directory = f"{directory}/{TRAILS}"
        self._seed = seed
        self._first = self._noted = first
        self._may_write = may_write
        self._may_remove = may_remove
        self._file: File | None = None
        self.due_ms = 0
        self.segment = first.segment

    def note(self, position: Position, now_ms: int, wall_ms: int) -> None:
        """Note a position of the log that is durable, unless it was noted, or another one in its
        segment less than a second ago. Args: now_ms, of the monotonic clock.
        """
        if now_ms < self.due_ms and position.segment == self.segment:
            return
        # Whether it can be written or not: after a failure it is not tried for each batch.
        self.segment = position.segment
        self.due_ms = now_ms + _PAUSE_MS
        # An idle store writes no notes: the file would grow for nothing, and wake the disk.
        if position.lsn == self._noted.lsn or not self._may_write():
            return
        if term_of(position.lsn) != term_of(self._first.lsn):
            # A follower goes on with the batches of another leader. Which numbers that one skipped
            # is not known here: what it wrote until now is left out.
            self._first = self._noted = position
            return
        try:
            # The note is not synced: a sync for each note would cost as much as one for a confirm.
            file = self._file or self._begin_file()
            first = self._first
            noted = DurablePosition(*position, first.lsn, first.message_id, wall_ms)
            file.append([encode_note(noted, self._seed)])
        except (OSError, MemoryError) as error:
            _log.warning(
                "how far the log is durable is not noted for a minute: %s", reason_of(error)
            )
            self.due_ms = now_ms + _RETRY_MS
            # It is unknown how much was written: nothing is written behind it.
            self.close()
            return
        self._noted = position
        if file.end() >= FILE_BYTES:
            self.close()

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _begin_file(self) -> File:
        if not self._files.exists(self._directory):
            self._files.make_directory(self._directory)
        numbers = _numbers(self._files, self._directory)
        if self._may_remove():
            for number in numbers[: max(0, len(numbers) + 1 - _FILES)]:
                self._files.remove(f"{self._directory}/{position_name(number)}")
        # Never behind the notes of another process: a torn one would put all that follow out of
        # step.
        name = position_name(max(numbers, default=0) + 1)
        self._file = self._files.create(f"{self._directory}/{name}")
        return self._file


def encode_note(noted: DurablePosition, seed: int) -> bytes:
    """Return a note as it is stored."""
    content = NOTE.pack(MAGIC, *noted, 0)[:-_CHECKSUM_BYTES]
    return content + crc32c(content, seed).to_bytes(_CHECKSUM_BYTES, "big")


def read_positions(files: Files, directory: str, seed: int) -> list[DurablePosition]:
    """Return the last position that each process noted in each term, as far as the notes are still
    there, ascending. What is not sound is left out. Raises: OSError.
    """
    trails = f"{directory}/{TRAILS}"
    last: dict[int, DurablePosition] = {}
    if files.exists(trails):
        for number in _numbers(files, trails):
            for found in _notes(files, f"{trails}/{position_name(number)}", seed):
                # The last note of each process says everything that its earlier ones say.
                if found.lsn > last.get(found.first_lsn, found._replace(lsn=0)).lsn:
                    last[found.first_lsn] = found
    return [last[first] for first in sorted(last)]


def _notes(files: Files, path: str, seed: int) -> Iterator[DurablePosition]:
    try:
        file = files.open(path)
    except FileNotFoundError:
        return  # It was removed meanwhile.
    try:
        content = file.read(0, 2 * FILE_BYTES)
    finally:
        file.close()
    # Notes have a fixed size, so a torn one hides no other.
    for offset in range(0, len(content) - NOTE.size + 1, NOTE.size):
        magic, *fields, checksum = NOTE.unpack_from(content, offset)
        if magic == MAGIC and checksum == crc32c(
            content[offset : offset + NOTE.size - _CHECKSUM_BYTES], seed
        ):
            yield DurablePosition(*fields)


def _numbers(files: Files, trails: str) -> list[int]:
    return sorted(
        number for name in files.list_directory(trails) if (number := position_number(name))
    )
