"""The ids of the messages whose sound records a recovery has found in the log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import itemgetter


class PresentIds:
    """Ids that were added in ascending order, as ranges."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def add(self, message_id: int) -> None:
        """Add an id, higher than all before."""
        ranges = self._ranges
        if ranges and ranges[-1][1] == message_id:
            ranges[-1] = ranges[-1][0], message_id + 1
        else:
            ranges.append((message_id, message_id + 1))

    def absent(self, first: int, end: int) -> Iterator[int]:
        """Yield the ids from `first` to before `end` that were not added."""
        place = max(bisect_right(self._ranges, first, key=itemgetter(0)) - 1, 0)
        while first < end:
            # Usually all are in the first one.
            known = self._ranges[place] if place < len(self._ranges) else (end, end)
            yield from range(first, min(known[0], end))
            first = max(first, known[1])
            place += 1
