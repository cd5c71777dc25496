"""Room on the disk: publishers are refused before it is full, and a reserve is kept for the rest.

Acks, purges, deletes, checkpoints, compaction and a restart need room as well, a little, and in
the end they make some. So a file `reserve` takes up room that is given back, by its removal, when
one of them does not find enough; once there is room again, it is made anew. What the catalog needs
comes out of it too: LMDB uses the pages of its file that are free before the file grows, so what
it needs on a full disk is a few pages once, and no part of its map has to be kept for that.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence

from amqpstore.catalog import Catalog, Change, Value
from amqpstore.definitions import COPIED
from amqpstore.errors import DiskFullError
from amqpstore.filenames import RESERVE
from amqpstore.files import Files

_SMALL_WRITE_BYTES = 4 << 20
"""More than anything writes that is not told how much it will be."""


def is_no_space(error: OSError) -> bool:
    """Whether a write failed as the disk, or what this user may have of it, is full."""
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
        self._files = files
        self._directory = directory
        self._path = os.path.join(directory, RESERVE)
        self._least_free_bytes = least_free_bytes
        self._reserve_bytes = reserve_bytes
        self._has_reserve = files.exists(self._path)
        # For publishers, when the disk was last looked at.
        self._spare_bytes = 0

    def look(self) -> None:
        """See how much room there is; make the reserve where it is missing and fits."""
        free = self._see()
        if (
            not self._has_reserve
            and self._reserve_bytes
            and free >= self._least_free_bytes * 5 // 4 + self._reserve_bytes
        ):
            with contextlib.suppress(OSError):
                self._files.allocate(self._path, self._reserve_bytes)
                self._has_reserve = True
                self._see()

    def check(self, needed_bytes: int) -> None:
        """Raises: DiskFullError, where publishers may not have that much now."""
        if self.is_full or needed_bytes > self._spare_bytes:
            self._see()
            if self.is_full or needed_bytes > self._spare_bytes:
                raise self.error(needed_bytes)

    def make_room(self, needed_bytes: int = 0) -> None:
        """Give the reserve up where the disk has not that much room, and a little more."""
        free = self._free_bytes()
        self._spare_bytes = free - needed_bytes - self._kept_bytes - self._least_free_bytes
        if free < needed_bytes + _SMALL_WRITE_BYTES:
            self.give_up()

    def give_up(self) -> None:
        """Give the reserve up, if it is there: a write found no room, and is to be tried again."""
        if self._has_reserve:
            self._has_reserve = False
            with contextlib.suppress(OSError):
                self._files.remove(self._path)

    def error(self, needed_bytes: int = 0) -> DiskFullError:
        """Return the error for a request that does not fit on the disk."""
        least = self._least_free_bytes * (5 if self.is_full else 4) // 4
        needed = least + self._kept_bytes + needed_bytes
        return DiskFullError(self._directory, self._free_bytes(), needed)

    @property
    def _kept_bytes(self) -> int:
        """What is free and not for publishers: the room of the reserve, while that is missing."""
        return 0 if self._has_reserve else self._reserve_bytes

    def _see(self) -> int:
        free = self._free_bytes()
        for_publishers = free - self._kept_bytes
        # Some more than it was refused at: no going to and fro at the edge.
        least = self._least_free_bytes * (5 if self.is_full else 4) // 4
        self.is_full = for_publishers < least
        self.is_low = self.is_full or for_publishers < 2 * self._least_free_bytes
        self._spare_bytes = for_publishers - self._least_free_bytes
        return free

    def _free_bytes(self) -> int:
        try:
            return self._files.free_bytes(self._directory)
        except OSError:
            # A disk that does not even say that much takes no further messages.
            return 0


class ReservingCatalog:
    """A catalog whose commits may have the reserve of `space`, where the disk is full.

    But those that do nothing but add definitions: they are to be refused, as publishers are.
    """

    def __init__(self, catalog: Catalog, space: Space) -> None:
        self._catalog = catalog
        self._space = space

    def rows(self, table: str) -> dict[str, Value]:
        return self._catalog.rows(table)

    def commit(self, changes: Sequence[Change]) -> None:
        try:
            self._catalog.commit(changes)
        except OSError as error:
            if not is_no_space(error) or _only_adds(changes):
                raise
            # Nothing of it is there, and all of it is written again: that is safe.
            self._space.give_up()
            self._catalog.commit(changes)

    def close(self) -> None:
        self._catalog.close()


def _only_adds(changes: Sequence[Change]) -> bool:
    return all(change.value is not None for change in changes) and any(
        change.table in COPIED for change in changes
    )
