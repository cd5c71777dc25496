"""Spare segments: files of dropped segments, filled with zeros, in which the log goes on.

A new file costs more than the bytes that are written to it: its blocks are allocated and noted in
the file system's journal, and each page of the kernel's cache has to be found. A file that was
written before has both, and batches of up to some 100 KiB are on disk in a third of the time.

The zeros are written in the background, and are durable before the log has the file: so behind its
last batch is what `filling` leaves there as well. Their name says that they are unused. It is
durable before the first zero is written, so no crash leaves zeros in a file that has another name.
"""

from __future__ import annotations

import logging
import time
from collections import deque

from amqpstore.log.space import Space
from amqpstore.system.clock import Clock
from amqpstore.system.durability import reason_of, sync_directory, sync_file
from amqpstore.system.filenames import SEGMENTS, segment_path, spare_path
from amqpstore.system.files import File, Files
from amqpstore.system.removal import attempt

_log = logging.getLogger(__name__)

_MOST = 2

_PAUSE_MS = 1000
"""The shortest time between two spare segments: more would cost as much disk time as they save."""

_MAX_BATCH_BYTES = 256 << 10
"""The largest batches, on average, for which a spare segment saves more than its zeros cost."""

_STEP_BYTES = 1 << 20
"""Zeros that are written and synced in one go: batches of the log wait for no more than these."""


class Spares:
    """The spare segments of one log, which continues in another segment from `segment_bytes` on.

    One thread may `keep` while another one takes.
    """

    def __init__(
        self, files: Files, directory: str, segment_bytes: int, space: Space, clock: Clock
    ) -> None:
        self._files = files
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._space = space
        self._clock = clock
        self._next_ms = 0
        self._is_bulk = False
        """The log writes batches so large that it has no use for spare segments."""
        self._ready: deque[str] = deque()
        self._is_closed = False

    def keep(self, number: int) -> None:
        """Make a dropped segment a spare one; remove its file if it is not wanted, or cannot be
        used, as somebody still reads it.

        Raises: DurabilityError, as the disk fails.
        """
        path = segment_path(self._directory, number)
        now_ms = self._clock.monotonic_ms()
        if not self._is_wanted(now_ms):
            attempt(self._files.remove, path)
            return
        self._next_ms = now_ms + _PAUSE_MS
        spare = spare_path(self._directory, number)
        try:
            file = self._files.recycle(path, spare)
        except (OSError, MemoryError) as error:
            self._give_up(path, error)
            return
        try:
            self._blank(file)
        except (OSError, MemoryError) as error:
            self._give_up(spare, error)
            return
        self._ready.append(spare)
        # `close` may have removed all of them while this thread was writing zeros.
        if self._is_closed:
            self.remove()

    def take(self, path: str, batch_bytes: int) -> File | None:
        """Return a spare segment as the file `path`, to be written; None if there is none, or the
        log has no use for it. To be called for each new segment.

        Args: batch_bytes, what a batch of the segment before it has on average.

        Its name is durable only once `segments/` is synced.
        """
        self._is_bulk = batch_bytes > _MAX_BATCH_BYTES
        if self._is_bulk:
            return None
        try:
            # Not asked for before: another thread may take or remove the last one in between.
            spare = self._ready.popleft()
        except IndexError:
            return None
        try:
            return self._files.recycle(spare, path)
        except (OSError, MemoryError) as error:
            self._give_up(spare, error)
            return None

    def _give_up(self, path: str, error: OSError | MemoryError) -> None:
        """Remove an unused file that cannot be used again."""
        # BlockingIOError is usual: a copy, or Spark, reads the segment, or has a link to it.
        if not isinstance(error, BlockingIOError):
            _log.warning("a segment cannot be used again, and is removed: %s", reason_of(error))
        attempt(self._files.remove, path)

    def remove(self) -> None:
        """Remove all of them: the disk is getting full."""
        while self._ready:
            attempt(self._files.remove, self._ready.popleft())

    def close(self) -> None:
        """Remove all of them, and keep no more."""
        self._is_closed = True
        self.remove()

    def _is_wanted(self, now_ms: int) -> bool:
        if self._is_closed or self._is_bulk or self._space.is_low:
            return False
        return len(self._ready) < _MOST and now_ms >= self._next_ms

    def _blank(self, file: File) -> None:
        """Fill a segment with zeros and close it. Durable on return, as its new name is.

        Raises: DurabilityError, OSError, MemoryError.
        """
        try:
            # The new name first: zeros under a segment's name would be a log that lost its end.
            sync_directory(self._files, f"{self._directory}/{SEGMENTS}")
            size = min(file.size(), self._segment_bytes)
            # Zeros behind that would stay behind the last batch of a segment that is not the last.
            file.truncate(size)
            # What was written in large batches, or read, may be in units of many pages: see
            # `OsFile.fill`. Zeros that are written to them would leave them as they are.
            file.drop_cache()
            for start in range(0, size, _STEP_BYTES):
                began_s = time.perf_counter()
                file.fill(start, min(start + _STEP_BYTES, size))
                sync_file(file)
                # The log has the disk for as long as this had it.
                time.sleep(time.perf_counter() - began_s)
        finally:
            file.close()
