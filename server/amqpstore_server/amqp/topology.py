"""Exchanges, queues and bindings that clients declare, and the permissions that this takes (as in
RabbitMQ).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from amqpstore_server.amqp.arguments import plain, queue_arguments
from amqpstore_server.broker.definitions.removals import Unbinding
from amqpstore_server.broker.exchanges.base import Exchange
from amqpstore_server.broker.monitoring.audit import By
from amqpstore_server.broker.queues.kinds import ConsumedQueue
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.rights.permissions import Access
from amqpstore_server.broker.routing.publish_rights import PublishRights
from amqpstore_server.broker.routing.routing import DEFAULT_EXCHANGE
from amqpstore_server.broker.rules.names import without_line_ends
from amqpstore_server.broker.vhost import VirtualHost
from amqpstore_server.clients.client_log import ClientLog
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.content import REPLY_TO
from amqpstore_server.protocol.errors import AccessRefused, NotFound

_SERVER_NAMED = "amq.gen-"
"""The prefix that a permission for server-named queues has to match."""


_COUNTED = (methods.QueueDeclare, methods.QueuePurge)
"""Methods whose answer says how many messages are in a queue."""


class Topology:
    """The methods of classes exchange and queue on one channel. `send` sends a method on it.

    `publish_rights` are what its user may publish.
    Args: owner, the connection, which owns exclusive queues; log, that of the client; door, the one
    that it came through.
    """

    def __init__(
        self,
        vhost: VirtualHost,
        access: Access,
        owner: object,
        log: ClientLog,
        send: Callable[[methods.Method], None],
        door: str = "AMQP",
    ) -> None:
        self.publish_rights = PublishRights(vhost.router, access)
        self._vhost = vhost
        self._access = access
        self._owner = owner
        self._by = By(access.user, door, log.fields)
        self._send = send
        self._last_queue = ""

    def handle(self, method: methods.Method) -> Iterator[None] | None:
        """Carry out a method of these classes. Returns, raises: as `AmqpChannel.handle`."""
        # Normalize names first, so that every check sees the same name.
        changed = {
            field: without_line_ends(name)
            for field in ("queue", "exchange", "source", "destination")
            if (name := getattr(method, field, "")) != without_line_ends(name)
        }
        if changed:
            method = dataclasses.replace(method, **changed)  # type: ignore[type-var] # they all are
        if left := self._left_of(method):
            return self._after(left, method)
        if (kept := self._counted_history(method)) is not None:
            steps = self._vhost.histories.arriving(kept)
            for _ in steps:
                return self._after_arrival(steps, method)
        self._carry_out(method)
        return None

    def _carry_out(self, method: methods.Method) -> None:
        with self._vhost.services.events.acting(self._by):
            TOPOLOGY_HANDLERS[type(method)](self, method)

    def _left_of(self, method: methods.Method) -> Unbinding | None:
        """Return what is left of the deleted queue or exchange whose name a method declares."""
        removals = self._vhost.removals
        match method:
            case methods.QueueDeclare():
                return removals.queues.get(method.queue)
            case methods.ExchangeDeclare():
                return removals.exchanges.get(method.exchange)
        return None

    def _after(self, unbinding: Unbinding, method: methods.Method) -> Iterator[None]:
        """Carry out a method after all has been unbound."""
        while not unbinding.is_done:
            unbinding.step()
            yield
        self._carry_out(method)

    def _counted_history(self, method: methods.Method) -> ConsumedQueue | None:
        """Return the history whose messages a method counts in its answer, if it does."""
        if type(method) in _COUNTED:
            name = method.queue or self._last_queue  # type: ignore[attr-defined] # all of these have one
            kept = self._vhost.queues.get(name)
            return kept if isinstance(kept, ConsumedQueue) else None
        return None

    def _after_arrival(self, steps: Iterator[None], method: methods.Method) -> Iterator[None]:
        """Carry out a method after these steps."""
        yield from steps
        self._carry_out(method)

    def queue(self, name: str, permission: str) -> Queue:
        """Return the queue of that name, or the one last declared on this channel if the name is
        empty.

        Args: permission that is needed: "configure", "write", "read", or "" for any of them.
        Raises: NotFound, AccessRefusedError, NotFoundError, ResourceLockedError.
        """
        name = self._named(without_line_ends(name))
        # Checked first: a client without permission must not learn whether the queue exists.
        if permission:
            self._access.check(permission, "queue", name)
        else:
            self._access.check_any("queue", name)
        queue = self._vhost.queue(name)
        queue.check_owner(self._owner)
        queue.catch_up()
        return queue

    def _named(self, name: str) -> str:
        """Raises: NotFound."""
        if not name and not self._last_queue:
            raise NotFound("no previously declared queue")
        return name or self._last_queue

    def check_history(self, name: str) -> None:
        """Make sure that the user may replay the history of a queue into other queues.

        Raises: AccessRefusedError, ResourceLockedError.
        """
        self.publish_rights.check_history(name)
        if queue := self._vhost.existing_queue(name):
            queue.check_owner(self._owner)

    def _check_topic(self, exchange: str, routing_key: str) -> None:
        """Make sure that the user may bind to an exchange by a routing key. Raises:
        AccessRefusedError.
        """
        if self._vhost.router.is_topic(exchange):
            self._access.check_topic("read", exchange, routing_key)

    def exchange_declare(self, method: methods.ExchangeDeclare) -> None:
        vhost, access = self._vhost, self._access
        if method.passive:
            # A passive declare tells whether an exchange exists: RabbitMQ's CVE-2026-57221 was
            # that it asked for no permission.
            access.check_any("exchange", method.exchange)
            if method.exchange == DEFAULT_EXCHANGE:
                raise AccessRefused("operation not permitted on the default exchange")
            vhost.exchange(method.exchange)
        else:
            access.check("configure", "exchange", method.exchange)
            arguments = plain(method.arguments)
            # The empty name is the default exchange, which needs a permission like any other.
            if isinstance(alternate := arguments.get("alternate-exchange"), str):
                # As in RabbitMQ: whoever declares an alternate exchange reads from the one and
                # writes into the other.
                access.check("read", "exchange", method.exchange)
                access.check("write", "exchange", alternate)
            vhost.exchange_definitions.declare(
                method.exchange,
                method.type,
                durable=method.durable,
                auto_delete=method.auto_delete,
                internal=method.internal,
                arguments=arguments,
            )
        if not method.no_wait:
            self._send(methods.ExchangeDeclareOk())

    def exchange_delete(self, method: methods.ExchangeDelete) -> None:
        self._access.check("configure", "exchange", method.exchange)
        self._vhost.exchange_definitions.delete(method.exchange, if_unused=method.if_unused)
        if not method.no_wait:
            self._send(methods.ExchangeDeleteOk())

    def exchange_bind(self, method: methods.ExchangeBind) -> None:
        destination = self._bound_exchange(method)
        if destination is None:
            raise NotFound(f"no exchange '{method.destination}'")
        arguments = plain(method.arguments)
        self._vhost.bindings.bind(destination, method.source, method.routing_key, arguments)
        if not method.no_wait:
            self._send(methods.ExchangeBindOk())

    def exchange_unbind(self, method: methods.ExchangeUnbind) -> None:
        destination = self._bound_exchange(method)
        # As in RabbitMQ, an unbind says that there is to be no such binding: none is no error.
        if destination is not None and method.source in self._vhost.exchanges:
            arguments = plain(method.arguments)
            self._vhost.bindings.unbind(destination, method.source, method.routing_key, arguments)
        if not method.no_wait:
            self._send(methods.ExchangeUnbindOk())

    def _bound_exchange(
        self, method: methods.ExchangeBind | methods.ExchangeUnbind
    ) -> Exchange | None:
        """Return the destination of an exchange-to-exchange binding, or None if it does not
        exist.
        """
        access = self._access
        access.check("write", "exchange", method.destination)
        access.check("read", "exchange", method.source)
        self._check_topic(method.source, method.routing_key)
        # The default exchange is bound to each queue by its name, and to nothing else.
        if not method.destination or not method.source:
            raise AccessRefused("operation not permitted on the default exchange")
        return self._vhost.exchanges.get(method.destination)

    def queue_declare(self, method: methods.QueueDeclare) -> None:
        vhost, access = self._vhost, self._access
        if method.queue.startswith(REPLY_TO):
            self._declare_reply_queue(method)
            return
        if method.passive:
            queue = self.queue(method.queue, "")
            # A declare counts as use: it restarts x-expires.
            queue.used()
        else:
            access.check("configure", "queue", method.queue or _SERVER_NAMED)
            arguments = queue_arguments(method.arguments)
            if isinstance(dead_letters := arguments.get("x-dead-letter-exchange"), str):
                # Dead letters leave the queue and enter the exchange: both need a right, asked for
                # when they are asked for.
                access.check("read", "queue", method.queue or _SERVER_NAMED)
                access.check("write", "exchange", dead_letters)
            queue = vhost.declare_queue(
                method.queue,
                durable=method.durable,
                exclusive=method.exclusive,
                auto_delete=method.auto_delete,
                arguments=arguments,
                connection=self._owner,
            )
        # A passive declare counts as well, and so does a name that the server made.
        self._last_queue = queue.name
        if not method.no_wait:
            self._send_declared(queue.name, queue.ready_count, len(queue.consumers))

    def _declare_reply_queue(self, method: methods.QueueDeclare) -> None:
        """Answer a declare of a direct reply address, which declares nothing: by a server that asks
        whether one client still waits, or by a client before it asks for replies.
        """
        waits = self._vhost.waits_for_replies(method.queue)
        if not waits and method.queue != REPLY_TO:
            raise NotFound(f"no queue '{method.queue}'")
        self._last_queue = method.queue
        if not method.no_wait:
            self._send_declared(method.queue, 0, int(waits))

    def _send_declared(self, name: str, message_count: int, consumer_count: int) -> None:
        self._send(
            methods.QueueDeclareOk(
                queue=name, message_count=message_count, consumer_count=consumer_count
            )
        )

    def queue_bind(self, method: methods.QueueBind) -> None:
        name, routing_key = self._bound(method)
        queue = self.queue(name, "write")
        self._vhost.bindings.bind(queue, method.exchange, routing_key, plain(method.arguments))
        if not method.no_wait:
            self._send(methods.QueueBindOk())

    def queue_unbind(self, method: methods.QueueUnbind) -> None:
        vhost = self._vhost
        name, routing_key = self._bound(method)
        # As in RabbitMQ, an unbind says that there is to be no such binding: none is no error.
        if name in vhost.queues and method.exchange in vhost.exchanges:
            queue = self.queue(name, "write")
            vhost.bindings.unbind(queue, method.exchange, routing_key, plain(method.arguments))
        # queue.unbind has no no-wait.
        self._send(methods.QueueUnbindOk())

    def _bound(self, method: methods.QueueBind | methods.QueueUnbind) -> tuple[str, str]:
        """Return the queue name and routing key of a binding; neither has to exist.

        If both are empty, the routing key is the last declared queue's name.
        Raises: NotFound, AccessRefused, AccessRefusedError.
        """
        name = self._named(method.queue)
        # queue.bind: with an empty queue name an empty routing key is the name of the last
        # declared queue.
        routing_key = method.routing_key or ("" if method.queue else name)
        self._access.check("write", "queue", name)
        self._access.check("read", "exchange", method.exchange)
        self._check_topic(method.exchange, routing_key)
        # As in RabbitMQ: each queue is bound there by its own name, and by nothing else.
        if method.exchange == DEFAULT_EXCHANGE:
            raise AccessRefused("operation not permitted on the default exchange")
        return name, routing_key

    def queue_purge(self, method: methods.QueuePurge) -> None:
        queue = self.queue(method.queue, "read")
        # Unacked messages stay: queue.purge is about those that wait.
        count = queue.backlog.purge()
        if count and queue.durable:
            vhost = self._vhost
            vhost.services.events.happened(
                "queue purged", vhost=vhost.name, queue=queue.name, count=count
            )
        if not method.no_wait:
            self._send(methods.QueuePurgeOk(message_count=count))

    def queue_delete(self, method: methods.QueueDelete) -> None:
        vhost = self._vhost
        name = self._named(method.queue)
        self._access.check("configure", "queue", name)

        def answer(count: int) -> None:
            if not method.no_wait:
                self._send(methods.QueueDeleteOk(message_count=count))

        # Also a queue that was set aside can be deleted.
        if queue := vhost.existing_queue(name):
            queue.check_owner(self._owner)
            queue.catch_up()
            vhost.delete_queue(
                queue, if_unused=method.if_unused, if_empty=method.if_empty, answer=answer
            )
        else:
            # As in RabbitMQ, and unlike rule `must-exist`, a delete says that there is to be no
            # such queue.
            answer(0)


TOPOLOGY_HANDLERS: dict[type[methods.Method], Callable[[Topology, Any], None]] = {
    methods.ExchangeDeclare: Topology.exchange_declare,
    methods.ExchangeDelete: Topology.exchange_delete,
    methods.ExchangeBind: Topology.exchange_bind,
    methods.ExchangeUnbind: Topology.exchange_unbind,
    methods.QueueDeclare: Topology.queue_declare,
    methods.QueueBind: Topology.queue_bind,
    methods.QueueUnbind: Topology.queue_unbind,
    methods.QueuePurge: Topology.queue_purge,
    methods.QueueDelete: Topology.queue_delete,
}
"""The handler of each method of classes exchange and queue."""
