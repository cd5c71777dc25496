"""Metrics that RabbitMQ has, too, under its names: what its dashboards and alerts ask for.

Counters of messages never go down here, those of channels neither: RabbitMQ forgets those of
channels that were closed. Queues are all of its type `rabbit_classic_queue`.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Collection
from importlib.metadata import version

from prometheus_client.core import Metric

from amqpstore_server.amqp.channel import AmqpChannel
from amqpstore_server.broker.monitoring.counters import ChannelCounters
from amqpstore_server.broker.rules.settings import LetterStrategy
from amqpstore_server.loop.alarms import available_bytes
from amqpstore_server.metrics.families import Described, Families, facts, family, histogram, single
from amqpstore_server.metrics.objects import amount_metrics, amounts
from amqpstore_server.metrics.process import Values, process_values
from amqpstore_server.metrics.source import MetricsSource
from amqpstore_server.statistics.sampler import LENGTHS
from amqpstore_server.terms.replication_figures import FollowerFigures

_PREFIX = "rabbitmq_"

CLASSIC = "rabbit_classic_queue"
PROTOCOL = {"protocol": "amqp091"}
OF_QUEUES = {**PROTOCOL, "queue_type": CLASSIC}

LOGIN_PROTOCOLS = ("amqp091", "http")
"""The protocols by which clients log in."""

_REASONS = {
    "rejected": "a client rejected them",
    "expired": "their time was over",
    "maxlen": "a queue was full",
    "delivery_limit": "they were delivered too often",
}

_LENGTHS = {
    "messages_ready": "Messages that wait for a consumer",
    "messages_unacknowledged": "Messages delivered and not yet acked",
    "messages": "Messages ready or unacked, and dead letters that wait",
}

_GLOBAL = (
    ("messages_received_total", "publish", PROTOCOL, "Messages received from publishers"),
    (
        "messages_received_confirm_total",
        "confirmable",
        PROTOCOL,
        "Messages received from publishers that expect confirms",
    ),
    ("messages_confirmed_total", "confirm", PROTOCOL, "Messages confirmed to publishers"),
    (
        "messages_unroutable_returned_total",
        "return_unroutable",
        PROTOCOL,
        "Mandatory messages without a queue, returned to their publishers",
    ),
    (
        "messages_unroutable_dropped_total",
        "drop_unroutable",
        PROTOCOL,
        "Messages without a queue that were dropped",
    ),
    (
        "messages_delivered_consume_auto_ack_total",
        "deliver_no_ack",
        OF_QUEUES,
        "Messages delivered to consumers that do not ack",
    ),
    (
        "messages_delivered_consume_manual_ack_total",
        "deliver",
        OF_QUEUES,
        "Messages delivered to consumers that ack",
    ),
    (
        "messages_delivered_get_auto_ack_total",
        "get_no_ack",
        OF_QUEUES,
        "Messages fetched with basic.get, without acks",
    ),
    (
        "messages_delivered_get_manual_ack_total",
        "get",
        OF_QUEUES,
        "Messages fetched with basic.get, to be acked",
    ),
    ("messages_get_empty_total", "get_empty", OF_QUEUES, "Times that basic.get found no message"),
    ("messages_redelivered_total", "redeliver", OF_QUEUES, "Messages delivered once more"),
    ("messages_acknowledged_total", "ack", OF_QUEUES, "Messages acked by consumers"),
)

_CHANNELS = (
    ("channel_messages_published_total", "publish", "Messages published on channels"),
    ("channel_messages_confirmed_total", "confirm", "Messages confirmed on channels"),
    (
        "channel_messages_unroutable_returned_total",
        "return_unroutable",
        "Mandatory messages without a queue, returned on channels",
    ),
    (
        "channel_messages_unroutable_dropped_total",
        "drop_unroutable",
        "Messages without a queue that were dropped",
    ),
    ("channel_messages_delivered_total", "deliver_no_ack", "Messages delivered without acks"),
    ("channel_messages_delivered_ack_total", "deliver", "Messages delivered, to be acked"),
    ("channel_messages_redelivered_total", "redeliver", "Messages delivered once more"),
    ("channel_messages_acked_total", "ack", "Messages acked on channels"),
    ("channel_get_total", "get_no_ack", "Messages fetched with basic.get, without acks"),
    ("channel_get_ack_total", "get", "Messages fetched with basic.get, to be acked"),
    ("channel_get_empty_total", "get_empty", "Times that basic.get found no message"),
)

_CHURN = (
    ("connections_opened_total", "connection_created", "Connections opened"),
    ("connections_closed_total", "connection_closed", "Connections closed"),
    ("channels_opened_total", "channel_created", "Channels opened"),
    ("channels_closed_total", "channel_closed", "Channels closed"),
    ("queues_declared_total", "queue_declared", "Queues declared, those that exist too"),
    ("queues_created_total", "queue_created", "Queues created"),
    ("queues_deleted_total", "queue_deleted", "Queues deleted"),
)


_NODE_FAMILIES: dict[str, tuple[str, ...]] = {
    "connection_churn_metrics": tuple(name for name, _, _ in _CHURN),
    "node_coarse_metrics": (
        *("process_open_fds", "process_open_tcp_sockets", "process_resident_memory_bytes"),
        "disk_space_available_bytes",
    ),
    "node_metrics": (
        *("process_max_fds", "process_max_tcp_sockets", "resident_memory_limit_bytes"),
        *("disk_space_available_limit_bytes", "erlang_uptime_seconds"),
    ),
    "node_persister_metrics": (
        *("io_sync_ops_total", "io_sync_time_seconds_total"),
        *("io_write_ops_total", "io_write_bytes_total"),
        *("io_read_ops_total", "io_read_bytes_total", "io_read_time_seconds_total"),
        *("queue_disk_reads_total", "queue_disk_writes_total"),
    ),
    "alarm_metrics": (
        *("alarms_memory_used_watermark", "alarms_free_disk_space_watermark"),
        "alarms_file_descriptor_limit",
    ),
    "auth_attempt_metrics": (
        *("auth_attempts_total", "auth_attempts_succeeded_total", "auth_attempts_failed_total"),
    ),
}
"""The metrics of the node by RabbitMQ's name of their family, as `/metrics/detailed` has them."""

NODE_FAMILIES = frozenset(_NODE_FAMILIES)


def of_node(source: MetricsSource, names: Collection[str], prefix: str) -> Families:
    """Yield those of some families, and who the node is. Args: prefix, that their names get."""
    wanted = {one for name in names for one in _NODE_FAMILIES.get(name, ())}
    yield from _who(source)
    if wanted:
        for found in families(source, source.broker.counters()):
            if any(sample.name.removeprefix(_PREFIX) in wanted for sample in found.samples):
                yield _renamed(found, prefix)


def _renamed(found: Metric, prefix: str) -> Metric:
    """Return a metric with another prefix, and one that is counted for each of several things with
    its labels, as it is.
    """
    name = prefix + found.name.removeprefix(_PREFIX)
    made = Metric(name, found.documentation, found.type, found.unit)
    made.samples = [
        sample._replace(name=prefix + sample.name.removeprefix(_PREFIX)) for sample in found.samples
    ]
    return made


def families(source: MetricsSource, counters: ChannelCounters) -> Families:
    """Yield all of them, without those of single objects. Args: counters, the sums over all
    channels.
    """
    yield from _who(source)
    yield from _global(source, counters)
    yield from _logins(source)
    described = Described(f"{_PREFIX}message_size_bytes", "Size of messages from publishers")
    yield histogram(described, source.broker.services.statistics.message_sizes, PROTOCOL)
    for values in (_gauges(source, counters), _counted(source, counters), _process(source)):
        for name, help_text, value in values:
            yield single(Described(_PREFIX + name, help_text), value)


def _who(source: MetricsSource) -> Families:
    described = Described(f"{_PREFIX}identity", "The node and its cluster")
    broker = source.broker
    cluster = broker.global_parameters.cluster_name or source.node
    node = {"rabbitmq_node": source.node, "rabbitmq_cluster": cluster}
    permanent_id = broker.global_parameters.cluster_id
    endpoint = {"rabbitmq_cluster_permanent_id": permanent_id, "rabbitmq_endpoint": "default"}
    yield facts(described, {**node, **endpoint})
    described = Described(f"{_PREFIX}build", "Versions of the broker and of what it runs on")
    yield facts(
        described,
        {
            "rabbitmq_version": source.product.version,
            "product_name": source.product.name,
            "product_version": source.product.version,
            "prometheus_plugin_version": source.product.version,
            "prometheus_client_version": _client_version(),
            "python_version": platform.python_version(),
        },
    )


@functools.cache
def _client_version() -> str:
    """Read from files, and too much for each scrape."""
    return version("prometheus_client")


def of_follower(figures: FollowerFigures, began_s: float) -> Families:
    """Yield those that a follower has: of its process and its disk."""
    for name, help_text, value in process_values(
        figures.free_bytes, figures.least_free_bytes, began_s
    ):
        yield single(Described(_PREFIX + name, help_text), value)


def _global(source: MetricsSource, counters: ChannelCounters) -> Families:
    prefix = f"{_PREFIX}global_"
    for name, field, labels, help_text in _GLOBAL:
        yield single(Described(prefix + name, help_text), getattr(counters, field), labels)
    delivered = counters.deliver + counters.deliver_no_ack + counters.get + counters.get_no_ack
    described = Described(f"{prefix}messages_delivered_total", "Messages delivered to consumers")
    yield single(described, delivered, OF_QUEUES)
    routed = counters.publish - counters.return_unroutable - counters.drop_unroutable
    described = Described(f"{prefix}messages_routed_total", "Messages with at least one queue")
    yield single(described, routed, PROTOCOL)
    for reason, help_text in _REASONS.items():
        name = f"{prefix}messages_dead_lettered_{reason}_total"
        letters = family(Described(name, f"Messages that left a queue: {help_text}"))
        for strategy in LetterStrategy:
            count = source.broker.services.statistics.dead_letters[reason, strategy]
            labels = {"queue_type": CLASSIC, "dead_letter_strategy": strategy.value}
            letters.add_sample(name, labels, count)
        yield letters
    described = Described(
        f"{prefix}messages_dead_lettered_confirmed_total",
        "Dead letters that waited, and have arrived in all of their queues",
    )
    labels = {"queue_type": CLASSIC, "dead_letter_strategy": LetterStrategy.AT_LEAST_ONCE.value}
    yield single(described, source.broker.services.statistics.arrived_letters, labels)
    publishers = sum([one.counters.publish > 0 for one in _all_channels(source)])
    described = Described(f"{prefix}publishers", "Channels that have published")
    yield single(described, publishers, PROTOCOL)
    consumers = source.sampler.figures.consumers
    yield single(Described(f"{prefix}consumers", "Consumers"), consumers, PROTOCOL)


def _logins(source: MetricsSource) -> Families:
    """Yield how often clients have tried to log in, in all and by the outcome."""
    logins = source.broker.services.statistics.logins
    for outcome, help_text, counted in (
        ("", "Logins", (True, False)),
        ("succeeded_", "Right logins", (True,)),
        ("failed_", "Wrong logins", (False,)),
    ):
        name = f"{_PREFIX}auth_attempts_{outcome}total"
        attempts = family(Described(name, help_text))
        for protocol in LOGIN_PROTOCOLS:
            count = sum(logins[protocol, is_granted] for is_granted in counted)
            attempts.add_sample(name, {"protocol": protocol}, count)
        yield attempts


def _all_channels(source: MetricsSource) -> list[AmqpChannel]:
    return [channel for one in source.connections() for channel in one.channels]


def _gauges(source: MetricsSource, counters: ChannelCounters) -> Values:
    """Yield what there is, as of the last pass of the sampler."""
    figures = source.sampler.figures
    lengths = dict(zip(LENGTHS, source.sampler.lengths(), strict=True))
    connections = [one for one in source.connections() if one.vhost]
    yield "connections", "Open connections", len(connections)
    yield "channels", "Open channels", len(_all_channels(source))
    yield "consumers", "Consumers", figures.consumers
    yield "channel_consumers", "Consumers on channels", figures.consumers
    yield "queue_consumers", "Consumers on queues", figures.consumers
    yield "queues", "Queues", len(source.sampler.all_queues())
    for name, field in (
        ("queue_messages_ready", "messages_ready"),
        ("queue_messages_unacked", "messages_unacknowledged"),
        ("channel_messages_unacked", "messages_unacknowledged"),
        ("queue_messages", "messages"),
    ):
        yield name, _LENGTHS[field], lengths[field]
    values = zip(amount_metrics().items(), amounts(figures.messages), strict=True)
    for (name, help_text), value in values:
        yield name, help_text, value
    yield (
        "channel_messages_unconfirmed",
        "Messages published and not yet confirmed",
        counters.confirmable - counters.confirm - counters.refuse,
    )


def _counted(source: MetricsSource, counters: ChannelCounters) -> Values:
    """Yield what has happened since the start."""
    services = source.broker.services
    measures = services.store.measures
    for name, field, help_text in _CHANNELS:
        yield name, help_text, getattr(counters, field)
    for name, field, help_text in _CHURN:
        yield name, help_text, getattr(services.statistics.churn, field)
    routed = counters.publish - counters.return_unroutable - counters.drop_unroutable
    yield "queue_messages_published_total", "Messages that clients published to queues", routed
    octets = source.sampler.octets()
    yield "connection_incoming_bytes_total", "Bytes received from clients", octets.recv_oct
    yield "connection_outgoing_bytes_total", "Bytes sent to clients", octets.send_oct
    yield "connection_incoming_packets_total", "Reads from clients", octets.recv_cnt
    yield "connection_outgoing_packets_total", "Writes to clients", octets.send_cnt
    syncs = sum(measures.sync_s.buckets)
    yield "io_sync_ops_total", "Batches made durable, each by one fdatasync", syncs
    yield "io_sync_time_seconds_total", "What these fdatasyncs took", measures.sync_s.total
    yield "io_write_ops_total", "Writes to the log", syncs
    yield "io_write_bytes_total", "Bytes written to the log", measures.batch_bytes.total
    yield "io_read_ops_total", "Reads of messages that had left memory", measures.read_count
    yield "io_read_bytes_total", "Bytes in the bodies that were read", measures.read_bytes
    yield "io_read_time_seconds_total", "What these reads took", measures.read_s
    yield "queue_disk_writes_total", "Messages written to disk", measures.written_messages
    yield "queue_disk_reads_total", "Messages read back from disk", measures.read_messages


def _process(source: MetricsSource) -> Values:
    """Yield what the process uses, and what it may use."""
    alarms, figures = source.alarms, source.broker.services.store.statistics.figures()
    yield from process_values(figures.free_bytes, figures.least_free_bytes, source.began_s)
    sockets = len(list(source.connections()))
    yield "process_open_tcp_sockets", "Connected clients", sockets
    limit = alarms.watermark_bytes or available_bytes()
    yield "resident_memory_limit_bytes", "Memory above which publishers wait", limit
    yield "alarms_memory_used_watermark", "1 while memory is short", alarms.is_memory_low
    is_disk_low = source.broker.services.store.space.is_low
    yield "alarms_free_disk_space_watermark", "1 while the disk is nearly full", is_disk_low
    yield "alarms_file_descriptor_limit", "Always 0: clients are refused before that", 0
