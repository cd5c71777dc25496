"""Declaring, binding and deleting: by the same class that does it for AMQP clients, with the same
permissions.
"""

from __future__ import annotations

from typing import Any

import trio

from amqpstore_server.amqp.topology import Topology
from amqpstore_server.broker.channels.firehose import Origin
from amqpstore_server.broker.rules.names import without_line_ends
from amqpstore_server.clients.client_log import ClientLog
from amqpstore_server.management.call import DOOR, Call
from amqpstore_server.management.errors import bad_request, not_found
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.bounds import check_fields
from amqpstore_server.protocol.errors import AmqpError
from amqpstore_server.protocol.field_table import encode_table

DEFAULT_EXCHANGE = "amq.default"
"""How the default exchange is called in paths."""

_MAX_NAME_BYTES = 255


def topology_of(call: Call) -> Topology:
    """Return what carries out methods in the virtual host of a call, as its user. Raises:
    NotAllowedError.
    """
    access = call.identity.access(call.vhost.name)
    client = call.request.client
    peer = f"{client.host}:{client.port}" if client else ""
    return Topology(call.vhost, access, object(), ClientLog(peer), lambda _method: None, DOOR)


def origin_of(call: Call) -> Origin:
    """Return who publishes or gets messages by a call."""
    client = call.request.client
    peer = f"{client.host}:{client.port} " if client else ""
    return Origin(f"{peer}(HTTP)", 0, call.identity.user)


async def carry_out(call: Call, method: methods.Method) -> None:
    """Carry out a method of AMQP. Raises: AmqpError, BrokerError."""
    try:
        rest = topology_of(call).handle(method)
        for _ in rest or ():
            await trio.lowlevel.checkpoint()
    finally:
        call.context.wake()


def name_in(call: Call, parameter: str) -> str:
    """Return a name in the path. Raises: HttpError, if nothing can have it."""
    name = without_line_ends(call.path[parameter])
    if len(name.encode()) > _MAX_NAME_BYTES:
        raise bad_request(f"the name has more than {_MAX_NAME_BYTES} bytes")
    return name


def exchange_in(call: Call, parameter: str = "exchange") -> str:
    """Return the name of an exchange in the path."""
    name = name_in(call, parameter)
    return "" if name == DEFAULT_EXCHANGE else name


def checked_arguments(
    arguments: dict[str, Any] | list[Any], what: str = "arguments"
) -> dict[str, Any]:
    """Return the arguments of a body; an empty list is accepted, as RabbitMQ writes it. Raises:
    HttpError.
    """
    if isinstance(arguments, list):
        if arguments:
            raise bad_request("arguments must be an object")
        return {}
    try:
        check_fields(what, arguments)
        encode_table(arguments)
    except (ValueError, TypeError, OverflowError, RecursionError, AmqpError) as error:
        raise bad_request(f"{what}: {error}") from None
    return arguments


def check_queue_exists(call: Call, name: str) -> None:
    """Raises: HttpError."""
    queue = call.vhost.queues.get(name)
    if queue is None or not queue.is_listed:
        raise not_found(f"no queue '{name}' in vhost '{call.vhost.name}'")
