"""Statistics of one broker: what there is to ask, as RabbitMQ's management API answers it.

Each answer is a part of a row of that API: counters as of now, their rates of the last five
seconds, and samples if a range asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from amqpstore_server.amqp.channel import AmqpChannel
from amqpstore_server.amqp.connection import AmqpConnection
from amqpstore_server.broker.broker import Broker
from amqpstore_server.broker.monitoring.counters import ExchangeCounters
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.vhost import VirtualHost
from amqpstore_server.statistics.counter_reports import DELIVER_GET, CounterReport, Json, Times
from amqpstore_server.statistics.node import NODE_FIELDS
from amqpstore_server.statistics.ranges import NO_RANGES, SampleRanges
from amqpstore_server.statistics.sampler import (
    CHANNEL_FIELDS,
    CHURN,
    DELIVER,
    DISK,
    EXCHANGE,
    LENGTHS,
    OCTETS,
    PUBLISH,
    QUEUE_FIELDS,
    TOTAL_FIELDS,
    VHOST_FIELDS,
    Sampler,
    channel_values,
    connection_values,
    exchange_values,
    queue_values,
)
from amqpstore_server.statistics.series import CounterSeries

T = TypeVar("T")


class Statistics:
    """The statistics of one broker, out of its counters and of what the sampler has kept."""

    def __init__(self, broker: Broker, sampler: Sampler) -> None:
        self._broker = broker
        self._sampler = sampler

    def overview(
        self, ranges: SampleRanges = NO_RANGES, vhosts: Collection[str] | None = None
    ) -> Json:
        """Return `message_stats`, `queue_totals`, `churn_rates`, and the octets of all connections.

        Args: vhosts, those that the user may see; None for all, with what belongs to none.
        """
        sampler = self._sampler
        # The disk does not belong to any virtual host.
        disk = DISK if vhosts is None else ()
        if vhosts is None:
            report = self._report(
                TOTAL_FIELDS, sampler.total_values(self._broker.counters()), [sampler.totals]
            )
        else:
            seen = [vhost for name, vhost in self._broker.vhosts.items() if name in vhosts]
            rows = [sampler.vhost_values(one.name, one.counters) for one in seen]
            values = [sum(of_field) for of_field in zip(*rows, strict=True)]
            series = [sampler.vhosts[one.name] for one in seen if one.name in sampler.vhosts]
            report = self._report(VHOST_FIELDS, values or [0] * len(VHOST_FIELDS), series)
        return {
            "message_stats": report.messages((*PUBLISH, *DELIVER, *disk), ranges.msg_rates),
            "queue_totals": report.row(LENGTHS, ranges.lengths),
            "churn_rates": {} if vhosts is not None else report.row(CHURN, None),
            **report.row(OCTETS, ranges.data_rates),
        }

    def node(self) -> Json:
        """Return the figures of the node and what was counted there, each with its rate."""
        sampler = self._sampler
        report = self._report(NODE_FIELDS, sampler.node_values(), [sampler.node])
        totals = self._report(
            TOTAL_FIELDS, sampler.total_values(self._broker.counters()), [sampler.totals]
        )
        return {**report.row(NODE_FIELDS, None), **totals.row(CHURN, None)}

    def vhost(self, vhost: VirtualHost, ranges: SampleRanges = NO_RANGES) -> Json:
        """Return the lengths, `message_stats` and octets of a virtual host."""
        sampler = self._sampler
        series = sampler.vhosts.get(vhost.name)
        values = sampler.vhost_values(vhost.name, vhost.counters)
        report = self._report(VHOST_FIELDS, values, _listed(series))
        return {
            **report.row(LENGTHS, ranges.lengths),
            "message_stats": report.messages((*PUBLISH, *DELIVER), ranges.msg_rates),
            **report.row(OCTETS, ranges.data_rates),
        }

    def queue(self, queue: Queue, ranges: SampleRanges = NO_RANGES) -> Json:
        """Return the lengths and `message_stats` of a queue."""
        series = self._sampler.queues.series(queue.counters)
        report = self._report(QUEUE_FIELDS, queue_values(queue), _listed(series))
        return {
            **report.row(LENGTHS, ranges.lengths),
            "message_stats": report.messages(("publish", *DELIVER), ranges.msg_rates),
        }

    def idle_since_ms(self, queue: Queue) -> int | None:
        """Return since when nothing has happened in a queue, on the wall clock, as far as samples
        tell; None if something has since the last one.
        """
        seen = self._sampler.queues.seen(queue.counters)
        if seen is None or seen.values != queue_values(queue):
            return None
        clock = self._broker.services.clock
        return clock.wall_ms() - (clock.monotonic_ms() - seen.changed_ms)

    def queue_number(self, path: Sequence[str]) -> Callable[[Queue], float] | None:
        """Return what reads one number of `queue`, without the others; None if there is none at the
        path, such as `message_stats.publish_details.rate`.
        """
        series_of = self._sampler.queues.series
        return _number(
            path, QUEUE_FIELDS, LENGTHS, queue_values, lambda queue: series_of(queue.counters)
        )

    def channel_number(self, path: Sequence[str]) -> Callable[[AmqpChannel], float] | None:
        """Do as `queue_number`, of `channel`."""
        series_of = self._sampler.channels.series
        return _number(
            path, CHANNEL_FIELDS, (), channel_values, lambda channel: series_of(channel.counters)
        )

    def connection_number(self, path: Sequence[str]) -> Callable[[AmqpConnection], float] | None:
        """Do as `queue_number`, of `connection`."""
        series_of = self._sampler.connections.series
        return _number(
            path, OCTETS, OCTETS, connection_values, lambda connection: series_of(connection.octets)
        )

    def exchange(self, counters: ExchangeCounters, ranges: SampleRanges = NO_RANGES) -> Json:
        """Return the `message_stats` of an exchange; those of the default exchange are counted in
        `Router.default_counters`.
        """
        series = self._sampler.exchanges.series(counters)
        report = self._report(EXCHANGE, exchange_values(counters), _listed(series))
        return {"message_stats": report.row(EXCHANGE, ranges.msg_rates)}

    def channel(self, channel: AmqpChannel, ranges: SampleRanges = NO_RANGES) -> Json:
        """Return the `message_stats` of a channel."""
        series = self._sampler.channels.series(channel.counters)
        report = self._report(CHANNEL_FIELDS, channel_values(channel), _listed(series))
        return {"message_stats": report.messages((*PUBLISH, *DELIVER), ranges.msg_rates)}

    def connection(self, connection: AmqpConnection, ranges: SampleRanges = NO_RANGES) -> Json:
        """Return the octets of a connection, and how many reads and writes they took."""
        series = self._sampler.connections.series(connection.octets)
        report = self._report(OCTETS, connection_values(connection), _listed(series))
        octets = connection.octets
        return {
            **report.row(OCTETS, ranges.data_rates),
            "recv_cnt": octets.recv_cnt,
            "send_cnt": octets.send_cnt,
        }

    def _report(
        self, fields: tuple[str, ...], values: Collection[int], series: list[CounterSeries]
    ) -> CounterReport:
        clock = self._broker.services.clock
        return CounterReport(
            fields, [*values], series, Times(clock.monotonic_ms(), clock.wall_ms())
        )


def _number(
    path: Sequence[str],
    fields: Sequence[str],
    plain: Sequence[str],
    values: Callable[[T], Sequence[int]],
    series_of: Callable[[T], CounterSeries | None],
) -> Callable[[T], float] | None:
    """Return what reads one number, or its rate, of objects that have `fields`; those that are not
    `plain` are in `message_stats`.
    """
    is_message = path[0] == "message_stats"
    name, *rest = path[is_message:] or [""]
    is_rate = rest == ["rate"] and name.endswith("_details")
    field = name.removesuffix("_details") if is_rate else name
    messages = [one for one in (*fields, "deliver_get") if one not in plain]
    if field not in (messages if is_message else plain) or (rest and not is_rate):
        return None
    of_field = DELIVER_GET if field == "deliver_get" else (field,)
    if not {*of_field} <= {*fields}:
        return None
    indexes = [fields.index(one) for one in of_field]

    def number(item: T) -> float:
        found = values(item)
        return sum([found[index] for index in indexes])

    def rate(item: T) -> float:
        series = series_of(item)
        return sum([series.rate(index) for index in indexes]) if series else 0.0

    return rate if is_rate else number


def _listed(series: CounterSeries | None) -> list[CounterSeries]:
    return [] if series is None else [series]
