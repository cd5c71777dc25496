"""Exchanges of a virtual host: they are declared, deleted, and restored at a start."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from amqpstore.catalog.catalog import Change
from amqpstore_server.broker.definitions import accepted
from amqpstore_server.broker.definitions.accepted import NameScope
from amqpstore_server.broker.definitions.deletion import DeletingHost, Deletion
from amqpstore_server.broker.definitions.notes import DefinitionNotes
from amqpstore_server.broker.definitions.policy_settings import PolicySettings
from amqpstore_server.broker.definitions.predeclared import predeclared_exchanges
from amqpstore_server.broker.definitions.rows import (
    check_equivalent,
    compared_exchange,
    exchange_change,
    exchange_row,
)
from amqpstore_server.broker.errors import (
    AccessRefusedError,
    PreconditionFailedError,
    UnknownTypeError,
)
from amqpstore_server.broker.exchanges import EXCHANGE_TYPES
from amqpstore_server.broker.exchanges.base import Exchange
from amqpstore_server.broker.exchanges.delayed import DelayedExchange
from amqpstore_server.broker.queues.kinds import DelayQueue
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.rights.quotas import MAX_EXCHANGES, Limits, check_may_declare
from amqpstore_server.broker.routing.routing import DEFAULT_EXCHANGE
from amqpstore_server.broker.rules.names import (
    RESERVED_PREFIX,
    check_name,
    own_name,
    without_line_ends,
)
from amqpstore_server.broker.rules.settings import ALTERNATE_EXCHANGE, POLICY_KEYS
from amqpstore_server.broker.weak_references import weakly

_log = logging.getLogger(__name__)


class ExchangeHost(DeletingHost, Protocol):
    """A virtual host as its exchanges need it."""

    limits: Limits
    policy_settings: PolicySettings

    def create_queue(
        self, name: str, kind: str, *, durable: bool, changes: Sequence[Change]
    ) -> Queue:
        """Create a queue, and commit changes with it."""


class ExchangeDefinitions:
    """The exchanges of one virtual host. Durable ones are in the store when a call returns."""

    def __init__(self, vhost: ExchangeHost, notes: DefinitionNotes) -> None:
        self._vhost = weakly(vhost)
        self._notes = notes
        for row in predeclared_exchanges(vhost.name):
            self.restore(row)
        self._predeclared_count = len(vhost.exchanges)

    def declare(
        self,
        name: str,
        type_name: str,
        *,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: dict[str, Any],
    ) -> None:
        """Create an exchange, or check that the existing one has the same properties.

        Raises: UnknownTypeError, AccessRefusedError, PreconditionFailedError.
        """
        vhost = self._vhost()
        name = without_line_ends(name)
        exchange_type = vhost.services.exchange_types.get(type_name)
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
        # The name of an existing exchange is not checked. AMQP 0-9-1, exchange.declare, rule
        # `reserved`: `amq.` is allowed if the exchange already exists.
        if present := vhost.exchanges.get(name):
            what = f"exchange '{name}' in vhost '{vhost.name}'"
            check_equivalent(
                what, compared_exchange(asked), compared_exchange(exchange_row(present))
            )
            return
        check_name("exchange", name, vhost.name, vhost.services.name_rule)
        count = len(vhost.exchanges) - self._predeclared_count
        check_may_declare(vhost.limits, MAX_EXCHANGES, count, name, vhost.name)
        what = f"exchange '{name}' in vhost '{vhost.name}'"
        if type_name in EXCHANGE_TYPES:  # what those of packages read is known to them alone
            accepted.check_arguments(NameScope.EXCHANGE, arguments, what)
        self._notes.log(accepted.exchange_notes(type_name, arguments), exchange=name)
        if reason := POLICY_KEYS[ALTERNATE_EXCHANGE](arguments.get(ALTERNATE_EXCHANGE, "")):
            raise PreconditionFailedError(
                f"invalid arg '{ALTERNATE_EXCHANGE}' for exchange '{name}': {reason}"
            )
        exchange = exchange_type(
            name,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=arguments,
            random=vhost.services.random,
        )
        if isinstance(exchange, DelayedExchange):
            exchange.check_inner()
        # After a crash, rows of bindings that are left of a deleted exchange of this name would be
        # the new one's.
        if durable and (unbinding := vhost.removals.exchanges.get(name)):
            unbinding.finish()
        changes = [exchange_change(vhost.name, exchange, add=True)] if durable else []
        if exchange.queue_kind:
            self._give_queue(exchange, changes)
        else:
            _define(vhost, changes)
        self._add_exchange(exchange)
        vhost.happened(
            "exchange declared" if durable else "",
            "exchange.created",
            {**asked, "name": name, "policy": ""},
            exchange=name,
            type=type_name,
        )

    def delete(self, name: str, *, if_unused: bool) -> None:
        """Delete an exchange and its bindings; do nothing if it does not exist.

        Raises: AccessRefusedError, PreconditionFailedError (it has bindings).
        """
        vhost = self._vhost()
        if name == DEFAULT_EXCHANGE:
            raise AccessRefusedError("operation not permitted on the default exchange")
        if name.startswith(RESERVED_PREFIX):
            raise AccessRefusedError(
                f"exchange name '{name}' in vhost '{vhost.name}' contains reserved prefix 'amq.*'"
            )
        exchange = vhost.exchanges.get(name)
        # As in RabbitMQ, and unlike rule `exists`, a delete says that there is to be no such
        # exchange.
        if exchange is None:
            return
        if if_unused and exchange.is_bound:
            raise PreconditionFailedError(f"exchange '{name}' in vhost '{vhost.name}' in use")
        deletion = Deletion(vhost)
        deletion.add_exchanges([exchange])
        deletion.commit()

    def restore(self, row: Mapping[str, Any]) -> None:
        """Restore a durable exchange from the catalog.

        If its plug-in is gone, or refuses it now, it is left out, and its row stays.
        """
        vhost = self._vhost()
        extra = {"vhost": vhost.name, "exchange": row["name"], "type": row["type"]}
        exchange_type = vhost.services.exchange_types.get(row["type"])
        if exchange_type is None:
            _log.error("exchange left out: no installed package provides its type", extra=extra)
            return
        try:
            exchange = exchange_type(
                row["name"],
                durable=True,
                auto_delete=row["auto_delete"],
                internal=row["internal"],
                arguments=row["arguments"],
                random=vhost.services.random,
            )
        except Exception as error:  # noqa: BLE001 - the type may be a package's
            _log.error("exchange left out", extra={**extra, "reason": str(error)})
            return
        if exchange.queue_kind:
            self._give_queue(exchange, [])
        self._add_exchange(exchange)

    def _add_exchange(self, exchange: Exchange) -> None:
        vhost = self._vhost()
        vhost.exchanges[exchange.name] = exchange
        vhost.policy_settings.apply_to_exchange(exchange)
        vhost.router.changed()

    def _give_queue(self, exchange: Exchange, changes: Sequence[Change]) -> None:
        """Create the own queue of an exchange that keeps messages, and commit the changes."""
        vhost = self._vhost()
        name = own_name(exchange.queue_kind, exchange.name)
        # At a start, queues are restored before exchanges.
        queue = vhost.queues.get(name)
        if queue is None:
            queue = vhost.create_queue(
                name, exchange.queue_kind, durable=exchange.durable, changes=changes
            )
        else:
            _define(vhost, changes)
        if isinstance(queue, DelayQueue):
            queue.exchange = exchange
        queue.settings = exchange.own_queue_settings()
        vhost.policy_settings.apply_to_queue(queue)
        exchange.own_queue = queue


def _define(vhost: ExchangeHost, changes: Sequence[Change]) -> None:
    if changes:
        vhost.services.store.definitions.define(changes)
