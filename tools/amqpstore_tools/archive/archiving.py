"""One run of an archive: writes the new part of a store's log, and then makes it part of the
archive.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from amqpstore.errors import DamageError
from amqpstore_tools.archive.committing import writing_to
from amqpstore_tools.archive.errors import ArchiveError
from amqpstore_tools.archive.events import DELETE, GONE, found_out
from amqpstore_tools.archive.layout import QueueName, directory_of, file_name, hour_of, staging_name
from amqpstore_tools.archive.manifest import ArchiveManifest
from amqpstore_tools.archive.planning import ArchivePlan, plan
from amqpstore_tools.archive.writing import (
    ArchiveContext,
    ArchiveResult,
    SegmentItem,
    write,
    write_table,
)
from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.offline.queues import QueueImage
from amqpstore_tools.spark.reading.live import runs_of
from amqpstore_tools.spark.task_files import for_tasks

_BEHIND_ALL = (1 << 32) - 1
"""Stands for a segment's number, so that these files sort last."""

Spread = Callable[
    [Sequence[SegmentItem], Callable[[Iterable[SegmentItem]], ArchiveResult]],
    Iterable[ArchiveResult],
]
"""Writes groups of neighbouring items, on any machine. Returns the result of each group."""


def archive(
    directory: str, out: str, spread: Spread, *, is_local: bool = True
) -> ArchiveManifest | None:
    """Bring an archive up to the end of the log of the store in `directory`.

    Returns the manifest of the run; None if there is nothing new.
    Raises: ArchiveError, NotAStoreError, FormatVersionError, SnapshotError, OSError.
    """
    with _open(directory, out) as image, writing_to(out) as target:
        planned = plan(image, out, target.manifests())
        if not planned.items and not planned.gone:
            return None
        staging = staging_name(planned.run)
        shared = ArchiveContext(
            planned.run,
            target.staging(staging),
            for_tasks(image.files, is_local=is_local),
            planned.seed,
            planned.known,
            planned.dictionaries,
        )
        written = list(spread(planned.items, lambda items: write(shared, items)))
        batches = sum(one.batches for one in written)
        missing = max(planned.end.lsn - planned.start.lsn - batches, 0)
        others = _FoundOut(target.staging(staging), planned)
        seen = {entry.queue_id for one in written for entry in one.files}
        # Queues that were only `seen` came and went between two runs.
        others.deleted(sorted({*planned.gone, *(seen - planned.queues.keys())}))
        if missing:
            others.gone(image)
        manifest = _manifest(
            planned, [*written, others.written], missing, others.queue_ids, staging
        )
        target.commit(manifest)
        return manifest


def _open(directory: str, out: str) -> StoreImage:
    """Open the store. Raises: ArchiveError (its catalog cannot be read), and as `archive`."""
    try:
        return StoreImage.open(directory, live=True)
    except DamageError as error:
        reason = f"the store's catalog cannot be read ({error.reason}): repair it first"
        raise ArchiveError(out, reason) from error


def _manifest(
    planned: ArchivePlan,
    written: Sequence[ArchiveResult],
    missing: int,
    deleted: list[int],
    staging: str,
) -> ArchiveManifest:
    events: Counter[str] = Counter()
    for part in written:
        events.update(part.events)
    return ArchiveManifest(
        planned.run,
        planned.store_id,
        planned.taken_ms,
        planned.end,
        min((one.first_lsn for one in written if one.first_lsn), default=0),
        sum(one.batches for one in written),
        missing,
        sum(one.damaged for one in written),
        sum(one.unreadable for one in written),
        dict(events),
        planned.queues,
        planned.next_positions,
        deleted,
        sorted((entry for one in written for entry in one.files), key=lambda entry: entry.path),
        staging,
    )


class _FoundOut:
    """Writes events that are in no batch of the log, into `written` files. `queue_ids` are deleted
    queues.
    """

    def __init__(self, staging: str, planned: ArchivePlan) -> None:
        self._staging = staging
        self._planned = planned
        self.written = ArchiveResult()
        self.queue_ids: list[int] = []

    def deleted(self, queue_ids: list[int]) -> None:
        """Write that these queues have been deleted."""
        self.queue_ids = queue_ids
        for queue_id in queue_ids:
            self._write(DELETE, queue_id, [(0, 0)])

    def gone(self, image: StoreImage) -> None:
        """Write that messages are gone which left their queue in batches that no run has read."""
        for queue in image.queues:
            if ranges := list(_gone(queue)):
                self._write(GONE, queue.id, ranges)

    def _write(self, event: str, queue_id: int, ranges: list[tuple[int, int]]) -> None:
        planned = self._planned
        table = found_out(event, queue_id, ranges, planned.end.lsn - 1, planned.taken_ms)
        name = planned.known.get(queue_id, QueueName(None, None))
        path = os.path.join(
            directory_of(name, hour_of(planned.taken_ms)),
            file_name(planned.run, _BEHIND_ALL, 0, queue_id),
        )
        self.written.files.append(write_table(table, self._staging, path, queue_id))
        self.written.events[event] += len(ranges)


def _gone(queue: QueueImage) -> Iterator[tuple[int, int]]:
    """Yield the positions that were assigned and of which the queue no longer holds a message."""
    last = 1
    for entries in queue.columns():
        for run in runs_of(queue.id, entries):
            if run.first_sequence > last:
                yield last, run.first_sequence
            last = run.first_sequence + run.size
    if queue.next_sequence > last:
        yield last, queue.next_sequence
