"""Measures how long the event loop is held: the processor time of its longest turns, by the work in
them.

All clients wait while one turn runs, so no work may take long in one go. Work that may be long
notes its name in `BrokerServices.work`; a turn in which nothing was noted is traffic.
"""

from __future__ import annotations

import logging
import time

import trio

from amqpstore.log.measures import BucketHistogram

_LONG_S = 0.020
"""A turn that takes longer is logged, unless one with the same work has taken as long before."""

_MAX_NAMES = 3
_TRAFFIC = "traffic"

_log = logging.getLogger(__name__)


class LoopHolds(trio.abc.Instrument):
    """Measures each turn of trio's loop. `turn_s` has all of them, `longest_s` the longest one of
    each kind of work.

    It is processor time, as wall time is that of other processes too on a busy machine; so waits
    for the disk do not count. One reading of the clock a turn is enough, as the thread's clock
    stands still while trio waits.
    Args: work, names noted since the last turn; they are removed at the end of each.
    """

    def __init__(self, work: dict[str, None]) -> None:
        self.longest_s: dict[str, float] = {}
        self.turn_s = BucketHistogram.of_seconds()
        self._work = work
        self._until = time.thread_time()

    def begin(self) -> None:
        """Measure from now on: no client waited for what was done before."""
        self._until = time.thread_time()
        self._work.clear()

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002
        """Note that a turn has ended."""
        now = time.thread_time()
        held_s = now - self._until
        self._until = now
        self.turn_s.observe(held_s)
        work = self._work
        if held_s > _LONG_S:
            self._held(held_s)
        if work:
            work.clear()

    def _held(self, held_s: float) -> None:
        name = ", ".join([*self._work][:_MAX_NAMES]) or _TRAFFIC
        if held_s > self.longest_s.get(name, 0.0):
            self.longest_s[name] = held_s
            _log.info("event loop held", extra={"ms": round(held_s * 1000), "work": name})
