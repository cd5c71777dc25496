"""The priority levels of a queue: a queue of the store for each, and in what order they go.

A queue without priorities has level 0 alone; the queue of a delayed exchange has slices of time for
priorities (see `kinds`). The others are made when the first message of their
priority comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import amqpstore
from amqpstore import Message, Run, Store
from amqpstore.segments import Unread


class Priorities:
    """The queues of the store that are one queue of the broker.

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
        """From the highest priority down."""
        return iter(self._descending)

    @property
    def lowest(self) -> amqpstore.Queue:
        """Level 0, which is always there."""
        return self._levels[0]

    @property
    def ready_count(self) -> int:
        """Messages that wait, of all priorities."""
        if len(self._descending) == 1:
            return self._descending[0].ready_count
        return sum([level.ready_count for level in self._descending])

    def at(self, priority: int) -> amqpstore.Queue:
        """The level of a priority. Raises: DurabilityError, where it had to be made."""
        level = self._levels.get(priority)
        if level is None:
            lowest = self._levels[0]
            definition: Any = lowest.definition
            own = {"vhost": definition["vhost"], "name": definition["name"], "level": priority}
            level = self._store.create_queue(own, durable=lowest.durable)
            self.add(priority, level)
        return level

    def add(self, priority: int, level: amqpstore.Queue) -> None:
        """Take in a level that the store has."""
        self._levels[priority] = level
        self._descending = [self._levels[key] for key in sorted(self._levels, reverse=True)]
        self._store.set_lazy(level, lazy=self._lazy)
        self._store.set_keeps_transient(level, keeps=self._keeps_transient)

    def ascending(self) -> list[tuple[int, amqpstore.Queue]]:
        """All but the lowest, with their priorities."""
        return [(key, self._levels[key]) for key in sorted(self._levels) if key]

    def remove(self, priority: int) -> None:
        """Delete a level that is empty, and not the lowest.

        Raises: DiskFullError (it is there still), DurabilityError.
        """
        self._store.delete_queue(self._levels[priority])
        self._descending.remove(self._levels.pop(priority))

    def set_lazy(self, *, lazy: bool) -> None:
        """Whether bodies stay in memory: see `Store.set_lazy`."""
        if lazy != self._lazy:
            self._lazy = lazy
            for level in self._descending:
                self._store.set_lazy(level, lazy=lazy)

    def least(self) -> amqpstore.Queue | None:
        """The level whose messages are first to be dropped; None where nothing is ready."""
        return next((level for level in reversed(self._descending) if level.ready_count), None)

    def peek(self, not_from: object = None) -> Message | None:
        """The message that `take` would give, which stays; None where there is none to be read."""
        for level in self._descending:
            first = _first_but(level, not_from) if not_from else 0
            if level.ready_count and (message := self._store.peek(level, first)):
                return message
        return None

    def take(
        self, limit: int, *, acked: bool, not_from: object = None
    ) -> tuple[amqpstore.Queue, Run | Unread] | None:
        """A run off the head (see `Store.take`), of its level.

        Args: not_from, whose messages, that it gave back, are passed over.
        """
        for level in self._descending:
            if level.ready_count:
                first = _first_but(level, not_from) if not_from else 0
                run = self._store.take(level, limit, acked=acked, first_sequence=first)
                if run is not None:
                    return level, run
        return None


def _first_but(level: amqpstore.Queue, giver: object) -> int:
    """The sequence to begin at in order to pass over what `giver` gave back."""
    if level.is_head_paged:
        return 0
    first = 0
    for run in level.ready:
        if run.returned_by is not giver:
            break
        first = run.end
    return first
