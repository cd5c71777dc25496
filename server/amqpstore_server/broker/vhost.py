"""A virtual host: a namespace of exchanges, queues and bindings.

Queues are declared, found and deleted here; exchanges and bindings by their definitions.
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
from amqpstore_server.broker.definitions.accepted import NameScope
from amqpstore_server.broker.definitions.binding_definitions import BindingDefinitions
from amqpstore_server.broker.definitions.deletion import Deletion
from amqpstore_server.broker.definitions.exchange_definitions import ExchangeDefinitions
from amqpstore_server.broker.definitions.notes import DefinitionNotes
from amqpstore_server.broker.definitions.owned_queues import OwnedQueues
from amqpstore_server.broker.definitions.policy_settings import PolicySettings
from amqpstore_server.broker.definitions.removals import Removals
from amqpstore_server.broker.definitions.rows import (
    check_equivalent,
    compared_queue,
)
from amqpstore_server.broker.errors import (
    AccessRefusedError,
    NotFoundError,
    PreconditionFailedError,
)
from amqpstore_server.broker.exchanges.base import Exchange
from amqpstore_server.broker.exchanges.bindings import Bindings
from amqpstore_server.broker.messages.deaths import Reason
from amqpstore_server.broker.monitoring.counters import ChannelCounters, ChannelTotals
from amqpstore_server.broker.monitoring.departures import Departures, QueueDepartures
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
    MAX_QUEUES,
    Limits,
    check_may_declare,
    is_reached,
)
from amqpstore_server.broker.routing.routing import Router
from amqpstore_server.broker.rules.names import (
    RESERVED_PREFIX,
    check_name,
    without_line_ends,
)
from amqpstore_server.broker.rules.policy import Policies
from amqpstore_server.broker.rules.settings import (
    DEFAULT_QUEUE_TYPE,
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
from amqpstore_server.broker.work.events import EVENT_EXCHANGE, BrokerEvent
from amqpstore_server.broker.work.services import BrokerServices
from amqpstore_server.protocol.content import REPLY_TO

if TYPE_CHECKING:
    from amqpstore_server.broker.queues.consumer import Consumer

_log = logging.getLogger(__name__)


class VirtualHost:
    """Virtual host `name`. Changes of durable definitions are in the store when a call returns."""

    def __init__(self, name: str, services: BrokerServices) -> None:
        self.name = name
        self.services = services
        self._statistics = services.statistics
        self.limits: Limits = {}
        """The limits that its operator has set, by RabbitMQ's names: see `quotas`."""
        self.metadata: Mapping[str, Any] = {}
        """The operator's description of it: `description` and `tags`."""
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self.channel_totals = ChannelTotals()
        self.departures = Departures()
        """Counts of messages that have left its queues, deleted ones among them."""
        self.owned_queues = OwnedQueues(
            services, partial(weak_method(self.delete_queue), reason=Departure.OWNER_GONE)
        )
        bindings = Bindings()
        self.removals = Removals(name, services, bindings)
        self.router = Router(name, self.exchanges, self.queues, services)
        self.waiting_letters = WaitingLetters(
            services, self.router, self.queues, weak_method(self._create_letters)
        )
        self.dead_letters = DeadLetters(services, self.router, self.waiting_letters)
        self.policies = Policies(name)
        self.histories = Histories(services, self.queues, weak_method(self._create_history))
        self.policy_settings = PolicySettings(
            *(services, self.policies, self.exchanges, self.queues, self.router),
            *(self.histories, self.waiting_letters),
        )
        self.replays = Replays(services, self.queues, self.histories)
        exchange_queues = ExchangeQueues(services, self.router, self.dead_letters)
        self._ways_out: dict[str, WayOut] = {DelayQueue.kind: exchange_queues.release}
        """How messages leave queues of each kind, if not as dead letters."""
        self._notes = DefinitionNotes(name, services.clock)
        self.exchange_definitions = ExchangeDefinitions(self, self._notes)
        self.bindings = BindingDefinitions(self, bindings, exchange_queues)
        # Not counted as what clients publish.
        own = Publisher(services, self.dead_letters, self.replays, CLOSED, ChannelCounters())
        copies = OwnPublishes(
            services, self.router, own, "the copies of the firehose", COPIES_AT_ONCE, keeps_up=True
        )
        self.firehose = Firehose(name, services, self.exchanges, copies)
        self.branches = Branches(
            *(name, services, self.dead_letters, self.firehose),
            weak_method(self.note_without_queue),
        )
        if exchange := self.exchanges.get(EVENT_EXCHANGE):
            events = OwnPublishes(services, self.router, own, "events", EVENTS_AT_ONCE)
            services.events.listen(exchange, EventMessages(services.clock, events).publish)

    @property
    def counters(self) -> ChannelCounters:
        """The counts of all of its channels until now, closed ones among them."""
        return self.channel_totals.total()

    # Exchanges.

    def exchange(self, name: str) -> Exchange:
        """Return the exchange of that name. Raises: NotFoundError."""
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise NotFoundError(f"no exchange '{name}' in vhost '{self.name}'")
        return exchange

    def happened(self, line: str, key: str, headers: Mapping[str, Any], **said: str) -> None:
        """Tell that something has changed here. Args: as of `BrokerEvents.happened`."""
        event = BrokerEvent(key, {**headers, "vhost": self.name})
        self.services.events.happened(line, event, by=None, vhost=self.name, **said)

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
        self._statistics.churn.queue_declared += 1
        name = without_line_ends(name)
        survives = durable and not exclusive
        is_quorum_by_default = self.metadata.get(DEFAULT_QUEUE_TYPE) == QUORUM
        if is_quorum_by_default and QUEUE_TYPE not in arguments and survives and not auto_delete:
            arguments = {**arguments, QUEUE_TYPE: QUORUM}
        if not name:
            name = f"{RESERVED_PREFIX}gen-{self.services.make_name()}"
        elif queue := self.existing_queue(name):
            # Its name is not checked. AMQP 0-9-1, queue.declare, rule `reserved`: `amq.` is allowed
            # if the queue already exists.
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
            check_name("queue", name, self.name, self.services.name_rule)
        what = f"queue '{name}' in vhost '{self.name}'"
        accepted.check_arguments(NameScope.QUEUE, arguments, what)
        check_arguments(what, arguments)
        check_quorum(what, arguments, durable=durable, exclusive=exclusive, auto_delete=auto_delete)
        # The number of all queues costs nothing: the queues that count have to be looked at one by
        # one.
        if is_reached(self.limits, MAX_QUEUES, len(self.queues)):
            count = sum(queue.is_listed for queue in self.queues.values())
            check_may_declare(self.limits, MAX_QUEUES, count, name, self.name)
        queue = self.create_queue(
            name,
            Queue.kind,
            durable=survives,
            auto_delete=auto_delete,
            arguments=arguments,
            owner=connection if exclusive else None,
        )
        self.policy_settings.apply_to_queue(queue)
        self._notes.log(accepted.queue_notes(arguments, queue.settings), queue=name)
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
        return self.create_queue(name, ConsumedQueue.kind, durable=durable, owner=queue.owner)

    def _create_letters(self, name: str, queue: Queue) -> Queue:
        """Create the queue in which dead letters of another wait, which keeps them as well."""
        return self.create_queue(
            name,
            LettersQueue.kind,
            durable=queue.priorities.lowest.durable,
            arguments={QUEUE_TYPE: QUORUM} if is_quorum(queue.arguments) else {},
            owner=queue.owner,
        )

    def reply_queue(self, connection: object) -> Queue:
        """Create a queue for a channel's direct replies, which is deleted with its consumer."""
        name = f"{REPLY_TO}.{self.services.make_name()}"
        return self.create_queue(
            name, ReplyQueue.kind, durable=False, auto_delete=True, owner=connection
        )

    def create_queue(
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
        # After a crash, rows of bindings that are left of a deleted queue of this name would lead
        # to the new one.
        if durable and (unbinding := self.removals.queues.get(name)):
            unbinding.finish()
        store_queue = self.services.store.create_queue(definition, durable=durable, changes=changes)
        self._statistics.churn.queue_created += not kind
        return self.add_queue(store_queue, durable=durable, owner=owner)

    def add_queue(
        self, store_queue: amqpstore.Queue, *, durable: bool, owner: object = None
    ) -> Queue:
        """Add a queue from the store. `PolicySettings` gives it these."""
        definition: Any = store_queue.definition
        name = served_name(definition)
        queue_class = QUEUE_KINDS[kind_of(definition)]
        departures = QueueDepartures(self.name, name, self.departures, self._statistics.departures)
        if queue_class.has_copies:
            departures = QueueDepartures(self.name, name, Departures(), None)
        queue = queue_class(
            self.services,
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
        gone = QueueDepartures(self.name, name, self.departures, self._statistics.departures)
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
        if queue in self.services.agenda.late_drops:
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

    def note_consumer(
        self, queue: str, tag: str, arguments: Mapping[str, Any], *, no_local: bool
    ) -> None:
        """Log what of a consumer has no effect."""
        self._notes.log(
            accepted.consumer_notes(arguments, no_local=no_local), queue=queue, consumer=tag
        )


def _end_consumers(queue: Queue) -> None:
    """Cancel all consumers of a queue; the clients are told."""
    for consumer in queue.consumers.clear():
        consumer.channel.cancelled(consumer)
