"""Chooses a segment for each message that is in more than one: one that can stay as it is."""

from __future__ import annotations

from array import array
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator
from operator import itemgetter

from amqpstore_tools.check.scanning import Ids
from amqpstore_tools.repair.facts import SegmentFacts
from amqpstore_tools.repair.ranges import Ranges

_FIRST = itemgetter(0)
_Piece = tuple[int, int, SegmentFacts, "array[int]"]
"""First id, the one after the last, segment, sizes in bytes."""


class Homes:
    """The segments of all messages with sound records. Args: segments, the preferred ones first."""

    def __init__(self, segments: Iterable[SegmentFacts]) -> None:
        self._pieces: list[_Piece] = []
        self.known = Ranges()
        segments = list(segments)
        for segment in segments:
            durable = segment.durable_ids()
            for run in segment.runs:
                for first, end in durable.within(run.first_id, run.end_id):
                    self._add(segment, run, first, end)
        # The ids of a batch that was torn are given again: its records come last.
        for segment in segments:
            for run in segment.runs:
                self._add(segment, run, run.first_id, run.end_id)

    def _add(self, segment: SegmentFacts, run: Ids, first_id: int, end_id: int) -> None:
        """Add those messages of a run that no other segment has."""
        for first, end in self.known.missing(first_id, end_id):
            sizes = run.sizes[first - run.first_id : end - run.first_id]
            insort(self._pieces, (first, end, segment, sizes), key=_FIRST)
        self.known.add(first_id, end_id)

    def pieces(self, first_id: int, end_id: int) -> Iterator[_Piece]:
        """Yield the pieces of a range of ids, in order."""
        pieces = self._pieces
        index = max(bisect_right(pieces, first_id, key=_FIRST) - 1, 0)
        while index < len(pieces) and pieces[index][0] < end_id:
            first, end, segment, sizes = pieces[index]
            start, stop = max(first, first_id), min(end, end_id)
            if start < stop:
                yield start, stop, segment, sizes[start - first : stop - first]
            index += 1

    def sizes(self, first_id: int, count: int) -> array[int]:
        """Return the sizes of messages, all of which exist."""
        found = array("I")
        for *_, sizes in self.pieces(first_id, first_id + count):
            found.extend(sizes)
        return found
