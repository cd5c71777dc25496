"""Sets of mostly contiguous numbers: ids, sequences."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import itemgetter

_FIRST, _END = itemgetter(0), itemgetter(1)


class Ranges:
    """Disjoint ranges, each the first number and the one after the last, ascending."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._ranges)

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self._ranges, number, key=_FIRST) - 1
        return index >= 0 and number < self._ranges[index][1]

    def add(self, first: int, end: int) -> None:
        """Add numbers from `first` to before `end`; some of them may be in the set."""
        if first >= end:
            return
        ranges = self._ranges
        low = bisect_left(ranges, first, key=_END)
        high = bisect_right(ranges, end, key=_FIRST)
        if low < high:
            first, end = min(first, ranges[low][0]), max(end, ranges[high - 1][1])
        ranges[low:high] = [(first, end)]

    def missing(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of a range that are not in the set."""
        found = []
        index = bisect_right(self._ranges, first, key=_END)
        while first < end:
            start, stop = self._ranges[index] if index < len(self._ranges) else (end, end)
            if first < start:
                found.append((first, min(start, end)))
            first = max(stop, first)
            index += 1
            if start >= end:
                break
        return found

    def within(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of a range that are in the set."""
        index = bisect_right(self._ranges, first, key=_END)
        found = []
        while index < len(self._ranges) and self._ranges[index][0] < end:
            start, stop = self._ranges[index]
            found.append((max(start, first), min(stop, end)))
            index += 1
        return found
