"""Bindings of a virtual host: they are made, removed, and restored at a start."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

from amqpstore_server.broker.definitions import accepted
from amqpstore_server.broker.definitions.accepted import NameScope
from amqpstore_server.broker.definitions.deletion import DeletingHost, Deletion
from amqpstore_server.broker.definitions.removals import binding_headers
from amqpstore_server.broker.definitions.rows import binding_changes
from amqpstore_server.broker.errors import AccessRefusedError, PreconditionFailedError
from amqpstore_server.broker.exchanges.base import Binding, Destination, Exchange
from amqpstore_server.broker.exchanges.bindings import Bindings
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.rights.quotas import MAX_BINDINGS, Limits, is_reached
from amqpstore_server.broker.routing.routing import DEFAULT_EXCHANGE
from amqpstore_server.broker.transactions.exchange_queues import ExchangeQueues
from amqpstore_server.broker.weak_references import weakly

_log = logging.getLogger(__name__)


class BindingHost(DeletingHost, Protocol):
    """A virtual host as its bindings need it."""

    limits: Limits

    def exchange(self, name: str) -> Exchange:
        """Return the exchange of that name. Raises: NotFoundError."""

    def check_usable(self, queue: Queue) -> None:
        """Make sure that a queue is not the broker's own. Raises: AccessRefusedError."""


class BindingDefinitions:
    """The bindings of one virtual host. Durable ones are in the store when a call returns."""

    def __init__(
        self, vhost: BindingHost, bindings: Bindings, exchange_queues: ExchangeQueues
    ) -> None:
        self._vhost = weakly(vhost)
        self._bindings = bindings
        self._exchange_queues = exchange_queues
        self._most_bindings = 0
        """There are no more bindings than this."""

    def bind(
        self,
        destination: Destination,
        exchange_name: str,
        routing_key: str,
        arguments: dict[str, Any],
    ) -> bool:
        """Bind a queue or an exchange. Returns False if it is bound so already.

        Raises: NotFoundError, AccessRefusedError, PreconditionFailedError; DiskFullError (it is not
        bound then).
        """
        vhost = self._vhost()
        exchange = self._bindable(exchange_name)
        self._check_destination(destination)
        binding = Binding(destination, routing_key, arguments)
        what = f"a binding of '{destination.name}' to exchange '{exchange_name}'"
        accepted.check_arguments(NameScope.BINDING, arguments, what)
        if unfinished := vhost.removals.names(destination).get(destination.name):
            # A full disk has refused to delete this queue, and its old bindings still have rows.
            # If those were removed after this binding is stored, its row could go with them.
            unfinished.finish()
        if self._has_all_bindings and not exchange.has(binding):
            raise PreconditionFailedError(
                f"cannot bind '{destination.name}' to exchange '{exchange_name}': binding limit in "
                f"vhost '{vhost.name}' ({vhost.limits[MAX_BINDINGS]}) is reached"
            )
        if not self._bindings.bind(exchange, binding):
            return False
        try:
            if changes := binding_changes(vhost.name, exchange, [binding], add=True):
                vhost.services.store.definitions.define(changes)
        except BaseException:
            # The client is refused: a binding that is only in memory would route until the next
            # start, and the same call would find it there and say that all is well.
            self._bindings.unbind(exchange, binding)
            raise
        self._most_bindings += 1
        vhost.router.changed()
        self._rebound("bound", "binding.created", exchange, binding)
        self._exchange_queues.bound(exchange, destination)
        return True

    @property
    def _has_all_bindings(self) -> bool:
        """Whether there may be no further binding."""
        vhost = self._vhost()
        if not is_reached(vhost.limits, MAX_BINDINGS, self._most_bindings):
            return False
        # Those that were removed since, with their queues and exchanges, are not subtracted.
        counts = (exchange.binding_count for exchange in vhost.exchanges.values())
        self._most_bindings = sum(counts)
        return is_reached(vhost.limits, MAX_BINDINGS, self._most_bindings)

    def unbind(
        self,
        destination: Destination,
        exchange_name: str,
        routing_key: str,
        arguments: dict[str, Any],
    ) -> bool:
        """Remove a binding. Returns False if there is none.

        Raises: NotFoundError, AccessRefusedError; DiskFullError (it is bound as before then).
        """
        vhost = self._vhost()
        exchange = self._bindable(exchange_name)
        self._check_destination(destination)
        # Its row has the arguments as it was bound, which may differ in their types.
        binding = self._bindings.unbind(exchange, Binding(destination, routing_key, arguments))
        if binding is None:
            return False
        changes = binding_changes(vhost.name, exchange, [binding], add=False)
        if exchange.auto_delete and not exchange.is_bound:
            self._rebound("unbound", "binding.deleted", exchange, binding)
            deletion = Deletion(vhost, changes)
            deletion.add_exchanges([exchange])
            deletion.commit()
            return True
        try:
            if changes:
                vhost.services.store.definitions.define(changes)
        except BaseException:
            # The next start would restore it.
            self._bindings.bind(exchange, binding)
            raise
        vhost.router.changed()
        self._rebound("unbound", "binding.deleted", exchange, binding)
        return True

    def _rebound(self, line: str, key: str, exchange: Exchange, binding: Binding) -> None:
        vhost = self._vhost()
        is_durable = exchange.durable and binding.destination.durable
        vhost.happened(
            line if is_durable else "",
            key,
            binding_headers(exchange, binding),
            exchange=exchange.name,
            to=binding.destination.name,
            routing_key=binding.routing_key,
        )

    def restore(self, row: Mapping[str, Any]) -> bool:
        """Restore a binding from the catalog. Returns False if one of its ends is not there."""
        vhost = self._vhost()
        exchange = vhost.exchanges.get(row["exchange"])
        ends: Mapping[str, Destination] = (
            vhost.exchanges if row["to"] == "exchange" else vhost.queues
        )
        destination = ends.get(row["name"])
        if not exchange or not destination:
            return False
        self._most_bindings += 1
        try:
            self._bindings.bind(
                exchange, Binding(destination, row["routing_key"], row["arguments"])
            )
        except Exception as error:  # noqa: BLE001 - the type may be a package's
            extra = {"vhost": vhost.name, "exchange": exchange.name, "reason": str(error)}
            _log.error("binding left out", extra=extra)
        vhost.router.changed()
        return True

    def _bindable(self, name: str) -> Exchange:
        vhost = self._vhost()
        if name == DEFAULT_EXCHANGE:
            raise AccessRefusedError("operation not permitted on the default exchange")
        return vhost.exchange(name)

    def _check_destination(self, destination: Destination) -> None:
        vhost = self._vhost()
        if isinstance(destination, Queue):
            vhost.check_usable(destination)
