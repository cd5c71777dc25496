"""The driver of a check on Spark: what is to be done, and what comes of it, store by store.

Three jobs, each for all stores at once: every segment is read, and what was found in it stays with
the executors; every index file is read, and what is live in it goes where its segment is; and there
each segment is held against the log before it and against what queues hold of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from operator import attrgetter
from typing import Any

from pyspark import RDD, StorageLevel

from amqpstore import tables
from amqpstore.errors import StoreError
from amqpstore.files import Files
from amqpstore.records import Operation
from amqpstore.shapes import Rows
from amqpstore.tables import MarksRow, SegmentRow
from amqpstore_tools.check.check import Checked, SegmentJob, StoreCheck, Tell, opened
from amqpstore_tools.check.findings import Finding, Findings
from amqpstore_tools.check.history import Fresh, History, LogChecker, LogPlace
from amqpstore_tools.check.index import in_order
from amqpstore_tools.check.marks import MarkChecker
from amqpstore_tools.check.prepared import Holdings
from amqpstore_tools.check.references import ReferenceChecker
from amqpstore_tools.check.segments import Segment
from amqpstore_tools.spark.check import tasks
from amqpstore_tools.spark.check.shared import (
    Compared,
    CompareJob,
    IndexJob,
    IndexResult,
    Known,
    LivePart,
    Range,
    Read,
    ReadJob,
    Shared,
    Summary,
)
from amqpstore_tools.spark.cluster import Cluster
from amqpstore_tools.spark.task_files import for_tasks

_INDEX_FILES = 64
"""In one item of work."""

_INDEX_BYTES = 256 << 10
"""About what reading an index file is worth, in bytes of segments."""

_HANDED_OUT = ("index", "segments", "marks")

_MOST_BROADCAST = 8_000_000
"""Messages that are live: as long as they are no more, where they are is sent to all tasks."""

Outcome = Checked | Exception

Key = tuple[int, int]
"""The store among those that are checked, and the segment."""

Segments = RDD[tuple[Key, Read]]
Indexes = RDD[tuple[IndexResult, list[tuple[int, LivePart]]]]
LiveParts = dict[Key, list[LivePart]]


def check(
    cluster: Cluster,
    directory: str,
    *,
    live: bool = False,
    is_held: bool = False,
    tell: Tell = lambda *_: None,
) -> Checked:
    """As `amqpstore_tools.check.check.check`, on a cluster. Raises: the same, JobError."""
    started = time.monotonic()
    (outcome,) = check_all(cluster, [directory], live=live, is_held=is_held, tell=tell)
    if isinstance(outcome, Exception):
        raise outcome
    outcome.seconds = time.monotonic() - started
    # At most: all cores had something to do.
    outcome.cpu_seconds = outcome.seconds * cluster.cores
    return outcome


def check_all(
    cluster: Cluster,
    directories: Sequence[str],
    *,
    live: bool = False,
    is_held: bool = False,
    tell: Tell = lambda *_: None,
    most_broadcast: int = _MOST_BROADCAST,
) -> list[Outcome]:
    """Check several stores in the jobs of one. Returns of each what `check` returns or raises.

    Args: most_broadcast, live messages of all stores, of which every task is told.
    """
    outcomes: list[Outcome] = []
    checks: dict[int, _Check] = {}
    with ExitStack() as stack:
        for number, directory in enumerate(directories):
            try:
                files, catalog = stack.enter_context(opened(directory, live=live, is_held=is_held))
                check = _Check(directory, files, catalog, is_live=live)
                check.begin()
            except (StoreError, OSError) as error:
                outcomes.append(error)
            else:
                checks[number] = check
                outcomes.append(check.out)
        _run(cluster, checks, tell, most_broadcast)
    return outcomes


def _run(cluster: Cluster, checks: dict[int, _Check], tell: Tell, most_broadcast: int) -> None:
    shared = cluster.broadcast(
        {number: check.shared(is_local=cluster.is_local) for number, check in checks.items()}
    )
    reads = [ReadJob(number, job) for number, check in checks.items() for job in check.jobs]
    total = sum(job.segment.size for job in reads)

    def tell_of(what: str) -> Callable[[int, int], None]:
        return lambda done, tasks: tell(what, total * done // (tasks or 1), total)

    read: Segments = cluster.spread(reads, lambda job: job.segment.size).map(
        lambda job: ((job.store, job.segment.number), tasks.read(shared()[job.store], job))
    )
    # It is not read again, and not scanned again, whatever is made of it.
    read.persist(StorageLevel.MEMORY_AND_DISK)
    index: Indexes | None = None
    try:
        summaries = read.map(
            lambda one: (one[0], tasks.summary(shared()[one[0][0]], one[0][1], one[1]))
        )
        for (store, _), summary in cluster.collect(summaries, tell_of("segments")):
            checks[store].summaries.append(summary)
        for check in checks.values():
            check.take_summaries()
        index = _index(cluster, checks, shared)
        is_small = sum(check.live_count for check in checks.values()) <= most_broadcast
        live: LiveParts | None = None
        if is_small:
            found = cluster.collect(index, tell_of("index files"))
            results = [result for result, _ in found]
            live = _by_segment(found)
        else:
            index.persist(StorageLevel.MEMORY_AND_DISK)
            results = cluster.collect(index.map(lambda one: one[0]), tell_of("index files"))
        for result in results:
            checks[result.store].index_results.append(result)
        for check in checks.values():
            check.take_index()
        compared = _compared(cluster, checks, shared, read, index if live is None else live)
        for (store, number), one in cluster.collect(compared, tell_of("references")):
            checks[store].compared[number] = one
        for check in checks.values():
            check.end()
    finally:
        read.unpersist()
        if index is not None:
            index.unpersist()


def _index(
    cluster: Cluster, checks: dict[int, _Check], shared: Callable[[], dict[int, Shared]]
) -> Indexes:
    removed = cluster.broadcast({number: check.history.removed for number, check in checks.items()})
    jobs = [job for number, check in checks.items() for job in check.index_jobs(number)]
    return cluster.spread(jobs, lambda job: _INDEX_BYTES * len(job.files)).map(
        lambda job: tasks.read_index(shared()[job.store], job, removed()[job.store])
    )


def _by_segment(found: Iterable[tuple[IndexResult, list[tuple[int, LivePart]]]]) -> LiveParts:
    live: LiveParts = {}
    for result, parts in found:
        for number, part in parts:
            live.setdefault((result.store, number), []).append(part)
    return live


def _compared(
    cluster: Cluster,
    checks: dict[int, _Check],
    shared: Callable[[], dict[int, Shared]],
    read: Segments,
    index: Indexes | LiveParts,
) -> RDD[tuple[Key, Compared]]:
    """Segments joined with what is live of them: sent to all tasks, or shuffled if it is much."""
    known = cluster.broadcast({number: check.known for number, check in checks.items()})
    jobs = cluster.broadcast({number: check.compare_jobs() for number, check in checks.items()})

    def compare(key: Key, one: Read, parts: Sequence[LivePart]) -> tuple[Key, Compared]:
        store, number = key
        job = jobs()[store][number]
        return key, tasks.compare(shared()[store], known()[store], job, one, parts)

    if isinstance(index, dict):
        live = cluster.broadcast(index)
        return read.map(lambda one: compare(one[0], one[1], live().get(one[0], ())))
    parts = index.flatMap(lambda one: [((one[0].store, number), part) for number, part in one[1]])
    joined = read.cogroup(parts, max(read.getNumPartitions(), index.getNumPartitions()))
    return joined.map(lambda one: compare(one[0], next(iter(one[1][0])), list(one[1][1])))


class _Check(StoreCheck):
    """One store. `begin`, the `take` methods and `end` are called in turn, each when the job
    before it is done."""

    def __init__(self, directory: str, files: Files, catalog: str, *, is_live: bool) -> None:
        super().__init__(directory, files, catalog, lambda *_: None, is_live=is_live)
        self.jobs: list[SegmentJob] = []
        self.summaries: list[Summary] = []
        self.index_results: list[IndexResult] = []
        self.compared: dict[int, Compared] = {}
        self.history = History()
        self._places: dict[int, LogPlace] = {}
        self._fresh: dict[int, list[Operation]] = {}
        self._ranges: dict[int, Range] = {}
        self._is_whole = True

    @property
    def out(self) -> Checked:
        """What comes of it."""
        return self._out

    def begin(self) -> None:
        """Everything that is before the segments. Raises: as `check`."""
        self.prepare()
        self.jobs = self._segment_jobs()
        if self._rows is not None:
            references = ReferenceChecker(self._rows, {}, History(), Findings())
            self._ranges = {
                account.number: (account.first_id, account.end_id)
                for account in references.accounts()
            }

    def shared(self, *, is_local: bool) -> Shared:
        """What tasks are told of it."""
        rows = self._rows
        if rows is not None:
            handed_out: Rows = {table: {} for table in _HANDED_OUT}
            # Of queues, that they are there.
            rows = {**rows, **handed_out, "queues": dict.fromkeys(rows["queues"], True)}
        return Shared(
            self._directory,
            for_tasks(self._files, is_local=is_local),
            self._store_id,
            self._seed,
            rows,
            self._findings.names,
            self._position(rows)[0] if rows else 0,
            self._ranges,
        )

    def take_summaries(self) -> None:
        """All segments were read."""
        log = LogChecker(self._rows, Findings())
        place = tasks.NOTHING_BEFORE
        for found in sorted(self.summaries, key=attrgetter("number")):
            if found.after is None or found.segment is None:
                continue
            before = {
                queue_id: place.next_sequences[queue_id]
                for queue_id in found.queues
                if queue_id in place.next_sequences
            }
            self._places[found.number] = place._replace(next_sequences=before)
            self._fresh[found.number] = found.fresh
            place = log.joined(place, found.after)
            history = self.history
            history.highest_queue_id = max(history.highest_queue_id, found.history.highest_queue_id)
            history.fresh += [Fresh(found.segment, operation) for operation in found.fresh]
            for queue_id, ranges in found.history.removed.items():
                for first, end in ranges:
                    history.remove(queue_id, first, end)

    @property
    def live_count(self) -> int:
        """Entries of index files that are live, as their rows say."""
        states = tables.INDEX.read(self._rows.__getitem__).values() if self._rows else ()
        return sum(state.live for state in states)

    def index_jobs(self, store: int) -> Iterator[IndexJob]:
        """The index files that are to be read."""
        if self._rows is None:
            return
        files = in_order(self._rows)
        for start in range(0, len(files), _INDEX_FILES):
            part = files[start : start + _INDEX_FILES]
            before = files[start - 1] if start else None
            is_same = before is not None and before[0].queue_id == part[0][0].queue_id
            yield IndexJob(store, start, part, before[1].end if before and is_same else 0)

    def take_index(self) -> None:
        """All index files were read."""
        self.index_results.sort(key=lambda one: one.place)
        self._is_whole = all(one.is_whole for one in self.index_results)

    @property
    def known(self) -> Known:
        """What tasks are told when all files were read."""
        return Known(self._is_index_whole(self._is_whole), self.history.removed)

    def compare_jobs(self) -> dict[int, CompareJob]:
        """What each segment is held against."""
        accounts: dict[int, SegmentRow] = {}
        offsets: dict[int, MarksRow] = {}
        if self._rows is not None:
            accounts = tables.SEGMENTS.read(self._rows.__getitem__)
            offsets = tables.MARKS.read(self._rows.__getitem__)
        jobs = {}
        for job in self.jobs:
            account = accounts.get(job.number) if job.number in self._ranges else None
            marks = offsets.get(job.number)
            fresh = self._fresh.get(job.number, ())
            jobs[job.number] = CompareJob(self._places.get(job.number), account, marks, fresh)
        return jobs

    def end(self) -> None:
        """All is compared: what was found is put together, in its order."""
        self.finish(self.jobs)

    # The steps of a check, of which all that takes long was done.

    def _read_segments(self, jobs: Sequence[SegmentJob]) -> History:
        found = {summary.number: summary for summary in self.summaries}
        for job in jobs:
            summary = found[job.number]
            self._findings.extend(summary.findings)
            if summary.segment is not None:
                self._note(summary.segment, job.size)
            self._findings.extend(self._compared_of(job.number).log)
        return self.history

    def _compared_of(self, number: int) -> Compared:
        return self.compared.get(number) or Compared()

    def _check_index(self, _rows: Rows, _history: History) -> bool:
        for result in self.index_results:
            self._findings.extend(result.findings)
        return self._is_whole

    def _check_references(self, rows: Rows, history: History, *, is_whole: bool) -> None:
        references = ReferenceChecker(rows, {}, history, self._findings)
        references.is_whole = is_whole
        accounts = list(references.accounts())
        last_end = 0
        for account in accounts:
            last_end = references.check_overlap(account, last_end)
            self._findings.extend(self._compared_of(account.number).account)
        homeless = sorted(run for summary in self.summaries for run in summary.homeless)
        parts = [part for result in self.index_results for part in result.homeless]
        live = [part.live for part in sorted(parts, key=attrgetter("order"))]
        references.check_homes(accounts, homeless, live)
        for job in self.jobs:
            self._findings.extend(self._compared_of(job.number).fresh)

    def _check_marks(self, rows: Rows) -> None:
        marks = _Marks(
            self._files, self._directory, self._segments, self._damaged_accounts, self._findings
        )
        marks.found = {number: one.marks for number, one in self.compared.items()}
        marks.check(rows)

    def _holdings(self, history: History) -> Holdings:
        return _Holdings(self.index_results, history)


class _Marks(MarkChecker):
    """Where tables of offsets lead was looked at by tasks."""

    found: dict[int, list[Finding]]

    def check_offsets(self, segment: Segment, _row: Any) -> None:
        self._findings.extend(self.found.get(segment.number, ()))


class _Holdings(Holdings):
    """How many messages queues hold, counted by tasks as far as that was in index files."""

    def __init__(self, results: Sequence[IndexResult], history: History) -> None:
        super().__init__([live for result in results for live in result.hidden], history)
        self._held: dict[int, int] = {}
        hidden = {live.queue_id for result in results for live in result.hidden}
        for result in results:
            for queue_id, count in result.held.items():
                if queue_id not in hidden:
                    self._held[queue_id] = self._held.get(queue_id, 0) + count

    def count(self, queue_id: int, first: int = 0, end: int = 1 << 64) -> int:
        return self._held.get(queue_id, 0) + super().count(queue_id, first, end)
