"""Counts of the queues that hold each message, without a number for each message."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate

from amqpstore.format.runs import Run


class Holders:
    """Counts, for any message, the queues that hold it. `changes` says at which ids the count
    differs from that of the message before, and by how much.
    """

    def __init__(self) -> None:
        self.changes: defaultdict[int, int] = defaultdict(int)
        self._starts: list[int] = []
        self._counts: list[int] = []

    def add(self, runs: Iterable[Run]) -> None:
        """Add what a queue holds."""
        for run in runs:
            self.changes[run.first_id] += 1
            self.changes[run.first_id + run.count] -= 1
        self._starts.clear()

    def joined(self, other: Holders) -> Holders:
        """Return the counts of both together."""
        both = Holders()
        for one in (self, other):
            for message_id, change in one.changes.items():
                both.changes[message_id] += change
        return both

    def __getitem__(self, message_id: int) -> int:
        """Return how many queues hold a message."""
        if not self._starts:
            self._starts = sorted(self.changes)
            self._counts = list(accumulate(self.changes[start] for start in self._starts))
        index = bisect_right(self._starts, message_id) - 1
        return self._counts[index] if index >= 0 else 0
