"""Memory is given back to the system after many clients have left, large transactions have ended,
or many messages are no longer in memory.

What the C library has free is given back; of Python's own allocator most stays, for the next
crowd: it has pools in blocks of 1 MiB, and returns a block only if nothing at all is left in it,
while a few objects that live on (a sample of the statistics, a task that waits) are enough to keep
it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import sys

from amqpstore_server.loop.loop_limits import LoopLimits

CLIENT_BYTES = 16 << 10
"""About what an idle client takes."""

_FEW_BLOCKS = 500_000
"""The number of blocks whose objects are looked at in some milliseconds. Only that frees Python's
free tuples.
"""

_M_ARENA_MAX = -8
"""The parameter of `mallopt` for it (malloc.h of the GNU C library)."""


class Trimming:
    """Knows when memory is to be given back."""

    def __init__(self, limits: LoopLimits) -> None:
        self._limits = limits
        self._most_bytes = 0
        """The most that was held since memory was given back."""
        self._due_at = math.inf

    def is_due(self, held_bytes: int, now: float) -> bool:
        """Tell whether to call `trim` now. Call this about twice a second, with what clients hold:
        `CLIENT_BYTES` each, and their unfinished bodies and open transactions; and with what the
        store holds of messages.
        """
        self._most_bytes = max(self._most_bytes, held_bytes)
        least_bytes = max(self._limits.min_trimmed_bytes, self._most_bytes // 2)
        if self._most_bytes - held_bytes < least_bytes:
            self._due_at = math.inf
        elif self._due_at == math.inf:
            self._due_at = now + self._limits.trim_after_s
        elif now >= self._due_at:
            self._most_bytes = held_bytes
            self._due_at = math.inf
            return True
        return False


def share_one_arena() -> None:
    """Have all threads allocate from one arena of the C library. To be called before there are any.

    By itself each thread gets one of its own, of which what another thread frees is not reused
    before it allocates again. They hardly ever allocate at the same time.
    """
    with contextlib.suppress(AttributeError, OSError):  # of another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def trim(few_blocks: int = _FEW_BLOCKS) -> None:
    """Give free memory back to the system. Others may run meanwhile.

    Args: few_blocks, of Python's allocator: where there are more, objects are not looked at.
    """
    # Python remembers thousands of names that were looked up in types, such as the copies of
    # "split" that C code makes for each call, and keeps thousands of free tuples. They lie among
    # what clients had, and each keeps its block of 1 MiB.
    sys._clear_type_cache()  # noqa: SLF001 - it has no other name
    if sys.getallocatedblocks() < few_blocks:
        gc.collect()
    # The C library gives back what is free in the midst of its own; only that of GNU can.
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        return
