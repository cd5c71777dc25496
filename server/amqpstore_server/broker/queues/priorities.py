"""The priorities of a queue: a queue of the store for each, and the order in which they are served.

A queue without priorities has only priority 0; the queue of a delayed exchange uses slices of time
as priorities (see `kinds`). The store queues of other priorities are created when the first message
of that priority arrives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import amqpstore
from amqpstore import Message, Run, Store
from amqpstore.log.segments import Unread


class Priorities:
    """The queues of the store that form one queue of the broker.

    Args: keeps_transient, see `Store.set_keeps_transient`.
    """

    def __init__(
        self, store: Store, lowest: amqpstore.Queue, *, keeps_transient: bool = False
    ) -> None:
        self._store = store
        self._keeps_transient = keeps_transient
        store.set_keeps_transient(lowest, keeps=keeps_transient)
        self._by_priority = {0: lowest}
        self._descending = [lowest]
        self._before = lowest.next_sequence
        """The messages that `published_count` does not count: they came before this start."""
        self._lazy = False

    def __iter__(self) -> Iterator[amqpstore.Queue]:
        """Iterate from the highest priority to the lowest."""
        return iter(self._descending)

    @property
    def lowest(self) -> amqpstore.Queue:
        """The store queue of priority 0, which always exists."""
        return self._by_priority[0]

    @property
    def ready_count(self) -> int:
        """The number of ready messages of all priorities."""
        if len(self._descending) == 1:
            return self._descending[0].ready_count
        return sum([one.ready_count for one in self._descending])

    @property
    def published_count(self) -> int:
        """The number of messages that have entered the queue since the start."""
        if len(self._descending) == 1:
            return self._descending[0].next_sequence - self._before
        return sum([one.next_sequence for one in self._descending]) - self._before

    def at(self, priority: int) -> amqpstore.Queue:
        """Return the store queue of a priority.

        Raises: DurabilityError, if it had to be created.
        """
        store_queue = self._by_priority.get(priority)
        if store_queue is None:
            lowest = self._by_priority[0]
            definition: Any = lowest.definition
            own = {"vhost": definition["vhost"], "name": definition["name"], "level": priority}
            # Created on first use: 255 queues of the store for each queue with x-max-priority
            # would be 255 rows.
            store_queue = self._store.create_queue(own, durable=lowest.durable)
            self.add(priority, store_queue)
        return store_queue

    def add(self, priority: int, store_queue: amqpstore.Queue) -> None:
        """Add a queue that the store has for a priority."""
        self._before += store_queue.next_sequence
        self._by_priority[priority] = store_queue
        self._descending = [
            self._by_priority[key] for key in sorted(self._by_priority, reverse=True)
        ]
        self._store.memory.set_lazy(store_queue, lazy=self._lazy)
        self._store.set_keeps_transient(store_queue, keeps=self._keeps_transient)

    def ascending(self) -> list[tuple[int, amqpstore.Queue]]:
        """Return the store queues of all priorities except the lowest, each with its priority."""
        return [(key, self._by_priority[key]) for key in sorted(self._by_priority) if key]

    def levels(self) -> list[tuple[int, amqpstore.Queue]]:
        """Return the store queues of all priorities, the highest first, each with its priority."""
        return [(key, self._by_priority[key]) for key in sorted(self._by_priority, reverse=True)]

    def remove(self, priority: int) -> None:
        """Delete the store queue of a priority other than 0; it is empty.

        Raises: DiskFullError (the queue still exists), DurabilityError.
        """
        # First in the store: if the disk is full, nothing has changed here.
        self._store.delete_queue(self._by_priority[priority])
        self._before -= self._by_priority[priority].next_sequence
        self._descending.remove(self._by_priority.pop(priority))

    def set_lazy(self, *, lazy: bool) -> None:
        """Set whether bodies stay in memory: see `Memory.set_lazy`."""
        if lazy != self._lazy:
            self._lazy = lazy
            for store_queue in self._descending:
                self._store.memory.set_lazy(store_queue, lazy=lazy)

    def least(self) -> amqpstore.Queue | None:
        """Return the store queue whose messages are dropped first; None if nothing is ready."""
        return next((one for one in reversed(self._descending) if one.ready_count), None)

    def peek(self, limit: int = 1, not_from: object = None) -> Sequence[Message]:
        """Return messages that `take` would take, and leave them; empty if none can be read."""
        for store_queue in self._descending:
            first = _first_but(store_queue, not_from) if not_from else 0
            if store_queue.ready_count and (
                messages := self._store.withdrawals.peek_many(store_queue, limit, first)
            ):
                return messages
        return ()

    def take(
        self, limit: int, *, acked: bool, not_from: object = None, in_chunks: bool = False
    ) -> tuple[amqpstore.Queue, Run | Unread] | None:
        """Take a run off the head (see `Store.take`). Returns its store queue and the run.

        Args: not_from, the consumer whose requeued messages are skipped.
        """
        for store_queue in self._descending:
            if store_queue.ready_count:
                first = _first_but(store_queue, not_from) if not_from else 0
                run = self._store.take(
                    store_queue, limit, acked=acked, first_sequence=first, in_chunks=in_chunks
                )
                if run is not None:
                    return store_queue, run
        return None


def _first_but(store_queue: amqpstore.Queue, giver: object) -> int:
    """Return the sequence to start at in order to skip the messages that `giver` requeued."""
    # What a consumer has requeued stays in memory, so none of it is at the head.
    if store_queue.is_head_paged:
        return 0
    first = 0
    for run in store_queue.ready:
        if run.returned_by is not giver:
            break
        first = run.end
    return first
