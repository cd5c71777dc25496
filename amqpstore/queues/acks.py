"""Acks that are gathered one by one, and take effect together: those of a transaction.

There may be 100,000 of them, and none may be missing when the batch is sealed. So the operations of
the log are made as they are gathered, and entering the log is a matter of moving lists. What acked
runs have in memory is released afterwards, a piece at a time, as nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter

from amqpstore.format.records import Operation, OperationKind
from amqpstore.format.runs import Run
from amqpstore.log.batch import joined
from amqpstore.log.log import Log
from amqpstore.queues.queue import Queue
from amqpstore.queues.transient import FIRST_TRANSIENT

_RUN: Callable[[tuple[Queue, Run]], Run] = itemgetter(1)


_MERGED_AT_ONCE = 2048
"""Runs that are merged before others have their turn."""


class _Merging:
    """The ranges of sequences that runs are in, of which some are merged at a time."""

    __slots__ = ("_ends", "_merged_count", "_runs", "_starts")

    def __init__(self, runs: list[tuple[Queue, Run]]) -> None:
        self._runs = runs
        self._merged_count = 0
        # By id of the queue and first sequence, the sequence after the last; and by that, the
        # first.
        self._starts: dict[tuple[int, int], int] = {}
        self._ends: dict[tuple[int, int], int] = {}

    def steps(self) -> Iterator[None]:
        starts, ends, runs = self._starts, self._ends, self._runs
        while self._merged_count < len(runs):
            part = runs[self._merged_count : self._merged_count + _MERGED_AT_ONCE]
            for queue, run in part:
                # Both neighbours at once: an ack between two ranges makes one of three.
                first = ends.pop((queue.id, run.first_sequence), run.first_sequence)
                end = starts.pop((queue.id, run.end), run.end)
                starts[queue.id, first] = end
                ends[queue.id, end] = first
            self._merged_count += len(part)
            if self._merged_count < len(runs):
                yield

    def ranges(self) -> list[list[int]]:
        for _ in self.steps():
            pass
        starts = self._starts.items()
        return [[queue_id, first, end - first] for (queue_id, first), end in starts]


class GatheredAcks:
    """Acks of `runs`, that were taken or withdrawn from the queues beside them."""

    __slots__ = ("_logged", "_merging", "runs")

    def __init__(self) -> None:
        self.runs: list[tuple[Queue, Run]] = []
        self._logged: dict[Queue, list[Operation]] = {}
        self._merging: _Merging | None = None

    def add(self, queue: Queue, run: Run) -> None:
        """Add a run."""
        self.runs.append((queue, run))
        # Whether messages are in the log does not change: see `Unacked`.
        if not queue.durable or not 0 < run.first_id < FIRST_TRANSIENT:
            return
        operation = Operation(OperationKind.ACK, run.count, queue.id, run.first_sequence)
        operations = self._logged.setdefault(queue, [])
        if operations and (one := joined(operations[-1], operation)):
            operations[-1] = one
        else:
            operations.append(operation)

    def move_to(self, log: Log) -> Iterable[Run]:
        """Put them in the log's open batch. Returns the runs; nothing is left here, where all of
        them would be freed at once.
        """
        logged, self._logged = self._logged, {}
        for queue, operations in logged.items():
            if not queue.deleted:
                log.append_acks(operations)
        runs, self.runs = self.runs, []
        return map(_RUN, runs)

    def merging(self) -> Iterator[None]:
        """Merge neighbours, in whatever order they were added, in steps: see `ranges`."""
        if self._merging is None:
            self._merging = _Merging(self.runs)
        return self._merging.steps()

    def ranges(self) -> list[list[int]]:
        """Return what they ack, in as few ranges as possible: id of the queue, first sequence and
        count.
        """
        # A branch may wait for its decision for days, and needs no state of it.
        merging, self._merging = self._merging or _Merging(self.runs), None
        return merging.ranges()
