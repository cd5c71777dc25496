"""Definitions as rows of the store's catalog, and the comparison of new declarations with them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgpack

from amqpstore.catalog.catalog import Change
from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.exchanges.base import Binding, Exchange
from amqpstore_server.broker.exchanges.values import octets_of
from amqpstore_server.broker.rules.settings import ALTERNATE_EXCHANGE, CHECKS, CLASSIC, QUEUE_TYPE

_MISSING: Any = object()
"""Stands for an absent argument, which differs from an argument without a value."""


def exchange_change(vhost: str, exchange: Exchange, *, add: bool) -> Change:
    """Return the change that adds or removes the row of a durable exchange."""
    row = {"vhost": vhost, "name": exchange.name, **exchange_row(exchange)}
    return Change("exchanges", name_key(vhost, exchange.name), row if add else None)


def binding_changes(
    vhost: str, source: Exchange, bindings: Sequence[Binding], *, add: bool
) -> list[Change]:
    """Return the changes for the rows of durable bindings: those between a durable exchange and a
    durable destination.
    """
    changes = []
    for destination, routing_key, arguments in bindings:
        if source.durable and destination.durable:
            row = {
                "vhost": vhost,
                "exchange": source.name,
                "to": "exchange" if isinstance(destination, Exchange) else "queue",
                "name": destination.name,
                "routing_key": routing_key,
                "arguments": arguments,
            }
            changes.append(Change("bindings", _row_key(row), row if add else None))
    return changes


def exchange_row(exchange: Exchange) -> dict[str, Any]:
    """Return the row of an exchange, without its name."""
    return {
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": exchange.arguments,
    }


def compared_exchange(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties in which two declarations of an exchange must agree, as in RabbitMQ."""
    arguments = row["arguments"]
    counted = {ALTERNATE_EXCHANGE: arguments.get(ALTERNATE_EXCHANGE, _MISSING)}
    return {name: value for name, value in row.items() if name != "arguments"} | counted


def compared_queue(
    *, durable: bool, auto_delete: bool, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the properties in which two declarations of a queue must agree, as in RabbitMQ.

    Arguments without an effect may differ, and a queue without a type counts as `classic`.
    """
    counted = {name: arguments.get(name, _MISSING) for name in CHECKS}
    return {
        "durable": durable,
        "auto_delete": auto_delete,
        **counted,
        QUEUE_TYPE: arguments.get(QUEUE_TYPE, CLASSIC),
    }


def check_equivalent(what: str, asked: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    """Raises: PreconditionFailedError, naming the first property that differs."""
    for field, value in asked.items():
        current = present[field]
        # Types count: 10 and 10.0 are different, and so are 1 and true; but text may come as bytes.
        type_, present_type = type(octets_of(value)), type(octets_of(current))
        if type_ is not present_type or octets_of(value) != octets_of(current):
            raise PreconditionFailedError(
                f"inequivalent arg '{field}' for {what}: received {_said(value)} but current is "
                f"{_said(current)}"
            )


def name_key(vhost: str, name: str) -> str:
    """Return the key of the row of a name in a virtual host."""
    return f"{vhost}\0{name}"


def _said(value: Any) -> str:
    if value is _MISSING:
        return "none"
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    return f"'{str(value).lower() if isinstance(value, bool) else value}'"


def _row_key(row: dict[str, Any]) -> str:
    """Return a key that no other row has; names alone may be longer than a key can be."""
    return hashlib.blake2b(msgpack.packb(row), digest_size=16).hexdigest()
