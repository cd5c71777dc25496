"""The context that all virtual hosts of a broker share."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from amqpstore import Store
from amqpstore.log.measures import BucketHistogram
from amqpstore.provenance.client_trails import ClientTrails
from amqpstore.system.clock import Clock
from amqpstore_server.broker.exchanges.base import Exchange
from amqpstore_server.broker.monitoring.counters import (
    ChurnCounters,
    DeliveryProbes,
    MessageSizes,
    OctetCounters,
)
from amqpstore_server.broker.monitoring.departures import DepartureLog
from amqpstore_server.broker.monitoring.faults import called
from amqpstore_server.broker.rules.settings import LetterStrategy
from amqpstore_server.broker.work.ack_timeouts import AckTimeouts
from amqpstore_server.broker.work.deferred_publishes import DeferredPublishes
from amqpstore_server.broker.work.events import BrokerEvents
from amqpstore_server.broker.work.late_acks import LateAcks
from amqpstore_server.broker.work.limits import BROKER_LIMITS, MOVE_COST, BrokerLimits
from amqpstore_server.broker.work.timers import Timers


class Pumped(Protocol):
    """An object that gets turns: a queue."""

    def pump(self, *, yields: bool = False) -> None:
        """Hand out ready messages while consumers can take them."""

    def drop_late(self) -> None:
        """Drop what is too much since a publish to many queues."""


class Freed(Protocol):
    """A channel whose consumers share a limit, of which a part has become free."""

    def touch_queues(self) -> None:
        """Have the queues of its consumers pump."""


@dataclass(eq=False)
class BrokerContext:
    """The store, and the outside inputs that are injected so that a broker can run on simulated
    time.

    `timers` run after a time, `dates` at a date: the wall clock may be set, and waits of some
    seconds must not depend on it. `random` returns numbers from 0 to below 1, `make_name` a random
    string that no other call returned. Queues with something to hand out add themselves to
    `touched`; that is the order of their turns. Channels in `freed` have consumers that share a
    limit and may have room again: see `touch_freed`. Queues in `arrivals` got messages, and may
    wait for more of them before their turn. Those in `unfinished` have more messages to move or to
    drop than the budget of a turn allowed. Those in `late_drops` are over their limits since a
    publish to many queues; the number is that of messages that each got. `moved` counts, by the id
    of the source queue in the store, messages in transactions that are not durable yet; `flush`
    makes everything durable at once. `waiting_for_room` has work to do when the disk has caught up;
    `background` has work in steps that no one waits for, and a turn does one of them. `name_rule`
    is the rule for names, see `broker.names`; `node` is the name of the broker, as RabbitMQ has one
    for each node.
    `consumer_timeout_ms` is the time in which a delivery has to be acked where neither the consumer
    nor the queue says another; 0 means any time. `purge_undo_s` is for how long a purge can be
    undone where the queue does not say another time; 0 if it cannot.
    Whatever may take long notes its name in `work`, see `holds`. `churn` counts what comes and
    goes, `octets` the bytes of connections that have ended, `message_sizes` what clients publish;
    `confirm_s` has how long messages took
    from the read that brought them, which began at `read_s`, to their confirms, `probes` the same
    for deliveries. `dead_letters` counts messages that left a queue without being consumed, by the
    reason and by what became of them then; `arrived_letters` those that have waited, and are in all
    of their queues. `deferred` has the publishes of a round of reads until they are flushed.
    `trails` notes who publishes messages and who gets them, if that is wanted.
    """

    store: Store
    clock: Clock
    random: Callable[[], float]
    make_name: Callable[[], str]
    exchange_types: Mapping[str, type[Exchange]]
    name_rule: str = "lenient"
    node: str = "amqpstore@localhost"
    limits: BrokerLimits = BROKER_LIMITS
    consumer_timeout_ms: int = 1_800_000
    purge_undo_s: int = 0
    ack_timeouts: AckTimeouts = field(default_factory=AckTimeouts)
    timers: Timers = field(default_factory=Timers)
    dates: Timers = field(default_factory=Timers)
    touched: dict[Pumped, None] = field(default_factory=dict)
    freed: dict[Freed, None] = field(default_factory=dict)
    arrivals: dict[Pumped, None] = field(default_factory=dict)
    unfinished: OrderedDict[Pumped, None] = field(default_factory=OrderedDict)
    late_drops: OrderedDict[Pumped, int] = field(default_factory=OrderedDict)
    moved: Counter[int] = field(default_factory=Counter)
    waiting_for_room: dict[Callable[[], object], None] = field(default_factory=dict)
    background: deque[Iterator[None]] = field(default_factory=deque)
    work: dict[str, None] = field(default_factory=dict)
    churn: ChurnCounters = field(default_factory=ChurnCounters)
    octets: OctetCounters = field(default_factory=OctetCounters)
    message_sizes: MessageSizes = field(default_factory=MessageSizes)
    trails: ClientTrails | None = None
    confirm_s: BucketHistogram = field(default_factory=BucketHistogram.of_seconds)
    read_s: float = 0.0
    joins_reads: bool = False
    """Whether a round of reads is under way: what clients define is committed at its end."""
    has_definitions: bool = False
    """Whether they have defined anything in it."""
    probes: DeliveryProbes = field(default_factory=DeliveryProbes)
    dead_letters: Counter[tuple[str, LetterStrategy]] = field(default_factory=Counter)
    arrived_letters: int = 0
    departures: DepartureLog = field(default_factory=DepartureLog)
    """Counts of messages that have left queues, for the log."""
    logins: Counter[tuple[str, bool]] = field(default_factory=Counter)
    """By protocol, and whether the client was let in."""
    spent: float = 0
    """The part of the budget of this turn that was spent: see `BrokerLimits`."""
    cpu_s: Callable[[], float] = float
    """The processor time of this thread; 0 where a run is to be the same each time."""
    elapsed_s: Callable[[], float] = float
    """A clock that takes little time to read; as `cpu_s` otherwise."""
    move_cost: int = 0
    """The expected cost of the messages of the next move."""
    move_ratio: float = 1.0
    """How many times as long as expected moves have taken lately, at least 1: a dead letter may be
    routed through thousands of bindings."""
    are_moves_paused: bool = False
    """Whether messages are not moved or dropped in this turn, which is for other work."""
    handed_out: int = 0
    """Messages that consumers were given in this turn."""
    pending_moves: int = 0
    """Transactions that moved messages and are not durable yet."""
    events: BrokerEvents = field(default_factory=BrokerEvents)
    """The events of the broker, and their listeners."""
    flush: Callable[[], None] = field(init=False)
    deferred: DeferredPublishes = field(init=False)
    late_acks: LateAcks = field(init=False)

    def __post_init__(self) -> None:
        self.flush = self.store.sync
        self.deferred = DeferredPublishes(self)
        self.late_acks = LateAcks(
            self.ack_timeouts.channels, self.background, self.timers, self.clock
        )

    def touch_freed(self) -> None:
        """Touch the queues of channels with room. To be called before the queues' turns, and before
        anything that depends on what consumers can take.
        """
        freed, self.freed = self.freed, {}
        for channel in freed:
            channel.touch_queues()

    def commit_definitions(self) -> None:
        """Have all definitions of a read synced together, before anything that was answered to it
        can be sent: in a round of reads at its end, with those of other clients.
        """
        if self.joins_reads:
            self.has_definitions = True
        else:
            self.store.definitions.end_group()

    def flush_trails(self) -> None:
        """Have what was noted of clients written soon. To be called about once a second."""
        if self.trails is not None:
            self.trails.flush()

    def run_timers(self) -> bool:
        """Run what is due, by either clock. Returns whether anything was due."""
        ran = self.timers.run(self.clock.monotonic_ms())
        return self.dates.run(self.clock.wall_ms()) or ran

    def ms_to_next_timer(self) -> int | None:
        """Return after how many ms a timer may be due, as the clocks are now; None if no timer is
        set.
        """
        waits_ms = []
        if next_ms := self.timers.next_ms:
            waits_ms.append(max(next_ms - self.clock.monotonic_ms(), 0))
        if next_ms := self.dates.next_ms:
            waits_ms.append(max(next_ms - self.clock.wall_ms(), 0))
        return min(waits_ms, default=None)

    @property
    def is_budget_spent(self) -> bool:
        """Whether others should have their turn before more publishes are put in queues."""
        return self.spent >= self.limits.round_budget

    @property
    def must_moves_wait(self) -> bool:
        """Whether what moves or drops messages has to wait for another turn."""
        return self.are_moves_paused or self.spent >= self.limits.round_budget

    def moved_in(self, took_us: float) -> None:
        """Note how much processor time the last move took."""
        ratio = took_us / (self.move_cost + MOVE_COST)
        self.move_ratio = max(1.0, (self.move_ratio + ratio) / 2)

    @property
    def has_room(self) -> bool:
        """Whether messages may move between queues, as far as the disk is concerned.

        Publishers are slowed down by their connections; such moves would not be by anything else.
        Once a batch is durable, the rest of all moves in it is done in one go.
        """
        limits = self.limits
        return (
            self.store.log.pending_bytes < limits.max_pending_bytes
            and self.pending_moves < limits.max_pending_moves
        )

    def wait_for_room(self, work: Callable[[], object]) -> None:
        """Call `work` once the bytes that wait for the disk now are written."""
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
        """Do as `Log.when_durable` does; a callback that raises does not prevent the others.

        Args: or_else, called if the callback raises: the connection of a client that waits for it
        ends.
        """
        self.store.log.when_durable(partial(called, callback, or_else))

    def moving(self, store_queue_ids: Iterable[int]) -> Callable[[], None]:
        """Count messages that left these queues of the store; call the result to take them off the
        count.
        """
        ids = [*store_queue_ids]
        moved = self.moved
        for one in ids:
            moved[one] += 1
        self.pending_moves += 1

        def end_move() -> None:
            self.pending_moves -= 1
            for one in ids:
                moved[one] -= 1
                if not moved[one]:
                    del moved[one]

        return end_move
