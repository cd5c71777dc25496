"""Garbage collection in short pauses.

Python collects when many more objects were made than freed since the last time. Under steady load
as many are freed as are made, so a collection comes late, and then looks at everything in flight in
one go: 175,000 objects in 50 ms, where a consumer takes a long queue.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import trio

_WORK_S = 0.025
"""Processor time in which no more objects are made than a collection looks at in a few
milliseconds. With less between them, more of those in flight are looked at while they live.
"""

_MIDDLE = 4
"""Each of so many collections is of the middle generation too."""


class YoungCollector(trio.abc.Instrument):
    """Collects the youngest objects at the end of a turn of trio's loop, each time the event loop
    has worked for some milliseconds.

    Args: clock, of processor time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._due_s = clock() + _WORK_S
        self._count = 0

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002
        """Collect if it is time."""
        if self._clock() < self._due_s:
            return
        self._count = (self._count + 1) % _MIDDLE
        gc.collect(0 if self._count else 1)
        self._due_s = self._clock() + _WORK_S
