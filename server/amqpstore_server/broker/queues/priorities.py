"""The priority levels of a queue, each a queue of the store, and the order in which they are
served.

A queue without priorities has only level 0; the queue of a delayed exchange uses slices of time as
priorities (see `kinds`). Other levels are created when the first message of their priority arrives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import amqpstore
from amqpstore import Message, Run, Store
from amqpstore.segments import Unread


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
        self._levels = {0: lowest}
        self._descending = [lowest]
        self._lazy = False

    def __iter__(self) -> Iterator[amqpstore.Queue]:
        """Iterate from the highest priority to the lowest."""
        return iter(self._descending)

    @property
    def lowest(self) -> amqpstore.Queue:
        """Level 0, which always exists."""
        return self._levels[0]

    @property
    def ready_count(self) -> int:
        """The number of ready messages of all priorities."""
        if len(self._descending) == 1:
            return self._descending[0].ready_count
        return sum([level.ready_count for level in self._descending])

    def at(self, priority: int) -> amqpstore.Queue:
        """Return the level of a priority. Raises: DurabilityError, if it had to be created."""
        level = self._levels.get(priority)
        if level is None:
            lowest = self._levels[0]
            definition: Any = lowest.definition
            own = {"vhost": definition["vhost"], "name": definition["name"], "level": priority}
            level = self._store.create_queue(own, durable=lowest.durable)
            self.add(priority, level)
        return level

    def add(self, priority: int, level: amqpstore.Queue) -> None:
        """Add a level that the store has."""
        self._levels[priority] = level
        self._descending = [self._levels[key] for key in sorted(self._levels, reverse=True)]
        self._store.set_lazy(level, lazy=self._lazy)
        self._store.set_keeps_transient(level, keeps=self._keeps_transient)

    def ascending(self) -> list[tuple[int, amqpstore.Queue]]:
        """Return all levels but the lowest, with their priorities."""
        return [(key, self._levels[key]) for key in sorted(self._levels) if key]

    def remove(self, priority: int) -> None:
        """Delete an empty level that is not the lowest.

        Raises: DiskFullError (the level still exists), DurabilityError.
        """
        self._store.delete_queue(self._levels[priority])
        self._descending.remove(self._levels.pop(priority))

    def set_lazy(self, *, lazy: bool) -> None:
        """Set whether bodies stay in memory: see `Store.set_lazy`."""
        if lazy != self._lazy:
            self._lazy = lazy
            for level in self._descending:
                self._store.set_lazy(level, lazy=lazy)

    def least(self) -> amqpstore.Queue | None:
        """Return the level whose messages are dropped first; None if nothing is ready."""
        return next((level for level in reversed(self._descending) if level.ready_count), None)

    def peek(self, not_from: object = None) -> Message | None:
        """Return the message that `take` would take, and leave it; None if none can be read."""
        for level in self._descending:
            first = _first_but(level, not_from) if not_from else 0
            if level.ready_count and (message := self._store.peek(level, first)):
                return message
        return None

    def take(
        self, limit: int, *, acked: bool, not_from: object = None
    ) -> tuple[amqpstore.Queue, Run | Unread] | None:
        """Take a run off the head (see `Store.take`). Returns its level and the run.

        Args: not_from, the consumer whose requeued messages are skipped.
        """
        for level in self._descending:
            if level.ready_count:
                first = _first_but(level, not_from) if not_from else 0
                run = self._store.take(level, limit, acked=acked, first_sequence=first)
                if run is not None:
                    return level, run
        return None


def _first_but(level: amqpstore.Queue, giver: object) -> int:
    """Return the sequence to start at in order to skip the messages that `giver` requeued."""
    if level.is_head_paged:
        return 0
    first = 0
    for run in level.ready:
        if run.returned_by is not giver:
            break
        first = run.end
    return first
