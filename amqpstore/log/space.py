"""Disk space: publishers are refused before the disk is full, and a reserve is kept for everything
else.

Acks, purges, deletes, checkpoints, compaction and a restart need a little space as well, and in the
end they free some. So a file `reserve` takes up space that is freed, by its removal, when one of
them does not find enough; once there is space again, it is created again. The catalog uses it too:
LMDB uses the free pages of its file before the file grows, so it needs only a few pages once on a
full disk, and no part of its map has to be reserved.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Sequence

from amqpstore.catalog.catalog import Catalog, Change, Value
from amqpstore.catalog.definitions import COPIED
from amqpstore.errors import DiskFullError
from amqpstore.log.measures import BucketHistogram
from amqpstore.system.filenames import RESERVE
from amqpstore.system.files import Files, FileType

_PLENTY_BYTES = 256 << 20
"""While more than this is free, what is written is subtracted from what was free at the last look:
asking before each write costs a system call. A disk that others fill meanwhile costs the reserve
only when a write fails.
"""

_SMALL_WRITE_BYTES = 4 << 20
"""More than any write whose size is not known in advance."""


def is_no_space(error: OSError) -> bool:
    """Tell whether a write failed because the disk, or this user's quota, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class Space:
    """The free space and the reserve of the disk that `directory` is on.

    Args: least_free_bytes, below which publishers are refused; reserve_bytes, of the reserve.
    """

    def __init__(
        self, files: Files, directory: str, *, least_free_bytes: int, reserve_bytes: int
    ) -> None:
        self.is_full = False
        self.is_low = False
        self.on_low: Callable[[], None] = lambda: None
        """Called when the disk was found to be low, after it was not."""
        self.problem = ""
        """The reason why the disk did not even say how much is free, when it was last asked; empty
        if it did.
        """
        self._files = files
        self._directory = directory
        self._path = os.path.join(directory, RESERVE)
        self._least_free_bytes = least_free_bytes
        self._reserve_bytes = reserve_bytes
        self._has_reserve = files.type_of(self._path) is FileType.FILE
        self.written_bytes = 0
        """The bytes that were written since the disk was last asked."""
        self.trusted_bytes = 0
        """The bytes that may be written before the disk is asked again: below it `check` refuses
        nothing, and `make_room` has nothing to do.
        """
        self._free_seen_bytes = 0
        self._spare_bytes = 0
        """Bytes that were free, and those of them for publishers, when the disk was last asked."""

    def look(self) -> None:
        """Check how much space there is; create the reserve if it is missing and fits."""
        free = self._see()
        if (
            not self._has_reserve
            and self._reserve_bytes
            and free >= self._least_free_bytes * 5 // 4 + self._reserve_bytes
        ):
            # Nothing waits for it: the next look tries again.
            with contextlib.suppress(OSError):
                self._files.allocate(self._path, self._reserve_bytes)
                self._has_reserve = True
                self._see()

    def require(self, least_free_bytes: int) -> None:
        """Change the free bytes below which publishers are refused."""
        self._least_free_bytes = least_free_bytes
        self._see()

    def check(self, needed_bytes: int) -> None:
        """Raises: DiskFullError, if publishers may not use that much now."""
        if self.is_full or self.written_bytes + needed_bytes > self._spare_bytes:
            self._see()
            if self.is_full or needed_bytes > self._spare_bytes:
                raise self.error(needed_bytes)

    def make_room(self, needed_bytes: int = 0) -> None:
        """Remove the reserve if the disk has not that much space, and a little more."""
        self.written_bytes += needed_bytes
        if self.free_bytes > _PLENTY_BYTES:
            return
        free = self._free_bytes()
        left_bytes = free - needed_bytes - self._kept_bytes - self._least_free_bytes
        self._spare_bytes = left_bytes + self.written_bytes
        if free < needed_bytes + _SMALL_WRITE_BYTES:
            self.give_up()

    def give_up(self) -> None:
        """Remove the reserve, if it exists: the disk is full, and a write will be tried again."""
        if self._has_reserve:
            self._has_reserve = False
            with contextlib.suppress(OSError):
                self._files.remove(self._path)

    def error(self, needed_bytes: int = 0) -> DiskFullError:
        """Return the error for a request that does not fit on the disk."""
        least = self._least_free_bytes * (5 if self.is_full else 4) // 4
        needed = least + self._kept_bytes + needed_bytes
        return DiskFullError(self._directory, self._free_bytes(), needed, self.problem)

    @property
    def free_bytes(self) -> int:
        """The bytes that were free when the disk was last asked, less those written since."""
        return self._free_seen_bytes - self.written_bytes

    @property
    def least_free_bytes(self) -> int:
        """The free bytes below which publishers are refused."""
        return self._least_free_bytes

    @property
    def _kept_bytes(self) -> int:
        """Free bytes that are not for publishers: the size of the reserve, while that is
        missing.
        """
        return 0 if self._has_reserve else self._reserve_bytes

    def _see(self) -> int:
        free = self._free_seen_bytes = self._free_bytes()
        self.written_bytes = 0
        for_publishers = free - self._kept_bytes
        # Some more than where it was refused, so that it does not alternate at the limit.
        least = self._least_free_bytes * (5 if self.is_full else 4) // 4
        self.is_full = for_publishers < least
        was_low = self.is_low
        self.is_low = self.is_full or for_publishers < 2 * self._least_free_bytes
        self._spare_bytes = for_publishers - self._least_free_bytes
        self.trusted_bytes = min(free - _PLENTY_BYTES, self._spare_bytes)
        if self.is_full:
            self.trusted_bytes = 0
        if self.is_low and not was_low:
            self.on_low()
        return free

    def _free_bytes(self) -> int:
        try:
            free = self._files.free_bytes(self._directory)
        except OSError as error:
            # Removed, renamed or unmounted: it takes no further messages.
            self.problem = error.strerror or str(error)
            return 0
        self.problem = ""
        return free


class ReservingCatalog:
    """A catalog whose commits may use the reserve of `space` if the disk is full.

    Except those that only add definitions: they are refused, as publishers are. Args: commit_s, in
    which the time of each commit is counted.
    """

    def __init__(self, catalog: Catalog, space: Space, commit_s: BucketHistogram) -> None:
        self._catalog = catalog
        self._space = space
        self._commit_s = commit_s

    def rows(self, table: str) -> dict[str, Value]:
        return self._catalog.rows(table)

    def commit(self, changes: Sequence[Change]) -> None:
        began_s = time.perf_counter()
        try:
            self._catalog.commit(changes)
        except OSError as error:
            if not is_no_space(error) or _only_adds(changes):
                raise
            # Nothing of it was written, and all of it is written again: that is safe.
            self._space.give_up()
            self._catalog.commit(changes)
        self._commit_s.observe(time.perf_counter() - began_s)

    def close(self) -> None:
        self._catalog.close()


def _only_adds(changes: Sequence[Change]) -> bool:
    return all(change.value is not None for change in changes) and any(
        change.table in COPIED for change in changes
    )
