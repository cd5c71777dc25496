"""The figures of a store. Index files are read once, and only the figures are kept."""

from __future__ import annotations

import heapq
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from amqpstore.format.index import Entries
from amqpstore.identity.identity import SegmentHeader
from amqpstore.system.filenames import (
    CATALOG,
    INDEX,
    QUARANTINE,
    RESERVE,
    SEGMENTS,
    TRAILS,
    TRANSIENT,
)
from amqpstore_tools.inspect.overview import store_facts
from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.offline.queues import QueueImage
from amqpstore_tools.offline.segments import SegmentImage

Facts = dict[str, Any]

LARGEST = 10

SIZES = (256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 1 << 20, 16 << 20)
"""Bounds of the size classes of messages, in bytes."""

AGES_MS = (60_000, 3_600_000, 86_400_000, 7 * 86_400_000, 30 * 86_400_000)
"""Bounds of the age classes of live bytes."""

_PARTS = (SEGMENTS, INDEX, CATALOG, QUARANTINE, TRANSIENT, TRAILS, RESERVE, "reports")


def figures(image: StoreImage) -> Facts:
    """Return all figures. Raises: OSError."""
    segments = [one for one in image.segments if one.size]
    published = _published(segments)
    largest = _Largest()
    sizes: Counter[int] = Counter()
    queues: dict[tuple[str | None, str | None, int], Facts] = {}
    # Prepared messages count too: they take space until they are decided.
    for queue in image.queues:
        key = (queue.vhost, queue.name, 0 if queue.name is not None else queue.id)
        of_queue = queues.setdefault(key, _queue(queue))
        for columns in queue.columns():
            _count(columns, of_queue, sizes)
            largest.add(columns, queue)
        of_queue["unreadable"] += sum(one.live for one in queue.unreadable)
    hidden = {queue.id for queue in image.queues if queue.is_hidden}
    found = list(queues.values())
    for one in found:
        one["oldest_ms"] = _time_of(published, one.pop("oldest_id"))
    live = sum(one.live_bytes for one in segments)
    total = sum(one.size for one in segments)
    return {
        **store_facts(image),
        "disk_bytes": _disk(image.directory),
        "segment_bytes": total,
        "live_bytes": live if not image.catalog_reason else None,
        "garbage_bytes": total - live if not image.catalog_reason else None,
        "messages": sum(one["messages"] for one in found),
        "delivered": sum(one["delivered"] for one in found),
        "message_bytes": sum(one["bytes"] for one in found),
        "unreadable": sum(one["unreadable"] for one in found),
        "queues": len(found) - len(hidden),
        "largest_queues": heapq.nlargest(
            LARGEST, found, key=lambda one: (one["bytes"], one["messages"])
        ),
        "largest_messages": [
            {**one, "published_ms": _time_of(published, one["id"])} for one in largest.messages()
        ],
        "messages_by_size": [
            {"to_bytes": bound, "messages": sizes[place]}
            for place, bound in enumerate([*SIZES, None])
        ],
        "live_by_age": _by_age(image, segments, published),
        "segments": [
            {
                "number": one.number,
                "state": one.state.value,
                "bytes": one.size,
                "live_bytes": one.live_bytes if one.account else None,
            }
            for one in segments
        ],
    }


class _Largest:
    """The largest messages so far, each with one of its queues."""

    def __init__(self) -> None:
        self._found: dict[int, Facts] = {}
        self._least = 0

    def add(self, columns: Entries, queue: QueueImage) -> None:
        """Add some of a queue's messages."""
        most = max(columns.sizes)
        first, last = columns.ids[0], columns.ids[-1]
        if most < self._least or (
            # A message of equal size may be one of these, in another queue.
            most == self._least and not any(first <= one <= last for one in self._found)
        ):
            return
        pairs = zip(columns.sizes, columns.ids, strict=True)
        for size, message_id in heapq.nlargest(2 * LARGEST, pairs):
            if message_id in self._found:
                self._found[message_id]["queues"] += 1
            elif size > self._least:
                self._found[message_id] = {
                    "id": message_id,
                    "bytes": size,
                    "vhost": queue.vhost,
                    "queue": queue.name,
                    "label": queue.label,
                    "queues": 1,
                }
        self._found = {one["id"]: one for one in self.messages()}
        if len(self._found) == LARGEST:
            self._least = min(one["bytes"] for one in self._found.values())

    def messages(self) -> list[Facts]:
        """Return the messages, the largest first."""
        return heapq.nlargest(LARGEST, self._found.values(), key=lambda one: one["bytes"])


def _queue(queue: QueueImage) -> Facts:
    return {
        "vhost": queue.vhost,
        "name": queue.name,
        "label": queue.label,
        "messages": 0,
        "delivered": 0,
        "bytes": 0,
        "unreadable": 0,
        "oldest_id": None,
    }


def _count(columns: Entries, of_queue: Facts, sizes: Counter[int]) -> None:
    count = len(columns.sizes)
    of_queue["messages"] += count
    of_queue["delivered"] += count - columns.delivery_counts.count(0)
    of_queue["bytes"] += sum(columns.sizes)
    oldest = of_queue["oldest_id"]
    of_queue["oldest_id"] = columns.ids[0] if oldest is None else min(oldest, columns.ids[0])
    for size, times in Counter(columns.sizes).items():
        sizes[bisect_right(SIZES, size - 1)] += times


Published = list[tuple[int, int]]
"""First ids of the log's segments, ascending, and when each was started, ms since 1970."""


def _published(segments: Sequence[SegmentImage]) -> Published:
    """Return when the log's segments were started; messages that compaction moved have no time."""
    found = []
    for segment in segments:
        if segment.is_compacted or not segment.end_id:
            continue
        header = segment.header()
        if isinstance(header, SegmentHeader):
            found.append((segment.first_id, header.created_ms))
    return sorted(found)


def _time_of(published: Published, message_id: int | None) -> int | None:
    """Return about when a message was published: when its segment was started, or, if compaction
    moved it, the remaining one before it; None if there is none.
    """
    if message_id is None or not published:
        return None
    place = bisect_right(published, (message_id, 1 << 64)) - 1
    return published[max(place, 0)][1]


def _by_age(
    image: StoreImage, segments: Sequence[SegmentImage], published: Published
) -> list[Facts]:
    counts = [0] * (len(AGES_MS) + 1)
    for segment in segments:
        time_ms = _time_of(published, segment.first_id)
        if segment.live_bytes and time_ms is not None:
            counts[bisect_right(AGES_MS, image.taken_ms - time_ms)] += segment.live_bytes
    return [
        {"to_ms": bound, "live_bytes": count}
        for bound, count in zip([*AGES_MS, None], counts, strict=True)
    ]


def _disk(directory: str) -> dict[str, int]:
    """Return the bytes that each part of the data directory takes on the disk, as `du` counts
    them.
    """
    found = {part: sum(_allocated(os.path.join(directory, part))) for part in _PARTS}
    return {part: count for part, count in found.items() if count}


def _allocated(path: str) -> Iterator[int]:
    paths = [path]
    if os.path.isdir(path):
        paths = [os.path.join(root, name) for root, _, names in os.walk(path) for name in names]
    for one in paths:
        try:
            yield os.stat(one).st_blocks * 512
        except OSError:
            continue  # It does not exist, leads nowhere, or a broker has just removed it.
