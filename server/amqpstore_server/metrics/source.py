"""The source that metrics are collected from: the parts of one running broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from amqpstore_server.amqp.connection import AmqpConnection
from amqpstore_server.amqp.product import Product
from amqpstore_server.broker.broker import Broker
from amqpstore_server.loop.alarms import Alarms
from amqpstore_server.loop.holds import LoopHolds
from amqpstore_server.statistics.sampler import Sampler
from amqpstore_server.terms.replication_figures import ReplicationFigures


@dataclass(eq=False)
class MetricsSource:
    """The parts of the broker that metrics tell about.

    `began_s` is when it started, on the monotonic clock; `max_objects` is how many series each
    metric of single objects may have.
    """

    broker: Broker
    sampler: Sampler
    alarms: Alarms
    holds: LoopHolds
    connections: Callable[[], Iterable[AmqpConnection]]
    product: Product
    node: str
    max_objects: Callable[[], int]
    replication: Callable[[], ReplicationFigures | None] = lambda: None
    began_s: float = field(default_factory=time.monotonic)
    left_out: int = 0
    """Series that did not fit in the last answer about single objects."""
