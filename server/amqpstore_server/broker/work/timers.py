"""Timers: actions to run later, ordered by when they are due. Time is passed in."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from amqpstore_server.broker.monitoring.faults import called

_MAX_STALE = 64
"""How many outdated entries may remain, besides twice the number of valid ones."""


class Timer:
    """Calls `action` once it is due. Created by `Timers.timer`; `due_ms` is 0 while it is not
    set.
    """

    __slots__ = ("_timers", "action", "due_ms")

    def __init__(self, timers: Timers, action: Callable[[], None]) -> None:
        self._timers = timers
        self.action = action
        self.due_ms = 0

    def set(self, due_ms: int) -> None:
        """Set when it is due, whatever was set before; 0 unsets it."""
        if due_ms != self.due_ms:
            self._timers.changed(self, due_ms)

    def end(self) -> None:
        """Unset the timer for good and drop `action`, however long the timers still refer to this
        object.
        """
        self.set(0)
        self.action = _nothing

    def set_sooner(self, due_ms: int) -> None:
        """Set when it is due, unless it is due earlier already; 0 changes nothing."""
        if due_ms and not 0 < self.due_ms <= due_ms:
            self._timers.changed(self, due_ms)


class Timers:
    """All timers of a broker. `on_sooner` is called when the earliest due time becomes earlier.

    Times are in ms, by the clock that the owner chooses.
    """

    def __init__(self) -> None:
        self.on_sooner: Callable[[], None] = lambda: None
        self._heap: list[tuple[int, int, Timer]] = []
        self._order = count()
        self._set_count = 0

    def timer(self, action: Callable[[], None]) -> Timer:
        """Create a timer that is not set."""
        return Timer(self, action)

    def changed(self, timer: Timer, due_ms: int) -> None:
        """Reschedule a timer; a due time of 0 unsets it."""
        self._set_count += (due_ms > 0) - (timer.due_ms > 0)
        timer.due_ms = due_ms
        if not due_ms:
            return
        heap = self._heap
        if len(heap) > _MAX_STALE + 2 * self._set_count:
            # Timers are rescheduled far more often than they run.
            heap[:] = [entry for entry in heap if entry[2].due_ms == entry[0]]
            heapq.heapify(heap)
        is_next = not heap or due_ms < heap[0][0]
        heapq.heappush(heap, (due_ms, next(self._order), timer))
        if is_next:
            self.on_sooner()

    @property
    def next_ms(self) -> int:
        """The time at which the next timer may be due; 0 if none is set."""
        heap = self._heap
        while heap and heap[0][2].due_ms != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else 0

    def run(self, now_ms: int) -> bool:
        """Run the timers that are due. Returns whether there were any."""
        due = []
        while (next_ms := self.next_ms) and next_ms <= now_ms:
            timer = heapq.heappop(self._heap)[2]
            timer.set(0)
            due.append(timer)
        # All of them were taken off before: an action that sets a timer to now would keep this from
        # ending.
        for timer in due:
            called(timer.action)
        return bool(due)


def _nothing() -> None:
    """Do nothing. Replaces the action of a timer that has ended."""
