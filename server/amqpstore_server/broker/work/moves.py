"""Messages that move between queues, or are dropped: whether they may now, and at what price.

Publishers are slowed down by their connections; such moves would not be by anything else. So they
wait while too much waits for the disk, and for another round once this one has spent its budget.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from amqpstore import Store
from amqpstore_server.broker.monitoring.faults import called
from amqpstore_server.broker.work.agenda import Agenda
from amqpstore_server.broker.work.limits import BrokerLimits


class MovingServices(Protocol):
    """The services of the broker that moves need."""

    store: Store
    agenda: Agenda
    limits: BrokerLimits


class Moves:
    """The moves of all queues of a broker."""

    def __init__(self, services: MovingServices) -> None:
        self.counts: Counter[int] = Counter()
        """Messages in transactions that are not durable yet, by the id of their source queue in the
        store.
        """
        self.pending = 0
        """Transactions that moved messages and are not durable yet."""
        self.expected_cost = 0
        """The expected cost of the messages of the next move."""
        self.ratio = 1.0
        """The time that moves have taken lately, in terms of what was expected, at least 1: a dead
        letter may be routed through thousands of bindings.
        """
        self.are_paused = False
        """Whether messages are not moved or dropped in this round, which is for other work."""
        self._services = services
        self._agenda = services.agenda
        self._log = services.store.log
        self._waiting: dict[Callable[[], object], None] = {}

    @property
    def must_wait(self) -> bool:
        """Whether what moves or drops messages has to wait for another round."""
        return self.are_paused or self._agenda.spent >= self._services.limits.round_budget

    @property
    def has_room(self) -> bool:
        """Whether messages may move between queues, as far as the disk is concerned.

        Once a batch is durable, the rest of all moves in it is done in one go.
        """
        limits = self._services.limits
        return (
            self._log.pending_bytes < limits.max_pending_bytes
            and self.pending < limits.max_pending_moves
        )

    def wait_for_room(self, work: Callable[[], object]) -> None:
        """Call `work` once the bytes that wait for the disk now are written."""
        if not self._waiting:
            self._log.when_durable(partial(called, self._go_on))
        self._waiting[work] = None

    def _go_on(self) -> None:
        # The line is taken off first: work that finds no room yet waits again.
        waiting, self._waiting = self._waiting, {}
        for work in waiting:
            called(work)

    def begin(self, store_queue_ids: Iterable[int]) -> Callable[[], None]:
        """Count messages that left these queues of the store; call the result to take them off the
        count.
        """
        ids = [*store_queue_ids]
        counts = self.counts
        for one in ids:
            counts[one] += 1
        self.pending += 1

        def end_move() -> None:
            self.pending -= 1
            for one in ids:
                counts[one] -= 1
                if not counts[one]:
                    del counts[one]

        return end_move

    def took(self, took_us: float) -> None:
        """Note how much processor time the last move took."""
        ratio = took_us / (self.expected_cost + self._services.limits.move_cost)
        self.ratio = max(1.0, (self.ratio + ratio) / 2)
