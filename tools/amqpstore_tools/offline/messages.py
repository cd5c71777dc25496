"""Finds messages by id, in as few reads of segments as their order allows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter

from amqpstore.format.records import Gap, Kind, Record
from amqpstore_tools.offline.contents import StoredMessage
from amqpstore_tools.offline.segments import SegmentImage

SegmentOf = Callable[[int], SegmentImage | None]
"""Returns the segment that may have the record of a message; None if none has."""


def by_range(segments: Sequence[SegmentImage]) -> SegmentOf:
    """Return how to find the segment of a message. Args: segments, in the order of their ids."""
    readable = [one for one in segments if one.first_id < one.end_id and one.size]

    def find(message_id: int) -> SegmentImage | None:
        index = bisect_right(readable, message_id, key=attrgetter("first_id")) - 1
        segment = readable[index] if index >= 0 else None
        return segment if segment and message_id < segment.end_id else None

    return find


def read_messages(
    segment_of: SegmentOf, ids: Iterable[int]
) -> Iterator[tuple[int, StoredMessage | None]]:
    """Yield messages of ascending ids, each with None if it has no sound record.

    Raises: OSError.
    """
    reader: _MessageReader | None = None
    for message_id in ids:
        segment = segment_of(message_id)
        if segment is None:
            yield message_id, None
            continue
        if reader is None or reader.segment is not segment:
            reader = _MessageReader(segment)
        yield message_id, reader.read(message_id)


class _MessageReader:
    """Reads messages of one segment, of ascending ids: from the last one on, or from a later entry
    of the offset table.
    """

    def __init__(self, segment: SegmentImage) -> None:
        self.segment = segment
        self._offset = 0
        self._scan: Iterator[tuple[Record | Gap, bytes]] = iter(())
        self._last: tuple[Record, bytes] | None = None
        self._is_started = False

    def read(self, message_id: int) -> StoredMessage | None:
        """Return the message, if it has a sound record."""
        offset = self.segment.offset_before(message_id)
        if not self._is_started or offset > self._offset:
            self._scan = self.segment.scan_payloads(offset, kinds=(Kind.MESSAGE,))
            self._is_started = True
            self._last = None
        while self._last is None or self._last[0].number < message_id:
            found = next(self._scan, None)
            if found is None:
                return None
            record, payload = found
            self._offset = record.end
            if isinstance(record, Record) and record.kind == Kind.MESSAGE:
                self._last = record, payload
        record, payload = self._last
        if record.number != message_id:
            return None
        return StoredMessage(self.segment, record, payload)
