"""Reads messages of contiguous ids from segments, many at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter

from amqpstore.message import Message
from amqpstore.records import MessageDecoder
from amqpstore.segments import Segment


def read_run(
    segment: Segment, first_id: int, count: int, decoder: MessageDecoder
) -> Iterator[Message | None]:
    """Yield messages of contiguous ids of a segment; None for each that cannot be read."""
    end_id = first_id + count
    while first_id < end_id:
        found = segment.read(first_id, end_id - first_id, decoder)
        if isinstance(found, list):
            yield from found
            first_id += len(found)
        else:
            yield None
            first_id += 1


class BulkReader:
    """Reads messages by id. Args: segments, in the order of their ids."""

    def __init__(self, segments: Sequence[Segment], decoder: MessageDecoder) -> None:
        self._segments = [one for one in segments if not one.is_empty]
        self._decoder = decoder

    def read(self, ids: Sequence[int]) -> Iterator[Message | None]:
        """Yield messages of ascending ids; None for each that cannot be read."""
        place = 0
        while place < len(ids):
            first_id = ids[place]
            at = bisect_right(self._segments, first_id, key=attrgetter("first_id")) - 1
            segment = self._segments[at] if at >= 0 else None
            if segment is None or first_id >= segment.end_id:
                yield None
                place += 1
                continue
            stop = _end_of_run(ids, place, segment.end_id)
            yield from read_run(segment, first_id, stop - place, self._decoder)
            place = stop


def _end_of_run(ids: Sequence[int], place: int, end_id: int) -> int:
    """Return the place after the last of contiguous ids below `end_id`."""
    first_id = ids[place]
    low, high = place + 1, min(len(ids), place + end_id - first_id)
    while low < high:
        middle = (low + high + 1) // 2
        if ids[middle - 1] - first_id == middle - 1 - place:
            low = middle
        else:
            high = middle - 1
    return low
