"""Metrics of single queues, exchanges, connections and channels, up to a limit.

Under `rabbitmq_detailed_` for `/metrics/detailed`, where a request names the families that it
wants, by RabbitMQ's names for them; under `rabbitmq_` for `/metrics/per-object`. Each family has at
most `max_objects` series, the first ones by virtual host and name; what is left out is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

from prometheus_client.core import Metric

from amqpstore_server.amqp.channel import AmqpChannel
from amqpstore_server.amqp.connection import AmqpConnection
from amqpstore_server.broker.exchanges.base import Exchange
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.metrics.families import Described, family
from amqpstore_server.metrics.source import MetricsSource

DETAILED = "rabbitmq_detailed_"
PER_OBJECT = "rabbitmq_"
CLUSTER = "rabbitmq_cluster_"
"""The prefix of what RabbitMQ says of the whole cluster."""

_AT_ONCE = 500
"""Samples in one part of a family: what is rendered before others have their turn."""


class _Measured(NamedTuple):
    """One metric of an object: its name without prefix, what it is, and its value."""

    name: str
    help: str
    value: Callable[[Any], float]


class _Group(NamedTuple):
    """A family of RabbitMQ: some metrics of objects of one kind."""

    objects: Callable[[MetricsSource, Collection[str] | None], Iterator[tuple[dict[str, str], Any]]]
    metrics: tuple[_Measured, ...]


def _queues(
    source: MetricsSource, vhosts: Collection[str] | None
) -> Iterator[tuple[dict[str, str], Queue]]:
    for name, vhost in sorted(source.broker.vhosts.items()):
        if vhosts is None or name in vhosts:
            for queue in sorted(vhost.queues.values(), key=lambda one: one.name):
                if not queue.is_internal:
                    yield {"vhost": name, "queue": queue.name}, queue


def _exchanges(
    source: MetricsSource, vhosts: Collection[str] | None
) -> Iterator[tuple[dict[str, str], Exchange]]:
    for name, vhost in sorted(source.broker.vhosts.items()):
        if vhosts is None or name in vhosts:
            for exchange in sorted(vhost.exchanges.values(), key=lambda one: one.name):
                yield (
                    {"vhost": name, "exchange": exchange.name, "type": exchange.type},
                    exchange,
                )


def _connections(
    source: MetricsSource, vhosts: Collection[str] | None
) -> Iterator[tuple[dict[str, str], AmqpConnection]]:
    for one in sorted(source.connections(), key=lambda one: one.peer):
        if one.vhost and (vhosts is None or one.vhost in vhosts):
            yield {"connection": one.peer, "vhost": one.vhost}, one


def _channels(
    source: MetricsSource, vhosts: Collection[str] | None
) -> Iterator[tuple[dict[str, str], AmqpChannel]]:
    for labels, connection in _connections(source, vhosts):
        for channel in connection.channels:
            yield {**labels, "channel": str(channel.number)}, channel


def _vhosts(
    source: MetricsSource, vhosts: Collection[str] | None
) -> Iterator[tuple[dict[str, str], int]]:
    for name in sorted(source.broker.vhosts):
        if vhosts is None or name in vhosts:
            yield {"vhost": name}, 1


def _counter(name: str, field: str, help_text: str) -> _Measured:
    return _Measured(name, help_text, lambda one: int(getattr(one.counters, field)))


_CONSUMERS = _Measured("queue_consumers", "Consumers on a queue", lambda one: len(one.consumers))

GROUPS: dict[str, _Group] = {
    "queue_coarse_metrics": _Group(
        _queues,
        (
            _Measured("queue_messages_ready", "Messages ready", lambda one: one.ready_count),
            _Measured("queue_messages_unacked", "Messages unacked", lambda one: one.unacked_count),
            _Measured(
                "queue_messages",
                "Messages ready or unacked",
                lambda one: one.ready_count + one.unacked_count,
            ),
        ),
    ),
    "queue_consumer_count": _Group(_queues, (_CONSUMERS,)),
    "queue_metrics": _Group(
        _queues,
        (
            _CONSUMERS,
            _Measured(
                "queue_messages_ram_bytes",
                "Memory of ready messages",
                lambda one: sum([priority.memory_bytes for priority in one.priorities]),
            ),
            _Measured(
                "queue_messages_paged_out",
                "Ready messages whose entries are on disk only",
                lambda one: sum([priority.paged_count for priority in one.priorities]),
            ),
        ),
    ),
    "queue_delivery_metrics": _Group(
        _queues,
        (
            _counter("queue_messages_delivered_total", "deliver_no_ack", "Delivered without acks"),
            _counter("queue_messages_delivered_ack_total", "deliver", "Delivered, to be acked"),
            _counter("queue_messages_redelivered_total", "redeliver", "Delivered once more"),
            _counter("queue_messages_acked_total", "ack", "Acked"),
            _counter("queue_get_total", "get_no_ack", "Fetched with basic.get, without acks"),
            _counter("queue_get_ack_total", "get", "Fetched with basic.get, to be acked"),
            _counter("queue_get_empty_total", "get_empty", "Times basic.get found no message"),
        ),
    ),
    "channel_queue_exchange_metrics": _Group(
        _queues,
        (
            _Measured(
                "queue_messages_published_total",
                "Messages that came into a queue",
                lambda one: one.priorities.published_count,
            ),
        ),
    ),
    "exchange_metrics": _Group(
        _exchanges,
        (
            _counter("exchange_messages_published_total", "publish_in", "Messages published to it"),
            _counter("exchange_messages_routed_total", "publish_out", "Copies of them in queues"),
        ),
    ),
    "connection_coarse_metrics": _Group(
        _connections,
        (
            _Measured(
                "connection_incoming_bytes_total", "Bytes received", lambda one: one.octets.recv_oct
            ),
            _Measured(
                "connection_outgoing_bytes_total", "Bytes sent", lambda one: one.octets.send_oct
            ),
        ),
    ),
    "connection_metrics": _Group(
        _connections,
        (
            _Measured(
                "connection_incoming_packets_total", "Reads", lambda one: one.octets.recv_cnt
            ),
            _Measured(
                "connection_outgoing_packets_total", "Writes", lambda one: one.octets.send_cnt
            ),
            _Measured("connection_channels", "Channels", lambda one: len(one.channels)),
        ),
    ),
    "channel_exchange_metrics": _Group(
        _channels,
        (
            _counter("channel_messages_published_total", "publish", "Messages published"),
            _counter("channel_messages_confirmed_total", "confirm", "Messages confirmed"),
            _counter(
                "channel_messages_unroutable_returned_total",
                "return_unroutable",
                "Mandatory messages without a queue, returned",
            ),
            _counter(
                "channel_messages_unroutable_dropped_total",
                "drop_unroutable",
                "Messages without a queue that were dropped",
            ),
        ),
    ),
    "channel_queue_metrics": _Group(
        _channels,
        (
            _counter(
                "channel_messages_delivered_total", "deliver_no_ack", "Delivered without acks"
            ),
            _counter("channel_messages_delivered_ack_total", "deliver", "Delivered, to be acked"),
            _counter("channel_messages_redelivered_total", "redeliver", "Delivered once more"),
            _counter("channel_messages_acked_total", "ack", "Acked"),
            _counter("channel_get_total", "get_no_ack", "Fetched with basic.get, without acks"),
            _counter("channel_get_ack_total", "get", "Fetched with basic.get, to be acked"),
            _counter("channel_get_empty_total", "get_empty", "Times basic.get found no message"),
        ),
    ),
    "vhost_status": _Group(
        _vhosts, (_Measured("vhost_status", "1 for a virtual host that is served", float),)
    ),
    "exchange_names": _Group(
        _exchanges, (_Measured("exchange_name", "1 for an exchange that exists", lambda _: 1),)
    ),
    "exchange_bindings": _Group(
        _exchanges,
        (_Measured("exchange_bindings", "Bindings of an exchange", lambda one: len(one.bindings)),),
    ),
}
"""The metrics of single objects by RabbitMQ's name of their family."""

_OF_CLUSTER = ("vhost_status", "exchange_names", "exchange_bindings")
_OF_ALL = (
    "queue_coarse_metrics",
    "queue_metrics",
    "queue_delivery_metrics",
    "channel_queue_exchange_metrics",
    "exchange_metrics",
    "connection_coarse_metrics",
    "connection_metrics",
    "channel_exchange_metrics",
    "channel_queue_metrics",
)
"""What `/metrics/per-object` has."""


def per_object(source: MetricsSource) -> Iterator[list[Metric]]:
    """Yield all metrics of single objects, each family in parts."""
    yield from _families(source, _OF_ALL, None, PER_OBJECT)


def detailed(
    source: MetricsSource, names: Sequence[str], vhosts: Collection[str] | None
) -> Iterator[list[Metric]]:
    """Yield the metrics of the families that a request names, each in parts. Names that do not
    exist are ignored, as by RabbitMQ.

    Args: vhosts, of which the objects are; None for all.
    """
    asked = [name for name in GROUPS if name in names]
    if "queue_metrics" in asked and "queue_consumer_count" in asked:
        asked.remove("queue_consumer_count")
    yield from _families(source, asked, vhosts, DETAILED)


def _families(
    source: MetricsSource, names: Sequence[str], vhosts: Collection[str] | None, prefix: str
) -> Iterator[list[Metric]]:
    left_out = 0
    most = source.max_objects()
    for name in names:
        group = GROUPS[name]
        named = CLUSTER if name in _OF_CLUSTER else prefix
        shown: list[tuple[dict[str, str], Any]] = []
        for index, found in enumerate(group.objects(source, vhosts), 1):
            if index <= most:
                shown.append(found)
            else:
                left_out += len(group.metrics)
            if not index % _AT_ONCE:
                yield []
        for measured in group.metrics:
            described = Described(named + measured.name, measured.help)
            for first in range(0, max(len(shown), 1), _AT_ONCE):
                part = family(described)
                for labels, one in shown[first : first + _AT_ONCE]:
                    part.add_sample(described.name, labels, measured.value(one))
                yield [part]
    source.left_out = left_out
