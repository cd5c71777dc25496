"""Live messages of a segment: which queues hold them, and whether they have been delivered.

A task gets this with its partition. It is kept as runs, and packed as columns: a queue from the
middle of which nothing was taken is one run per segment.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from amqpstore.format.index import Entries, contiguous

_COLUMNS = "QQQQQQB"


class LiveRun(NamedTuple):
    """`size` messages of contiguous ids and sequences that a queue holds.

    `expires_ms` since 1970, 0 is never. `level` is the priority under which they are queued.
    """

    queue_id: int
    first_id: int
    first_sequence: int
    size: int
    delivery_count: int
    expires_ms: int
    level: int

    @property
    def end_id(self) -> int:
        """The id after the last."""
        return self.first_id + self.size

    def slice(self, first_id: int, end_id: int) -> LiveRun:
        """Return the part with ids from `first_id` to before `end_id`."""
        start = max(first_id - self.first_id, 0)
        stop = min(end_id - self.first_id, self.size)
        return self._replace(
            first_id=self.first_id + start,
            first_sequence=self.first_sequence + start,
            size=stop - start,
        )


def runs_of(queue_id: int, entries: Entries) -> Iterator[LiveRun]:
    """Yield live entries of a queue as runs."""
    sequences, ids, _, expires_ms, counts, levels, *_ = entries
    size = len(sequences)
    alike = (expires_ms, counts, levels)
    if (
        contiguous(sequences, 0, size)
        and contiguous(ids, 0, size)
        and all(column.count(column[0]) == size for column in alike)
    ):
        yield LiveRun(queue_id, ids[0], sequences[0], size, counts[0], expires_ms[0], levels[0])
        return
    start = 0
    for index in range(1, size + 1):
        if (
            index == size
            or ids[index] != ids[index - 1] + 1
            or sequences[index] != sequences[index - 1] + 1
            or any(column[index] != column[start] for column in alike)
        ):
            yield LiveRun(
                queue_id,
                ids[start],
                sequences[start],
                index - start,
                counts[start],
                expires_ms[start],
                levels[start],
            )
            start = index


class Collector:
    """Sorts runs by segment.

    Args: first_ids, of the segments, ascending: each has the ids up to the next one's.
    """

    def __init__(self, first_ids: Sequence[int]) -> None:
        self._first_ids = first_ids
        self._runs: list[list[LiveRun]] = [[] for _ in first_ids]
        self.homeless = 0
        """Messages whose ids are lower than those of all segments."""

    def add(self, runs: Iterable[LiveRun]) -> None:
        """Add runs of one queue, ascending."""
        for whole in runs:
            run = whole
            while run.size:
                index = bisect_right(self._first_ids, run.first_id) - 1
                if index < 0:
                    self.homeless += run.size
                    break
                end = run.end_id
                if index + 1 < len(self._first_ids):
                    end = min(end, self._first_ids[index + 1])
                _append(self._runs[index], run.slice(run.first_id, end))
                run = run.slice(end, run.end_id)

    def packed(self, index: int) -> bytes:
        """Return the runs of the segment at a place, for `LiveRuns`."""
        runs = sorted(self._runs[index], key=lambda run: (run.first_id, run.queue_id))
        columns = (
            array(code, column)
            for code, column in zip(_COLUMNS, zip(*runs, strict=True), strict=False)
        )
        return zlib.compress(b"".join(column.tobytes() for column in columns), 1) if runs else b""


def _append(runs: list[LiveRun], run: LiveRun) -> None:
    if runs:
        last = runs[-1]
        if (
            last.queue_id == run.queue_id
            and last.end_id == run.first_id
            and last.first_sequence + last.size == run.first_sequence
            and last[4:] == run[4:]
        ):
            runs[-1] = last._replace(size=last.size + run.size)
            return
    runs.append(run)


class LiveRuns:
    """The runs of one segment, by id."""

    def __init__(self, packed: bytes = b"") -> None:
        self._runs = list(_unpacked(packed))
        self._first_ids = array("Q", [run.first_id for run in self._runs])
        # The highest end of the runs up to each, which tells where to stop looking back.
        self._ends = array("Q")
        end = 0
        for run in self._runs:
            end = max(end, run.end_id)
            self._ends.append(end)
        self._steps, self._counts = _steps(self._runs)

    @property
    def end_id(self) -> int:
        """The id after the highest live one."""
        return self._ends[-1] if self._ends else 0

    def queue_ids(self) -> set[int]:
        """Return the queues that hold any of them."""
        return {run.queue_id for run in self._runs}

    def within(self, first_id: int, end_id: int) -> Iterator[LiveRun]:
        """Yield parts of runs that have ids from `first_id` to before `end_id`, ascending."""
        index = bisect_right(self._ends, first_id)
        stop = bisect_left(self._first_ids, end_id)
        for run in self._runs[index:stop]:
            if run.end_id > first_id:
                yield run.slice(first_id, end_id)

    def held(self, first_id: int, end_id: int) -> Iterator[tuple[int, int, int]]:
        """Yield stretches from `first_id` to before `end_id`, and how many queues hold each."""
        index = bisect_right(self._steps, first_id) - 1
        while first_id < end_id:
            count = self._counts[index] if index >= 0 else 0
            index += 1
            end = min(self._steps[index], end_id) if index < len(self._steps) else end_id
            if end > first_id:
                yield first_id, end, count
            first_id = end


def _unpacked(packed: bytes) -> Iterator[LiveRun]:
    if not packed:
        return
    content = zlib.decompress(packed)
    width = sum(array(code).itemsize for code in _COLUMNS)
    count = len(content) // width
    columns = []
    offset = 0
    for code in _COLUMNS:
        column = array(code)
        size = count * column.itemsize
        column.frombytes(content[offset : offset + size])
        columns.append(column)
        offset += size
    yield from map(LiveRun, *columns)


def _steps(runs: Sequence[LiveRun]) -> tuple[array[int], array[int]]:
    """Return the ids where the number of queues changes, ascending, and the number from there
    on.
    """
    changes: dict[int, int] = {}
    for run in runs:
        changes[run.first_id] = changes.get(run.first_id, 0) + 1
        changes[run.end_id] = changes.get(run.end_id, 0) - 1
    steps, counts = array("Q"), array("I")
    count = 0
    for message_id in sorted(changes):
        count += changes[message_id]
        steps.append(message_id)
        counts.append(count)
    return steps, counts
