"""Garbage collection in short pauses.

Python collects when many more objects were made than freed since the last time. Under steady load
as many are freed as are made, so a collection comes late, and then looks at everything in flight in
one go: 175,000 objects in 50 ms, where a consumer takes a long queue.

What a collection finds alive is looked at again only by those of its own generation and the older
ones. The broker's objects are messages in flight, which nearly all go without a collection, and
connections, which outlive many. So nothing is gained by a generation in between: what is still
alive goes to the oldest at once, and each of these pauses has only what was made since the last.

What is in the oldest is freed as soon as nothing refers to it, too, but for objects that refer to
each other: clients leave none, libraries and deleted virtual hosts a few. All objects are looked at
now and then where that takes little time: with a million messages in memory it would be a second.
"""

from __future__ import annotations

import gc
import math
import sys
import time
from collections.abc import Callable

import trio

from amqpstore_server.loop.loop_limits import LoopLimits

_YOUNG = 1
"""The oldest generation that these collections are of."""

_THRESHOLDS = (10_000, 1, 4000)
"""The thresholds at which Python collects by itself: at 10,000 objects, every other time the
generation in between with them, and the oldest after 4000 of these.
"""


_BLOCK_S = 50e-9
"""The time for each block of memory that Python has allocated, until it was measured."""


def keep_collections_short() -> None:
    """Freeze all objects that exist now, which saves every collection from looking at them, and
    have Python look at few at a time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


class YoungCollector(trio.abc.Instrument):
    """Collects the youngest objects at the end of a turn of trio's loop, each time the event loop
    has worked for some milliseconds.

    Args: clock, of processor time in seconds.
    """

    def __init__(self, limits: LoopLimits, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._every_s = limits.collect_young_s
        self._due_s = clock() + self._every_s

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002
        """Collect if it is time."""
        if self._clock() < self._due_s:
            return
        gc.collect(_YOUNG)
        self._due_s = self._clock() + self._every_s


class WholeCollector:
    """Collects all objects that are not frozen now and then, where that takes little time. Where
    nothing is frozen, in the process of somebody else's program, it does nothing.

    Args: clock, of processor time in seconds.
    """

    def __init__(self, limits: LoopLimits, clock: Callable[[], float] = time.thread_time) -> None:
        self._limits = limits
        self._clock = clock
        self._frozen = sys.getallocatedblocks()
        self._block_s = _BLOCK_S
        self._due_at = math.inf

    def tick(self, now: float, *, is_serving: bool) -> None:
        """Collect if it is time, and if that does not take long. Call this about each second.

        Args: is_serving, whether there are clients.
        """
        limits = self._limits
        if self._due_at == math.inf and gc.get_freeze_count():
            self._due_at = now + limits.collect_all_every_s
        if now < self._due_at:
            return
        blocks = max(1, sys.getallocatedblocks() - self._frozen)
        most_s = limits.collect_all_s if is_serving else limits.unserved_collect_all_s
        if blocks * self._block_s > most_s:
            return
        self._due_at = now + limits.collect_all_every_s
        began_s = self._clock()
        gc.collect()
        self._block_s = max(_BLOCK_S, (self._clock() - began_s) / blocks)
