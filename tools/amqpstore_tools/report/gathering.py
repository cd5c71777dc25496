"""Gathers the figures of a report: on the driver, and by tasks that count in segments."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from amqpstore.catalog import tables
from amqpstore.identity.identity import SegmentHeader
from amqpstore.system.filenames import is_compacted
from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.offline.segments import SegmentImage, SegmentState
from amqpstore_tools.repair.imaging import RemainingImage
from amqpstore_tools.report.tally import Item, ReportContext, Tally, count
from amqpstore_tools.spark.reading.live import Collector, runs_of
from amqpstore_tools.spark.task_files import for_tasks

_BUCKETS_MS = (
    *(1_000, 10_000, 60_000, 600_000, 3_600_000),
    *(6 * 3_600_000, 86_400_000, 7 * 86_400_000),
)
_MAX_BUCKETS = 96

Spread = Callable[[Sequence[Item], Callable[[Iterable[Item]], Tally]], Iterable[Tally]]
"""Counts groups of neighbouring items, on any machine. Returns the result of each group."""


class QueueFigures(NamedTuple):
    """A queue's name and content; `bytes` without compression."""

    name: str
    ready: int
    delivered: int
    bytes: int


class SegmentFigures(NamedTuple):
    """A segment, when it was started, and how much of it is needed."""

    number: int
    created_ms: int
    live_bytes: int
    garbage_bytes: int


@dataclass(frozen=True)
class Figures:
    """Everything on a page. Buckets of time are `bucket_ms` long."""

    directory: str
    taken_ms: int
    bucket_ms: int
    queues: dict[int, QueueFigures]
    segments: list[SegmentFigures]
    tally: Tally


def gather(directory: str, spread: Spread, *, is_local: bool) -> Figures:
    """Count everything in the store in `directory`; a broker may be running on it.

    Raises: NotAStoreError, FormatVersionError, SnapshotError, OSError.
    """
    with RemainingImage.open(directory, live=True) as image:
        segments = [one for one in image.segments if one.size and one.state not in _OUT]
        segments.sort(key=lambda one: one.first_id)
        figures = [_segment(one) for one in segments]
        starts = [
            one.created_ms for one in figures if one.created_ms and not is_compacted(one.number)
        ]
        bucket_ms = _bucket_ms(image.taken_ms - min(starts, default=image.taken_ms))
        shared = ReportContext(
            for_tasks(image.files, is_local=is_local),
            image.seed,
            tables.DICTIONARIES.read(image.rows),
            bucket_ms,
            image.taken_ms,
        )
        tally = Tally()
        for part in spread(_items(image, segments), lambda items: count(shared, items)):
            tally.add(part)
        return Figures(directory, image.taken_ms, bucket_ms, _queues(image), figures, tally)


_OUT = (SegmentState.LEFT_OVER, SegmentState.MISSING)


def _items(image: StoreImage, segments: Sequence[SegmentImage]) -> list[Item]:
    known = [one for one in segments if one.first_id]
    collector = Collector([one.first_id for one in known])
    for queue in image.queues:
        for entries in queue.columns():
            collector.add(runs_of(queue.id, entries))
    live = {one.number: collector.packed(index) for index, one in enumerate(known)}
    return [
        Item(
            one.number,
            one.path if image.is_live else os.path.abspath(one.path),
            one.sound_size,
            live.get(one.number, b""),
        )
        for one in segments
    ]


def _segment(image: SegmentImage) -> SegmentFigures:
    header = image.header()
    created_ms = header.created_ms if isinstance(header, SegmentHeader) else 0
    return SegmentFigures(image.number, created_ms, image.live_bytes, image.garbage_bytes)


def _queues(image: StoreImage) -> dict[int, QueueFigures]:
    found = {}
    for queue in image.queues:
        totals = queue.totals()
        name = queue.label if queue.level is None else f"{queue.label} (priority {queue.level})"
        if queue.vhost not in (None, "/"):
            name = f"{queue.vhost}/{name}"
        found[queue.id] = QueueFigures(name, totals.ready, totals.delivered, totals.bytes)
    return found


def _bucket_ms(span_ms: int) -> int:
    """Return the shortest length that does not give too many buckets."""
    for bucket_ms in _BUCKETS_MS:
        if span_ms / bucket_ms <= _MAX_BUCKETS:
            return bucket_ms
    return _BUCKETS_MS[-1] * (span_ms // (_BUCKETS_MS[-1] * _MAX_BUCKETS) + 1)
