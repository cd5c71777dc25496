"""Metrics of single queues, exchanges, connections and channels, up to a limit.

Under `rabbitmq_detailed_` for `/metrics/detailed`, where a request names the families that it
wants, by RabbitMQ's names for them; under `rabbitmq_` for `/metrics/per-object`. Each family has at
most `max_objects` series, those of the oldest queues and exchanges, so that a new one does not push
out another; what is left out is counted.

There may be 100,000 samples and more, so that they are written here and not one by one by
prometheus-client: the labels of an object are written once, the values of a group of metrics are
read in one call, and the lines of a metric are made out of both in one go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

from amqpstore_server.amqp.connection import AmqpConnection
from amqpstore_server.broker.monitoring.departures import labelled, reasons_of_queue
from amqpstore_server.broker.queues.message_sums import Amount, MessageSums, memory_bytes
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.vhost import VirtualHost
from amqpstore_server.metrics.exposition import MetricsFormat, label, line
from amqpstore_server.metrics.families import Described
from amqpstore_server.metrics.source import MetricsSource

DETAILED = "rabbitmq_detailed_"
PER_OBJECT = "rabbitmq_"
CLUSTER = "rabbitmq_cluster_"
"""The prefix of what RabbitMQ says of the whole cluster."""
OURS = "amqpstore_"
"""The prefix of what RabbitMQ does not have."""

_AT_ONCE = 500
"""Objects whose metrics are written before others have their turn."""

Labelled = Iterator[tuple[str, Any]]
"""Objects, each with the line of its samples: see `line`."""

Kind = Callable[[MetricsSource, Collection[str] | None], Labelled]
"""Returns the objects of one kind in some virtual hosts, or in all."""


class _Group(NamedTuple):
    """A family of RabbitMQ: some metrics of objects of one kind, by their names without prefix,
    with what they are; `values` returns all of them of one object.
    """

    kind: Kind
    metrics: dict[str, str]
    values: Callable[[Any], Sequence[float]]


def _vhosts(source: MetricsSource, vhosts: Collection[str] | None) -> Iterator[VirtualHost]:
    for name, vhost in list(source.broker.vhosts.items()):
        if vhosts is None or name in vhosts:
            yield vhost


def _queues(source: MetricsSource, vhosts: Collection[str] | None) -> Labelled:
    for vhost in _vhosts(source, vhosts):
        of_vhost = label("vhost", vhost.name)
        for queue in list(vhost.queues.values()):
            if queue.is_listed:
                yield line(f"{label('queue', queue.name)},{of_vhost}"), queue


def _departures(source: MetricsSource, vhosts: Collection[str] | None) -> Labelled:
    """Yield the counts of queues, one for each reason for which messages have left it."""
    for vhost in _vhosts(source, vhosts):
        of_vhost = label("vhost", vhost.name)
        for queue in list(vhost.queues.values()):
            if not queue.is_listed:
                continue
            counts = labelled(reasons_of_queue(queue.departures, queue.counters))
            of_queue = f"{label('queue', queue.name)},{of_vhost}"
            for reason, count in counts.items():
                yield line(f"{of_queue},{label('reason', reason)}"), (count,)


def _exchanges(source: MetricsSource, vhosts: Collection[str] | None) -> Labelled:
    for vhost in _vhosts(source, vhosts):
        of_vhost = label("vhost", vhost.name)
        for exchange in list(vhost.exchanges.values()):
            name, kind = label("exchange", exchange.name), label("type", exchange.type)
            yield line(f"{name},{kind},{of_vhost}"), exchange


def _open_connections(
    source: MetricsSource, vhosts: Collection[str] | None
) -> Iterator[tuple[str, AmqpConnection]]:
    for one in sorted(source.connections(), key=attrgetter("peer")):
        if one.vhost and (vhosts is None or one.vhost in vhosts):
            yield f"{label('connection', one.peer)},{label('vhost', one.vhost)}", one


def _connections(source: MetricsSource, vhosts: Collection[str] | None) -> Labelled:
    for labels, one in _open_connections(source, vhosts):
        yield line(labels), one


def _channels(source: MetricsSource, vhosts: Collection[str] | None) -> Labelled:
    for labels, one in _open_connections(source, vhosts):
        for channel in one.channels:
            yield line(f"{label('channel', str(channel.number))},{labels}"), channel


def _vhost_names(source: MetricsSource, vhosts: Collection[str] | None) -> Labelled:
    for vhost in _vhosts(source, vhosts):
        yield line(label("vhost", vhost.name)), vhost


def _lengths(queue: Queue) -> Sequence[int]:
    ready, unacked, letters = queue.ready_count, queue.unacked_count, queue.letter_count
    return ready, unacked, ready + unacked + letters


AMOUNTS: dict[str, tuple[str, Callable[[MessageSums], Amount]]] = {
    "": ("All messages", lambda sums: sums.total),
    "_ready": ("Messages ready", lambda sums: sums.ready),
    "_unacked": ("Messages unacked", lambda sums: sums.unacked),
    "_ram": ("Messages with their bodies in memory", lambda sums: sums.in_memory),
    "_ready_ram": ("Messages ready, in memory", lambda sums: sums.ready_in_memory),
    "_unacked_ram": ("Messages unacked, in memory", lambda sums: sums.unacked_in_memory),
    "_persistent": ("Messages that survive a restart", lambda sums: sums.persistent),
    "_paged_out": ("Messages on disk alone", lambda sums: sums.on_disk),
    "_dlx": ("Dead letters that wait until others take them", lambda sums: sums.letters),
}
"""The amounts in a queue, by the part of the metrics' names that says what is counted."""

_COUNTED = ("_ram", "_ready_ram", "_unacked_ram", "_persistent", "_paged_out", "_dlx")
_SIZED = ("", "_ready", "_unacked", "_ram", "_persistent", "_paged_out", "_dlx")


def amount_metrics() -> dict[str, str]:
    """Return the metrics of `amounts`, with what they are."""
    return {
        **{f"queue_messages{name}": AMOUNTS[name][0] for name in _COUNTED},
        **{f"queue_messages{name}_bytes": f"{AMOUNTS[name][0]}: bytes" for name in _SIZED},
    }


def amounts(sums: MessageSums) -> list[int]:
    """Return the values of `amount_metrics`; bytes as far as they are known."""
    found = {name: amount(sums) for name, (_, amount) in AMOUNTS.items()}
    counts = [found[name].messages for name in _COUNTED]
    return counts + [found[name].body_bytes or 0 for name in _SIZED]


def _queue_metrics(queue: Queue) -> Sequence[float]:
    capacity = round(queue.consumers.room_share, 3)
    of_consumers = [len(queue.consumers), capacity, capacity]
    return [*of_consumers, memory_bytes(queue), *amounts(MessageSums.of(queue))]


_DELIVERIES = {
    "messages_delivered_total": ("deliver_no_ack", "Delivered without acks"),
    "messages_delivered_ack_total": ("deliver", "Delivered, to be acked"),
    "messages_redelivered_total": ("redeliver", "Delivered once more"),
    "messages_acked_total": ("ack", "Acked"),
    "get_total": ("get_no_ack", "Fetched with basic.get, without acks"),
    "get_ack_total": ("get", "Fetched with basic.get, to be acked"),
    "get_empty_total": ("get_empty", "Times basic.get found no message"),
}
"""Counters of queues and of channels: the field of `DeliveryCounters`, and what it is."""


def _deliveries(kind: Kind, prefix: str) -> _Group:
    metrics = {prefix + name: help_text for name, (_, help_text) in _DELIVERIES.items()}
    return _Group(kind, metrics, _counters(*(field for field, _ in _DELIVERIES.values())))


def _counters(*fields: str) -> Callable[[Any], Sequence[int]]:
    """Return what reads some counters of an object."""
    read = attrgetter(*fields)
    return lambda one: read(one.counters)


_CONSUMERS = {"queue_consumers": "Consumers on a queue"}

GROUPS: dict[str, _Group] = {
    "queue_coarse_metrics": _Group(
        _queues,
        {
            "queue_messages_ready": "Messages ready",
            "queue_messages_unacked": "Messages unacked",
            "queue_messages": "Messages ready or unacked, and dead letters that wait",
        },
        _lengths,
    ),
    "queue_consumer_count": _Group(_queues, _CONSUMERS, lambda one: (len(one.consumers),)),
    "queue_metrics": _Group(
        _queues,
        {
            **_CONSUMERS,
            "queue_consumer_capacity": "Share of the time in which a consumer has room",
            "queue_consumer_utilisation": "The same",
            "queue_process_memory_bytes": "Memory of messages",
            **amount_metrics(),
        },
        _queue_metrics,
    ),
    "queue_delivery_metrics": _deliveries(_queues, "queue_"),
    "queue_departure_metrics": _Group(
        _departures, {"queue_messages_left_total": "Messages that have left a queue"}, tuple
    ),
    "channel_queue_exchange_metrics": _Group(
        _queues,
        {"queue_messages_published_total": "Messages that came into a queue"},
        lambda one: (one.priorities.published_count,),
    ),
    "exchange_metrics": _Group(
        _exchanges,
        {
            "exchange_messages_published_total": "Messages published to it",
            "exchange_messages_routed_total": "Copies of them in queues",
        },
        _counters("publish_in", "publish_out"),
    ),
    "connection_coarse_metrics": _Group(
        _connections,
        {
            "connection_incoming_bytes_total": "Bytes received",
            "connection_outgoing_bytes_total": "Bytes sent",
        },
        attrgetter("octets.recv_oct", "octets.send_oct"),
    ),
    "connection_metrics": _Group(
        _connections,
        {
            "connection_incoming_packets_total": "Reads",
            "connection_outgoing_packets_total": "Writes",
            "connection_channels": "Channels",
        },
        lambda one: (one.octets.recv_cnt, one.octets.send_cnt, len(one.channels)),
    ),
    "channel_exchange_metrics": _Group(
        _channels,
        {
            "channel_messages_published_total": "Messages published",
            "channel_messages_confirmed_total": "Messages confirmed",
            "channel_messages_unroutable_returned_total": (
                "Mandatory messages without a queue, returned"
            ),
            "channel_messages_unroutable_dropped_total": (
                "Messages without a queue that were dropped"
            ),
        },
        _counters("publish", "confirm", "return_unroutable", "drop_unroutable"),
    ),
    "channel_queue_metrics": _deliveries(_channels, "channel_"),
    "channel_metrics": _Group(
        _channels,
        {
            "channel_consumers": "Consumers on a channel",
            "channel_messages_unacked": "Messages delivered and not yet acked",
            "channel_messages_unconfirmed": "Messages published and not yet confirmed",
            "channel_messages_uncommitted": "Messages published in a transaction",
            "channel_acks_uncommitted": "Acks in a transaction",
            "consumer_prefetch": "Most unacked messages of each new consumer; 0 is any number",
            "channel_prefetch": "Most unacked messages of a channel; 0 is any number",
        },
        lambda one: (
            len(one.broker_channel.consumers),
            *(
                one.broker_channel.unacked_count,
                one.broker_channel.unconfirmed_count,
                *one.broker_channel.uncommitted_counts,
            ),
            *(one.broker_channel.consumer_window[0], one.broker_channel.window.messages),
        ),
    ),
    "vhost_status": _Group(
        _vhost_names,
        {"vhost_status": "1 for a virtual host that is served"},
        lambda _: (1,),
    ),
    "exchange_names": _Group(
        _exchanges, {"exchange_name": "1 for an exchange that exists"}, lambda _: (1,)
    ),
    "exchange_bindings": _Group(
        _exchanges,
        {"exchange_bindings": "Bindings of an exchange"},
        lambda one: (len(one.bindings),),
    ),
}
"""The metrics of single objects by RabbitMQ's name of their family."""

_OF_OURS = ("queue_departure_metrics",)
_OF_CLUSTER = ("vhost_status", "exchange_names", "exchange_bindings")
_OF_ALL = (
    "queue_coarse_metrics",
    "queue_metrics",
    "queue_delivery_metrics",
    "queue_departure_metrics",
    "channel_queue_exchange_metrics",
    "exchange_metrics",
    "connection_coarse_metrics",
    "connection_metrics",
    "channel_metrics",
    "channel_exchange_metrics",
    "channel_queue_metrics",
)
"""The families of objects in `/metrics/per-object`."""

OBJECT_METRICS = frozenset(PER_OBJECT + name for group in _OF_ALL for name in GROUPS[group].metrics)
"""The names of these."""


def per_object(source: MetricsSource, written: MetricsFormat) -> Iterator[bytes]:
    """Yield all metrics of single objects as text, in steps."""
    yield from _Objects(source, None, written).families(_OF_ALL, PER_OBJECT)


def detailed(
    source: MetricsSource,
    names: Sequence[str],
    vhosts: Collection[str] | None,
    written: MetricsFormat,
) -> Iterator[bytes]:
    """Yield the metrics of the families that a request names as text, in steps. Names that do not
    exist are ignored, as by RabbitMQ.

    Args: vhosts, of which the objects are; None for all.
    """
    asked = [name for name in GROUPS if name in names]
    if "queue_metrics" in asked and "queue_consumer_count" in asked:
        asked.remove("queue_consumer_count")
    yield from _Objects(source, vhosts, written).families(asked, DETAILED)


class _Batch(NamedTuple):
    """Some objects of one kind, and the lines of their samples."""

    lines: Sequence[str]
    objects: Sequence[Any]


class _Shown(NamedTuple):
    """The objects of one kind that are in an answer, and how many it had no room for."""

    batches: Sequence[_Batch]
    left_out: int


class _Objects:
    """The objects of one answer: each kind is listed once, whatever families it is in."""

    def __init__(
        self, source: MetricsSource, vhosts: Collection[str] | None, written: MetricsFormat
    ) -> None:
        self._source = source
        self._vhosts = vhosts
        self._written = written
        self._kinds: dict[Kind, _Shown] = {}

    def families(self, names: Sequence[str], prefix: str) -> Iterator[bytes]:
        """Yield families as text, in steps."""
        left_out = 0
        for name in names:
            group = GROUPS[name]
            if group.kind not in self._kinds:
                yield from self._list(group.kind)
            its_prefix = CLUSTER if name in _OF_CLUSTER else OURS if name in _OF_OURS else prefix
            yield from self._family(group, its_prefix)
            left_out += self._kinds[group.kind].left_out * len(group.metrics)
        self._source.left_out = left_out

    def _list(self, kind: Kind) -> Iterator[bytes]:
        """List the objects of a kind, in steps."""
        found = kind(self._source, self._vhosts)
        room = self._source.max_objects()
        batches = []
        while batch := list(islice(found, min(_AT_ONCE, room))):
            batches.append(_Batch(*zip(*batch, strict=True)))
            room -= len(batch)
            yield b""
        left_out = 0
        while some := sum(1 for _ in islice(found, _AT_ONCE)):
            left_out += some
            yield b""
        self._kinds[kind] = _Shown(batches, left_out)

    def _family(self, group: _Group, prefix: str) -> Iterator[bytes]:
        """Yield the metrics of a group: the values of all of them are read object by object, and
        are written metric by metric.
        """
        named = [Described(prefix + name, help_text) for name, help_text in group.metrics.items()]
        heads = [self._written.head(described) for described in named]
        written = [[head.text] for head in heads]
        for batch in self._kinds[group.kind].batches:
            columns = zip(*map(group.values, batch.objects), strict=True)
            for pieces, head, column in zip(written, heads, columns, strict=True):
                pieces.append(head.samples(batch.lines, column))
            yield b""
        for pieces in written:
            yield from pieces
