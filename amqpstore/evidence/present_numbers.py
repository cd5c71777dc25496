"""The numbers of sound records in a part of the log: ids of messages, or LSNs of batches."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from operator import itemgetter


class PresentNumbers:
    """Numbers that were added in ascending order. `ranges`: from a first one to before an end."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self.ranges: list[tuple[int, int]] = []
        for first, end in sorted(ranges):
            self.add_range(first, end)

    def __contains__(self, number: int) -> bool:
        return self.count(number, number + 1) > 0

    def add(self, number: int) -> None:
        """Add a number, higher than all before."""
        self.add_range(number, number + 1)

    def add_range(self, first: int, end: int) -> None:
        """Add numbers from `first` to before `end`; those that are not higher than all before are
        left out.
        """
        ranges = self.ranges
        # Neighbours become one range, so a sound log of any length is a single one.
        if ranges and first <= ranges[-1][1]:
            ranges[-1] = ranges[-1][0], max(end, ranges[-1][1])
        else:
            ranges.append((first, end))

    def count(self, first: int, end: int) -> int:
        """Count the numbers from `first` to before `end` that were added."""
        index = max(bisect_right(self.ranges, first, key=itemgetter(0)) - 1, 0)
        found = 0
        while index < len(self.ranges) and self.ranges[index][0] < end:
            found += max(min(end, self.ranges[index][1]) - max(first, self.ranges[index][0]), 0)
            index += 1
        return found

    def absent(self, first: int, end: int) -> Iterator[int]:
        """Yield the numbers from `first` to before `end` that were not added."""
        for start, stop in self.missing(first, end):
            yield from range(start, stop)

    def missing(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of numbers from `first` to before `end` that were not added."""
        index = max(bisect_right(self.ranges, first, key=itemgetter(0)) - 1, 0)
        while first < end:
            # Usually all are in the first one.
            known = self.ranges[index] if index < len(self.ranges) else (end, end)
            if first < known[0]:
                yield first, min(known[0], end)
            first = max(first, known[1])
            index += 1
