"""What all virtual hosts of a broker share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from amqpstore import Store
from amqpstore.clock import Clock
from amqpstore_server.broker.exchanges.base import Exchange
from amqpstore_server.broker.faults import called
from amqpstore_server.broker.timers import Timers

_MAX_PENDING_BYTES = 32 << 20
"""What may wait for the disk before messages do not move from queue to queue any more."""


class Pumped(Protocol):
    """What has its turn: a queue."""

    def pump(self, *, in_turns: bool = False) -> None:
        """Hand out what is ready, while anybody can take it."""


@dataclass(eq=False)
class BrokerContext:
    """The store, and what a broker takes from outside so that it can be run on simulated time.

    `timers` are due after a time, `dates` at a date: the wall clock may be set, and what waits for
    some seconds is not to wait for it. `random` gives numbers from 0 to below 1, `make_name` a
    random string that no other call returned. `touched` is where queues put themselves that have
    something to hand out, in the order in which they have their turns. `moved` counts, by the id of
    the store's queue that it left, what is in transactions that are not durable yet; `flush` makes
    everything durable at once. `waiting_for_room` is what is to go on when the disk has caught up.
    `name_rule` is what names may be, see `broker.names`.
    """

    store: Store
    clock: Clock
    random: Callable[[], float]
    make_name: Callable[[], str]
    exchange_types: Mapping[str, type[Exchange]]
    name_rule: str = "lenient"
    timers: Timers = field(default_factory=Timers)
    dates: Timers = field(default_factory=Timers)
    touched: dict[Pumped, None] = field(default_factory=dict)
    moved: Counter[int] = field(default_factory=Counter)
    waiting_for_room: dict[Callable[[], object], None] = field(default_factory=dict)
    moves: int = 0
    """Transactions that moved messages from a queue to others in this turn."""
    flush: Callable[[], None] = field(init=False)

    def __post_init__(self) -> None:
        self.flush = self.store.sync

    def run_timers(self) -> bool:
        """Do what is due, by either clock. Returns whether anything was."""
        ran = self.timers.run(self.clock.monotonic_ms())
        return self.dates.run(self.clock.wall_ms()) or ran

    def ms_to_next_timer(self) -> int | None:
        """In how many ms something may be due, as the clocks are now; None where nothing is set."""
        waits_ms = []
        if next_ms := self.timers.next_ms:
            waits_ms.append(max(next_ms - self.clock.monotonic_ms(), 0))
        if next_ms := self.dates.next_ms:
            waits_ms.append(max(next_ms - self.clock.wall_ms(), 0))
        return min(waits_ms, default=None)

    @property
    def has_room(self) -> bool:
        """Whether queues may have messages move by themselves, as far as the disk is concerned.

        Publishers are held back by their connections; nobody else would stop these.
        """
        return self.store.log.pending_bytes < _MAX_PENDING_BYTES

    def wait_for_room(self, work: Callable[[], object]) -> None:
        """Have work done once what waits for the disk now is there."""
        if not self.waiting_for_room:
            self.when_durable(self._go_on)
        self.waiting_for_room[work] = None

    def _go_on(self) -> None:
        waiting, self.waiting_for_room = self.waiting_for_room, {}
        for work in waiting:
            called(work)

    def when_durable(
        self, callback: Callable[[], None], or_else: Callable[[], None] | None = None
    ) -> None:
        """As `Store.when_durable`; a callback that fails keeps no other from being called.

        Args: or_else, what is called then: where a client waits for it, its connection ends.
        """
        self.store.when_durable(partial(called, callback, or_else))

    def moving(self, stored_ids: Iterable[int]) -> Callable[[], None]:
        """Count what left these queues of the store; what is returned takes it off again."""
        ids = Counter(stored_ids)
        self.moved += ids

        def has_moved() -> None:
            self.moved -= ids

        return has_moved
