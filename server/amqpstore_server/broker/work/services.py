"""The services that all parts of a broker share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from amqpstore import Store
from amqpstore.provenance.client_trails import ClientTrails
from amqpstore.system.clock import Clock
from amqpstore_server.broker.exchanges.base import Exchange
from amqpstore_server.broker.monitoring.faults import called
from amqpstore_server.broker.work.ack_timeouts import AckTimeouts
from amqpstore_server.broker.work.agenda import Agenda
from amqpstore_server.broker.work.deferred_publishes import DeferredPublishes
from amqpstore_server.broker.work.events import BrokerEvents
from amqpstore_server.broker.work.late_acks import LateAcks
from amqpstore_server.broker.work.limits import BROKER_LIMITS, BrokerLimits
from amqpstore_server.broker.work.moves import Moves
from amqpstore_server.broker.work.statistics import BrokerStatistics
from amqpstore_server.broker.work.timers import Timers


@dataclass(eq=False)
class BrokerServices:
    """The store, the outside inputs that are injected so that a broker can run on simulated time,
    and the one agenda, record of moves and statistics of the broker.
    """

    store: Store
    clock: Clock
    random: Callable[[], float]
    """Returns numbers from 0 to below 1."""
    make_name: Callable[[], str]
    """Returns a random string that no other call returned."""
    exchange_types: Mapping[str, type[Exchange]]
    name_rule: str = "lenient"
    """The rule for names: see `definitions.names`."""
    node: str = "amqpstore@localhost"
    """The name of the broker, as RabbitMQ has one for each node."""
    limits: BrokerLimits = BROKER_LIMITS
    consumer_timeout_ms: int = 1_800_000
    """The time in which a delivery has to be acked where neither the consumer nor the queue says
    another; 0 means any time.
    """
    purge_undo_s: int = 0
    """For how long a purge can be undone where the queue does not say another time; 0 if it cannot.
    """
    cpu_s: Callable[[], float] = float
    """The processor time of this thread; 0 where a run is to be the same each time."""
    elapsed_s: Callable[[], float] = float
    """A clock that takes little time to read; as `cpu_s` otherwise."""
    trails: ClientTrails | None = None
    """Notes who publishes messages and who gets them, if that is wanted."""
    timers: Timers = field(default_factory=Timers)
    """Timers of what is due after a time, by the monotonic clock: waits of some seconds must not
    depend on the wall clock, which may be set.
    """
    dates: Timers = field(default_factory=Timers)
    """Timers of what is due at a date, by the wall clock."""
    ack_timeouts: AckTimeouts = field(default_factory=AckTimeouts)
    events: BrokerEvents = field(default_factory=BrokerEvents)
    """The events of the broker, and their listeners."""
    work: dict[str, None] = field(default_factory=dict)
    """The names of what may take long and is being done: see `loop.holds`."""
    agenda: Agenda = field(default_factory=Agenda)
    statistics: BrokerStatistics = field(default_factory=BrokerStatistics)
    moves: Moves = field(init=False)
    flush: Callable[[], None] = field(init=False)
    """Makes everything durable at once."""
    deferred: DeferredPublishes = field(init=False)
    """The publishes of a round of reads until they are flushed."""
    late_acks: LateAcks = field(init=False)

    def __post_init__(self) -> None:
        self.moves = Moves(self)
        self.flush = self.store.sync
        self.deferred = DeferredPublishes(self)
        self.late_acks = LateAcks(
            self.ack_timeouts.channels, self.agenda.background, self.timers, self.clock
        )

    @property
    def is_budget_spent(self) -> bool:
        """Whether others should have their turn before more publishes are put in queues."""
        return self.agenda.spent >= self.limits.round_budget

    def commit_definitions(self) -> None:
        """Have all definitions of a read synced together, before anything that was answered to it
        can be sent: in a round of reads at its end, with those of other clients.
        """
        if self.agenda.joins_reads:
            self.agenda.has_definitions = True
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

    def when_durable(
        self, callback: Callable[[], None], or_else: Callable[[], None] | None = None
    ) -> None:
        """Do as `Log.when_durable` does; a callback that raises does not prevent the others.

        Args: or_else, called if the callback raises: the connection of a client that waits for it
        ends.
        """
        self.store.log.when_durable(partial(called, callback, or_else))
