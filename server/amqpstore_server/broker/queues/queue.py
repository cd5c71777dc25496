"""A queue of a virtual host: its settings, who may use it, which messages it accepts, and the
settling of deliveries.

Ready messages are in its `backlog`; `dispatch` decides which consumer gets them, `waiting` serves
gets, and both take them from there.

Past 600 lines because a queue has one interface, whatever is done with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import amqpstore
from amqpstore import Message, MessageDamagedError, Placement, ReadLaterError
from amqpstore_server.broker.errors import ResourceLockedError, SetAsideError
from amqpstore_server.broker.messages.deaths import Reason
from amqpstore_server.broker.monitoring.counters import DeliveryCounters
from amqpstore_server.broker.monitoring.departures import QueueDepartures
from amqpstore_server.broker.monitoring.faults import FATAL, Contained
from amqpstore_server.broker.queues.backlog import Backlog, Taken
from amqpstore_server.broker.queues.dispatch import Dispatch
from amqpstore_server.broker.queues.message_sums import UnackedSums
from amqpstore_server.broker.queues.pending_moves import PendingMoves
from amqpstore_server.broker.queues.priorities import Priorities
from amqpstore_server.broker.queues.purges import Purges
from amqpstore_server.broker.queues.room import fitting
from amqpstore_server.broker.queues.waiting import GetLine
from amqpstore_server.broker.rules.settings import (
    REJECT_PUBLISH_DLX,
    Settings,
    is_quorum,
)
from amqpstore_server.broker.work.services import BrokerServices

if TYPE_CHECKING:
    from amqpstore_server.broker.messages.envelope import ParsedEnvelope
    from amqpstore_server.broker.queues.consumer import Consumer
    from amqpstore_server.broker.queues.letters import LettersQueue

_log = logging.getLogger(__name__)


class KeepsConsumed(Protocol):
    """The history of a queue: keeps what was consumed from it."""

    @property
    def queue(self) -> Queue:
        """The queue that keeps the copies."""

    def consumed(self, queue: Queue, taken: Taken) -> None:
        """Ack a run that was taken off the queue, and add it to the history."""

    def copies(
        self, consumed: Sequence[Message]
    ) -> Iterator[tuple[ParsedEnvelope, list[Message], Placement]]:
        """Yield the copies that go to the history, for messages that a transaction acks."""


WayOut = Callable[["Queue", Sequence[Taken], Reason], bool]
"""Removes messages that were taken off a queue, for example as dead letters; the last argument is
the reason (see `Reason`). Returns False if they had to be put back.
"""


class Queue:
    """A queue, under the name it was declared with.

    `owner` is the connection that an exclusive queue belongs to, and None for a shared one.
    `durable` is the declared value; an exclusive queue is transient whatever it says.
    Args: departures, counts what leaves it; way_out, called with messages that leave without being
    consumed; on_unused, called when the queue was unused for the time in its settings;
    on_set_aside, called when it has failed.
    """

    kind: ClassVar[str] = ""
    """The queue's row in the table of kinds, see `kinds`; empty for queues that clients declare."""

    backlog_type: ClassVar[type[Backlog]] = Backlog
    """The class of its backlog: how ready messages leave."""

    is_internal = False
    """Whether it is an exchange's own queue, which clients cannot consume from."""

    is_listed = True
    """Whether clients have declared it: only such are in lists, counts and quotas."""

    has_copies = False
    """Whether its messages are copies of others, whose loss is no loss."""

    counts_as_route = True
    """Whether a mandatory message that goes only there counts as routed."""

    def __init__(
        self,
        services: BrokerServices,
        store_queue: amqpstore.Queue,
        name: str,
        *,
        durable: bool,
        auto_delete: bool,
        arguments: dict[str, Any],
        owner: object = None,
        departures: QueueDepartures,
        way_out: WayOut,
        on_unused: Callable[[Queue], None],
        on_set_aside: Callable[[Queue, Exception], None],
    ) -> None:
        self.name = name
        self.durable = durable
        self.auto_delete = auto_delete
        self.arguments = arguments
        self.owner = owner
        self.settings = Settings()
        self.letter_strategy = self.settings.letter_strategy
        self.priorities = Priorities(
            services.store, store_queue, keeps_transient=is_quorum(arguments)
        )
        self.backlog = self.backlog_type(services, self, self.priorities, way_out)
        self.consumers = Dispatch(services, self)
        self.waiting = GetLine(self)
        self.pending_moves = PendingMoves(services, self)
        self.purges = Purges(services, self)
        self.history: KeepsConsumed | None = None
        """The history that keeps consumed messages; None if they are just removed."""
        self.letters: LettersQueue | None = None
        """The dead letters that wait in it; None if none has ever waited."""
        self.counters = DeliveryCounters()
        self.departures = departures
        self.unacked_count = 0
        """Messages that were delivered and are neither acked nor requeued."""
        self.unacked_sums = UnackedSums()
        self.is_deleted = False
        self.is_set_aside = False
        self._failure = ""
        self._has_new = False
        self._is_limited = False
        self._services = services
        self._agenda = services.agenda
        self._store = services.store
        self._on_set_aside = on_set_aside
        self.coming = self.coming_bytes = 0  # what will arrive once a transaction is durable
        self._unused = services.timers.timer(lambda: on_unused(self))

    @property
    def log_fields(self) -> dict[str, object]:
        """The fields of a line of the log about the queue."""
        return {"vhost": self.departures.vhost, "queue": self.name}

    def apply(self, settings: Settings) -> None:
        """Apply new settings. Call `enforce` afterwards to act on existing messages."""
        counted_before = self.settings.max_length_bytes is not None
        self.settings = settings
        self.letter_strategy = settings.letter_strategy
        self._is_limited = settings.is_limited
        with Contained(self):
            self.priorities.set_lazy(lazy=settings.queue_mode == "lazy")
            if settings.max_length_bytes is not None and not counted_before:
                self.backlog.count_bytes()

    def enforce(self) -> None:
        """Make existing messages fit the settings, once all queues have theirs."""
        if self.is_set_aside:
            return
        # New settings may give it a time after which it is deleted, or take it away.
        self.used()
        self.touch()
        with Contained(self):
            self.backlog.watch_expiry()
            self.backlog.drop_excess()
        if self.letters is not None:
            self.letters.look_again()

    @property
    def is_plain(self) -> bool:
        """Whether a published message only has to be appended to the lowest priority."""
        return self.settings.is_plain and not self.is_set_aside

    @property
    def appends(self) -> bool:
        """Whether a published message is only appended to the lowest priority; `appended` is to be
        called then, unless the queue is plain.
        """
        return self.settings.appends and not self.is_set_aside

    @property
    def ready_count(self) -> int:
        """The number of messages that wait for a consumer."""
        return self.priorities.ready_count

    @property
    def letter_count(self) -> int:
        """The number of dead letters that wait in it until others take them."""
        return 0 if self.letters is None else self.letters.ready_count

    def check_owner(self, connection: object, *, exclusive: bool | None = None) -> None:
        """Make sure that a connection may use the queue.

        Args: exclusive, whether it declares the queue as exclusive; None if it does not declare it.
        Raises: ResourceLockedError.
        """
        # queue.declare, rule `exclusive`: others get 405 RESOURCE_LOCKED, whatever they want from
        # it.
        if self.owner is not None and self.owner is not connection:
            raise ResourceLockedError(
                f"cannot obtain exclusive access to locked queue '{self.name}'; it was declared "
                "exclusive by another connection"
            )
        if exclusive is not None and exclusive is not (self.owner is not None):
            raise ResourceLockedError(
                f"cannot obtain exclusive access to locked queue '{self.name}'; it was declared "
                f"{'exclusive' if self.owner is not None else 'not exclusive'}"
            )

    def check_served(self, vhost: str) -> None:
        """Make sure that the queue is being served. Raises: SetAsideError."""
        if self.is_set_aside:
            raise SetAsideError(
                f"queue '{self.name}' in vhost '{vhost}' has failed and is set aside until the "
                f"broker starts again, with all that is in it: see the broker's log "
                f"({self._failure})"
            )

    # Consumers.

    def ack_timeout_ms(self, consumer: Consumer | None, default_ms: int) -> int:
        """Return how many ms a delivery to a consumer, or of a get, may stay unacked; 0 if for
        ever. Args: default_ms, where neither the consumer nor the queue says another.
        """
        own_ms = consumer.timeout_ms if consumer else None
        if own_ms is None:
            own_ms = self.settings.consumer_timeout
        return default_ms if own_ms is None else own_ms

    def add_consumer(self, consumer: Consumer) -> None:
        """Add a consumer. Raises: AccessRefusedError, when a consumer has, or asks for, the queue
        exclusively.
        """
        self.consumers.add(consumer)
        self._unused.set(0)
        self.touch()

    def used(self) -> None:
        """Restart the time after which an unused queue is deleted: it was declared, fetched from,
        or a consumer ended.
        """
        expires = self.settings.expires
        in_use = self.consumers or self.waiting
        idle = expires is not None and not (in_use or self.is_deleted or self.is_set_aside)
        now_ms = self._services.clock.monotonic_ms()
        self._unused.set(now_ms + expires if idle and expires is not None else 0)

    def fetched_from(self) -> None:
        """Note that somebody is about to fetch a message: none that should have left before."""
        self.used()
        self._services.moves.are_paused = False
        if self in self._agenda.late_drops:
            self.drop_late()
        self.backlog.expire()

    def touch(self) -> None:
        """Have `pump` called at the end of this round."""
        self._agenda.touched[self] = None

    def go_on_later(self) -> None:
        """Have `pump` called in a later round, which has a budget to move and drop messages."""
        self._agenda.unfinished[self] = None

    def catch_up(self) -> None:
        """Do the work of the round's end now, so that counts are right.

        A waiting consumer gets the messages that arrived before a get or a count that follows them.
        """
        agenda = self._agenda
        if agenda.freed:
            agenda.touch_freed()
        waiting = (agenda.touched, agenda.arrivals, agenda.unfinished, agenda.late_drops)
        if any(self in line for line in waiting):
            agenda.touched.pop(self, None)
            agenda.arrivals.pop(self, None)
            self._services.moves.are_paused = False  # somebody asks what is in it
            self.pump()

    def pump(self, *, yields: bool = False) -> None:
        """Hand out ready messages while consumers can take them.

        Args: yields, whether consumers that share the limit of their channel leave part of it to
        the other queues that they consume from: the rest follows in the next `pump`.
        """
        if self.is_deleted or self.is_set_aside:
            # The queue may have been touched in this round, before it was deleted.
            return
        if not yields and self._agenda.freed:
            self._agenda.touch_freed()
        # As `Contained` does it: this is the hot path.
        try:
            self._pump(yields=yields)
        except FATAL:
            raise
        except Exception as error:  # noqa: BLE001
            self.set_aside(error)

    def _pump(self, *, yields: bool) -> None:
        backlog = self.backlog
        if self._is_limited and self in self._agenda.late_drops:
            self.drop_late()
        if self._has_new:
            self._has_new = False
            self._hand_out()  # before anything is dropped: see `arrived`
        if backlog.expiry.due_ms or backlog.has_expired:
            backlog.expire()
        if self.pending_moves.line:
            self.pending_moves.pump()
        # Consumers must be offered messages before any is dropped, so this cannot wait for a round.
        settings = self.settings
        if (
            settings.dead_letter_exchange is None and settings.max_length_bytes is None
        ) or not backlog.is_late:
            is_full = self._is_limited and backlog.excess > 0
            if self.consumers.consumers or self.waiting.gets:
                self._hand_out(yields=yields and not is_full)
        if self._is_limited:
            backlog.drop_excess()

    def _hand_out(self, *, yields: bool = False) -> None:
        """Serve waiting gets first, then the consumers: each get takes one message."""
        # A consumed message needs a copy in the history: without room for that it is not handed
        # out.
        if self.history is not None and not self._services.moves.has_room:
            self._services.moves.wait_for_room(self.touch)
            return
        moves_on = self.history is not None or self.settings.dead_letter_exchange is not None
        if moves_on and self.pending_moves.is_long:
            # Clients settle faster than messages can move: it touches the queue until they have.
            return
        if self.waiting.gets:
            self.waiting.pump()
            if self.backlog.is_reading:
                return
        if self.consumers.consumers:
            self.consumers.pump(yields=yields)

    # Arrival.

    def placement(
        self, envelope: ParsedEnvelope, messages: Sequence[Message], *, immediate: bool
    ) -> Placement:
        """Return where messages that are alike go, when they expire, and how many of them are
        accepted.

        If the answer depends on earlier messages, call it after `pump` has handed those out.
        """
        placement = self.unlimited_placement(envelope)
        # A queue that is set aside refuses messages: it is not served before the next start.
        if self.is_set_aside:
            return placement._replace(most=0)
        if immediate or self.settings.rejects:
            largest = max([len(message.body) for message in messages])
            able = 0
            # What is ready is first in line for these consumers.
            if not self.ready_count:
                able = self.waiting.able_count + self.consumers.capacity(largest)
            most = able if immediate else fitting(self, messages, able)
            placement = placement._replace(most=most)
        return placement

    def unlimited_placement(self, envelope: ParsedEnvelope) -> Placement:
        """Return where a message goes that is accepted even if the queue is full, and when it
        expires.
        """
        expires_ms = self._expires_ms(envelope)
        return Placement(self._store_queue(envelope, expires_ms), expires_ms)

    def arrived(
        self, messages: Sequence[Message], placement: Placement, *, drops_later: bool = False
    ) -> None:
        """Note that messages were placed as `placement` says, and are ready.

        Args: drops_later, whether what is too much now is dropped in a later round, though before
        anything else is done with the queue: they went to many queues.
        """
        # Where nothing has to leave, the round's end does the rest.
        if self._count_in(messages, placement):
            self._make_room(len(messages), drops_later=drops_later)

    def appended(self, messages: Sequence[Message], byte_count: int, *, drops_later: bool) -> None:
        """Do as `arrived`, where it `appends`. Args: byte_count, of the bodies."""
        if self.settings.max_length_bytes is not None:
            self.backlog.ready_bytes += byte_count
        if self.consumers.consumers or self.waiting.gets:
            self.touch()
        elif drops_later:
            if self.backlog.excess:
                self._drop_later(len(messages))
            return
        if self.backlog.excess:
            self._make_room(len(messages), drops_later=drops_later)

    def _make_room(self, count: int, *, drops_later: bool) -> None:
        """Let expired messages and those beyond the limits leave, of which `count` are new."""
        with Contained(self):
            # Consumers that can take it at once get it before anything is dropped: with a length or
            # TTL of 0 no message would pass otherwise.
            if self._agenda.freed:
                self._agenda.touch_freed()
            self._hand_out()
            self.backlog.expire()
            if drops_later:
                self._drop_later(count)
            else:
                self.backlog.drop_excess(count)

    def _drop_later(self, count: int) -> None:
        late = self._agenda.late_drops
        late[self] = late.get(self, 0) + count

    def drop_late(self) -> None:
        """Drop what is too much since publishes to many queues."""
        count = self._agenda.late_drops.pop(self, 0)
        with Contained(self):
            self.backlog.drop_excess(count)

    def moved_in(self, messages: Sequence[Message], placement: Placement) -> None:
        """Note that messages moved in from other queues; unlike after `arrived`, the queue handles
        them in its turn.

        At once would be in the middle of the work of the queue that they left, and recursive along
        a chain of any length.
        """
        self._has_new |= self._count_in(messages, placement)

    def _count_in(self, messages: Sequence[Message], placement: Placement) -> bool:
        """Count new messages. Returns whether older ones may have to leave because of them."""
        if self.is_set_aside:
            return False
        self.touch()
        if self.is_plain and not placement.expires_ms:
            return False
        accepted = messages if placement.most is None else messages[: placement.most]
        # Only what was accepted counts: a queue that rejects takes the first ones that fit.
        self.backlog.arrived(accepted, placement.expires_ms)
        is_due = 0 < placement.expires_ms <= self._services.clock.wall_ms()
        return is_due or self.backlog.excess > 0

    def expect(self, count: int, byte_count: int) -> None:
        """Count messages that will arrive once a transaction is durable, with the bytes of their
        bodies; negative numbers take them off the count.
        """
        self.coming += count
        self.coming_bytes += byte_count

    @property
    def is_expecting(self) -> bool:
        """Whether messages of a transaction will arrive."""
        return self.coming > 0

    @property
    def dead_letters_refused(self) -> bool:
        """Whether messages that are refused because it is full become dead letters."""
        return self.settings.overflow == REJECT_PUBLISH_DLX and not self.is_set_aside

    def _store_queue(self, envelope: ParsedEnvelope, expires_ms: int) -> amqpstore.Queue:  # noqa: ARG002
        """Return the store queue of a message that arrives now."""
        return self.priorities.at(min(envelope.priority, self.settings.max_priority))

    def _expires_ms(self, envelope: ParsedEnvelope) -> int:
        """Return when a message that arrives now expires; 0 is never."""
        ttl = self.settings.message_ttl
        if envelope.expiration_ms is not None:
            # The smaller one holds, as in RabbitMQ.
            ttl = envelope.expiration_ms if ttl is None else min(ttl, envelope.expiration_ms)
        return 0 if ttl is None else self._services.clock.wall_ms() + ttl

    # Settling of deliveries.

    def ack(self, taken: Taken) -> None:
        """Remove a run that was acked."""
        try:
            if self.history is None:
                self._store.ack(taken.store_queue, taken.run)
            else:
                self.pending_moves.add(taken, self._consumed, is_acked=True)
        except FATAL:
            raise
        except Exception as error:  # noqa: BLE001
            self.set_aside(error)

    def _consumed(self, taken: Taken) -> bool:
        """Move a run that was acked to the history."""
        if self.history is not None:
            self.history.consumed(self, taken)
        else:
            self._store.ack(*taken)
        return True

    def requeue(self, taken: Taken, giver: object) -> None:
        """Return a run to its place; `giver` gets it again only if there is no other consumer."""
        store_queue, run = taken
        if self.is_deleted:
            # Its messages went with the queue: this only releases the run.
            self._store.ack(store_queue, run)
            return
        limit = self.settings.delivery_limit
        if limit is not None and run.delivery_count + 1 > limit:
            run.delivery_count += 1
            self._remove_settled(taken, Reason.DELIVERY_LIMIT)
            return
        run.returned_by = giver
        with Contained(self):
            self.backlog.requeue(taken)
            self.touch()

    def reject(self, taken: Taken) -> None:
        """Drop a rejected run, or make it a dead letter."""
        if self.is_deleted:
            self._store.ack(*taken)
            return
        # It was delivered: if it cannot leave now, it must be marked as redelivered when it comes
        # again.
        taken.run.delivery_count += 1
        self._remove_settled(taken, Reason.REJECTED)

    def _remove_settled(self, taken: Taken, reason: Reason) -> None:
        """Remove a run that a consumer had: at once, if it goes to no other queue."""
        backlog = self.backlog
        if self.is_set_aside or not (self.pending_moves or self.sends_on):
            if not backlog.send_away([taken], reason):
                self.touch()
            return
        self.pending_moves.add(taken, lambda one: backlog.send_away([one], reason))

    def redeliver(self, taken: Taken) -> bool:
        """Deliver an unacked run to its consumer once more.

        Returns False if that exceeds the delivery limit: the run has left the queue then.
        """
        limit = self.settings.delivery_limit
        if limit is not None and taken.run.delivery_count + 1 > limit:
            # These messages leave by the delivery limit, as dead letters if the queue has an
            # exchange for them.
            self.requeue(taken, None)
            return False
        self._store.redeliver(taken.store_queue, taken.run)
        return True

    def bring_back(self, taken: Taken) -> tuple[Taken | None, Taken | None]:
        """Read the messages of an unacked run: returns the part that was read, and the rest.

        The first is None if a message is damaged and in quarantine, or cannot be read now; in the
        second case the run is back in its queue, and there is no rest.
        """
        part, rest = self._store.stored.bring_back(*taken)
        if isinstance(part, ReadLaterError):
            self.requeue(taken, None)
            return None, None
        left = None if rest is None else taken._replace(run=rest)
        if isinstance(part, MessageDamagedError):
            return None, left
        return taken._replace(run=part), left

    # Deletion and failure.

    @property
    def held_count(self) -> int:
        """The number of messages in the queue: ready, unacked, those that are about to leave or
        that cannot be read, and those of transactions that are not durable yet.
        """
        unreadable = sum([one.quarantined.count + one.unreadable_count for one in self.priorities])
        held = self.ready_count + self.unacked_count + self.coming
        return held + self.pending_moves.uncounted + unreadable

    def closed(self) -> None:
        """Clean up after the queue was deleted."""
        self.is_deleted = True
        self.pending_moves.forget()
        self.purges.forget()
        # Both refer to this queue: without a cycle it is freed at once.
        self.history = self.letters = None
        self._stop()

    def set_aside(self, error: Exception) -> None:
        """Stop serving the queue until the next start, because it has failed. Its messages stay in
        it.
        """
        if self.is_set_aside:
            return
        self.is_set_aside = True
        self._failure = f"{type(error).__name__}: {error}"
        self.pending_moves.put_back_all()
        self._stop()
        self._on_set_aside(self, error)

    def _stop(self) -> None:
        """Stop all activity of the queue."""
        self.backlog.stop_timers()
        self._agenda.late_drops.pop(self, None)
        self._unused.end()
        self.waiting.answer_all()

    def came_back(self, count: int) -> None:
        """Count messages that could not be read as ready again, in their places."""
        _log.info("messages can be read again", extra={**self.log_fields, "count": count})
        if self.is_deleted or self.is_set_aside:
            return
        with Contained(self):
            if self.settings.max_length_bytes is not None:
                # Their properties may have been unknown when they left.
                self.backlog.count_bytes()
        self.enforce()

    @property
    def sends_on(self) -> bool:
        """Whether messages that leave without being consumed go elsewhere."""
        return self.settings.dead_letter_exchange is not None
