"""Finds the part of a store that is not in an archive yet."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from amqpstore.catalog import tables
from amqpstore.system.filenames import is_compacted
from amqpstore_tools.archive.errors import ArchiveError
from amqpstore_tools.archive.layout import QueueName
from amqpstore_tools.archive.manifest import ArchiveManifest, LogPosition
from amqpstore_tools.archive.writing import SegmentItem
from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.offline.segments import SegmentImage, SegmentState
from amqpstore_tools.spark.reading.live import Collector, LiveRun, runs_of

_START = LogPosition(0, 0, 1)


@dataclass(frozen=True)
class ArchivePlan:
    """The work of a run. `known` queues are all that ever had a name, `gone` those that existed at
    the last run; `held_ms` is the time given to what was there before.
    """

    run: int
    items: list[SegmentItem]
    start: LogPosition
    end: LogPosition
    known: dict[int, QueueName]
    queues: dict[int, QueueName]
    next_positions: dict[int, int]
    gone: list[int]
    seed: int
    store_id: str
    taken_ms: int
    dictionaries: dict[int, bytes]


def plan(image: StoreImage, directory: str, earlier: Sequence[ArchiveManifest]) -> ArchivePlan:
    """Plan a run. Args: directory, of the archive; earlier, the manifests of its runs.

    Raises: ArchiveError, if store and archive do not belong together; OSError.
    """
    last = earlier[-1] if earlier else None
    store_id = image.store_id.hex if image.store_id else ""
    if not store_id:
        raise ArchiveError(directory, "nothing says which store this is: repair it first")
    if last and last.store_id != store_id:
        reason = f"it is of store {last.store_id}, but this one is {store_id}. Name another one."
        raise ArchiveError(directory, reason)
    start = last.position if last else _START
    position = image.recovered.position
    end = LogPosition(position.segment, position.offset, position.lsn)
    if end.lsn < start.lsn:
        reason = (
            f"it has the log up to LSN {start.lsn - 1}, and the store's ends at "
            f"{end.lsn - 1}: it was replaced by an older copy. Archive it to another directory."
        )
        raise ArchiveError(directory, reason)
    queues = {one.id: QueueName(one.vhost, one.name) for one in image.queues}
    known = {queue_id: name for one in earlier for queue_id, name in one.queues.items()} | queues
    log = [
        SegmentItem(
            one.number,
            os.path.abspath(one.path) if not image.is_live else one.path,
            _size(one, end),
            start.offset if one.number == start.segment else 0,
            end.lsn,
        )
        for one in image.log_segments()
        if start.segment <= one.number <= end.segment
        and one.state not in (SegmentState.LEFT_OVER, SegmentState.MISSING)
    ]
    log = [one for one in log if one.size > one.start]
    return ArchivePlan(
        last.run + 1 if last else 1,
        [*_held(image, last, start, log), *log],
        start,
        end,
        known,
        queues,
        {one.id: one.next_sequence for one in image.queues},
        sorted(set(last.queues) - set(queues)) if last else [],
        image.seed,
        store_id,
        image.taken_ms,
        tables.DICTIONARIES.read(image.rows),
    )


def _size(segment: SegmentImage, end: LogPosition) -> int:
    """Return the size of the segment in bytes, without a torn tail."""
    sound = segment.sound_size
    return min(sound, end.offset) if segment.number == end.segment else sound


def _held(
    image: StoreImage, last: ArchiveManifest | None, start: LogPosition, log: Sequence[SegmentItem]
) -> list[SegmentItem]:
    """Return compacted segments, with what queues hold of them and the archive does not have.

    An ENQUEUE is in the segment that its messages were first written to, so only messages that
    compaction has moved since have lost theirs.
    """
    compacted = [one for one in image.segments if one.is_compacted and one.size and one.first_id]
    known = [one for one in image.segments if one.first_id]
    known.sort(key=lambda one: one.first_id)
    if not compacted:
        return []
    collector = Collector([one.first_id for one in known])
    for queue in image.queues:
        archived = last.next_positions.get(queue.id, 0) if last else 0
        for entries in queue.columns():
            collector.add(
                part for run in runs_of(queue.id, entries) if (part := _from(run, archived)).size
            )
    numbers = {one.number for one in compacted}
    held_ms = _first_time(image, log)
    items = []
    for index, segment in enumerate(known):
        packed = collector.packed(index)
        if segment.number in numbers and packed:
            path = os.path.abspath(segment.path) if not image.is_live else segment.path
            lsn = max(start.lsn - 1, 0)
            items.append(
                SegmentItem(segment.number, path, segment.sound_size, 0, 0, packed, lsn, held_ms)
            )
    return items


def _from(run: LiveRun, position: int) -> LiveRun:
    """Return the part of a run from a position on."""
    skipped = min(max(position - run.first_sequence, 0), run.size)
    return run.slice(run.first_id + skipped, run.end_id)


def _first_time(image: StoreImage, log: Sequence[SegmentItem]) -> int:
    """Return when the existing log begins, in ms since 1970."""
    for item in log:
        segment = image.segment(item.number)
        if segment is not None and not is_compacted(item.number):
            for transaction in image.transactions(segment, item.start):
                return transaction.time_ms
    return image.taken_ms
