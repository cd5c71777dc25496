"""Sizes of bodies on disk, from the entries of index files, without reading the bodies."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from copy import copy
from operator import attrgetter

from amqpstore.errors import DamageError
from amqpstore.format.index import UNKNOWN_SIZE, Entries, IndexReader, IndexState, total_of
from amqpstore.format.runs import Run, RunList
from amqpstore.queues.queue import Queue


class BodySizes:
    """Body sizes of messages in index files. The last file that was read stays cached.

    `has_failed`: a file could not be read, since this was last set.
    """

    has_failed = False

    def __init__(self, reader: IndexReader) -> None:
        self._reader = reader
        self._last: tuple[tuple[int, IndexState], Entries] | None = None

    def total(self, queue: Queue, runs: Iterable[Run]) -> tuple[int, list[Run]]:
        """Return the bytes in the bodies of a queue's runs, which ascend, and the parts of runs for
        which they are unknown: no index file has them, or it lacks sizes, or cannot be read.
        """
        # `remove` cuts the runs, so these are copies: the queue's own runs stay as they are.
        wanted: RunList[Run] = RunList()
        for run in runs:
            wanted.append(copy(run))
        total = 0
        unknown = []
        for state in queue.index.values():
            if not wanted.count:
                break
            parts = wanted.remove(state.first, state.end - state.first)
            entries = self._entries(queue, state) if parts else None
            for part in parts:
                size = _size(entries, part) if entries else None
                if size is None:
                    unknown.append(part)
                else:
                    total += size
        return total, [*unknown, *wanted]

    def of(self, queue: Queue, first_sequence: int, count: int) -> array[int] | None:
        """Return the sizes of the bodies of messages of contiguous sequences; None if one of them
        is unknown.
        """
        sizes = array("I")
        end = first_sequence + count
        for state in self._states(queue, first_sequence, end):
            entries = self._entries(queue, state)
            if entries is None:
                return None
            start = bisect_left(entries.sequences, first_sequence)
            sizes += entries.body_sizes[start : bisect_left(entries.sequences, end)]
        return None if len(sizes) != count or UNKNOWN_SIZE in sizes else sizes

    def fill(self, queue: Queue, state: IndexState) -> bool:
        """Note the sizes of ready runs whose entries are in an index file, as far as it has them.
        Returns whether the file had to be read.
        """
        for border in (state.first, state.end):
            # A run may reach into several files.
            if (head := queue.ready.split_at(border)) and head.expires_ms:
                queue.watch((head,))
        runs = [
            run
            for run in queue.ready.between(state.first, state.end)
            if run.messages is None and not run.body_bytes
        ]
        entries = self._entries(queue, state) if runs else None
        for run in runs:
            run.body_bytes = (entries and _size(entries, run)) or 0
        return bool(runs)

    def _states(self, queue: Queue, first: int, end: int) -> list[IndexState]:
        """Return the index files that may have messages from sequence `first` to before `end`."""
        if self._last is not None:
            (queue_id, state), _ = self._last
            # Neighbours leave one after the other, and a long queue has many files.
            is_inside = state.first <= first and end <= state.end
            # The state is compared too: a checkpoint may have written the file anew under the same
            # number since.
            if queue_id == queue.id and is_inside and queue.index.get(state.number) == state:
                return [state]
        found = [one for one in queue.index.values() if one.first < end and first < one.end]
        return sorted(found, key=attrgetter("first"))

    def _entries(self, queue: Queue, state: IndexState) -> Entries | None:
        key = queue.id, state
        if self._last is None or self._last[0] != key:
            try:
                self._last = key, self._reader.entries(queue.id, state)
            # A size is only a figure. The message itself is reported when it is to be read.
            except (DamageError, OSError, MemoryError):
                self.has_failed = True
                return None
        return self._last[1]


def _size(entries: Entries, run: Run) -> int | None:
    """Return the bytes in the bodies of a run; None if the entries lack sizes."""
    start = bisect_left(entries.sequences, run.first_sequence)
    stop = bisect_left(entries.sequences, run.end)
    # Messages that are not in the log may lie between those that are.
    return total_of(entries.body_sizes[start:stop]) if stop - start == run.count else None
