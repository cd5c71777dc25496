"""Connections, channels and consumers as rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from amqpstore_server.administration.tables import shown_table
from amqpstore_server.amqp.channel import AmqpChannel
from amqpstore_server.broker.queues.consumer import Consumer
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.loop.socket_connection import SocketConnection
from amqpstore_server.management.listing import ABSENT, Columns
from amqpstore_server.management.steps import InSteps
from amqpstore_server.statistics.ranges import SampleRanges

if TYPE_CHECKING:
    from amqpstore_server.management.context import ManagementContext
    from amqpstore_server.management.login import Identity


class OpenChannel(NamedTuple):
    """A channel, with its connection."""

    connection: SocketConnection
    channel: AmqpChannel

    @property
    def name(self) -> str:
        """The name in paths."""
        return f"{self.connection.name} ({self.channel.number})"


class OpenConsumer(NamedTuple):
    """A consumer, with its connection and channel."""

    connection: SocketConnection
    channel: AmqpChannel
    consumer: Consumer


def connections_of(
    context: ManagementContext, identity: Identity, vhost: str = ""
) -> list[SocketConnection]:
    """Return the connections that a user may see: its own, or all."""
    return [
        one
        for one in context.connections()
        if one.amqp.vhost and vhost in ("", one.amqp.vhost) and identity.may_see_user(one.amqp.user)
    ]


def channels_of(connections: Collection[SocketConnection]) -> list[OpenChannel]:
    """Return the channels of connections."""
    return [OpenChannel(one, channel) for one in connections for channel in one.amqp.channels]


def open_consumers(context: ManagementContext) -> Iterator[OpenConsumer]:
    """Yield the consumers of all queues: an address of direct replies does not count as one."""
    # A copy, as others have their turn between two steps.
    for connection in list(context.connections()):
        for channel in connection.amqp.channels:
            for consumer in channel.broker_channel.consumers.values():
                if consumer.queue.is_listed:
                    yield OpenConsumer(connection, channel, consumer)


async def consumers_of(
    context: ManagementContext, queues: Collection[Queue]
) -> list[dict[str, Any]]:
    """Return the rows of the consumers of these queues."""
    steps = InSteps()
    found = await steps.chosen(open_consumers(context), lambda one: one.consumer.queue in queues)
    return await steps.each(found, lambda one: consumer_row(context, one))


def connection_columns(
    context: ManagementContext, ranges: SampleRanges
) -> Columns[SocketConnection]:
    """Return the columns of connections."""

    def number(path: Sequence[str]) -> Callable[[SocketConnection], float] | None:
        read = context.statistics.connection_number(path)
        return None if read is None else lambda one: read(one.amqp)

    return Columns(
        {
            "name": lambda one: one.name,
            "vhost": lambda one: one.amqp.vhost,
            "user": lambda one: one.amqp.user,
            "user_who_performed_action": lambda one: one.amqp.user,
            "node": lambda _: context.node,
            "type": lambda _: "network",
            "protocol": lambda _: "AMQP 0-9-1",
            "state": _state,
            "host": lambda one: one.local[0],
            "port": lambda one: one.local[1],
            "peer_host": lambda one: one.host,
            "peer_port": lambda one: one.peer_port,
            "connected_at": lambda one: one.connected_ms,
            "channels": lambda one: len(one.amqp.channels),
            "channel_max": lambda one: one.amqp.negotiated.channel_max,
            "frame_max": lambda one: one.amqp.negotiated.frame_max,
            "timeout": lambda one: one.amqp.heartbeat.interval_s,
            "auth_mechanism": lambda one: one.amqp.negotiated.mechanism,
            "client_properties": lambda one: shown_table(one.amqp.negotiated.client_properties),
            "user_provided_name": lambda one: given_name(one) or ABSENT,
            "ssl": lambda one: one.tls_version is not None,
            "ssl_protocol": lambda one: one.tls_version and one.tls_version[0],
            "ssl_cipher": lambda one: one.tls_version and one.tls_version[1],
            "ssl_hash": lambda _: None,
            "ssl_key_exchange": lambda _: None,
            "peer_cert_subject": lambda _: None,
            "peer_cert_issuer": lambda _: None,
            "peer_cert_validity": lambda _: None,
        },
        lambda one: {
            **context.statistics.connection(one.amqp, ranges),
            "send_pend": one.amqp.outbox.byte_count,
        },
        number,
    )


def given_name(connection: SocketConnection) -> str:
    """Return the name that the client has given its connection; empty if it has none."""
    found = connection.amqp.negotiated.client_properties.get("connection_name")
    return found if isinstance(found, str) else ""


def _state(connection: SocketConnection) -> str:
    if not connection.amqp.is_served:
        return "closing"
    if connection.amqp.is_blocked:
        return "blocked"
    return "flow" if connection.is_held_back else "running"


def channel_columns(context: ManagementContext, ranges: SampleRanges) -> Columns[OpenChannel]:
    """Return the columns of channels."""

    def number(path: Sequence[str]) -> Callable[[OpenChannel], float] | None:
        read = context.statistics.channel_number(path)
        return None if read is None else lambda one: read(one.channel)

    return Columns(
        {
            "name": lambda one: one.name,
            "number": lambda one: one.channel.number,
            "vhost": lambda one: one.connection.amqp.vhost,
            "user": lambda one: one.connection.amqp.user,
            "user_who_performed_action": lambda one: one.connection.amqp.user,
            "node": lambda _: context.node,
            "state": _channel_state,
            "connection_details": lambda one: connection_details(one.connection),
            "consumer_count": lambda one: len(one.channel.broker_channel.consumers),
            "prefetch_count": lambda one: one.channel.broker_channel.consumer_window[0],
            "global_prefetch_count": lambda one: one.channel.broker_channel.window.messages,
            "messages_unacknowledged": lambda one: one.channel.broker_channel.unacked_count,
            "messages_unconfirmed": lambda one: one.channel.broker_channel.unconfirmed_count,
            "messages_uncommitted": lambda one: one.channel.broker_channel.uncommitted_counts[0],
            "acks_uncommitted": lambda one: one.channel.broker_channel.uncommitted_counts[1],
            "confirm": lambda one: one.channel.broker_channel.is_confirming,
            "transactional": lambda one: one.channel.broker_channel.is_transactional,
        },
        lambda one: context.statistics.channel(one.channel, ranges),
        number,
    )


def _channel_state(one: OpenChannel) -> str:
    return "flow" if one.channel.broker_channel.is_paused else "running"


def connection_details(connection: SocketConnection) -> dict[str, Any]:
    """Return how rows of other things name a connection."""
    row = {
        "name": connection.name,
        "peer_host": connection.host,
        "peer_port": connection.peer_port,
    }
    given = given_name(connection)
    return {**row, "user_provided_name": given} if given else row


def owner_row(context: ManagementContext, owner: object) -> dict[str, Any]:
    """Return the connection that an exclusive queue belongs to."""
    for one in context.connections():
        if one.amqp.owner is owner:
            return connection_details(one)
    return {}


def consumer_row(context: ManagementContext, open_consumer: OpenConsumer) -> dict[str, Any]:
    """Return the row of a consumer."""
    connection, channel, consumer = open_consumer
    queue, broker = consumer.queue, context.broker.services
    is_active = consumer in queue.consumers.active
    waits = "single_active" if queue.settings.single_active_consumer else "up"
    return {
        "consumer_tag": consumer.tag,
        "queue": {"name": queue.name, "vhost": connection.amqp.vhost},
        "ack_required": not consumer.no_ack,
        "exclusive": consumer.exclusive,
        "prefetch_count": consumer.window.asked,
        "active": is_active,
        "activity_status": waits if is_active else "waiting",
        "arguments": shown_table(consumer.arguments),
        "consumer_timeout": queue.ack_timeout_ms(consumer, broker.consumer_timeout_ms),
        "channel_details": {
            "name": OpenChannel(connection, channel).name,
            "number": channel.number,
            "connection_name": connection.name,
            "node": context.node,
            "peer_host": connection.host,
            "peer_port": connection.peer_port,
            "user": connection.amqp.user,
        },
    }
