"""The steps of a check on Spark: three jobs, each for all stores at once.

Every segment is read, and the result stays with the executors; every index file is read, and its
live entries are sent to where their segments are; and there each segment is compared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pyspark import RDD, StorageLevel

from amqpstore.catalog.shapes import Rows
from amqpstore_tools.check import steps
from amqpstore_tools.check.executor import CheckSteps
from amqpstore_tools.check.jobs import (
    ONE_BY_ONE,
    Compared,
    CompareJob,
    IndexJob,
    IndexResult,
    Key,
    Known,
    LiveSlice,
    Range,
    Read,
    ReadJob,
    StoreContext,
    Summary,
)
from amqpstore_tools.offline.progress import Progress
from amqpstore_tools.spark.cluster import Cluster, Tell, by_bytes
from amqpstore_tools.spark.task_files import for_tasks

_INDEX_BYTES = 256 << 10
"""The cost of reading an index file, in bytes of segments."""

_MAX_BROADCAST = 8_000_000
"""Up to this many live messages, their places are sent to all tasks."""

One = TypeVar("One")

LiveSlices = dict[Key, list[LiveSlice]]


class SparkExecutor:
    """Runs steps on a cluster. Args: most_broadcast, live messages of all stores that are sent to
    every task.
    """

    def __init__(self, cluster: Cluster, most_broadcast: int = _MAX_BROADCAST) -> None:
        self._cluster = cluster
        self._most_broadcast = most_broadcast

    @contextlib.contextmanager
    def steps(self, stores: Mapping[int, StoreContext], tell: Progress) -> Iterator[CheckSteps]:
        """Start a check as `Executor.steps` does. Its steps raise JobError. Raises: TooFarError."""
        is_local = self._cluster.is_local
        told = {store: _told(shared, is_local=is_local) for store, shared in stores.items()}
        made = _Steps(self._cluster, told, self._most_broadcast, tell)
        try:
            yield made
        finally:
            made.close()

    def processor_s(self) -> float:
        # An upper bound: as if all cores had been busy.
        return time.monotonic() * self._cluster.cores


def _told(shared: StoreContext, *, is_local: bool) -> StoreContext:
    """Return what tasks need of a store: without the rows that each gets with its job."""
    rows = shared.rows
    if rows is not None:
        one_by_one: Rows = {table: {} for table in ONE_BY_ONE}
        # Of queues, only that they exist.
        rows = {**rows, **one_by_one, "queues": dict.fromkeys(rows["queues"], True)}
    return dataclasses.replace(shared, files=for_tasks(shared.files, is_local=is_local), rows=rows)


class _Steps:
    """One check. Segments are read once, however often the result is used."""

    def __init__(
        self, cluster: Cluster, stores: dict[int, StoreContext], most_broadcast: int, tell: Progress
    ) -> None:
        self._cluster = cluster
        self._most_broadcast = most_broadcast
        self._tell = tell
        self._total = 0
        self._shared = cluster.broadcast(stores)
        self._kept: list[RDD[Any]] = []

    def close(self) -> None:
        """Release everything that was read."""
        for rdd in self._kept:
            rdd.unpersist()

    def read(self, jobs: Sequence[ReadJob]) -> list[tuple[int, Summary]]:
        self._total = sum(job.segment.size for job in jobs)
        shared = self._shared
        read: RDD[tuple[Key, Read]] = self._cluster.spread(jobs, lambda job: job.segment.size).map(
            lambda job: ((job.store, job.segment.number), steps.read(shared()[job.store], job))
        )
        self._read = self._keep(read)
        summaries = read.map(
            lambda one: (one[0][0], steps.summary(shared()[one[0][0]], one[0][1], one[1]))
        )
        return self._cluster.collect(summaries, self._tell_of("segments"))

    def read_index(
        self, jobs: Sequence[IndexJob], removed: Mapping[int, dict[int, list[Range]]]
    ) -> list[IndexResult]:
        shared, gone = self._shared, self._cluster.broadcast(dict(removed))

        def work(job: IndexJob) -> tuple[IndexResult, list[tuple[int, LiveSlice]]]:
            result, live = steps.read_index(shared()[job.store], job, gone()[job.store])
            return result, steps.by_account(shared()[job.store], live)

        index = self._cluster.spread(jobs, lambda job: _INDEX_BYTES * len(job.files)).map(work)
        self._live: LiveSlices | RDD[tuple[Key, LiveSlice]]
        tell = self._tell_of("index files")
        live = sum(state.live for job in jobs for _, state in job.files)
        if live <= self._most_broadcast:
            results = self._cluster.collect(index, tell)
            self._live = _by_segment(results)
            return [result for result, _ in results]
        self._keep(index)
        self._live = index.flatMap(
            lambda one: [((one[0].store, number), part) for number, part in one[1]]
        )
        return self._cluster.collect(index.map(lambda one: one[0]), tell)

    def compare(
        self, jobs: Mapping[int, Mapping[int, CompareJob]], known: Mapping[int, Known]
    ) -> list[tuple[Key, Compared]]:
        """Join segments with their live entries: sent to all tasks, or shuffled if there are
        many.
        """
        shared = self._shared
        told_jobs = self._cluster.broadcast(dict(jobs))
        told_known = self._cluster.broadcast(dict(known))

        def compare(key: Key, one: Read, parts: Iterable[LiveSlice]) -> tuple[Key, Compared]:
            store, number = key
            job = told_jobs()[store][number]
            live = steps.in_order(parts)
            return key, steps.compare(shared()[store], told_known()[store], job, one, live)

        read = self._read
        compared: RDD[tuple[Key, Compared]]
        if isinstance(self._live, dict):
            live = self._cluster.broadcast(self._live)
            compared = read.map(lambda one: compare(one[0], one[1], live().get(one[0], ())))
        else:
            partitions = max(read.getNumPartitions(), self._live.getNumPartitions())
            joined = read.cogroup(self._live, partitions)
            compared = joined.map(lambda one: compare(one[0], next(iter(one[1][0])), one[1][1]))
        return self._cluster.collect(compared, self._tell_of("references"))

    def _keep(self, rdd: RDD[One]) -> RDD[One]:
        rdd.persist(StorageLevel.MEMORY_AND_DISK)
        self._kept.append(rdd)
        return rdd

    def _tell_of(self, what: str) -> Tell:
        return by_bytes(self._tell, what, self._total)


def _by_segment(found: Iterable[tuple[IndexResult, list[tuple[int, LiveSlice]]]]) -> LiveSlices:
    live: LiveSlices = {}
    for result, parts in found:
        for number, part in parts:
            live.setdefault((result.store, number), []).append(part)
    return live
