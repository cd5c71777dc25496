"""The end of a follower's log, written anew: what both members have, and what the leader has behind
that.

A segment is written as a whole under another name, synced, and renamed over the old one. So a
follower never appends behind a torn tail, and many missed batches cost one sync. What it discards
is in quarantine first. A crash leaves the old end of the log or the new one:

1. the new segment is written and synced. A crash leaves it under the other name, until the
   member joins its leader again, or leads;
2. segments in which a batch is discarded, and those behind them, are copied to quarantine. A crash
   leaves a part of the copies;
3. segments behind it are removed, the last one first. A crash leaves a log that ends between two of
   them;
4. the new segment is renamed over the old one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from amqpstore.replica.log_reading import BatchEnd
from amqpstore.system.durability import sync_directory, sync_file
from amqpstore.system.filenames import (
    QUARANTINE,
    SEGMENTS,
    is_unfinished,
    new_segment_path,
    rejoin_number,
    rejoin_path,
    segment_name,
    segment_path,
)
from amqpstore.system.files import Files
from amqpstore.system.removal import attempt

_PIECE_BYTES = 1 << 20


class Discarded(NamedTuple):
    """Batches that a follower had and its leader had not: nothing in them was confirmed.

    `path` is the directory that they are in now.
    """

    path: str
    lsns: tuple[int, ...]


class SegmentRewrite:
    """Segment `number` while it is written anew: up to `offset` as it was, up to the end of batch
    `end.lsn`; behind that, what is appended. `size` bytes were written, to `path`.

    Raises: OSError.
    """

    def __init__(self, files: Files, directory: str, number: int, end: BatchEnd) -> None:
        self.number = number
        self.end = end
        self.offset = end.offset if number == end.segment else 0
        self.size = 0
        self._files = files
        self._directory = directory
        self.path = new_segment_path(directory, number)
        # An attempt that a crash has cut off has left this file; `create` would fail on it.
        remove_unfinished(files, directory)
        self.file = files.create(self.path)
        try:
            if self.offset:
                for piece in _pieces(files, segment_path(directory, number), self.offset):
                    self.append(piece)
        except BaseException:
            self.abandon()
            raise

    def append(self, content: bytes) -> None:
        """Append what the leader has next in this segment. Raises: OSError; then abandon it."""
        self.file.append([content])
        self.size += len(content)

    def content(self) -> bytes:
        """Return what was written. Raises: OSError."""
        return self.file.read(0, self.size)

    def abandon(self) -> None:
        """Remove it: the log stays as it is."""
        with contextlib.suppress(OSError):
            self.file.close()
        attempt(self._files.remove, self.path)

    def sync(self) -> None:
        """Make what was written durable. Raises: DurabilityError."""
        sync_file(self.file)

    def rename_to_segment(self) -> None:
        """Rename it to the segment. Durable on return. Raises: OSError, DurabilityError."""
        # Synced before: a rename may reach the disk before the bytes do.
        self._files.rename(self.path, segment_path(self._directory, self.number))
        sync_directory(self._files, f"{self._directory}/{SEGMENTS}")


def remove_unfinished(files: Files, directory: str) -> None:
    """Remove what a crash left of a segment that was written anew."""
    for name in files.list_directory(f"{directory}/{SEGMENTS}"):
        if is_unfinished(name):
            attempt(files.remove, f"{directory}/{SEGMENTS}/{name}")


def new_quarantine(files: Files, directory: str) -> str:
    """Make a directory for what is discarded now, and return its path. Durable on return."""
    parent = f"{directory}/{QUARANTINE}"
    files.make_directory(parent)
    # An existing directory is never used: it may hold batches of an earlier join.
    numbers = [rejoin_number(name) or 0 for name in files.list_directory(parent)]
    path = rejoin_path(directory, max(numbers, default=0) + 1)
    files.make_directory(path)
    return path


def copy_to(files: Files, directory: str, number: int, size: int, to: str) -> None:
    """Copy a segment to a directory. Durable on return. Raises: OSError, DurabilityError."""
    path = os.path.join(to, segment_name(number))
    copy = files.create(path)
    try:
        for piece in _pieces(files, segment_path(directory, number), size):
            copy.append([piece])
        sync_file(copy)
    finally:
        copy.close()
    # The names are synced as well: quarantine has to be whole before the originals go.
    sync_directory(files, to)


def remove_last(files: Files, directory: str, numbers: Sequence[int]) -> None:
    """Remove the log's last segments. Durable on return. Raises: OSError, DurabilityError."""
    for number in sorted(numbers, reverse=True):
        files.remove(segment_path(directory, number))
        # One by one: the log never lacks a segment in front of one that it has.
        sync_directory(files, f"{directory}/{SEGMENTS}")


def _pieces(files: Files, path: str, size: int) -> Iterator[bytes]:
    """Yield the first bytes of a file, in pieces. Raises: OSError, also if it has fewer."""
    file = files.open(path)
    try:
        for offset in range(0, size, _PIECE_BYTES):
            piece = file.read(offset, min(_PIECE_BYTES, size - offset))
            if not piece:
                raise OSError(f"{path} has no byte {offset}, of {size}")
            yield piece
    finally:
        file.close()
