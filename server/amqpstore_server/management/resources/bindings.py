"""Bindings: list, bind, unbind.

A binding is named by its properties key: the routing key, percent-encoded, and for one with
arguments a tilde and a digest of those; a tilde alone for one with neither. In a path that key is
encoded once more, but many clients send it as it is listed, or the routing key itself, encoded
once: both are understood where no binding has the key that they would spell.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote, unquote_plus

import msgpack
import msgspec

from amqpstore_server.administration.tables import shown_table
from amqpstore_server.broker.exchanges.base import Binding, Destination, Exchange
from amqpstore_server.broker.vhost import VirtualHost
from amqpstore_server.management.answers import Answer, created, no_content
from amqpstore_server.management.call import Call
from amqpstore_server.management.errors import bad_request, not_found
from amqpstore_server.management.listing import MADE
from amqpstore_server.management.needs import Needs
from amqpstore_server.management.resources.exchanges import shown_exchange
from amqpstore_server.management.resources.queues import queue_in
from amqpstore_server.management.routes import LIST_QUERY, ApiRoute
from amqpstore_server.management.steps import InSteps
from amqpstore_server.management.topology import (
    carry_out,
    check_queue_exists,
    checked_arguments,
    exchange_in,
    name_in,
)
from amqpstore_server.protocol import methods

_ORDER = ("vhost", "source", "destination_type", "destination", "routing_key", "properties_key")
_TYPES = {"q": "queue", "e": "exchange"}
_MAX_KEY_BYTES = 255

Row = dict[str, Any]

_SPELLINGS: tuple[Callable[[str, Row], bool], ...] = (
    lambda wanted, row: wanted == row["properties_key"],
    # As it is listed: what the path had encoded was decoded once too often.
    lambda wanted, row: wanted == unquote(row["properties_key"]),
    lambda wanted, row: wanted == row["routing_key"] and not row["arguments"],
    # As RabbitMQ lists it, where a blank is a plus sign.
    lambda wanted, row: unquote_plus(wanted) == row["routing_key"] and not row["arguments"],
)
"""How a path may name a binding, what is meant by the letter first."""


class BindingBody(msgspec.Struct):
    """The body of a request that binds."""

    routing_key: str = ""
    arguments: dict[str, Any] | list[Any] = {}


def properties_key(routing_key: str, arguments: dict[str, Any]) -> str:
    """Return what names a binding among those of the same source and destination."""
    key = quote(routing_key, safe="").replace("~", "%7E")
    if not arguments:
        return key or "~"
    packed = msgpack.packb(sorted(arguments.items()))
    digest = hashlib.blake2b(packed, digest_size=6).digest()
    return f"{key}~{base64.urlsafe_b64encode(digest).decode()}"


def binding_row(vhost: str, source: str, binding: Binding) -> Row:
    """Return the row of a binding."""
    destination, routing_key, arguments = binding
    is_exchange = isinstance(destination, Exchange)
    return {
        "source": source,
        "vhost": vhost,
        "destination": destination.name,
        "destination_type": "exchange" if is_exchange else "queue",
        "routing_key": routing_key,
        "arguments": shown_table(arguments),
        "properties_key": properties_key(routing_key, arguments),
    }


def default_row(vhost: str, queue: str) -> Row:
    """Return the row of the binding of a queue to the default exchange."""
    return {
        "source": "",
        "vhost": vhost,
        "destination": queue,
        "destination_type": "queue",
        "routing_key": queue,
        "arguments": {},
        "properties_key": properties_key(queue, {}),
    }


def bindings_of(vhost: VirtualHost) -> Iterator[tuple[str, Binding] | str]:
    """Yield the source and the binding of all in a virtual host; for those to the default exchange
    the queue.
    """
    for queue in list(vhost.queues.values()):
        if queue.is_listed:
            yield queue.name
    for exchange in list(vhost.exchanges.values()):
        for binding in exchange.bindings:
            yield exchange.name, binding


async def _rows(vhost: VirtualHost, found: Iterable[tuple[str, Binding] | str]) -> list[Row]:
    return await InSteps().each(
        found,
        lambda one: (
            default_row(vhost.name, one) if isinstance(one, str) else binding_row(vhost.name, *one)
        ),
    )


async def list_bindings(call: Call) -> Answer:
    """Return the bindings that the user may see, or those of a virtual host."""
    if "vhost" in call.path:
        vhosts = [call.vhost]
    else:
        vhosts = [call.context.broker.vhosts[name] for name in call.identity.visible_vhosts()]
    rows = [row for vhost in vhosts for row in await _rows(vhost, bindings_of(vhost))]
    return await call.listed(rows, MADE, _ORDER)


async def list_of_queue(call: Call) -> Answer:
    """Return the bindings to a queue."""
    vhost, queue = queue_in(call)
    return await call.listed(await _to(vhost, "queue", queue.name), MADE, _ORDER)


async def list_of_source(call: Call) -> Answer:
    """Return the bindings from an exchange."""
    name = shown_exchange(call).name
    return await call.listed(await _from(call.vhost, name), MADE, _ORDER)


async def list_of_destination(call: Call) -> Answer:
    """Return the bindings to an exchange."""
    name = shown_exchange(call).name
    return await call.listed(await _to(call.vhost, "exchange", name), MADE, _ORDER)


async def _from(vhost: VirtualHost, source: str) -> list[Row]:
    if source:
        return await _rows(vhost, ((source, one) for one in vhost.exchanges[source].bindings))
    return await _rows(vhost, (one for one in bindings_of(vhost) if isinstance(one, str)))


def _destination(vhost: VirtualHost, kind: str, name: str) -> Destination | None:
    ends: Mapping[str, Destination] = vhost.exchanges if kind == "exchange" else vhost.queues
    return ends.get(name)


async def _to(vhost: VirtualHost, kind: str, name: str) -> list[Row]:
    destination = _destination(vhost, kind, name)
    found = [
        (exchange.name, one)
        for exchange in list(vhost.exchanges.values())
        if destination is not None
        for one in exchange.bindings_to(destination)
    ]
    rows = await _rows(vhost, found)
    return [default_row(vhost.name, name), *rows] if kind == "queue" else rows


def _kind(call: Call) -> str:
    kind = _TYPES.get(call.path["kind"])
    if kind is None:
        raise not_found("a destination is of the kind q or e")
    return kind


async def _between(call: Call) -> list[Row]:
    """Return the bindings between the source and the destination in the path. Raises: HttpError."""
    source, kind = shown_exchange(call, "source").name, _kind(call)
    if kind == "queue":
        check_queue_exists(call, call.path["destination"])
        name = call.path["destination"]
    else:
        name = shown_exchange(call, "destination").name
    rows = await _to(call.vhost, kind, name)
    return [row for row in rows if row["source"] == source]


async def list_between(call: Call) -> Answer:
    """Return the bindings between two."""
    return await call.listed(await _between(call), MADE, _ORDER)


async def bind(call: Call) -> Answer:
    """Bind a queue or an exchange to an exchange."""
    body = await call.body(BindingBody)
    if len(body.routing_key.encode()) > _MAX_KEY_BYTES:
        raise bad_request(f"the routing key has more than {_MAX_KEY_BYTES} bytes")
    arguments = checked_arguments(body.arguments)
    source = exchange_in(call, "source")
    if _kind(call) == "queue":
        destination = name_in(call, "destination")
        # An empty name would mean the queue that was declared last.
        check_queue_exists(call, destination)
        await carry_out(
            call,
            methods.QueueBind(
                queue=destination,
                exchange=source,
                routing_key=body.routing_key,
                arguments=arguments,
            ),
        )
    else:
        destination = exchange_in(call, "destination")
        await carry_out(
            call,
            methods.ExchangeBind(
                destination=destination,
                source=source,
                routing_key=body.routing_key,
                arguments=arguments,
            ),
        )
    key = properties_key(body.routing_key, arguments)
    return created(f"{quote(destination, safe='')}/{quote(key, safe='~')}")


async def _one(call: Call) -> Row:
    wanted = call.path["properties_key"]
    rows = await _between(call)
    for matches in _SPELLINGS:
        for row in rows:
            if matches(wanted, row):
                return row
    raise not_found("no such binding")


async def get_binding(call: Call) -> Answer:
    """Return a binding."""
    return await call.row(await _one(call), MADE)


async def unbind(call: Call) -> Answer:
    """Remove a binding."""
    row = await _one(call)
    arguments = _arguments(call.vhost, row)
    if row["destination_type"] == "queue":
        await carry_out(
            call,
            methods.QueueUnbind(
                queue=row["destination"],
                exchange=row["source"],
                routing_key=row["routing_key"],
                arguments=arguments,
            ),
        )
    else:
        await carry_out(
            call,
            methods.ExchangeUnbind(
                destination=row["destination"],
                source=row["source"],
                routing_key=row["routing_key"],
                arguments=arguments,
            ),
        )
    return no_content()


def _arguments(vhost: VirtualHost, row: Row) -> dict[str, Any]:
    """Return the arguments of the binding that a row shows, as they are. Raises: HttpError."""
    source = vhost.exchanges.get(row["source"])
    destination = _destination(vhost, row["destination_type"], row["destination"])
    for binding in source.bindings_to(destination) if source and destination else ():
        if binding_row(vhost.name, row["source"], binding) == row:
            return binding.arguments
    return {}


_BETWEEN = "/api/bindings/{vhost}/e/{source}/{kind}/{destination}"

ROUTES = (
    ApiRoute("GET", "/api/bindings", list_bindings, "The bindings", query=LIST_QUERY),
    ApiRoute(
        "GET", "/api/bindings/{vhost}", list_bindings, "Bindings", Needs.VHOST, query=LIST_QUERY
    ),
    ApiRoute(
        "GET",
        "/api/queues/{vhost}/{queue}/bindings",
        list_of_queue,
        "The bindings to a queue",
        Needs.VHOST,
        query=LIST_QUERY,
    ),
    ApiRoute(
        "GET",
        "/api/exchanges/{vhost}/{exchange}/bindings/source",
        list_of_source,
        "The bindings from an exchange",
        Needs.VHOST,
        query=LIST_QUERY,
    ),
    ApiRoute(
        "GET",
        "/api/exchanges/{vhost}/{exchange}/bindings/destination",
        list_of_destination,
        "The bindings to an exchange",
        Needs.VHOST,
        query=LIST_QUERY,
    ),
    ApiRoute(
        "GET",
        _BETWEEN,
        list_between,
        "The bindings between an exchange and a queue (q) or an exchange (e)",
        Needs.VHOST,
        query=LIST_QUERY,
    ),
    ApiRoute("POST", _BETWEEN, bind, "Bind", Needs.VHOST, BindingBody, statuses=(201,)),
    ApiRoute("GET", _BETWEEN + "/{properties_key}", get_binding, "A binding", Needs.VHOST),
    ApiRoute(
        "DELETE", _BETWEEN + "/{properties_key}", unbind, "Unbind", Needs.VHOST, statuses=(204,)
    ),
)
