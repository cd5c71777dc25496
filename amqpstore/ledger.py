"""The ledger: what the log says up to the last checkpoint, and on from there to the next.

It is the log's second reader, behind the queues in memory: settled batches are `apply`ed to it in
their order, by whoever makes a checkpoint, and by recovery. So a checkpoint says by construction
what recovery would say that reads the log from its start.

A `QueueLedger` keeps what is live of one queue: entries in index files, and *fresh* runs, which
came since the last checkpoint and go to an index file with the next, if they live that long.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from operator import mul, not_
from typing import NamedTuple

from amqpstore.accounts import Accounts, references_of
from amqpstore.errors import DamageError
from amqpstore.expiry import earliest
from amqpstore.index import (
    Bits,
    Entries,
    IndexReader,
    IndexState,
    entries_of,
    no_entries,
)
from amqpstore.log import Settled
from amqpstore.records import Operation, OperationKind
from amqpstore.runs import ReadyList, Run

_log = logging.getLogger(__name__)

_MOST_READ = 16
"""Index files of one queue whose entries are in memory at a time, about 1 MiB each."""


class Block(NamedTuple):
    """What is to be known of entries that were written: how many, their first sequence and the one
    after the last, delivery counts above 0 by place, where the block ends in its file, and when
    the first of them expires."""

    entries: int
    first: int
    end: int
    delivered: dict[int, int]
    end_bytes: int
    expires_ms: int

    @classmethod
    def of(cls, entries: Entries, end_bytes: int) -> Block:
        counts = entries.delivery_counts
        delivered = {}
        if counts.count(0) != len(counts):
            delivered = {place: times for place, times in enumerate(counts) if times}
        sequences = entries.sequences
        expires_ms = earliest(entries.expires_ms)
        return cls(
            len(sequences), sequences[0], sequences[-1] + 1, delivered, end_bytes, expires_ms
        )


class IndexLedger:
    """An index file, and what became of its entries: `state` is what the next checkpoint says."""

    def __init__(self, state: IndexState) -> None:
        self.state = state
        self.entries: Entries | None = None
        self._acked: Bits | None = None
        self._delivered: dict[int, int] | None = None
        self._postponed = [(first, end) for first, end in state.postponed]

    @property
    def is_behind(self) -> bool:
        """Whether something was acked while it could not be read."""
        return bool(self._postponed)

    def postpone(self, first: int, end: int) -> None:
        """Keep in mind that entries from sequence `first` to before `end` are acked."""
        self._opened()
        self._postponed.append((first, end))

    def catch_up(self, entries: Entries) -> Entries:
        """Do what was postponed. Returns the entries that are acked by it."""
        found = no_entries()
        for first, end in self._postponed:
            found.extend(self.ack(first, end, entries))
        self._postponed.clear()
        return found

    def ack(self, first: int, end: int, entries: Entries) -> Entries:
        """Mark the live entries from sequence `first` to before `end` acked, and return them."""
        start = bisect_left(entries.sequences, first)
        stop = bisect_left(entries.sequences, end)
        acked = self._opened()
        if not acked.count(1, start, stop):
            acked[start:stop] = b"\1" * (stop - start)
            found = entries.part(start, stop)
        else:
            found = no_entries()
            for place in range(start, stop):
                if not acked[place]:
                    acked[place] = 1
                    found.extend(entries.part(place, place + 1))
        if self._delivered:
            for place in [place for place in self._delivered if start <= place < stop]:
                del self._delivered[place]
        return found

    def deliver(self, first: int, end: int, entries: Entries, times: int) -> None:
        """Note that entries have been delivered so often."""
        acked = self._opened()
        assert self._delivered is not None  # it is opened
        for place in range(
            bisect_left(entries.sequences, first), bisect_left(entries.sequences, end)
        ):
            if not acked[place]:
                self._delivered[place] = max(self._delivered.get(place, 0), times)

    def append(self, block: Block) -> None:
        """A block was written behind those that are there."""
        acked = self._opened()
        assert self._delivered is not None  # it is opened
        place = self.state.entries
        self.state = self.state._replace(
            end_bytes=block.end_bytes,
            entries=place + block.entries,
            first=self.state.first if place else block.first,
            end=block.end,
            expires_ms=earliest((self.state.expires_ms, block.expires_ms)),
        )
        acked.extend(bytes(block.entries))
        for offset, times in block.delivered.items():
            self._delivered[place + offset] = times
        # They are read again where they are needed.
        self.entries = None

    @property
    def live(self) -> int:
        """Entries that are not acked."""
        if self._acked is None:
            return self.state.live
        return self._acked.count(0)

    def live_entries(self, entries: Entries) -> Entries:
        """Those that are not acked, with the delivery counts that they have by now."""
        acked = self._opened()
        assert self._delivered is not None  # it is opened
        found = no_entries()
        start = 0
        while (start := acked.find(0, start)) != -1:
            stop = acked.find(1, start)
            stop = len(acked) if stop == -1 else stop
            part = entries.part(start, stop)
            for place, times in self._delivered.items():
                if start <= place < stop:
                    part.delivery_counts[place - start] = times
            found.extend(part)
            start = stop
        return found

    @property
    def is_changed(self) -> bool:
        """Whether anything was done to it since `close`."""
        return self._acked is not None

    def close(self) -> IndexState:
        """Pack what was changed; the state is then up to date."""
        if self._acked is not None and self._delivered is not None:
            expires_ms = self.state.expires_ms
            if expires_ms and self.entries is not None:
                # Otherwise it stays too early: it is read once in vain.
                expires_ms = earliest(map(mul, self.entries.expires_ms, map(not_, self._acked)))
            self.state = self.state._replace(
                acked=self._acked.packed(),
                acked_count=self._acked.count(1),
                delivered=self._delivered,
                postponed=tuple(self._postponed),
                expires_ms=expires_ms,
            )
        self._acked = self._delivered = self.entries = None
        return self.state

    def _opened(self) -> Bits:
        if self._acked is None:
            self._acked = Bits.of(self.state.acked, self.state.entries)
            self._delivered = dict(self.state.delivered)
        return self._acked


class QueueLedger:
    """What is live of queue `id`."""

    def __init__(
        self,
        queue_id: int,
        next_sequence: int,
        states: Iterable[IndexState],
        reader: IndexReader,
    ) -> None:
        self.id = queue_id
        self.next_sequence = next_sequence
        self.files = [IndexLedger(state) for state in sorted(states, key=lambda state: state.first)]
        self.next_number = max((file.state.number for file in self.files), default=0) + 1
        self.fresh = ReadyList()
        self._reader = reader
        self._read: list[IndexLedger] = []

    def apply(self, operation: Operation, release: Callable[[Entries], None], sizes: Sizes) -> None:
        """Do what an operation of this queue says; what left the queue is released."""
        first = operation.first_sequence
        end = first + operation.message_count
        self.next_sequence = max(self.next_sequence, end)
        if operation.kind == OperationKind.ENQUEUE:
            self.fresh.append_stored(enqueued(operation))
            return
        removed = self.fresh.remove(first, operation.message_count)
        if operation.kind == OperationKind.DELIVERED:
            for run in removed:
                run.delivery_count = max(run.delivery_count, operation.detail)
                self.fresh.insert(run)
            for file in self._files_with(first, end):
                if entries := self._entries(file):
                    file.deliver(first, end, entries, operation.detail)
            return
        for run in removed:
            release(entries_of(run, sizes.of(run)))
        if sum(run.count for run in removed) < operation.message_count:
            for file in self._files_with(first, end):
                if entries := self._entries(file):
                    release(file.ack(first, end, entries))
                else:
                    file.postpone(first, end)

    @property
    def is_behind(self) -> bool:
        """Whether something was acked while its index file could not be read."""
        return any(file.is_behind for file in self.files)

    def catch_up(self, release: Callable[[Entries], None]) -> None:
        """Do what was postponed, as far as it can be done now. Raises: OSError."""
        for file in self.files:
            if file.is_behind and (entries := self._entries(file)):
                release(file.catch_up(entries))

    def forget_read(self) -> None:
        """Let go of entries that were read, where they are many."""
        if len(self._read) > _MOST_READ:
            for file in self._read:
                file.entries = None
            self._read.clear()

    def read_for(self, operation: Operation) -> None:
        """Read the index files that an operation changes, so that it cannot fail any more.

        Raises: OSError.
        """
        if operation.kind != OperationKind.ENQUEUE:
            first = operation.first_sequence
            for file in self._files_with(first, first + operation.message_count):
                self._entries(file)

    def live_entries(self, files: Iterable[IndexLedger]) -> Entries | None:
        """What is live in index files, ascending as they are; None where one cannot be read.

        Raises: OSError.
        """
        found = no_entries()
        for file in files:
            entries = self._entries(file)
            if entries is None:
                return None
            found.extend(file.live_entries(entries))
        return found

    def release_all(self, release: Callable[[Entries], None], sizes: Sizes) -> bool:
        """The queue was deleted. Returns whether all could be released; if not, nothing was.

        Raises: OSError.
        """
        read = [(file, self._entries(file)) for file in self.files]
        if any(entries is None for _, entries in read):
            return False
        for run in self.fresh.clear():
            release(entries_of(run, sizes.of(run)))
        for file, entries in read:
            if entries is not None:
                release(file.catch_up(entries))
                release(file.ack(0, 2**64, entries))
        return True

    def _files_with(self, first: int, end: int) -> Iterator[IndexLedger]:
        """The index files that have entries in a range of sequences."""
        files = self.files
        place = bisect_right(files, first, key=lambda file: file.state.first) - 1
        for file in files[max(place, 0) :]:
            if file.state.first >= end:
                return
            if file.state.end > first:
                yield file

    def _entries(self, file: IndexLedger) -> Entries | None:
        """The entries of an index file; None where it is damaged or cannot be read now.

        Raises: OSError, where that is not for want of the file.
        """
        if file.entries is None:
            try:
                file.entries = self._reader.entries(self.id, file.state)
            except DamageError as error:
                # What it has stays live, and so on disk: it is named when its turn comes.
                _log.error("%s", error)
                return None
            self._read.append(file)
        return file.entries


class Sizes:
    """Sizes of messages that are not in an index file, by id."""

    def __init__(self) -> None:
        self._first_ids: list[int] = []
        self._sizes: list[array[int]] = []

    def add(self, first_id: int, sizes: array[int]) -> None:
        """Sizes of contiguous ids, higher than all before."""
        if sizes:
            self._first_ids.append(first_id)
            self._sizes.append(sizes)

    def of(self, run: Run) -> array[int]:
        """The sizes of a run."""
        found = array("I")
        wanted = run.first_id
        end = run.first_id + run.count
        place = bisect_right(self._first_ids, wanted) - 1
        while wanted < end:
            start = wanted - self._first_ids[place]
            found.extend(self._sizes[place][start : start + end - wanted])
            wanted = run.first_id + len(found)
            place += 1
        return found

    def clear(self) -> None:
        self._first_ids.clear()
        self._sizes.clear()


class Ledger:
    """All queues and all accounts, as the log has it so far."""

    def __init__(
        self, accounts: Accounts, queues: Iterable[QueueLedger], reader: IndexReader
    ) -> None:
        self._reader = reader
        self.accounts = accounts
        self.queues = {queue.id: queue for queue in queues}
        self.sizes = Sizes()
        self.touched: set[QueueLedger] = set()

    def create(self, queue_id: int) -> None:
        """A queue was created."""
        self.queues[queue_id] = QueueLedger(queue_id, 1, (), self._reader)

    def apply(self, batch: Settled) -> None:
        """Do what a batch says. Raises: OSError (an index file cannot be read; nothing is done)."""
        known = [operation for operation in batch.operations if operation.queue_id in self.queues]
        for queue in {self.queues[operation.queue_id] for operation in known}:
            queue.forget_read()
        for operation in known:
            self.queues[operation.queue_id].read_for(operation)
        account = self.accounts.open(batch.segment, batch.first_id)
        account.end_bytes = batch.end_bytes
        if count := len(batch.sizes):
            enqueues = [one for one in known if one.kind == OperationKind.ENQUEUE]
            references = references_of(enqueues, batch.first_id, count)
            account.add(batch.first_id, batch.sizes, references)
            self.sizes.add(batch.first_id, batch.sizes)
        for operation in known:
            queue = self.queues[operation.queue_id]
            queue.apply(operation, self._release, self.sizes)
            self.touched.add(queue)

    def catch_up(self) -> None:
        """Do what was postponed, as far as it can be done now. Raises: OSError."""
        for queue in self.queues.values():
            if queue.is_behind:
                queue.catch_up(self._release)
                self.touched.add(queue)

    def delete(self, queue_id: int) -> QueueLedger | None:
        """Release all that a deleted queue holds. Returns its ledger, which is gone from here.

        None where there is none, or where it has to stay: an index file cannot be read.
        Raises: OSError.
        """
        queue = self.queues.get(queue_id)
        if queue is None or not queue.release_all(self._release, self.sizes):
            return None
        del self.queues[queue_id]
        self.touched.discard(queue)
        return queue

    def _release(self, entries: Entries) -> None:
        if entries.ids:
            self.accounts.release(entries.ids, entries.sizes)


def enqueued(operation: Operation) -> Run:
    """The run that an ENQUEUE put into its queue."""
    return Run(
        operation.first_sequence,
        operation.message_count,
        first_id=operation.first_id,
        expires_ms=operation.detail,
        priority=operation.priority,
    )
