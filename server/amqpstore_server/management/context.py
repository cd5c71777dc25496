"""The context that requests are answered from: the parts of the broker that the management door
needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import trio

from amqpstore_server.administration.operations import Administration
from amqpstore_server.administration.work import ResultT, Work
from amqpstore_server.amqp.product import Product
from amqpstore_server.broker.broker import Broker
from amqpstore_server.broker.monitoring.log_limit import LogLimit
from amqpstore_server.config.config import Config
from amqpstore_server.logins.logins import Logins
from amqpstore_server.logins.users import Users
from amqpstore_server.loop.alarms import Alarms
from amqpstore_server.management.checks import StoreChecks
from amqpstore_server.metrics.source import MetricsSource
from amqpstore_server.statistics.statistics import Statistics

if TYPE_CHECKING:
    from amqpstore_server.logins.certificates import Certificates
    from amqpstore_server.loop.socket_connection import SocketConnection
    from amqpstore_server.loop.sockets import Sockets


class CarriesOut(Protocol):
    """Carries out work between the turns of the clients, and returns its result."""

    async def __call__(self, work: Work[ResultT]) -> ResultT: ...


@dataclass(frozen=True)
class Listener:
    """An address on which clients are accepted. `protocol` is RabbitMQ's name for it."""

    protocol: str
    host: str
    port: int
    has_tls: bool = False


@dataclass(eq=False)
class ManagementContext:
    """The parts of one running broker.

    `connections` returns those that there are now; `config` the configuration in force. `wake`
    starts a turn: to be called after whatever may give a queue or a client work. `sockets` are
    those of AMQP clients, which leave other tasks little time. `stopping` is set
    when the broker begins to stop: whoever answers for a long time ends then.
    """

    broker: Broker
    administration: Administration
    connections: Callable[[], Iterable[SocketConnection]]
    logins: Logins
    carry_out: CarriesOut
    wake: Callable[[], None]
    sockets: Sockets
    config: Callable[[], Config]
    product: Product
    alarms: Alarms
    metrics: MetricsSource
    statistics: Statistics
    node: str
    certificates: Certificates | None = None
    listeners: tuple[Listener, ...] = ()
    stopping: trio.Event = field(default_factory=trio.Event)
    checks: StoreChecks = field(default_factory=StoreChecks)
    notes_limit: LogLimit = field(default_factory=LogLimit)

    @property
    def users(self) -> Users:
        """The users of the broker."""
        return self.administration.all_users
