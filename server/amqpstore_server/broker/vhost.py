"""A virtual host: a namespace of exchanges, queues and bindings.

Past 600 lines because whatever is deleted takes others with it, bindings, exchanges, own queues and
histories, in one commit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import amqpstore
from amqpstore.catalog import Change
from amqpstore_server.broker.byte_limits import ByteLimits
from amqpstore_server.broker.channels.branches import Branches
from amqpstore_server.broker.channels.event_messages import AT_ONCE as EVENTS_AT_ONCE
from amqpstore_server.broker.channels.event_messages import EventMessages
from amqpstore_server.broker.channels.firehose import AT_ONCE as COPIES_AT_ONCE
from amqpstore_server.broker.channels.firehose import TRACE_EXCHANGE, Firehose
from amqpstore_server.broker.channels.outlet import CLOSED
from amqpstore_server.broker.channels.own_publishes import OwnPublishes
from amqpstore_server.broker.channels.publishing import Publisher
from amqpstore_server.broker.context import BrokerContext
from amqpstore_server.broker.counters import ChannelCounters
from amqpstore_server.broker.errors import (
    AccessRefusedError,
    NotFoundError,
    PreconditionFailedError,
    UnknownTypeError,
)
from amqpstore_server.broker.events import EVENT_EXCHANGE, BrokerEvent
from amqpstore_server.broker.exchanges.base import Binding, Destination, Exchange
from amqpstore_server.broker.exchanges.bindings import Bindings
from amqpstore_server.broker.exchanges.replay import REPLAY_EXCHANGE
from amqpstore_server.broker.faults import called
from amqpstore_server.broker.messages.deaths import Reason
from amqpstore_server.broker.names import RESERVED_PREFIX, check_name, without_line_ends
from amqpstore_server.broker.policy import Policies, Policy
from amqpstore_server.broker.queues.backlog import Taken
from amqpstore_server.broker.queues.kinds import (
    QUEUE_KINDS,
    REPLY_TO,
    ConsumedQueue,
    DelayQueue,
    ReplyQueue,
    kind_of,
    own_queue_name,
)
from amqpstore_server.broker.queues.queue import Queue, WayOut
from amqpstore_server.broker.quotas import (
    MAX_BINDINGS,
    MAX_EXCHANGES,
    MAX_QUEUES,
    Limits,
    is_reached,
)
from amqpstore_server.broker.removals import Removals, Unbinding, binding_headers
from amqpstore_server.broker.routing import DEFAULT_EXCHANGE, Router
from amqpstore_server.broker.rows import (
    binding_changes,
    check_equivalent,
    compared_exchange,
    compared_queue,
    exchange_change,
    exchange_row,
)
from amqpstore_server.broker.settings import (
    ALTERNATE_EXCHANGE,
    CLASSIC,
    DEFAULT_QUEUE_TYPE,
    POLICY_KEYS,
    QUEUE_TYPE,
    QUORUM,
    check_arguments,
    check_quorum,
)
from amqpstore_server.broker.transactions.dead_letter import DeadLetters
from amqpstore_server.broker.transactions.exchange_queues import ExchangeQueues
from amqpstore_server.broker.transactions.history import Histories
from amqpstore_server.broker.transactions.replay import Replays

if TYPE_CHECKING:
    from amqpstore_server.broker.queues.consumer import Consumer

_log = logging.getLogger(__name__)

DEFAULT_VHOST = "/"
"""The virtual host of a new broker; it has the event exchange."""

_QUEUES_AT_ONCE = 100
_MATCHES_AT_ONCE = 2000
"""Queues or exchanges that get their settings before others have their turn, and names that are
compared with the patterns of policies for that.
"""

_EXCLUSIVE_AT_ONCE = 512
"""Exclusive queues of a connection that ended which are deleted before others have their turn."""

_PREDECLARED = {
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
    REPLAY_EXCHANGE: "x-replay",
    TRACE_EXCHANGE: "topic",
}
_INTERNAL = (TRACE_EXCHANGE, EVENT_EXCHANGE)
"""Those that clients cannot publish to."""


class VirtualHost:
    """Virtual host `name`. Changes of durable definitions are in the store when a call returns."""

    def __init__(self, name: str, context: BrokerContext) -> None:
        self.name = name
        self.context = context
        self.limits: Limits = {}
        """What its operator allows it, by RabbitMQ's names: see `quotas`."""
        self.metadata: Mapping[str, Any] = {}
        """What its operator says of it: `description` and `tags`."""
        self.parameters: Mapping[str, Mapping[str, Any]] = {}
        """The parameters of components, by component and name: kept for those who read them."""
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self.counters = ChannelCounters()
        """What all of its channels have counted, closed ones among them."""
        self._owned: dict[object, dict[Queue, None]] = {}
        self._ended: set[object] = set()
        """Connections that have ended, and whose queues are not all deleted yet."""
        self._bindings = Bindings()
        self._most_bindings = 0
        """There are no more bindings than this."""
        self.removals = Removals(name, context, self._bindings)
        self.router = Router(name, self.exchanges, self.queues, context.limits.max_cached_bytes)
        self.dead_letters = DeadLetters(context, self.router)
        self.policies = Policies(name)
        self._byte_limits = ByteLimits(context, self.router.changed)
        self.histories = Histories(context, self.queues, self._create_history)
        self.replays = Replays(context, self.queues, self.histories)
        self._exchange_queues = ExchangeQueues(context, self.router, self.dead_letters)
        self._ways_out: dict[str, WayOut] = {DelayQueue.kind: self._exchange_queues.release}
        """How messages leave queues of each kind, if not as dead letters."""
        types = {**_PREDECLARED, EVENT_EXCHANGE: "topic"}
        for predeclared, type_name in (types if name == DEFAULT_VHOST else _PREDECLARED).items():
            row = {
                "name": predeclared,
                "type": type_name,
                "auto_delete": False,
                "internal": predeclared in _INTERNAL,
                "arguments": {},
            }
            self.restore_exchange(row)
        self._predeclared_count = len(self.exchanges)
        copies = self._own_publishes("the copies of the firehose", COPIES_AT_ONCE, keeps_up=True)
        self.firehose = Firehose(name, context.node, self.exchanges, copies)
        self.branches = Branches(name, context, self.dead_letters, self.firehose)
        if exchange := self.exchanges.get(EVENT_EXCHANGE):
            events = EventMessages(context.clock, self._own_publishes("events", EVENTS_AT_ONCE))
            context.events.listen(exchange, events.publish)

    def _own_publishes(self, what: str, at_once: int, *, keeps_up: bool = False) -> OwnPublishes:
        # Not counted as what clients publish.
        publisher = Publisher(
            self.context,
            self.dead_letters,
            self.replays,
            CLOSED,
            ChannelCounters(),
            ChannelCounters(),
        )
        return OwnPublishes(self.context, self.router, publisher, what, at_once, keeps_up=keeps_up)

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
        if is_reached(self.limits, MAX_EXCHANGES, len(self.exchanges) - self._predeclared_count):
            raise PreconditionFailedError(
                f"cannot declare exchange '{name}': exchange limit in vhost '{self.name}' "
                f"({self.limits[MAX_EXCHANGES]}) is reached"
            )
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
        if durable and (unbinding := self.removals.exchanges.get(name)):
            unbinding.finish()
        changes = [exchange_change(self.name, exchange, add=True)] if durable else []
        if exchange.queue_kind:
            self._give_queue(exchange, changes)
        else:
            self._define(changes)
        self._add_exchange(exchange)
        self._happened(
            "exchange declared" if durable else "",
            "exchange.created",
            {**asked, "name": name, "policy": ""},
            exchange=name,
            type=type_name,
        )

    def _happened(self, line: str, key: str, headers: Mapping[str, Any], **said: str) -> None:
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
        changes: list[Change] = []
        unbinding = Unbinding(self.removals)
        self._remove(self._take_down([exchange], changes, unbinding), changes, unbinding)

    def _take_down(
        self, exchanges: Iterable[Exchange], changes: list[Change], unbinding: Unbinding
    ) -> list[Queue]:
        """Remove exchanges, and every auto-delete exchange that loses its last binding as a result.

        Adds to the changes to commit and to what is to be unbound, and returns the exchanges' own
        queues, which have to be removed in the same commit.
        """
        going = list(exchanges)
        own_queues = []
        while going:
            exchange = going.pop()
            if self.exchanges.get(exchange.name) is not exchange:
                continue
            del self.exchanges[exchange.name]
            if exchange.durable:
                changes.append(exchange_change(self.name, exchange, add=False))
            unbinding.add_source(exchange)
            going += unbinding.add_destination(exchange)
            if exchange.own_queue is not None:
                own_queues.append(self.queues[exchange.own_queue.name])
            line = "exchange deleted" if exchange.durable else ""
            headers = {"name": exchange.name}
            self._happened(line, "exchange.deleted", headers, exchange=exchange.name)
        return own_queues

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
        self._apply_to_exchange(exchange)
        self.router.changed()

    def _give_queue(self, exchange: Exchange, changes: Sequence[Change]) -> None:
        """Create the own queue of an exchange that keeps messages, and commit the changes."""
        name = own_queue_name(exchange)
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
        self._apply_to_queue(queue)
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
        if QUEUE_TYPE not in arguments and self.metadata.get(DEFAULT_QUEUE_TYPE) == QUORUM:
            kind = QUORUM if survives and not auto_delete else CLASSIC
            if queue := self.queues.get(name):  # declared before that was the default, perhaps
                kind = queue.arguments.get(QUEUE_TYPE, CLASSIC)
            arguments = {**arguments, QUEUE_TYPE: kind}
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
        check_arguments(what, arguments)
        check_quorum(what, arguments, durable=durable, exclusive=exclusive, auto_delete=auto_delete)
        if is_reached(self.limits, MAX_QUEUES, len(self.queues)):
            raise PreconditionFailedError(
                f"cannot declare queue '{name}': queue limit in vhost '{self.name}' "
                f"({self.limits[MAX_QUEUES]}) is reached"
            )
        queue = self._create_queue(
            name,
            Queue.kind,
            durable=survives,
            auto_delete=auto_delete,
            arguments=arguments,
            owner=connection if exclusive else None,
        )
        self._apply_to_queue(queue)
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
        self._happened(line, "queue.created", headers, queue=name)
        return queue

    def _create_history(self, name: str, queue: Queue) -> Queue:
        """Create the history of a queue, as durable as the queue, and with its owner."""
        durable = queue.priorities.lowest.durable
        return self._create_queue(name, ConsumedQueue.kind, durable=durable, owner=queue.owner)

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
        self.context.churn.queue_created += 1
        return self.add_queue(store_queue, durable=durable, owner=owner)

    def add_queue(
        self, store_queue: amqpstore.Queue, *, durable: bool, owner: object = None
    ) -> Queue:
        """Add a queue from the store. `apply_policies` gives it its settings."""
        definition: Any = store_queue.definition
        name = definition["name"]
        queue = QUEUE_KINDS[kind_of(definition)](
            self.context,
            store_queue,
            name,
            durable=durable,
            auto_delete=definition["auto_delete"],
            arguments=definition["arguments"],
            owner=owner,
            way_out=self._way_out,
            on_unused=self._delete_unused,
            on_set_aside=self._set_aside,
        )
        self.queues[name] = queue
        if owner is not None:
            self._owned.setdefault(owner, {})[queue] = None
        self.router.changed()
        return queue

    def delete_queue(self, queue: Queue, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue, its bindings and messages; its consumers are told.

        Returns the number of ready messages.
        Raises: AccessRefusedError (it is the broker's own), PreconditionFailedError.
        """
        self.check_usable(queue)
        if if_unused and queue.consumers:
            raise PreconditionFailedError(f"queue '{queue.name}' in vhost '{self.name}' in use")
        if if_empty and queue.ready_count:
            raise PreconditionFailedError(f"queue '{queue.name}' in vhost '{self.name}' not empty")
        count = queue.ready_count
        changes: list[Change] = []
        unbinding = Unbinding(self.removals)
        unbound = unbinding.add_destination(queue)
        going = [queue, *self._take_down(unbound, changes, unbinding)]
        if history := self.histories.of(queue.name):
            going.append(history)
        self._remove(going, changes, unbinding)
        _end_consumers(queue)
        return count

    def delete_queues_of(self, connection: object) -> None:
        """Delete the exclusive queues of a connection that ended: those beyond some hundreds in
        later turns. Until then they are as good as deleted.
        """
        deleting = self._deleting_queues_of(connection)
        for _ in deleting:
            self._ended.add(connection)
            self.context.background.append(deleting)
            return

    def _deleting_queues_of(self, connection: object) -> Iterator[None]:
        """Delete the exclusive queues of a connection, in steps."""
        queues = list(self._owned.get(connection, ()))
        for number, queue in enumerate(queues, 1):
            if not (queue.is_internal or queue.is_deleted):
                called(partial(self.delete_queue, queue))
            if not number % _EXCLUSIVE_AT_ONCE and number < len(queues):
                self.context.work["exclusive queues"] = None
                yield
        self._owned.pop(connection, None)
        self._ended.discard(connection)

    def existing_queue(self, name: str) -> Queue | None:
        """Return the queue of that name, unless its connection has ended: then it is deleted."""
        queue = self.queues.get(name)
        if queue is not None and queue.owner in self._ended and not queue.is_internal:
            self.delete_queue(queue)
            return None
        return queue

    def remove_consumer(self, consumer: Consumer) -> None:
        """Remove a consumer from its queue, and delete an auto-delete queue with its last one."""
        queue = consumer.queue
        if not queue.consumers.remove(consumer):
            return
        if queue.auto_delete and not queue.consumers:
            self.delete_queue(queue)
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

    def _remove(self, queues: Sequence[Queue], changes: list[Change], unbinding: Unbinding) -> None:
        """Delete queues with their messages; the changes, and some of what is unbound, are
        committed with them.
        """
        changes += unbinding.take()
        store_queues = [one for queue in queues for one in queue.priorities]
        while any(self.context.moved[one.id] for one in store_queues):
            # The deletion is durable at once. Messages that moved out of the queue must be durable
            # elsewhere before that, or a crash would lose them.
            self.context.flush()
        try:
            if store_queues:
                self.context.store.delete_queue(*store_queues, changes=changes)
            else:
                self._define(changes)
        finally:
            # Nothing knows of the other bindings any more, even if the disk is full.
            unbinding.go_on()
        for queue in queues:
            del self.queues[queue.name]
            if queue.owner is not None:
                self._owned.get(queue.owner, {}).pop(queue, None)
            queue.closed()
            if not queue.kind:
                line = "queue deleted" if queue.durable else ""
                self._happened(line, "queue.deleted", {"name": queue.name}, queue=queue.name)
        self.context.churn.queue_deleted += len(queues)
        self.router.changed()

    def _delete_unused(self, queue: Queue) -> None:
        if not queue.is_deleted and not queue.consumers:
            _log.info("unused queue deleted", extra={"vhost": self.name, "queue": queue.name})
            self.delete_queue(queue)

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
        if isinstance(destination, Queue):
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
        binding = Binding(destination, routing_key, arguments)
        if not self._bindings.unbind(exchange, binding):
            return False
        self._rebound("unbound", "binding.deleted", exchange, binding)
        changes = binding_changes(self.name, exchange, [binding], add=False)
        going = [exchange] if exchange.auto_delete and not exchange.is_bound else []
        unbinding = Unbinding(self.removals)
        self._remove(self._take_down(going, changes, unbinding), changes, unbinding)
        return True

    def _rebound(self, line: str, key: str, exchange: Exchange, binding: Binding) -> None:
        is_durable = exchange.durable and binding.destination.durable
        self._happened(
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

    # Its end.

    def deleting(self) -> Iterator[None]:
        """Delete everything in the virtual host, in steps of one commit each: others may have their
        turn after each. A crash in between leaves what is left to the next start.
        """
        yield from self.branches.rolling_back_all()
        store = self.context.store
        while True:
            self.context.work["vhost deleted"] = None
            store.group_definitions()
            try:
                is_done = self._delete_some()
            finally:
                store.commit_definitions()
            if is_done:
                return
            yield

    def _delete_some(self) -> bool:
        """Delete some queues; the exchanges once no queue is bound to them. Returns whether nothing
        is left.
        """
        # A history goes with its queue, and the own queue of an exchange with that.
        of_clients = (queue for queue in self.queues.values() if not queue.is_internal)
        queues = list(islice(of_clients, _QUEUES_AT_ONCE))
        for queue in queues:
            if not queue.is_deleted:
                self.delete_queue(queue)
        if queues:
            return False
        changes: list[Change] = []
        exchanges = list(self.exchanges.values())[:_QUEUES_AT_ONCE]
        unbinding = Unbinding(self.removals)
        self._remove(self._take_down(exchanges, changes, unbinding), changes, unbinding)
        if exchanges:
            return False
        left = list(self.queues.values())[:_QUEUES_AT_ONCE]
        self._remove(left, [], Unbinding(self.removals))
        if left:
            return False
        # In a virtual host of the same name, rows that are left would be bindings again.
        for unbinding in self.removals.unfinished:
            unbinding.step()
            return False
        return True

    def _define(self, changes: Sequence[Change]) -> None:
        if changes:
            self.context.store.define(changes)

    # Policies.

    def define_policies(self, policies: Sequence[Policy], *, operator: bool) -> None:
        """Replace all policies, or all operator policies. Durable on return."""
        self._define(self.policies.changes(policies, operator=operator))
        self.policies.have(policies, operator=operator)
        self.apply_policies()

    def apply_policies(self) -> None:
        """Apply the policies: give every queue and exchange its current settings."""
        for _ in self.applying_policies():
            pass

    def applying_policies(self) -> Iterator[None]:
        """Do as `apply_policies`, in steps: others may have their turn after each."""
        at_once = max(1, min(_QUEUES_AT_ONCE, _MATCHES_AT_ONCE // (self.policies.count + 1)))
        exchanges = list(self.exchanges.values())
        for first in range(0, len(exchanges), at_once):
            self.context.work["policies"] = None
            for exchange in exchanges[first : first + at_once]:
                self._apply_to_exchange(exchange)
            yield
        queues = list(self.queues.values())
        for first in range(0, len(queues), at_once):
            self.context.work["policies"] = None
            for queue in queues[first : first + at_once]:
                if not queue.is_deleted:
                    self._apply_to_queue(queue)
            # Before anybody publishes: a route has settings of its queues.
            self.router.changed()
            yield
        # Only now: messages that one queue drops may go to another, which needs its settings first.
        for first in range(0, len(queues), _QUEUES_AT_ONCE):
            self.context.work["policies"] = None
            for queue in queues[first : first + _QUEUES_AT_ONCE]:
                if not queue.is_deleted:
                    queue.enforce()
            yield

    def _apply_to_queue(self, queue: Queue) -> None:
        if queue.is_internal:
            queue.apply(queue.settings)
            return
        settings = self.policies.queue_settings(queue.name, queue.arguments)
        queue.apply(self._byte_limits.applicable(queue, settings))
        self.histories.apply(queue)

    def _apply_to_exchange(self, exchange: Exchange) -> None:
        exchange.alternate = self.policies.alternate(exchange.name, exchange.arguments)


def _end_consumers(queue: Queue) -> None:
    """Cancel all consumers of a queue; the clients are told."""
    for consumer in queue.consumers.clear():
        consumer.channel.cancelled(consumer)
