"""A virtual host: a name space of exchanges, queues and bindings, and the routes through them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgpack

import amqpstore
from amqpstore import DiskFullError, Message, Store
from amqpstore.catalog import Change
from server.broker.errors import (
    AccessRefusedError,
    NotFoundError,
    PreconditionFailedError,
    ResourceExhaustedError,
    UnknownTypeError,
)
from server.broker.exchanges import EXCHANGE_TYPES
from server.broker.exchanges.base import Binding, Exchange
from server.broker.queue import Queue

if TYPE_CHECKING:
    from server.broker.consumer import Consumer

DEFAULT_EXCHANGE = ""
RESERVED_PREFIX = "amq."

_CACHED_ROUTES = 65_536

# Arguments whose effect this version does not have yet. To accept and ignore them would lose or
# keep messages against what the client was promised.
UNSUPPORTED_ARGUMENTS = frozenset(
    {
        "x-message-ttl",
        "x-expires",
        "x-max-length",
        "x-max-length-bytes",
        "x-overflow",
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-max-priority",
        "x-single-active-consumer",
        "x-delivery-limit",
        "alternate-exchange",
    }
)


class VirtualHost:
    """Virtual host `name`. Durable definitions are in the store when a call returns.

    Args: make_name, gives the random part of a server-named queue's name; touched, where queues
    put themselves that have something to hand out.
    """

    def __init__(
        self, name: str, store: Store, make_name: Callable[[], str], touched: set[Queue]
    ) -> None:
        self.name = name
        self.store = store
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self._make_name = make_name
        self._touched = touched
        self._routes: dict[tuple[str, str], list[Queue]] = {}
        for type_name, exchange_type in EXCHANGE_TYPES.items():
            predeclared = RESERVED_PREFIX + type_name
            self.exchanges[predeclared] = exchange_type(
                predeclared, durable=True, auto_delete=False, internal=False, arguments={}
            )

    # Messages.

    def route(self, exchange_name: str, routing_key: str) -> list[Queue]:
        """The queues that a message goes to, each once.

        Raises: NotFoundError, AccessRefusedError (an internal exchange).
        """
        key = exchange_name, routing_key
        queues = self._routes.get(key)
        if queues is None:
            if len(self._routes) >= _CACHED_ROUTES:
                self._routes.clear()
            queues = self._routes[key] = self._find_route(exchange_name, routing_key)
        return queues

    def _find_route(self, exchange_name: str, routing_key: str) -> list[Queue]:
        if exchange_name == DEFAULT_EXCHANGE:
            queue = self.queues.get(routing_key)
            return [queue] if queue else []
        exchange = self.exchange(exchange_name)
        if exchange.internal:
            raise AccessRefusedError(
                f"cannot publish to internal exchange '{exchange_name}' in vhost '{self.name}'"
            )
        return list(dict.fromkeys(exchange.route(routing_key)))

    def publish(self, queues: Sequence[Queue], messages: list[Message]) -> bool:
        """Put messages in queues. Returns whether they are in the log (see `Store.publish`).

        Raises: ResourceExhaustedError, when the disk is full.
        """
        self._touched.update(queues)
        try:
            return self.store.publish([queue.stored for queue in queues], messages)
        except DiskFullError as error:
            raise ResourceExhaustedError(str(error)) from None

    # Exchanges.

    def exchange(self, name: str) -> Exchange:
        """Raises: NotFoundError."""
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise NotFoundError(f"no exchange '{name}' in vhost '{self.name}'")
        return exchange

    def declare_exchange(
        self,
        name: str,
        type_name: str,
        *,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: dict[str, Any],
    ) -> None:
        """Create an exchange, or check that the one there is has the same properties.

        Raises: UnknownTypeError, AccessRefusedError, PreconditionFailedError.
        """
        exchange_type = EXCHANGE_TYPES.get(type_name)
        if exchange_type is None:
            raise UnknownTypeError(f"unknown exchange type '{type_name}'")
        if name == DEFAULT_EXCHANGE:
            raise AccessRefusedError("operation not permitted on the default exchange")
        asked = {
            "type": type_name,
            "durable": durable,
            "auto_delete": auto_delete,
            "internal": internal,
            "arguments": arguments,
        }
        if exchange := self.exchanges.get(name):
            self._check_equivalent(f"exchange '{name}'", asked, _exchange_row(exchange))
            return
        _check_not_reserved("exchange", name, self.name)
        _check_arguments(arguments)
        if durable:
            row = {"vhost": self.name, "name": name, **asked}
            self.store.define([Change("exchanges", _name_key(self.name, name), row)])
        self.exchanges[name] = exchange_type(
            name,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=arguments,
        )
        self._routes.clear()

    def delete_exchange(self, name: str, *, if_unused: bool) -> None:
        """Delete an exchange and its bindings; nothing happens where there is none.

        Raises: AccessRefusedError, PreconditionFailedError (it has bindings).
        """
        if name == DEFAULT_EXCHANGE:
            raise AccessRefusedError("operation not permitted on the default exchange")
        _check_not_reserved("exchange", name, self.name)
        exchange = self.exchanges.get(name)
        if exchange is None:
            return
        bindings = exchange.bindings
        if if_unused and bindings:
            raise PreconditionFailedError(f"exchange '{name}' in vhost '{self.name}' in use")
        changes = self._binding_changes(exchange, bindings, add=False)
        if exchange.durable:
            changes.append(Change("exchanges", _name_key(self.name, name), None))
        self._define(changes)
        del self.exchanges[name]
        self._routes.clear()

    # Queues.

    def queue(self, name: str) -> Queue:
        """Raises: NotFoundError."""
        queue = self.queues.get(name)
        if queue is None:
            raise NotFoundError(f"no queue '{name}' in vhost '{self.name}'")
        return queue

    def declare_queue(
        self,
        name: str,
        *,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: dict[str, Any],
        connection: object,
    ) -> Queue:
        """Create a queue, under a name of the server's where `name` is empty, or check its like.

        An exclusive queue belongs to `connection`.
        Raises: AccessRefusedError, ResourceLockedError, PreconditionFailedError.
        """
        if not name:
            name = f"{RESERVED_PREFIX}gen-{self._make_name()}"
        elif queue := self.queues.get(name):
            queue.check_owner(connection)
            asked = {
                "durable": durable,
                "exclusive": exclusive,
                "auto_delete": auto_delete,
                "arguments": arguments,
            }
            self._check_equivalent(f"queue '{name}'", asked, _queue_row(queue))
            return queue
        else:
            _check_not_reserved("queue", name, self.name)
        _check_arguments(arguments)
        definition = {
            "vhost": self.name,
            "name": name,
            "auto_delete": auto_delete,
            "arguments": arguments,
        }
        stored = self.store.create_queue(definition, durable=durable and not exclusive)
        return self.add_queue(stored, durable=durable, owner=connection if exclusive else None)

    def add_queue(self, stored: amqpstore.Queue, *, durable: bool, owner: object = None) -> Queue:
        """Take in a queue that the store has."""
        definition: Any = stored.definition
        queue = Queue(
            self.store,
            self._touched,
            stored,
            definition["name"],
            durable=durable,
            auto_delete=definition["auto_delete"],
            arguments=definition["arguments"],
            owner=owner,
        )
        self.queues[queue.name] = queue
        self._routes.clear()
        return queue

    def delete_queue(self, queue: Queue, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue, its bindings and messages; its consumers are told.

        Returns the number of messages that were ready. Raises: PreconditionFailedError.
        """
        if if_unused and queue.consumers:
            raise PreconditionFailedError(f"queue '{queue.name}' in vhost '{self.name}' in use")
        if if_empty and queue.ready_count:
            raise PreconditionFailedError(f"queue '{queue.name}' in vhost '{self.name}' not empty")
        count = queue.ready_count
        changes: list[Change] = []
        unbound: list[Exchange] = []
        for exchange in self.exchanges.values():
            if gone := exchange.unbind_queue(queue):
                unbound.append(exchange)
                changes += self._binding_changes(exchange, gone, add=False)
        self.store.delete_queue(queue.stored, changes=changes)
        del self.queues[queue.name]
        self._routes.clear()
        consumers = list(queue.consumers)
        queue.consumers.clear()
        for consumer in consumers:
            del consumer.channel.consumers[consumer.tag]
            consumer.channel.outlet.consumer_cancelled(consumer.tag)
        for exchange in unbound:
            self._delete_if_unbound(exchange)
        return count

    def delete_queues_of(self, connection: object) -> None:
        """Delete the exclusive queues of a connection that ended."""
        for queue in [queue for queue in self.queues.values() if queue.owner is connection]:
            self.delete_queue(queue)

    def remove_consumer(self, consumer: Consumer) -> None:
        """Take a consumer off its queue, and delete an auto-delete queue with its last."""
        queue = consumer.queue
        if consumer not in queue.consumers:
            return
        queue.consumers.remove(consumer)
        if queue.auto_delete and not queue.consumers:
            self.delete_queue(queue)
        else:
            queue.touch()

    # Bindings.

    def bind(
        self, queue: Queue, exchange_name: str, routing_key: str, arguments: dict[str, Any]
    ) -> None:
        """Bind a queue; an equal binding is no error. Raises: NotFoundError, AccessRefusedError."""
        exchange = self._bindable(exchange_name)
        binding = Binding(queue, routing_key, arguments)
        if exchange.bind(binding):
            self._define(self._binding_changes(exchange, [binding], add=True))
            self._routes.clear()

    def unbind(
        self, queue: Queue, exchange_name: str, routing_key: str, arguments: dict[str, Any]
    ) -> None:
        """Remove a binding, if there. Raises: NotFoundError, AccessRefusedError."""
        exchange = self._bindable(exchange_name)
        binding = Binding(queue, routing_key, arguments)
        if exchange.unbind(binding):
            self._define(self._binding_changes(exchange, [binding], add=False))
            self._routes.clear()
            self._delete_if_unbound(exchange)

    def restore_binding(self, row: dict[str, Any]) -> None:
        """Take in a binding from the catalog."""
        exchange = self.exchanges.get(row["exchange"])
        queue = self.queues.get(row["queue"])
        if exchange and queue:
            exchange.bind(Binding(queue, row["routing_key"], row["arguments"]))
            self._routes.clear()

    def restore_exchange(self, row: dict[str, Any]) -> None:
        """Take in a durable exchange from the catalog."""
        self.exchanges[row["name"]] = EXCHANGE_TYPES[row["type"]](
            row["name"],
            durable=True,
            auto_delete=row["auto_delete"],
            internal=row["internal"],
            arguments=row["arguments"],
        )

    def _bindable(self, name: str) -> Exchange:
        if name == DEFAULT_EXCHANGE:
            raise AccessRefusedError("operation not permitted on the default exchange")
        return self.exchange(name)

    def _delete_if_unbound(self, exchange: Exchange) -> None:
        if exchange.auto_delete and not exchange.bindings:
            self.delete_exchange(exchange.name, if_unused=False)

    def _binding_changes(
        self, exchange: Exchange, bindings: Sequence[Binding], *, add: bool
    ) -> list[Change]:
        """The catalog's rows of those bindings that are durable: both ends of them are."""
        changes = []
        for binding in bindings:
            if exchange.durable and binding.queue.stored.durable:
                row = {
                    "vhost": self.name,
                    "exchange": exchange.name,
                    "queue": binding.queue.name,
                    "routing_key": binding.routing_key,
                    "arguments": binding.arguments,
                }
                changes.append(Change("bindings", _row_key(row), row if add else None))
        return changes

    def _define(self, changes: Sequence[Change]) -> None:
        if changes:
            self.store.define(changes)

    def _check_equivalent(self, what: str, asked: dict[str, Any], present: dict[str, Any]) -> None:
        """Raises: PreconditionFailedError, naming the first property that differs."""
        for field, value in asked.items():
            if value != present[field]:
                raise PreconditionFailedError(
                    f"inequivalent arg '{field}' for {what} in vhost '{self.name}': "
                    f"received '{value}' but current is '{present[field]}'"
                )


def _exchange_row(exchange: Exchange) -> dict[str, Any]:
    return {
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": exchange.arguments,
    }


def _queue_row(queue: Queue) -> dict[str, Any]:
    return {
        "durable": queue.durable,
        "exclusive": queue.owner is not None,
        "auto_delete": queue.auto_delete,
        "arguments": queue.arguments,
    }


def _check_not_reserved(kind: str, name: str, vhost: str) -> None:
    """Raises: AccessRefusedError."""
    if name.startswith(RESERVED_PREFIX):
        raise AccessRefusedError(
            f"{kind} name '{name}' in vhost '{vhost}' contains reserved prefix 'amq.*'"
        )


def _check_arguments(arguments: dict[str, Any]) -> None:
    """Raises: PreconditionFailedError, for what this version would have to ignore."""
    if refused := sorted(UNSUPPORTED_ARGUMENTS & arguments.keys()):
        raise PreconditionFailedError(f"argument '{refused[0]}' is not supported yet")


def _name_key(vhost: str, name: str) -> str:
    return f"{vhost}\0{name}"


def _row_key(row: dict[str, Any]) -> str:
    """A key for a row that no other row shares; names alone may be longer than a key can be."""
    return hashlib.blake2b(msgpack.packb(row), digest_size=16).hexdigest()
