"""The use of space in a store: its files, the sizes and ages of messages, the largest ones."""

from __future__ import annotations

import heapq
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

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
from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.offline.queues import QueueImage
from amqpstore_tools.offline.segments import SegmentImage
from amqpstore_tools.offline.terminal import (
    age,
    bar,
    console,
    counted,
    heading,
    picture_width,
    shown,
    size,
    table,
)

if TYPE_CHECKING:
    from rich.console import Console

Facts = dict[str, Any]

LARGEST = 10

SIZES = (256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 1 << 20, 16 << 20)
"""Bounds of the size classes of messages, in bytes."""

AGES_MS = (60_000, 3_600_000, 86_400_000, 7 * 86_400_000, 30 * 86_400_000)
"""Bounds of the age classes of live bytes."""

_ENTRIES = (SEGMENTS, INDEX, CATALOG, QUARANTINE, TRANSIENT, TRAILS, RESERVE, "reports")
_MIN_BAR, _MAX_BAR = 12, 60


class PublishTimes:
    """About when messages were published: when the segments of the log were started."""

    def __init__(self, segments: Sequence[SegmentImage]) -> None:
        times = []
        for segment in segments:
            # Compaction moves messages into segments of its own, which are younger than they are.
            if not segment.size or segment.is_compacted or not segment.end_id:
                continue
            header = segment.header()
            if isinstance(header, SegmentHeader):
                times.append((segment.first_id, header.created_ms))
        self._times = sorted(times)

    def of(self, message_id: int | None) -> int | None:
        """Return when the segment of a message was started, or, if compaction moved the message,
        the remaining one before it: ms since 1970. None if there is none.
        """
        if message_id is None or not self._times:
            return None
        index = bisect_right(self._times, (message_id, 1 << 64)) - 1
        return self._times[max(index, 0)][1]


class SizeStatistics:
    """Counts messages by size, and keeps the largest, each with one of its queues."""

    def __init__(self) -> None:
        self.messages = 0
        self.delivered = 0
        self.bytes = 0
        self.by_size: Counter[int] = Counter()
        self._largest: dict[int, Facts] = {}
        self._least = 0

    def add(self, queue: QueueImage, columns: Entries) -> None:
        """Add some of a queue's messages."""
        count = len(columns.sizes)
        self.messages += count
        self.delivered += count - columns.delivery_counts.count(0)
        self.bytes += sum(columns.sizes)
        for bytes_of_each, times in Counter(columns.sizes).items():
            self.by_size[bisect_right(SIZES, bytes_of_each - 1)] += times
        self._keep_largest(queue, columns)

    def largest(self) -> list[Facts]:
        """Return the largest messages, the largest first."""
        return heapq.nlargest(LARGEST, self._largest.values(), key=lambda one: one["bytes"])

    def _keep_largest(self, queue: QueueImage, columns: Entries) -> None:
        most = max(columns.sizes)
        first, last = columns.ids[0], columns.ids[-1]
        if most < self._least or (
            # A message of equal size may be one of these, in another queue.
            most == self._least and not any(first <= one <= last for one in self._largest)
        ):
            return
        pairs = zip(columns.sizes, columns.ids, strict=True)
        for bytes_of_it, message_id in heapq.nlargest(2 * LARGEST, pairs):
            if message_id in self._largest:
                self._largest[message_id]["queues"] += 1
            elif bytes_of_it > self._least:
                self._largest[message_id] = {
                    "id": message_id,
                    "bytes": bytes_of_it,
                    "vhost": queue.vhost,
                    "queue": queue.name,
                    "label": queue.label,
                    "queues": 1,
                }
        self._largest = {one["id"]: one for one in self.largest()}
        if len(self._largest) == LARGEST:
            self._least = min(one["bytes"] for one in self._largest.values())


def facts(image: StoreImage, sizes: SizeStatistics, times: PublishTimes) -> Facts:
    """Return the facts. Args: sizes, of the messages of all queues."""
    segments = [segment for segment in image.segments if segment.size]
    live = sum(segment.live_bytes for segment in segments)
    total = sum(segment.size for segment in segments)
    return {
        "disk_bytes": _disk(image.directory),
        "segment_bytes": total,
        "live_bytes": live if not image.catalog_reason else None,
        "garbage_bytes": total - live if not image.catalog_reason else None,
        "messages": sizes.messages,
        "delivered": sizes.delivered,
        "message_bytes": sizes.bytes,
        "messages_by_size": [
            {"to_bytes": bound, "messages": sizes.by_size[index]}
            for index, bound in enumerate([*SIZES, None])
        ],
        "largest_messages": [
            {**message, "published_ms": times.of(message["id"])} for message in sizes.largest()
        ],
        "live_by_age": _by_age(image, segments, times),
    }


def _by_age(
    image: StoreImage, segments: Sequence[SegmentImage], times: PublishTimes
) -> list[Facts]:
    counts = [0] * (len(AGES_MS) + 1)
    for segment in segments:
        time_ms = times.of(segment.first_id)
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
    found = {part: sum(_allocated(os.path.join(directory, part))) for part in _ENTRIES}
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


def show_messages(facts: Facts, taken_ms: int) -> None:
    """Print the sizes and ages of messages, and the largest. Args: taken_ms, when that was so."""
    out = console()
    if not facts["messages"]:
        return
    text = f"{counted(facts['messages'], 'message')}: {size(facts['message_bytes'])}"
    delivered = f", {facts['delivered']:,} delivered before" if facts["delivered"] else ""
    out.print(heading(f"{text}{delivered}"))
    _show_bars("size", "messages", facts["messages_by_size"], "to_bytes", size, "{:,}".format)
    if any(one["live_bytes"] for one in facts["live_by_age"]):
        out.print()
        _show_bars("age", "live_bytes", facts["live_by_age"], "to_ms", age, size)
    messages = facts["largest_messages"]
    out.print(heading("The largest messages"))
    most = messages[0]["bytes"] or 1
    rows = table("id", "queue", "bytes", "age", "", right="id bytes", wrap="queue")
    for message in messages:
        more = f" and {message['queues'] - 1} more" if message["queues"] > 1 else ""
        rows.add_row(
            str(message["id"]),
            f"{_queue_of(message)}{more}",
            size(message["bytes"]),
            age_at(taken_ms, message["published_ms"]),
            bar(message["bytes"] / most, _width(out) - 4),
        )
    out.print(rows)


def show_disk(found: Facts) -> None:
    """Print what each part of the data directory takes."""
    out = console()
    parts = found["disk_bytes"]
    total = sum(parts.values())
    out.print(heading(f"On the disk: {size(total)}"))
    rows = table("", "", "", right="")
    for part, count in sorted(parts.items(), key=lambda one: -one[1]):
        rows.add_row(f"  {part}", f"{size(count):>9}", bar(count / total, _width(out)))
    rows.show_header = False
    out.print(rows)


def age_at(taken_ms: int, time_ms: int | None) -> str:
    """Return for how long something existed; a dash if it is not known since when."""
    return "-" if time_ms is None else age(max(taken_ms - time_ms, 0))


def _show_bars(
    title: str,
    value: str,
    classes: list[Facts],
    bound: str,
    say_bound: Callable[[int], str],
    say_value: Callable[[int], str],
) -> None:
    """Print a bar for each class that is not empty. Args: value and bound, their names in a
    class.
    """
    out = console()
    total = sum(one[value] for one in classes)
    heading_of = value.removesuffix("_bytes")
    rows = table(title, heading_of, "", right=heading_of)
    before = 0
    for row in classes:
        name = f"to {say_bound(row[bound])}" if row[bound] else f"over {say_bound(before)}"
        before = row[bound]
        if row[value]:
            rows.add_row(f"  {name}", say_value(row[value]), bar(row[value] / total, _width(out)))
    out.print(rows)


def _width(out: Console) -> int:
    """Return the width of a bar: what 80 columns leave beside the longest figures, more on a wider
    terminal.
    """
    return min(max(picture_width(out) - 56, _MIN_BAR), _MAX_BAR)


def _queue_of(message: Facts) -> str:
    label = shown(message["label"], 60)
    vhost = message["vhost"]
    return label if vhost in (None, "/") else f"{label} in {shown(vhost, 20)}"
