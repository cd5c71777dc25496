"""Runs the steps of a check: in this process, or with any other `Executor`."""

from __future__ import annotations

import contextlib
import gc
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from amqpstore_tools.check import steps
from amqpstore_tools.check.findings import Findings
from amqpstore_tools.check.history import LogChecker
from amqpstore_tools.check.index import Live
from amqpstore_tools.check.jobs import (
    Compared,
    CompareJob,
    IndexJob,
    IndexResult,
    Key,
    Known,
    Range,
    Read,
    ReadJob,
    StoreContext,
    Summary,
)
from amqpstore_tools.check.segments import segment_name
from amqpstore_tools.offline.progress import Progress


class CheckSteps(Protocol):
    """The steps of one check, called in turn. What a step has read stays where it was read, and is
    available to the next; results may come in any order.
    """

    def read(self, jobs: Sequence[ReadJob]) -> Iterable[tuple[int, Summary]]:
        """Read segments, which are in the order of their numbers. Yields the summary of each, with
        its store.
        """

    def read_index(
        self, jobs: Sequence[IndexJob], removed: Mapping[int, dict[int, list[Range]]]
    ) -> Iterable[IndexResult]:
        """Read index files. Args: removed, by store: see `History`."""

    def compare(
        self, jobs: Mapping[int, Mapping[int, CompareJob]], known: Mapping[int, Known]
    ) -> Iterable[tuple[Key, Compared]]:
        """Compare each segment with what is known now. Args: by store, and segment."""


class Executor(Protocol):
    """Runs the steps of checks."""

    def steps(
        self, stores: Mapping[int, StoreContext], tell: Progress
    ) -> AbstractContextManager[CheckSteps]:
        """Start a check of some stores; everything it has read is released at the end."""

    def processor_s(self) -> float:
        """Return an upper bound of the processor seconds used so far."""


class ProcessExecutor:
    """Runs everything in this process, one part after another."""

    @contextlib.contextmanager
    def steps(self, stores: Mapping[int, StoreContext], tell: Progress) -> Iterator[CheckSteps]:
        is_on = gc.isenabled()
        # What is read are millions of small tuples, and no cycles: collecting takes a fifth.
        gc.disable()
        try:
            yield _InOrder(stores, tell)
        finally:
            if is_on:
                gc.enable()

    def processor_s(self) -> float:
        return time.process_time()


class _InOrder:
    """Reads segments in their order, so that the log can be checked on the way."""

    def __init__(self, stores: Mapping[int, StoreContext], tell: Progress) -> None:
        self._stores = stores
        self._tell = tell
        self._read: dict[Key, Read] = {}
        self._live: dict[int, list[Live]] = {store: [] for store in stores}

    def read(self, jobs: Sequence[ReadJob]) -> Iterator[tuple[int, Summary]]:
        logs = {
            store: LogChecker(shared.rows, Findings()) for store, shared in self._stores.items()
        }
        total, done = sum(job.segment.size for job in jobs), 0
        for store, job in jobs:
            self._tell(segment_name(job.number), done, total)
            shared = self._stores[store]
            found = steps.read(shared, ReadJob(store, job))
            yield store, steps.summary(shared, job.number, found, logs[store])
            if found.segment is not None:
                # Batches are many. Those needed later are in the summary.
                found.segment.scanned.batches = []
            self._read[store, job.number] = found
            done += job.size
        self._tell("", total, total)

    def read_index(
        self, jobs: Sequence[IndexJob], removed: Mapping[int, dict[int, list[Range]]]
    ) -> Iterator[IndexResult]:
        self._tell("index files", 0, 0)
        for job in jobs:
            result, live = steps.read_index(self._stores[job.store], job, removed[job.store])
            self._live[job.store] += live
            yield result

    def compare(
        self, jobs: Mapping[int, Mapping[int, CompareJob]], known: Mapping[int, Known]
    ) -> Iterator[tuple[Key, Compared]]:
        self._tell("references", 0, 0)
        for store, of_store in jobs.items():
            shared = self._stores[store]
            live = _LiveByIds(self._live.pop(store))
            for number, job in of_store.items():
                some = live.of(*shared.ranges[number]) if number in shared.ranges else ()
                found = self._read.pop((store, number))
                yield (store, number), steps.compare(shared, known[store], job, found, some)


class _LiveByIds:
    """The live messages of a store, searchable by id."""

    def __init__(self, live: Iterable[Live]) -> None:
        self._live = sorted(live, key=steps.in_ids)
        self._starts = [one.first_id for one in self._live]
        self._longest = max((len(one.sizes) for one in self._live), default=0)

    def of(self, first_id: int, end_id: int) -> Sequence[Live]:
        """Return everything that includes some of these ids, and perhaps more."""
        low = bisect_left(self._starts, first_id - self._longest)
        return self._live[low : bisect_left(self._starts, end_id)]
