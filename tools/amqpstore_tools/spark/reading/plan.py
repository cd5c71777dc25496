"""Plans what a job reads: looked up once, on the driver, and passed to tasks as partitions.

A partition has everything that its task needs: which segments, where their files are and how much
of them counts, what is live in them and the names of queues. A task opens no catalog.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyspark.sql.datasource import InputPartition

from amqpstore.catalog import tables
from amqpstore.identity.identity import SegmentHeader
from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.offline.read_only_files import ReadOnlyFile
from amqpstore_tools.offline.segments import SegmentImage, SegmentState
from amqpstore_tools.repair.imaging import RemainingImage
from amqpstore_tools.spark.reading.leases import SUFFIX, LeasedFile, LeaseError, take_lease
from amqpstore_tools.spark.reading.live import Collector, LiveRuns, runs_of
from amqpstore_tools.spark.reading.messages import QueueIdentity
from amqpstore_tools.spark.reading.options import ReadOptions
from amqpstore_tools.spark.reading.tables import queue_rows, segment_rows
from amqpstore_tools.spark.reading.wanted import Wanted

_TASKS = 8
_LEAST_BYTES = 16 << 20
_MAX_BYTES = 128 << 20


class SegmentTask(NamedTuple):
    """A segment to be read: `size` bytes of the file at `path`.

    Its ids end before `end_id`, 0 if unknown. `live` is for `LiveRuns`.
    """

    number: int
    path: str
    size: int
    end_id: int
    live: bytes


@dataclass
class StorePartition(InputPartition):
    """The part of a store that one task reads. `rows` are those that the driver has made already;
    for view `findings` everything is empty.

    `lease` is the directory of the links, empty if the files are read in place.
    """

    view: str
    segments: list[SegmentTask] = field(default_factory=list)
    names: Mapping[int, QueueIdentity] = field(default_factory=dict)
    dictionaries: Mapping[int, bytes] = field(default_factory=dict)
    seed: int = 0
    lease: str = ""
    rows: list[tuple[Any, ...]] = field(default_factory=list)


def partitions(options: ReadOptions, wanted: Wanted) -> list[StorePartition]:
    """Raises: NotAStoreError, FormatVersionError, SnapshotError, LeaseError, OSError."""
    if options.view == "findings":
        return [StorePartition(options.view)]
    with RemainingImage.open(options.path, live=True) as image:
        return _Plan(image, options, wanted).partitions()


class _Plan:
    def __init__(self, image: StoreImage, options: ReadOptions, wanted: Wanted) -> None:
        self._image = image
        self._options = options
        self._wanted = wanted
        self._names = {
            one.id: QueueIdentity(one.vhost, one.name, one.is_hidden) for one in image.queues
        }

    def partitions(self) -> list[StorePartition]:
        view = self._options.view
        image = self._image
        if view == "queues":
            return [StorePartition(view, rows=list(queue_rows(image)))]
        if view == "segments":
            return [StorePartition(view, rows=list(segment_rows(image)))]
        images = [one for one in self._segments() if self._wanted.has_segment(one.number)]
        images = self._within_time(images)
        live: dict[int, bytes] = {}
        if view == "messages":
            live = self._live(images)
            images = [one for one in images if self._may_have_rows(live.get(one.number, b""))]
        lease = self._lease(images)
        tasks = [self._task(one, lease, live.get(one.number, b"")) for one in images]
        return [self._partition(group, lease) for group in self._groups(tasks)]

    def _segments(self) -> list[SegmentImage]:
        """Return the segments that the store reads, in the order of their ids."""
        out = (SegmentState.LEFT_OVER, SegmentState.MISSING)
        found = [one for one in self._image.segments if one.size and one.state not in out]
        if self._options.view == "transactions":
            found = [one for one in found if not one.is_compacted]
        return found

    def _within_time(self, images: list[SegmentImage]) -> list[SegmentImage]:
        wanted = self._wanted
        if wanted.least_ms is None and wanted.most_ms is None:
            return images
        # Segments written by compaction do not say when anything was published.
        log = [one for one in images if not one.is_compacted]
        log.sort(key=lambda one: one.number)
        created = [_created_ms(one) for one in log]
        following = [*created[1:], None][: len(log)]
        return [
            one
            for one, first, last in zip(log, created, following, strict=True)
            if wanted.has_span(first, last)
        ]

    def _live(self, images: list[SegmentImage]) -> dict[int, bytes]:
        known = [one for one in self._segments() if one.first_id]
        known.sort(key=lambda one: one.first_id)
        collector = Collector([one.first_id for one in known])
        for queue in self._image.queues:
            for entries in queue.columns():
                collector.add(runs_of(queue.id, entries))
        numbers = {one.number for one in images}
        return {
            one.number: collector.packed(index)
            for index, one in enumerate(known)
            if one.number in numbers
        }

    def _may_have_rows(self, packed: bytes) -> bool:
        """Tell whether the live messages of a segment may be wanted, if nothing else is."""
        wanted = self._wanted
        if wanted.has_state("acked-not-compacted"):
            return True
        nobody = QueueIdentity(None, None)
        names = (self._names.get(one, nobody) for one in LiveRuns(packed).queue_ids())
        return any(wanted.has_queue(name.vhost, name.queue) for name in names)

    def _lease(self, images: list[SegmentImage]) -> str:
        """Raises: LeaseError, if a broker runs and its files cannot be linked."""
        if not images:
            return ""
        options = self._options
        directory = options.lease_directory or f"{os.path.normpath(options.path)}{SUFFIX}"
        files = []
        try:
            for segment in images:
                file = self._image.files.open(segment.path)
                assert isinstance(file, ReadOnlyFile)  # an image has no others
                files.append(LeasedFile(file, _name(segment), segment.sound_size))
            return take_lease(files, directory, idle_s=options.lease_idle_s)
        except LeaseError:
            if self._image.is_live:
                raise
            # No broker runs, and if nothing can be written none will remove anything.
            return ""
        finally:
            for leased in files:
                leased.file.close()

    def _task(self, image: SegmentImage, lease: str, live: bytes) -> SegmentTask:
        path = os.path.join(lease, _name(image)) if lease else os.path.abspath(image.path)
        return SegmentTask(image.number, path, image.sound_size, image.end_id or 0, live)

    def _groups(self, tasks: list[SegmentTask]) -> Iterator[list[SegmentTask]]:
        """Yield neighbouring segments, together about as much as a task reads."""
        most = self._options.partition_bytes
        if not most:
            # A task costs as much as reading some megabytes, and there may be only a few.
            share = sum(task.size for task in tasks) // _TASKS
            most = min(max(share, _LEAST_BYTES), _MAX_BYTES)
        group: list[SegmentTask] = []
        size = 0
        for task in tasks:
            if group and size + task.size > most:
                yield group
                group, size = [], 0
            group.append(task)
            size += task.size
        if group:
            yield group

    def _partition(self, group: list[SegmentTask], lease: str) -> StorePartition:
        image = self._image
        dictionaries = tables.DICTIONARIES.read(image.rows)
        return StorePartition(
            self._options.view,
            group,
            self._names,
            dictionaries,
            image.seed,
            lease,
        )


def _name(image: SegmentImage) -> str:
    return os.path.basename(image.path)


def _created_ms(image: SegmentImage) -> int | None:
    header = image.header()
    return header.created_ms if isinstance(header, SegmentHeader) else None
