"""The state that the next checkpoint writes: the last checkpoint, with the changes in the log
since.

It is a second reader of the log, besides the queues in memory: durable batches are `apply`ed to it
in order, by the checkpoint, and by recovery. So by construction a checkpoint equals the result of a
recovery that reads the log from its start.

A `QueueIndex` has the live messages of one queue: entries in index files, and *fresh* runs, which
arrived since the last checkpoint and go to an index file with the next, if they live that long.

All this is in memory only. A crash loses nothing with it: up to the last checkpoint it is in index
files and the catalog, and the batches since are in the log, whose position has not moved past them.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from operator import attrgetter, mul, not_
from typing import NamedTuple

from amqpstore.errors import DamageError
from amqpstore.format.index import (
    Bits,
    Entries,
    IndexReader,
    IndexState,
    no_entries,
    total_of,
)
from amqpstore.format.limits import LIMITS
from amqpstore.format.records import Operation, OperationKind, SpreadEnqueue
from amqpstore.format.runs import ReadyList, Run
from amqpstore.log.batch import BatchSummary
from amqpstore.log.segment_accounts import SegmentAccounts, references_of
from amqpstore.queues.expiry import earliest

_log = logging.getLogger(__name__)


Release = Callable[[Sequence[int], Sequence[int]], None]
"""Releases messages that left a queue: their ids, ascending, and the sizes of their records."""


class Block(NamedTuple):
    """A summary of entries that were written: how many, their first sequence and the one after the
    last, delivery counts above 0 by place, where the block ends in its file, when the first of them
    expires, and how many bytes their bodies have (None: unknown).
    """

    entries: int
    first: int
    end: int
    delivered: dict[int, int]
    end_bytes: int
    expires_ms: int
    body_bytes: int | None

    @classmethod
    def of(cls, entries: Entries, end_bytes: int) -> Block:
        counts = entries.delivery_counts
        delivered = {}
        if counts.count(0) != len(counts):
            delivered = {index: times for index, times in enumerate(counts) if times}
        sequences = entries.sequences
        return cls(
            len(sequences),
            sequences[0],
            sequences[-1] + 1,
            delivered,
            end_bytes,
            earliest(entries.expires_ms),
            total_of(entries.body_sizes),
        )


class IndexFile:
    """An index file, and the changes of its entries: `state` is what the next checkpoint writes.

    Changes are postponed until the file is read, once per checkpoint, and then applied all
    together: so the entries of only one file are in memory at a time.
    """

    def __init__(self, state: IndexState) -> None:
        self.state = state
        self.is_changed = False
        """Whether it was changed since `close`."""
        self._acked: Bits | None = None
        self._delivered: dict[int, int] | None = None
        self._postponed = [(first, end) for first, end in state.postponed]
        self._postponed_deliveries = [
            (first, end, times) for first, end, times in state.postponed_deliveries
        ]

    @property
    def is_behind(self) -> bool:
        """Whether any changes are postponed."""
        return bool(self._postponed or self._postponed_deliveries)

    def postpone(self, operation: Operation) -> None:
        """Postpone an operation that delivered or removed entries of this file, and perhaps
        others.
        """
        self.is_changed = True
        first = operation.first_sequence
        end = first + operation.message_count
        if operation.kind == OperationKind.DELIVERED:
            self._postponed_deliveries.append((first, end, operation.detail))
            return
        if self._postponed and self._postponed[-1][1] == first:
            first = self._postponed.pop()[0]
        self._postponed.append((first, end))

    def catch_up(self, entries: Entries) -> Iterator[Entries]:
        """Apply postponed changes. Yields the entries that are acked by them."""
        for first, end in self._postponed:
            yield self.ack(first, end, entries)
        self._postponed.clear()
        for first, end, times in self._postponed_deliveries:
            self.deliver(first, end, entries, times)
        self._postponed_deliveries.clear()
        if self.state.expires_ms:
            expires_ms = earliest(map(mul, entries.expires_ms, map(not_, self._opened())))
            self.state = self.state._replace(expires_ms=expires_ms)
        self._pack()

    def ack(self, first: int, end: int, entries: Entries) -> Entries:
        """Mark the live entries from sequence `first` to before `end` as acked, and return them."""
        start = bisect_left(entries.sequences, first)
        stop = bisect_left(entries.sequences, end)
        acked = self._opened()
        if not acked.count(1, start, stop):
            acked[start:stop] = b"\1" * (stop - start)
            newly_acked = entries.slice(start, stop)
        else:
            newly_acked = no_entries()
            for index in range(start, stop):
                if not acked[index]:
                    acked[index] = 1
                    newly_acked.extend(entries.slice(index, index + 1))
        if self.state.body_bytes is not None:
            body_bytes = self.state.body_bytes - sum(newly_acked.body_sizes)
            self.state = self.state._replace(body_bytes=body_bytes)
        if self._delivered:
            few = range(start, stop) if stop - start < len(self._delivered) else [*self._delivered]
            for index in few:
                if start <= index < stop:
                    self._delivered.pop(index, None)
        return newly_acked

    def deliver(self, first: int, end: int, entries: Entries, times: int) -> None:
        """Set the delivery count of entries."""
        acked = self._opened()
        assert self._delivered is not None  # it is opened
        for index in range(
            bisect_left(entries.sequences, first), bisect_left(entries.sequences, end)
        ):
            if not acked[index]:
                self._delivered[index] = max(self._delivered.get(index, 0), times)

    def append(self, block: Block) -> None:
        """Note that a block was written after the existing ones."""
        acked = self._opened()
        assert self._delivered is not None  # it is opened
        index = self.state.entries
        body_bytes = block.body_bytes
        if index and body_bytes is not None:
            before = self.state.body_bytes
            body_bytes = None if before is None else before + body_bytes
        self.state = self.state._replace(
            end_bytes=block.end_bytes,
            entries=index + block.entries,
            first=self.state.first if index else block.first,
            end=block.end,
            expires_ms=earliest((self.state.expires_ms, block.expires_ms)),
            body_bytes=body_bytes,
        )
        acked.extend(bytes(block.entries))
        for offset, times in block.delivered.items():
            self._delivered[index + offset] = times

    @property
    def live(self) -> int:
        """Entries that are not acked."""
        if self._acked is None:
            return self.state.live
        return self._acked.count(0)

    def live_entries(self, entries: Entries) -> Entries:
        """Return the entries that are not acked, with their current delivery counts."""
        acked = self._opened()
        assert self._delivered is not None  # it is opened
        found = no_entries()
        start = 0
        while (start := acked.find(0, start)) != -1:
            stop = acked.find(1, start)
            stop = len(acked) if stop == -1 else stop
            part = entries.slice(start, stop)
            for index, times in self._delivered.items():
                if start <= index < stop:
                    part.delivery_counts[index - start] = times
            found.extend(part)
            start = stop
        return found

    def close(self) -> IndexState:
        """Return the state, up to date; no changes follow."""
        self._pack()
        if self.is_changed:
            # One message may be delivered again and again while the file cannot be read.
            self._postponed_deliveries = highest_counts(self._postponed_deliveries)
            self.state = self.state._replace(
                postponed=tuple(self._postponed),
                postponed_deliveries=tuple(self._postponed_deliveries),
            )
        self.is_changed = False
        return self.state

    def _pack(self) -> None:
        if self._acked is not None and self._delivered is not None:
            self.state = self.state._replace(
                acked=self._acked.packed(),
                acked_count=self._acked.count(1),
                delivered=self._delivered,
            )
        self._acked = self._delivered = None

    def _opened(self) -> Bits:
        self.is_changed = True
        if self._acked is None:
            self._acked = Bits.of(self.state.acked, self.state.entries)
            self._delivered = dict(self.state.delivered)
        return self._acked


class QueueIndex:
    """The live messages of queue `id`."""

    def __init__(
        self,
        queue_id: int,
        next_sequence: int,
        states: Iterable[IndexState],
        reader: IndexReader,
    ) -> None:
        self.id = queue_id
        self.next_sequence = next_sequence
        self.files = [IndexFile(state) for state in sorted(states, key=lambda state: state.first)]
        self.next_number = max((file.state.number for file in self.files), default=0) + 1
        self.fresh = ReadyList()
        self._reader = reader

    def apply(
        self,
        operation: Operation | SpreadEnqueue,
        release: Release,
        sizes: Sizes,
    ) -> bool:
        """Apply an operation of this queue; messages that left the queue are released.

        Returns whether part of it, about entries of index files, is left to `catch_up`.
        """
        first = operation.first_sequence
        end = first + operation.message_count
        self.next_sequence = max(self.next_sequence, end)
        if isinstance(operation, SpreadEnqueue) or operation.kind == OperationKind.ENQUEUE:
            self.fresh.append_stored(enqueued(operation))
            return False
        removed = self.fresh.remove(first, operation.message_count)
        for run in removed:
            if operation.kind == OperationKind.DELIVERED:
                run.delivery_count = max(run.delivery_count, operation.detail)
                self.fresh.insert(run)
            else:
                release(ids_of(run), sizes.of_records(run))
        if sum(run.count for run in removed) == operation.message_count:
            return False
        files = list(self._files_with(first, end))
        for file in files:
            file.postpone(operation)
        return bool(files)

    @property
    def is_behind(self) -> bool:
        """Whether any changes are postponed."""
        return any(file.is_behind for file in self.files)

    def catch_up(self, release: Release) -> bool:
        """Apply postponed changes, file by file. Returns whether all of them could be applied.

        Raises: OSError; the next call continues there.
        """
        for file in self.files:
            if file.is_behind and (entries := self._entries(file)):
                for acked in file.catch_up(entries):
                    release(acked.ids, acked.sizes)
        return not self.is_behind

    def live_entries(self, files: Iterable[IndexFile]) -> Entries | None:
        """Return the live entries of index files, ascending; None if one cannot be read.

        Raises: OSError.
        """
        found = no_entries()
        for file in files:
            entries = self._entries(file)
            if entries is None:
                return None
            found.extend(file.live_entries(entries))
        return found

    def release_all(self, release: Release, sizes: Sizes, most_files: int) -> Iterator[IndexFile]:
        """Release the messages of a deleted queue, of `most_files` index files at most.

        Yields each file in which nothing is live any more.
        Raises: OSError.
        """
        for run in self.fresh.clear():
            release(ids_of(run), sizes.of_records(run))
        for file in self.files[:most_files]:
            if entries := self._entries(file):
                for acked in file.catch_up(entries):
                    release(acked.ids, acked.sizes)
                rest = file.ack(0, 2**64, entries)
                release(rest.ids, rest.sizes)
                self.files.remove(file)
                yield file

    def _files_with(self, first: int, end: int) -> Iterator[IndexFile]:
        """Yield the index files that have entries in a range of sequences."""
        files = self.files
        index = bisect_right(files, first, key=lambda file: file.state.first) - 1
        for file in files[max(index, 0) :]:
            if file.state.first >= end:
                return
            if file.state.end > first:
                yield file

    def _entries(self, file: IndexFile) -> Entries | None:
        """Return the entries of an index file; None if it is damaged or cannot be read now.

        Raises: OSError, unless the file is missing.
        """
        try:
            return self._reader.entries(self.id, file.state)
        except DamageError as error:
            # Its entries stay live, and so on disk: each message is reported when its turn comes.
            _log.error("%s", error)
            return None


def ids_of(run: Run) -> Sequence[int]:
    """Return the ids of a run that is in the log."""
    return range(run.first_id, run.end_id) if run.ids is None else run.ids


class Sizes:
    """Sizes of messages that are not in an index file, and of their bodies, by id."""

    def __init__(self) -> None:
        self._first_ids: list[int] = []
        self._sizes: list[array[int]] = []
        self._body_sizes: list[array[int]] = []

    def add(self, first_id: int, sizes: array[int], body_sizes: array[int]) -> None:
        """Add sizes of contiguous ids, higher than all before."""
        if sizes:
            self._first_ids.append(first_id)
            self._sizes.append(sizes)
            self._body_sizes.append(body_sizes)

    def of(self, run: Run) -> tuple[array[int], array[int]]:
        """Return the sizes of a run, and of its bodies."""
        return self._of(run, self._sizes), self._of(run, self._body_sizes)

    def of_records(self, run: Run) -> array[int]:
        """Return the sizes of a run."""
        return self._of(run, self._sizes)

    def _of(self, run: Run, columns: list[array[int]]) -> array[int]:
        if run.ids is not None:
            return self._of_spread(run.ids, columns)
        wanted = run.first_id
        end = run.first_id + run.count
        index = bisect_right(self._first_ids, wanted) - 1
        found = array("I")
        while wanted < end:
            start = wanted - self._first_ids[index]
            found.extend(columns[index][start : start + end - wanted])
            wanted = run.first_id + len(found)
            index += 1
        return found

    def _of_spread(self, ids: array[int], columns: list[array[int]]) -> array[int]:
        found = array("I")
        start = 0
        while start < len(ids):
            index = bisect_right(self._first_ids, ids[start]) - 1
            first = self._first_ids[index]
            column = columns[index]
            # An id that no batch has is an IndexError, not an endless loop.
            stop = max(bisect_left(ids, first + len(column), start), start + 1)
            found.extend([column[one - first] for one in ids[start:stop]])
            start = stop
        return found

    def clear(self) -> None:
        self._first_ids.clear()
        self._sizes.clear()
        self._body_sizes.clear()


class CheckpointState:
    """The indexes of all queues and the accounts of all segments, as of the batches applied so
    far.
    """

    def __init__(
        self, accounts: SegmentAccounts, queues: Iterable[QueueIndex], reader: IndexReader
    ) -> None:
        self._reader = reader
        self.accounts = accounts
        self.queues = {queue.id: queue for queue in queues}
        self.sizes = Sizes()
        self.touched: set[QueueIndex] = set()
        self._behind = {queue for queue in self.queues.values() if queue.is_behind}

    @property
    def is_behind(self) -> bool:
        """Whether any changes are postponed until an index file can be read."""
        return bool(self._behind)

    def create(self, queue_id: int) -> None:
        """Add a queue that was created."""
        self.queues[queue_id] = QueueIndex(queue_id, 1, (), self._reader)

    def apply(self, batch: BatchSummary) -> None:
        """Apply a batch, except changes for which index files have to be read: see `catch_up`."""
        # Nothing is counted for a queue that is gone: a message in no other queue is garbage at
        # once.
        known = [operation for operation in batch.operations if operation.queue_id in self.queues]
        account = self.accounts.open(batch.segment, batch.first_id)
        account.end_bytes = batch.end_bytes
        if count := len(batch.sizes):
            enqueues = [one for one in known if one.kind == OperationKind.ENQUEUE]
            references = references_of(enqueues, batch.first_id, count)
            account.add(batch.first_id, batch.sizes, references)
            self.sizes.add(batch.first_id, batch.sizes, batch.body_sizes)
        for operation in known:
            queue = self.queues[operation.queue_id]
            if queue.apply(operation, self.accounts.release, self.sizes):
                self._behind.add(queue)
            self.touched.add(queue)

    def catch_up(self) -> None:
        """Apply postponed changes, as far as possible. Raises: OSError; the next call continues
        there.
        """
        for queue in sorted(self._behind, key=attrgetter("id")):
            self.touched.add(queue)
            if queue.catch_up(self.accounts.release):
                self._behind.discard(queue)

    def delete(
        self, queue_id: int, max_files: int = LIMITS.max_released_files
    ) -> Iterator[tuple[QueueIndex, IndexFile]]:
        """Release the messages of a deleted queue, of `max_files` index files if it has more.

        Yields each index file in which nothing is live any more. As long as the queue is in
        `queues` it is not done: there is more, or an index file cannot be read.
        Raises: OSError.
        """
        queue = self.queues.get(queue_id)
        if queue is None:
            return
        for file in queue.release_all(self.accounts.release, self.sizes, max_files):
            yield queue, file
        if not queue.files:
            del self.queues[queue_id]
            self.touched.discard(queue)
            self._behind.discard(queue)


def highest_counts(ranges: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Merge ranges of sequences with delivery counts into ranges that ascend and do not overlap,
    each with the highest count of the ranges that covered it.
    """
    ascending = sorted(ranges)
    bounds = sorted({bound for first, end, _ in ascending for bound in (first, end)})
    highest: list[tuple[int, int, int]] = []
    # Ranges that may continue here, the highest count first: as its negative, and the range's end.
    open_ranges: list[tuple[int, int]] = []
    index = 0
    for first, end in pairwise(bounds):
        while index < len(ascending) and ascending[index][0] == first:
            _, range_end, times = ascending[index]
            heappush(open_ranges, (-times, range_end))
            index += 1
        while open_ranges and open_ranges[0][1] <= first:
            heappop(open_ranges)
        if not open_ranges:
            continue
        times = -open_ranges[0][0]
        if highest and highest[-1][1:] == (first, times):
            first = highest.pop()[0]
        highest.append((first, end, times))
    return highest


def enqueued(operation: Operation | SpreadEnqueue) -> Run:
    """Return the run that an ENQUEUE put into its queue."""
    if isinstance(operation, SpreadEnqueue):
        return Run(
            operation.first_sequence,
            len(operation.ids),
            first_id=operation.ids[0],
            ids=operation.ids,
            priority=operation.priority,
        )
    return Run(
        operation.first_sequence,
        operation.message_count,
        first_id=operation.first_id,
        expires_ms=operation.detail,
        priority=operation.priority,
    )
