"""Connections, their channels and consumers: list them, and close connections."""

from __future__ import annotations

from amqpstore_server.broker.monitoring.audit import By
from amqpstore_server.loop.socket_connection import SocketConnection
from amqpstore_server.management.answers import Answer, no_content
from amqpstore_server.management.call import DOOR, Call
from amqpstore_server.management.clients import (
    OpenChannel,
    channel_columns,
    channels_of,
    connection_columns,
    connections_of,
    consumer_row,
    consumers_of,
    given_name,
    open_consumers,
)
from amqpstore_server.management.errors import not_authorised, not_found
from amqpstore_server.management.listing import MADE
from amqpstore_server.management.needs import Needs
from amqpstore_server.management.routes import LIST_QUERY, ApiRoute
from amqpstore_server.management.steps import InSteps

_REASON = "Closed via management plugin"
_DATA_QUERY = ("data_rates_age", "data_rates_incr")
_RATES_QUERY = ("msg_rates_age", "msg_rates_incr")
_CONSUMER_ORDER = ("queue.vhost", "queue.name", "consumer_tag")


def _vhost_of(call: Call) -> str:
    return call.path.get("vhost", "")


async def list_connections(call: Call) -> Answer:
    """Return the connections that the user may see."""
    found = connections_of(call.context, call.identity, _vhost_of(call))
    return await call.listed(
        found, connection_columns(call.context, call.ranges), other_name=given_name
    )


async def list_of_user(call: Call) -> Answer:
    """Return the connections of a user."""
    connections = connections_of(call.context, call.identity)
    found = [one for one in connections if one.amqp.user == call.path["user"]]
    return await call.listed(
        found, connection_columns(call.context, call.ranges), other_name=given_name
    )


def _connection(call: Call) -> SocketConnection:
    """Return the connection in the path. Raises: HttpError."""
    name = call.path["connection"]
    for one in call.context.connections():
        if one.name == name and one.amqp.vhost:
            if call.identity.may_see_user(one.amqp.user):
                return one
            raise not_authorised("User not authorised to access object")
    raise not_found(f"no connection '{name}'")


async def get_connection(call: Call) -> Answer:
    """Return a connection."""
    columns = connection_columns(call.context, call.ranges)
    return await call.row(_connection(call), columns)


async def close_connection(call: Call) -> Answer:
    """Close a connection: one's own, or as an administrator any."""
    connection = _connection(call)
    _close(call, [connection])
    return no_content()


async def close_of_user(call: Call) -> Answer:
    """Close the connections of a user."""
    user = call.path["user"]
    connections = [one for one in call.context.connections() if one.amqp.user == user]
    _check_may_close(call, user)
    steps = InSteps()
    for one in connections:
        _close(call, [one])
        await steps.pause()
    return no_content()


def _check_may_close(call: Call, user: str) -> None:
    if not call.identity.is_administrator and user != call.identity.user:
        raise not_authorised("User not authorised to access object")


def _close(call: Call, connections: list[SocketConnection]) -> None:
    reason = call.request.headers.get("x-reason", "") or _REASON
    # Headers are read as Latin-1, and sent as UTF-8.
    reason = reason.encode("latin-1", "replace").decode("utf-8", "replace")
    by = By(call.identity.user, DOOR)
    for one in connections:
        _check_may_close(call, one.amqp.user)
        call.context.administration.close_connection(by, one.amqp, reason)
    call.context.wake()


async def list_channels(call: Call) -> Answer:
    """Return the channels that the user may see."""
    found = channels_of(connections_of(call.context, call.identity, _vhost_of(call)))
    columns = channel_columns(call.context, call.ranges)
    return await call.listed(found, columns, other_name=lambda one: given_name(one.connection))


async def list_of_connection(call: Call) -> Answer:
    """Return the channels of a connection."""
    found = channels_of([_connection(call)])
    return await call.listed(found, channel_columns(call.context, call.ranges))


async def get_channel(call: Call) -> Answer:
    """Return a channel, with its consumers."""
    found = _channel(call)
    columns = channel_columns(call.context, call.ranges)
    consumers = [
        consumer_row(call.context, one)
        for one in open_consumers(call.context)
        if one.channel is found.channel
    ]
    row = columns.row(found)
    more = {"consumer_details": consumers, "publishes": [], "deliveries": []}
    return await call.row({**row, **more}, MADE)


def _channel(call: Call) -> OpenChannel:
    name = call.path["channel"]
    for one in channels_of(list(call.context.connections())):
        if one.name == name:
            if call.identity.may_see_user(one.connection.amqp.user):
                return one
            raise not_authorised("User not authorised to access object")
    raise not_found(f"no channel '{name}'")


async def list_consumers(call: Call) -> Answer:
    """Return the consumers in the virtual hosts that the user may see, or in one."""
    vhosts = [_vhost_of(call)] if _vhost_of(call) else call.identity.visible_vhosts()
    queues = {
        queue
        for name in vhosts
        for queue in call.context.broker.vhosts[name].queues.values()
        if queue.consumers
    }
    return await call.listed(await consumers_of(call.context, queues), MADE, _CONSUMER_ORDER)


ROUTES = (
    ApiRoute(
        "GET",
        "/api/connections",
        list_connections,
        "The connections",
        query=(*LIST_QUERY, *_DATA_QUERY),
    ),
    ApiRoute(
        "GET",
        "/api/vhosts/{vhost}/connections",
        list_connections,
        "The connections to a virtual host",
        Needs.VHOST,
        query=(*LIST_QUERY, *_DATA_QUERY),
    ),
    ApiRoute(
        "GET",
        "/api/connections/username/{user}",
        list_of_user,
        "The connections of a user",
        query=LIST_QUERY,
    ),
    ApiRoute(
        "DELETE",
        "/api/connections/username/{user}",
        close_of_user,
        "Close the connections of a user",
        statuses=(204,),
    ),
    ApiRoute("GET", "/api/connections/{connection}", get_connection, "A connection"),
    ApiRoute(
        "DELETE",
        "/api/connections/{connection}",
        close_connection,
        "Close a connection; the header X-Reason says why",
        statuses=(204,),
    ),
    ApiRoute(
        "GET",
        "/api/connections/{connection}/channels",
        list_of_connection,
        "The channels of a connection",
        query=(*LIST_QUERY, *_RATES_QUERY),
    ),
    ApiRoute(
        "GET", "/api/channels", list_channels, "The channels", query=(*LIST_QUERY, *_RATES_QUERY)
    ),
    ApiRoute(
        "GET",
        "/api/vhosts/{vhost}/channels",
        list_channels,
        "The channels in a virtual host",
        Needs.VHOST,
        query=(*LIST_QUERY, *_RATES_QUERY),
    ),
    ApiRoute("GET", "/api/channels/{channel}", get_channel, "A channel"),
    ApiRoute("GET", "/api/consumers", list_consumers, "The consumers", query=LIST_QUERY),
    ApiRoute(
        "GET",
        "/api/consumers/{vhost}",
        list_consumers,
        "The consumers in a virtual host",
        Needs.VHOST,
        query=LIST_QUERY,
    ),
)
