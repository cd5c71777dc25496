"""A virtual host: a namespace of exchanges, queues and bindings.

Past 600 lines because these are declared, found and deleted in terms of each other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import amqpstore
from amqpstore.catalog.catalog import Change
from amqpstore.format.departures import Departure
from amqpstore_server.broker.channels.branches import Branches
from amqpstore_server.broker.channels.confirms import Publisher
from amqpstore_server.broker.channels.event_messages import AT_ONCE as EVENTS_AT_ONCE
from amqpstore_server.broker.channels.event_messages import EventMessages
from amqpstore_server.broker.channels.firehose import AT_ONCE as COPIES_AT_ONCE
from amqpstore_server.broker.channels.firehose import Firehose
from amqpstore_server.broker.channels.outlet import CLOSED
from amqpstore_server.broker.channels.own_publishes import OwnPublishes
from amqpstore_server.broker.definitions import accepted
from amqpstore_server.broker.definitions.accepted import Place
from amqpstore_server.broker.definitions.deletion import Deletion
from amqpstore_server.broker.definitions.owned_queues import OwnedQueues
from amqpstore_server.broker.definitions.policy_settings import PolicySettings
from amqpstore_server.broker.definitions.predeclared import predeclared_exchanges
from amqpstore_server.broker.definitions.removals import Removals, binding_headers
from amqpstore_server.broker.definitions.rows import (
    binding_changes,
    check_equivalent,
    compared_exchange,
    compared_queue,
    exchange_change,
    exchange_row,
)
from amqpstore_server.broker.errors import (
    AccessRefusedError,
    NotFoundError,
    PreconditionFailedError,
    UnknownTypeError,
)
from amqpstore_server.broker.exchanges import EXCHANGE_TYPES
from amqpstore_server.broker.exchanges.base import Binding, Destination, Exchange
from amqpstore_server.broker.exchanges.bindings import Bindings
from amqpstore_server.broker.exchanges.delayed import DelayedExchange
from amqpstore_server.broker.messages.deaths import Reason
from amqpstore_server.broker.monitoring.counters import ChannelCounters, ChannelTotals
from amqpstore_server.broker.monitoring.departures import Departures, QueueDepartures
from amqpstore_server.broker.monitoring.log_limit import LogLimit
from amqpstore_server.broker.queues.backlog import Taken
from amqpstore_server.broker.queues.kinds import (
    QUEUE_KINDS,
    ConsumedQueue,
    DelayQueue,
    ReplyQueue,
    kind_of,
    served_name,
)
from amqpstore_server.broker.queues.letters import LettersQueue
from amqpstore_server.broker.queues.queue import Queue, WayOut
from amqpstore_server.broker.rights.quotas import (
    MAX_BINDINGS,
    MAX_EXCHANGES,
    MAX_QUEUES,
    Limits,
    check_may_declare,
    is_reached,
)
from amqpstore_server.broker.routing.routing import DEFAULT_EXCHANGE, Router
from amqpstore_server.broker.rules.names import (
    RESERVED_PREFIX,
    check_name,
    own_name,
    without_line_ends,
)
from amqpstore_server.broker.rules.policy import Policies
from amqpstore_server.broker.rules.settings import (
    ALTERNATE_EXCHANGE,
    DEFAULT_QUEUE_TYPE,
    POLICY_KEYS,
    QUEUE_TYPE,
    QUORUM,
    check_arguments,
    check_quorum,
    is_quorum,
)
from amqpstore_server.broker.transactions.dead_letter import DeadLetters
from amqpstore_server.broker.transactions.exchange_queues import ExchangeQueues
from amqpstore_server.broker.transactions.history import Histories
from amqpstore_server.broker.transactions.replay import Replays
from amqpstore_server.broker.transactions.waiting_letters import WaitingLetters
from amqpstore_server.broker.weak_references import weak_method
from amqpstore_server.broker.work.context import BrokerContext
from amqpstore_server.broker.work.events import EVENT_EXCHANGE, BrokerEvent
from amqpstore_server.protocol.content import REPLY_TO

if TYPE_CHECKING:
    from amqpstore_server.broker.queues.consumer import Consumer

_log = logging.getLogger(__name__)


class VirtualHost:
    """Virtual host `name`. Changes of durable definitions are in the store when a call returns."""

    def __init__(self, name: str, context: BrokerContext) -> None:
        self.name = name
        self.context = context
        self.limits: Limits = {}
        """What its operator allows it, by RabbitMQ's names: see `quotas`."""
        self.metadata: Mapping[str, Any] = {}
        """What its operator says of it: `description` and `tags`."""
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self.channel_totals = ChannelTotals()
        self.departures = Departures()
        """What has left all of its queues, those that are deleted among them."""
        self.owned_queues = OwnedQueues(
            context, partial(weak_method(self.delete_queue), reason=Departure.OWNER_GONE)
        )
        self._bindings = Bindings()
        self._notes_limit = LogLimit()
        self._most_bindings = 0
        """There are no more bindings than this."""
        self.removals = Removals(name, context, self._bindings)
        self.router = Router(name, self.exchanges, self.queues, context)
        self.waiting_letters = WaitingLetters(
            context, self.router, self.queues, weak_method(self._create_letters)
        )
        self.dead_letters = DeadLetters(context, self.router, self.waiting_letters)
        self.policies = Policies(name)
        self.histories = Histories(context, self.queues, weak_method(self._create_history))
        self.policy_settings = PolicySettings(
            *(context, self.policies, self.exchanges, self.queues, self.router),
            *(self.histories, self.waiting_letters),
        )
        self.replays = Replays(context, self.queues, self.histories)
        self._exchange_queues = ExchangeQueues(context, self.router, self.dead_letters)
        self._ways_out: dict[str, WayOut] = {DelayQueue.kind: self._exchange_queues.release}
        """How messages leave queues of each kind, if not as dead letters."""
        for row in predeclared_exchanges(name):
            self.restore_exchange(row)
        self._predeclared_count = len(self.exchanges)
        # Not counted as what clients publish.
        own = Publisher(context, self.dead_letters, self.replays, CLOSED, ChannelCounters())
        copies = OwnPublishes(
            context, self.router, own, "the copies of the firehose", COPIES_AT_ONCE, keeps_up=True
        )
        self.firehose = Firehose(name, context, self.exchanges, copies)
        self.branches = Branches(
            *(name, context, self.dead_letters, self.firehose),
            weak_method(self.note_without_queue),
        )
        if exchange := self.exchanges.get(EVENT_EXCHANGE):
            events = OwnPublishes(context, self.router, own, "events", EVENTS_AT_ONCE)
            context.events.listen(exchange, EventMessages(context.clock, events).publish)

    @property
    def counters(self) -> ChannelCounters:
        """What all of its channels have counted until now, closed ones among them."""
        return self.channel_totals.total()

    # Exchanges.

    def exchange(self, name: str) -> Exchange:
        """Return the exchange of that name. Raises: NotFoundError."""
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
        """Create an exchange, or check that the existing one has the same properties.

        Raises: UnknownTypeError, AccessRefusedError, PreconditionFailedError.
        """
        name = without_line_ends(name)
        exchange_type = self.context.exchange_types.get(type_name)
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
        if present := self.exchanges.get(name):
            what = f"exchange '{name}' in vhost '{self.name}'"
            check_equivalent(
                what, compared_exchange(asked), compared_exchange(exchange_row(present))
            )
            return
        check_name("exchange", name, self.name, self.context.name_rule)
        count = len(self.exchanges) - self._predeclared_count
        check_may_declare(self.limits, MAX_EXCHANGES, count, name, self.name)
        what = f"exchange '{name}' in vhost '{self.name}'"
        if type_name in EXCHANGE_TYPES:  # what those of packages read is known to them alone
            accepted.check_arguments(Place.EXCHANGE, arguments, what)
        self._note(accepted.exchange_notes(type_name, arguments), exchange=name)
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
            random=self.context.random,
        )
        if isinstance(exchange, DelayedExchange):
            exchange.check_inner()
        if durable and (unbinding := self.removals.exchanges.get(name)):
            unbinding.finish()
        changes = [exchange_change(self.name, exchange, add=True)] if durable else []
        if exchange.queue_kind:
            self._give_queue(exchange, changes)
        else:
            self._define(changes)
        self._add_exchange(exchange)
        self.happened(
            "exchange declared" if durable else "",
            "exchange.created",
            {**asked, "name": name, "policy": ""},
            exchange=name,
            type=type_name,
        )

    def happened(self, line: str, key: str, headers: Mapping[str, Any], **said: str) -> None:
        """Tell that something has changed here. Args: as of `BrokerEvents.happened`."""
        event = BrokerEvent(key, {**headers, "vhost": self.name})
        self.context.events.happened(line, event, by=None, vhost=self.name, **said)

    def delete_exchange(self, name: str, *, if_unused: bool) -> None:
        """Delete an exchange and its bindings; do nothing if it does not exist.

        Raises: AccessRefusedError, PreconditionFailedError (it has bindings).
        """
        if name == DEFAULT_EXCHANGE:
            raise AccessRefusedError("operation not permitted on the default exchange")
        if name.startswith(RESERVED_PREFIX):
            raise AccessRefusedError(
                f"exchange name '{name}' in vhost '{self.name}' contains reserved prefix 'amq.*'"
            )
        exchange = self.exchanges.get(name)
        if exchange is None:
            return
        if if_unused and exchange.is_bound:
            raise PreconditionFailedError(f"exchange '{name}' in vhost '{self.name}' in use")
        deletion = Deletion(self)
        deletion.add_exchanges([exchange])
        deletion.commit()

    def restore_exchange(self, row: Mapping[str, Any]) -> None:
        """Restore a durable exchange from the catalog.

        If its plug-in is gone, or refuses it now, it is left out, and its row stays.
        """
        extra = {"vhost": self.name, "exchange": row["name"], "type": row["type"]}
        exchange_type = self.context.exchange_types.get(row["type"])
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
                random=self.context.random,
            )
        except Exception as error:  # noqa: BLE001 - the type may be a package's
            _log.error("exchange left out", extra={**extra, "reason": str(error)})
            return
        if exchange.queue_kind:
            self._give_queue(exchange, [])
        self._add_exchange(exchange)

    def _add_exchange(self, exchange: Exchange) -> None:
        self.exchanges[exchange.name] = exchange
        self.policy_settings.apply_to_exchange(exchange)
        self.router.changed()

    def _give_queue(self, exchange: Exchange, changes: Sequence[Change]) -> None:
        """Create the own queue of an exchange that keeps messages, and commit the changes."""
        name = own_name(exchange.queue_kind, exchange.name)
        queue = self.queues.get(name)
        if queue is None:
            queue = self._create_queue(
                name, exchange.queue_kind, durable=exchange.durable, changes=changes
            )
        else:
            self._define(changes)
        if isinstance(queue, DelayQueue):
            queue.exchange = exchange
        queue.settings = exchange.own_queue_settings()
        self.policy_settings.apply_to_queue(queue)
        exchange.own_queue = queue

    # Queues.

    def queue(self, name: str) -> Queue:
        """Return the queue of that name. Raises: NotFoundError, SetAsideError."""
        queue = self.existing_queue(name)
        if queue is None:
            raise NotFoundError(f"no queue '{name}' in vhost '{self.name}'")
        queue.check_served(self.name)
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
        """Create a queue, with a server-generated name if `name` is empty, or check that the
        existing one is equivalent.

        An exclusive queue belongs to `connection` and is deleted with it, so it is never durable,
        whatever is declared (as in RabbitMQ). A queue without a type gets the default one of the
        virtual host, if it can be of that.
        Raises: AccessRefusedError, ResourceLockedError, SetAsideError, PreconditionFailedError.
        """
        self.context.churn.queue_declared += 1
        name = without_line_ends(name)
        survives = durable and not exclusive
        is_quorum_by_default = self.metadata.get(DEFAULT_QUEUE_TYPE) == QUORUM
        if is_quorum_by_default and QUEUE_TYPE not in arguments and survives and not auto_delete:
            arguments = {**arguments, QUEUE_TYPE: QUORUM}
        if not name:
            name = f"{RESERVED_PREFIX}gen-{self.context.make_name()}"
        elif queue := self.existing_queue(name):
            queue.check_owner(connection, exclusive=exclusive)
            queue.check_served(self.name)
            check_equivalent(
                f"queue '{name}' in vhost '{self.name}'",
                compared_queue(durable=survives, auto_delete=auto_delete, arguments=arguments),
                compared_queue(
                    durable=queue.durable,
                    auto_delete=queue.auto_delete,
                    arguments=queue.arguments,
                ),
            )
            queue.used()
            return queue
        else:
            check_name("queue", name, self.name, self.context.name_rule)
        what = f"queue '{name}' in vhost '{self.name}'"
        accepted.check_arguments(Place.QUEUE, arguments, what)
        check_arguments(what, arguments)
        check_quorum(what, arguments, durable=durable, exclusive=exclusive, auto_delete=auto_delete)
        if is_reached(self.limits, MAX_QUEUES, len(self.queues)):
            count = sum(queue.is_listed for queue in self.queues.values())
            check_may_declare(self.limits, MAX_QUEUES, count, name, self.name)
        queue = self._create_queue(
            name,
            Queue.kind,
            durable=survives,
            auto_delete=auto_delete,
            arguments=arguments,
            owner=connection if exclusive else None,
        )
        self.policy_settings.apply_to_queue(queue)
        self._note(accepted.queue_notes(arguments, queue.settings), queue=name)
        queue.enforce()
        headers = {
            "name": name,
            "durable": queue.durable,
            "auto_delete": auto_delete,
            "arguments": arguments,
            "exclusive": exclusive,
            "owner_pid": "" if queue.owner is None else getattr(queue.owner, "name", ""),
        }
        line = "queue declared" if queue.durable else ""
        self.happened(line, "queue.created", headers, queue=name)
        return queue

    def _create_history(self, name: str, queue: Queue) -> Queue:
        """Create the history of a queue, as durable as the queue, and with its owner."""
        durable = queue.priorities.lowest.durable
        return self._create_queue(name, ConsumedQueue.kind, durable=durable, owner=queue.owner)

    def _create_letters(self, name: str, queue: Queue) -> Queue:
        """Create the queue in which dead letters of another wait, which keeps them as well."""
        return self._create_queue(
            name,
            LettersQueue.kind,
            durable=queue.priorities.lowest.durable,
            arguments={QUEUE_TYPE: QUORUM} if is_quorum(queue.arguments) else {},
            owner=queue.owner,
        )

    def reply_queue(self, connection: object) -> Queue:
        """Create a queue for a channel's direct replies, which is deleted with its consumer."""
        name = f"{REPLY_TO}.{self.context.make_name()}"
        return self._create_queue(
            name, ReplyQueue.kind, durable=False, auto_delete=True, owner=connection
        )

    def _create_queue(
        self,
        name: str,
        kind: str,
        *,
        durable: bool,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        owner: object = None,
        changes: Sequence[Change] = (),
    ) -> Queue:
        """Create a queue, and commit changes with it."""
        definition: dict[str, Any] = {
            "vhost": self.name,
            "name": name,
            "auto_delete": auto_delete,
            "arguments": arguments or {},
        }
        if kind:
            # Client queues have no `kind` in their rows: these are as all versions have written
            # them.
            definition["kind"] = kind
        if durable and (unbinding := self.removals.queues.get(name)):
            unbinding.finish()
        store_queue = self.context.store.create_queue(definition, durable=durable, changes=changes)
        self.context.churn.queue_created += not kind
        return self.add_queue(store_queue, durable=durable, owner=owner)

    def add_queue(
        self, store_queue: amqpstore.Queue, *, durable: bool, owner: object = None
    ) -> Queue:
        """Add a queue from the store. `PolicySettings` gives it these."""
        definition: Any = store_queue.definition
        name = served_name(definition)
        its_class = QUEUE_KINDS[kind_of(definition)]
        departures = QueueDepartures(self.name, name, self.departures, self.context.departures)
        if its_class.has_copies:
            departures = QueueDepartures(self.name, name, Departures(), None)
        queue = its_class(
            self.context,
            store_queue,
            name,
            durable=durable,
            auto_delete=definition["auto_delete"],
            arguments=definition["arguments"],
            owner=owner,
            departures=departures,
            way_out=self._way_out,
            on_unused=self._delete_unused,
            on_set_aside=self._set_aside,
        )
        self.queues[name] = queue
        self.owned_queues.add(queue)
        self.router.changed()
        return queue

    def note_without_queue(self, name: str, reason: Departure, count: int) -> None:
        """Count messages as left whose queue, of that name, does not exist any more."""
        gone = QueueDepartures(self.name, name, self.departures, self.context.departures)
        gone.note(reason, count)
        gone.closed()

    def delete_queue(
        self,
        queue: Queue,
        reason: Departure = Departure.QUEUE_DELETED,
        *,
        if_unused: bool = False,
        if_empty: bool = False,
        answer: Callable[[int], None] | None = None,
    ) -> None:
        """Delete a queue, its bindings and messages; its consumers are told.

        Args: reason, why its messages leave. answer, takes the number of ready messages and of dead
        letters that waited, once that is durable, before consumers are told: a client that waits
        for the answer may take the cancel of its own consumer for a failure.
        Raises: AccessRefusedError (it is the broker's own), PreconditionFailedError.
        """
        self.check_usable(queue)
        if queue in self.context.late_drops:
            queue.drop_late()  # perhaps to another queue
        if if_unused and queue.consumers:
            raise PreconditionFailedError(f"queue '{queue.name}' in vhost '{self.name}' in use")
        if if_empty and (queue.ready_count or queue.letter_count):
            raise PreconditionFailedError(f"queue '{queue.name}' in vhost '{self.name}' not empty")
        count = queue.ready_count + queue.letter_count
        deletion = Deletion(self, reason=reason)
        deletion.add_queue(queue)
        deletion.commit()
        if answer is not None:
            answer(count)
        _end_consumers(queue)

    def existing_queue(self, name: str) -> Queue | None:
        """Return the queue of that name, unless it is as good as deleted: then it is deleted now.
        An address of direct replies is not a queue.
        """
        queue = self._living(name)
        return None if queue is None or queue.kind == ReplyQueue.kind else queue

    def waits_for_replies(self, address: str) -> bool:
        """Tell whether a client waits for direct replies at an address."""
        queue = self._living(address)
        return queue is not None and queue.kind == ReplyQueue.kind and bool(queue.consumers)

    def _living(self, name: str) -> Queue | None:
        queue = self.queues.get(name)
        if queue is not None and self.owned_queues.is_over(queue):
            self.delete_queue(queue, Departure.OWNER_GONE)
            return None
        return queue

    def remove_consumers(self, consumers: Iterable[Consumer]) -> None:
        """Remove consumers from their queues, and delete auto-delete queues with their last one."""
        by_queue: dict[Queue, list[Consumer]] = {}
        for consumer in consumers:
            by_queue.setdefault(consumer.queue, []).append(consumer)
        for queue, its in by_queue.items():
            if not queue.consumers.remove(its):
                continue
            if queue.auto_delete and not queue.consumers:
                self.owned_queues.end_unused(queue)
            else:
                queue.used()
                queue.touch()

    def check_usable(self, queue: Queue) -> None:
        """Make sure that a queue is not the broker's own. Raises: AccessRefusedError."""
        if queue.is_internal:
            raise AccessRefusedError(
                f"queue '{queue.name}' in vhost '{self.name}' is the broker's own: it can be "
                "purged, and nothing else"
            )

    def _delete_unused(self, queue: Queue) -> None:
        if not queue.is_deleted and not queue.consumers:
            _log.info("unused queue deleted", extra={"vhost": self.name, "queue": queue.name})
            self.delete_queue(queue, Departure.QUEUE_EXPIRED)

    def _set_aside(self, queue: Queue, error: Exception) -> None:
        extra = {"vhost": self.name, "queue": queue.name}
        _log.error(
            "queue set aside: it is not served until the next start", extra=extra, exc_info=error
        )
        self.router.changed()
        _end_consumers(queue)

    def _way_out(self, queue: Queue, taken: Sequence[Taken], reason: Reason) -> bool:
        way_out = self._ways_out.get(queue.kind, self.dead_letters.dead_letter)
        return way_out(queue, taken, reason)

    # Bindings.

    def bind(
        self,
        destination: Destination,
        exchange_name: str,
        routing_key: str,
        arguments: dict[str, Any],
    ) -> bool:
        """Bind a queue or an exchange. Returns False if it is bound so already.

        Raises: NotFoundError, AccessRefusedError, PreconditionFailedError.
        """
        exchange = self._bindable(exchange_name)
        self._check_destination(destination)
        binding = Binding(destination, routing_key, arguments)
        what = f"a binding of '{destination.name}' to exchange '{exchange_name}'"
        accepted.check_arguments(Place.BINDING, arguments, what)
        if self._has_all_bindings and not exchange.has(binding):
            raise PreconditionFailedError(
                f"cannot bind '{destination.name}' to exchange '{exchange_name}': binding limit in "
                f"vhost '{self.name}' ({self.limits[MAX_BINDINGS]}) is reached"
            )
        if not self._bindings.bind(exchange, binding):
            return False
        self._most_bindings += 1
        self._define(binding_changes(self.name, exchange, [binding], add=True))
        self.router.changed()
        self._rebound("bound", "binding.created", exchange, binding)
        self._exchange_queues.bound(exchange, destination)
        return True

    @property
    def _has_all_bindings(self) -> bool:
        """Whether there may be no further binding."""
        if not is_reached(self.limits, MAX_BINDINGS, self._most_bindings):
            return False
        # Those that were removed since, with their queues and exchanges, are not subtracted.
        counts = (exchange.binding_count for exchange in self.exchanges.values())
        self._most_bindings = sum(counts)
        return is_reached(self.limits, MAX_BINDINGS, self._most_bindings)

    def unbind(
        self,
        destination: Destination,
        exchange_name: str,
        routing_key: str,
        arguments: dict[str, Any],
    ) -> bool:
        """Remove a binding. Returns False if there is none. Raises: NotFoundError,
        AccessRefusedError.
        """
        exchange = self._bindable(exchange_name)
        self._check_destination(destination)
        # Its row has the arguments as it was bound, which may differ in their types.
        binding = self._bindings.unbind(exchange, Binding(destination, routing_key, arguments))
        if binding is None:
            return False
        self._rebound("unbound", "binding.deleted", exchange, binding)
        deletion = Deletion(self, binding_changes(self.name, exchange, [binding], add=False))
        if exchange.auto_delete and not exchange.is_bound:
            deletion.add_exchanges([exchange])
        deletion.commit()
        return True

    def _rebound(self, line: str, key: str, exchange: Exchange, binding: Binding) -> None:
        is_durable = exchange.durable and binding.destination.durable
        self.happened(
            line if is_durable else "",
            key,
            binding_headers(exchange, binding),
            exchange=exchange.name,
            to=binding.destination.name,
            routing_key=binding.routing_key,
        )

    def restore_binding(self, row: Mapping[str, Any]) -> bool:
        """Restore a binding from the catalog. Returns False if one of its ends is not there."""
        exchange = self.exchanges.get(row["exchange"])
        ends: Mapping[str, Destination] = self.exchanges if row["to"] == "exchange" else self.queues
        destination = ends.get(row["name"])
        if not exchange or not destination:
            return False
        self._most_bindings += 1
        try:
            self._bindings.bind(
                exchange, Binding(destination, row["routing_key"], row["arguments"])
            )
        except Exception as error:  # noqa: BLE001 - the type may be a package's
            extra = {"vhost": self.name, "exchange": exchange.name, "reason": str(error)}
            _log.error("binding left out", extra=extra)
        self.router.changed()
        return True

    def _bindable(self, name: str) -> Exchange:
        if name == DEFAULT_EXCHANGE:
            raise AccessRefusedError("operation not permitted on the default exchange")
        return self.exchange(name)

    def _check_destination(self, destination: Destination) -> None:
        if isinstance(destination, Queue):
            self.check_usable(destination)

    def _define(self, changes: Sequence[Change]) -> None:
        if changes:
            self.context.store.define(changes)

    def note_consumer(
        self, queue: str, tag: str, arguments: Mapping[str, Any], *, no_local: bool
    ) -> None:
        """Log what of a consumer has no effect."""
        self._note(accepted.consumer_notes(arguments, no_local=no_local), queue=queue, consumer=tag)

    def _note(self, notes: Sequence[str], **of: str) -> None:
        """Log what has no effect."""
        for note in accepted.shortened(notes):
            if self._notes_limit.passes(self.name, self.context.clock.wall_ms() / 1000):
                extra = {"vhost": self.name, **of, "note": note, **self._notes_limit.suppressed()}
                _log.info("declared with something that has no effect", extra=extra)


def _end_consumers(queue: Queue) -> None:
    """Cancel all consumers of a queue; the clients are told."""
    for consumer in queue.consumers.clear():
        consumer.channel.cancelled(consumer)
