"""The copy of the definitions: when it is behind, and when the next one is written."""

from __future__ import annotations

import errno

from amqpstore.catalog.backing import Backing
from amqpstore.catalog.definitions import copy_of, renew_copy
from amqpstore.system.clock import Clock

_ROWS_A_MS = 10
"""Rows in a copy of the definitions for each ms until the next copy: a large copy is written less
often.
"""


class DefinitionsCopier:
    """Keeps the copy up to date, at most every `pause_ms`."""

    def __init__(self, backing: Backing, clock: Clock, pause_ms: int) -> None:
        # A crash may have come between a definition and its copy.
        self.is_behind = True
        self._backing = backing
        self._clock = clock
        self._pause_ms = pause_ms
        self._due_ms = 0
        self.postpone()

    def is_due(self, now_ms: int) -> bool:
        """Tell whether a copy is to be written now."""
        return self.is_behind and now_ms >= self._due_ms

    def write(self) -> int:
        """Bring the copy up to date. Returns how many rows it has. Raises: OSError."""
        files, directory, store_id, catalog, *_ = self._backing
        try:
            copy = copy_of(store_id, catalog)
        except MemoryError:
            # Nothing was changed: it is tried again, as on a full disk.
            reason = "not enough memory to copy the definitions"
            raise OSError(errno.ENOMEM, reason, directory) from None
        renew_copy(files, directory, copy)
        return copy.rows

    def written(self, rows: int) -> None:
        """Note that a copy was written. Args: rows, how many it has."""
        self.postpone(rows // _ROWS_A_MS)

    def postpone(self, extra_ms: int = 0) -> None:
        """Write no copy before the pause has passed."""
        self._due_ms = self._clock.monotonic_ms() + self._pause_ms + extra_ms
