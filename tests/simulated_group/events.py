"""Events to come, by time: the simulation's only clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Events:
    """Things to happen, each at its time; of the same time, in the order they were asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, delay_s: float, happen: Callable[[], None]) -> None:
        """Let something happen in `delay_s` seconds."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._count, happen))

    def run_until(self, end: float) -> None:
        """Let all happen that is due before `end`."""
        heap = self._heap
        while heap and heap[0][0] <= end:
            self.now, _, happen = heapq.heappop(heap)
            happen()
        self.now = end
