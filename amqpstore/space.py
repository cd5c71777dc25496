"""Room on the disk: publishers are refused before it is full, and a reserve is kept for the rest.

Acks, purges, deletes, checkpoints, compaction and a restart need room as well, a little, and in
the end they make some. So a file `reserve` takes up room that is given back, by its removal, when
one of them would not find enough; once there is room again, it is made anew.
"""

from __future__ import annotations

import contextlib
import os

from amqpstore.errors import DiskFullError
from amqpstore.filenames import RESERVE
from amqpstore.files import Files

_SMALL_WRITE_BYTES = 4 << 20
"""More than anything writes that is not told how much it will be."""


class Space:
    """Of the disk that `directory` is on.

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

    def look(self) -> None:
        """See how much room there is; make the reserve where it is missing and fits."""
        free = self._files.free_bytes(self._directory)
        # Some more than it was refused at: no going to and fro at the edge.
        least = self._least_free_bytes * (5 if self.is_full else 4) // 4
        self.is_full = free < least
        self.is_low = self.is_full or free < 2 * self._least_free_bytes
        if (
            not self._has_reserve
            and self._reserve_bytes
            and free >= self._least_free_bytes * 5 // 4 + self._reserve_bytes
        ):
            with contextlib.suppress(OSError):
                self._files.allocate(self._path, self._reserve_bytes)
                self._has_reserve = True

    def make_room(self, needed_bytes: int = 0) -> None:
        """Give the reserve up where the disk has not that much room, and a little more."""
        if not self._has_reserve:
            return
        free = self._files.free_bytes(self._directory)
        if free < needed_bytes + _SMALL_WRITE_BYTES:
            self._has_reserve = False
            with contextlib.suppress(FileNotFoundError):
                self._files.remove(self._path)

    def error(self) -> DiskFullError:
        """Why publishers are refused."""
        free = self._files.free_bytes(self._directory)
        return DiskFullError(self._directory, free, self._least_free_bytes * 5 // 4)
