"""An executor of checks that takes the parts of each step at random, as a cluster may."""

import contextlib
import random
from collections.abc import Iterator, Mapping, Sequence

from amqpstore_tools.check import steps
from amqpstore_tools.check.executor import CheckSteps
from amqpstore_tools.check.jobs import (
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


class ShuffledExecutor:
    """No step knows of another part of its own step."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    @contextlib.contextmanager
    def steps(self, stores: Mapping[int, StoreContext], tell: Progress) -> Iterator[CheckSteps]:
        tell("shuffled", 0, 0)
        yield _Shuffled(stores, self._rng)

    def processor_s(self) -> float:
        return 0.0


class _Shuffled:
    def __init__(self, stores: Mapping[int, StoreContext], rng: random.Random) -> None:
        self._stores = stores
        self._rng = rng
        self._read: dict[Key, Read] = {}
        self._live: dict[Key, list[LiveSlice]] = {}

    def read(self, jobs: Sequence[ReadJob]) -> Iterator[tuple[int, Summary]]:
        for job in self._rng.sample(jobs, len(jobs)):
            shared = self._stores[job.store]
            found = self._read[job.store, job.segment.number] = steps.read(shared, job)
            yield job.store, steps.summary(shared, job.segment.number, found)

    def read_index(
        self, jobs: Sequence[IndexJob], removed: Mapping[int, dict[int, list[Range]]]
    ) -> Iterator[IndexResult]:
        for job in self._rng.sample(jobs, len(jobs)):
            shared = self._stores[job.store]
            result, live = steps.read_index(shared, job, removed[job.store])
            for number, part in steps.by_account(shared, live):
                self._live.setdefault((job.store, number), []).append(part)
            yield result

    def compare(
        self, jobs: Mapping[int, Mapping[int, CompareJob]], known: Mapping[int, Known]
    ) -> Iterator[tuple[Key, Compared]]:
        of_all = [(store, number) for store, of_store in jobs.items() for number in of_store]
        for store, number in self._rng.sample(of_all, len(of_all)):
            live = steps.in_order(self._live.get((store, number), ()))
            found = self._read[store, number]
            shared, job = self._stores[store], jobs[store][number]
            yield (store, number), steps.compare(shared, known[store], job, found, live)
