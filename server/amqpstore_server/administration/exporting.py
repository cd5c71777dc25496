"""Exporting definitions: as `rabbitmqctl export_definitions` writes them.

What was declared by somebody, transient queues and exchanges too: neither exclusive nor the
broker's own queues, nor exchanges whose names begin with `amq.`. Argon2 hashes of passwords have
`hashing_algorithm` "argon2", which RabbitMQ does not know: their users need a new password there.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from amqpstore_server.administration.operations import Administration
from amqpstore_server.administration.parameters import parameters
from amqpstore_server.administration.work import Work
from amqpstore_server.broker.broker import Broker
from amqpstore_server.broker.definitions.accepted import field_note
from amqpstore_server.broker.exchanges.base import Exchange
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.rules.names import RESERVED_PREFIX
from amqpstore_server.broker.vhost import VirtualHost
from amqpstore_server.logins.password_hashes import hash_and_algorithm
from amqpstore_server.logins.users import Users

_AT_ONCE = 500
"""Queues, exchanges and bindings that are collected before others have their turn."""

_OF_VHOST = ("parameters", "policies", "queues", "exchanges", "bindings")
"""The lists in the definitions of one virtual host; their entries do not name it."""

_OF_ALL = ("users", "vhosts", "permissions", "topic_permissions", "global_parameters")
"""The other lists that a file may have."""


def export_definitions(
    administration: Administration, broker: Broker, users: Users, vhost: str = ""
) -> Work[dict[str, Any]]:
    """Return the definitions of everything, or of one virtual host. Its names must be known."""
    vhosts = [broker.vhosts[vhost]] if vhost else [broker.vhosts[one] for one in broker.vhosts]
    definitions: dict[str, list[Any]] = {
        "users": list(_users(users)),
        "vhosts": [{"name": one.name, **_metadata(one)} for one in vhosts],
        "permissions": administration.permissions.all(),
        "topic_permissions": administration.permissions.all_topics(),
        "parameters": list(parameters(administration, vhost)),
        "global_parameters": [
            {"name": name, "value": value}
            for name, value in broker.global_parameters.values.items()
        ],
        "policies": administration.policies.all(vhost),
    }
    for kind, entries in (("queues", _queues), ("exchanges", _exchanges), ("bindings", _bindings)):
        definitions[kind] = []
        for virtual_host in vhosts:
            listing = entries(virtual_host)
            while some := list(islice(listing, _AT_ONCE)):
                definitions[kind] += [entry for entry in some if entry is not None]
                yield None
    if vhost:
        definitions = {kind: definitions[kind] for kind in _OF_VHOST}
        for entries_of_kind in definitions.values():
            for entry in entries_of_kind:
                del entry["vhost"]
    return definitions


def of_vhost(content: Any, vhost: str) -> tuple[Any, list[str]]:
    """Return the content of a file with the definitions of one virtual host, with its name in
    every entry, and a line for each part of the file that has no effect so.
    """
    if not isinstance(content, dict):
        return content, []
    named: dict[str, Any] = {}
    notes = []
    for kind, entries in content.items():
        if kind in _OF_ALL:
            if entries:
                notes.append(field_note(kind, f"the definitions are of vhost '{vhost}' alone"))
        elif kind in _OF_VHOST and isinstance(entries, list):
            others = {
                str(entry["vhost"])
                for entry in entries
                if isinstance(entry, dict) and entry.get("vhost") not in (None, vhost)
            }
            if others:
                reason = f"all are defined in vhost '{vhost}', none in '{min(others)}'"
                notes.append(field_note("vhost", reason, kind))
            named[kind] = [
                {**entry, "vhost": vhost} if isinstance(entry, dict) else entry for entry in entries
            ]
        else:
            named[kind] = entries
    return named, notes


def _metadata(vhost: VirtualHost) -> dict[str, Any]:
    """Return what an operator says of a virtual host, as old and new versions of RabbitMQ do."""
    return {**vhost.metadata, "metadata": dict(vhost.metadata)} if vhost.metadata else {}


def _users(users: Users) -> Iterator[dict[str, Any]]:
    for name in sorted(users.names):
        row = users.row(name) or {}
        password_hash, algorithm = hash_and_algorithm(row)
        yield {
            "name": name,
            "password_hash": password_hash,
            "hashing_algorithm": algorithm,
            "tags": list(row.get("tags", [])),
            "limits": dict(users.limits_of(name)),
        }


# Copies of what there is: it may change while the others have their turn. None for what is left
# out, so that steps are as long as what is looked at.


def _is_exported(queue: Queue | None) -> bool:
    """Whether a queue outlives the connection that declared it."""
    return queue is not None and queue.is_listed and queue.owner is None and not queue.is_deleted


def _queues(vhost: VirtualHost) -> Iterator[dict[str, Any] | None]:
    for queue in list(vhost.queues.values()):
        if not _is_exported(queue):
            yield None
        else:
            yield {
                "name": queue.name,
                "vhost": vhost.name,
                "durable": queue.durable,
                "auto_delete": queue.auto_delete,
                "arguments": dict(queue.arguments),
            }


def _exchanges(vhost: VirtualHost) -> Iterator[dict[str, Any] | None]:
    for exchange in list(vhost.exchanges.values()):
        if exchange.name.startswith(RESERVED_PREFIX):
            yield None
        else:
            yield {
                "name": exchange.name,
                "vhost": vhost.name,
                "type": exchange.type,
                "durable": exchange.durable,
                "auto_delete": exchange.auto_delete,
                "internal": exchange.internal,
                "arguments": dict(exchange.arguments),
            }


def _bindings(vhost: VirtualHost) -> Iterator[dict[str, Any] | None]:
    for exchange in list(vhost.exchanges.values()):
        for destination, routing_key, arguments in list(exchange.bindings):
            is_exchange = isinstance(destination, Exchange)
            if not is_exchange and not _is_exported(vhost.queues.get(destination.name)):
                yield None
            else:
                yield {
                    "source": exchange.name,
                    "vhost": vhost.name,
                    "destination": destination.name,
                    "destination_type": "exchange" if is_exchange else "queue",
                    "routing_key": routing_key,
                    "arguments": dict(arguments),
                }
