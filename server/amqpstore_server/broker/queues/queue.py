"""A queue of a virtual host: its settings, who may use it, what it takes in, and what becomes of
what it delivered.

What is ready is in its `backlog`; who gets it is decided by `dispatch` and, for gets, by `waiting`,
which take it from there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import amqpstore
from amqpstore import Message, MessageDamagedError, Placement, ReadLaterError
from amqpstore_server.broker.context import BrokerContext
from amqpstore_server.broker.errors import ResourceLockedError, SetAsideError
from amqpstore_server.broker.faults import Contained
from amqpstore_server.broker.messages.deaths import Reason
from amqpstore_server.broker.queues.backlog import Backlog, Taken
from amqpstore_server.broker.queues.dispatch import Dispatch
from amqpstore_server.broker.queues.leaving import Leaving
from amqpstore_server.broker.queues.priorities import Priorities
from amqpstore_server.broker.queues.waiting import QueueLine
from amqpstore_server.broker.settings import REJECT_PUBLISH_DLX, Settings, is_quorum

if TYPE_CHECKING:
    from amqpstore_server.broker.messages.envelope import ParsedEnvelope
    from amqpstore_server.broker.queues.consumer import Consumer

_log = logging.getLogger(__name__)


class KeepsConsumed(Protocol):
    """Where what is consumed from a queue goes: its history."""

    @property
    def queue(self) -> Queue:
        """The queue that keeps it."""

    def consumed(self, queue: Queue, taken: Taken) -> None:
        """Ack a run that was taken off the queue: it is in the history from then on."""

    def copies(self, taken: Taken) -> Iterator[tuple[ParsedEnvelope, list[Message], Placement]]:
        """What is to be in the history of a run that a transaction acks."""


Bury = Callable[["Queue", Sequence[Taken], Reason], bool]
"""What is done with messages that leave a queue: they are the queue's, taken off, and the last
argument says why (see `Reason`). Returns False where they had to be put back."""


class Queue:
    """A queue, under the name it was declared with.

    `owner` is the connection that an exclusive queue belongs to, and None for a shared one.
    `durable` is what was declared; an exclusive queue acts transient whatever it says.
    Args: bury, for messages that leave it without a consumer; on_unused, called when nobody has
    used it for the time that its settings say; on_set_aside, when it has failed.
    """

    kind: ClassVar[str] = ""
    """Which row of the table of kinds it is, see `kinds`; empty for one that a client declares."""

    backlog_type: ClassVar[type[Backlog]] = Backlog
    """How what is ready in it leaves."""

    is_internal = False
    """Whether it is an exchange's own, that no client may consume from."""

    counts_as_route = True
    """Whether a mandatory message that goes there alone is not returned."""

    def __init__(
        self,
        context: BrokerContext,
        stored: amqpstore.Queue,
        name: str,
        *,
        durable: bool,
        auto_delete: bool,
        arguments: dict[str, Any],
        owner: object = None,
        bury: Bury,
        on_unused: Callable[[Queue], None],
        on_set_aside: Callable[[Queue, Exception], None],
    ) -> None:
        self.name = name
        self.durable = durable
        self.auto_delete = auto_delete
        self.arguments = arguments
        self.owner = owner
        self.settings = Settings()
        self.priorities = Priorities(context.store, stored, keeps_transient=is_quorum(arguments))
        self.backlog = self.backlog_type(context, self, self.priorities, bury)
        self.consumers = Dispatch(self)
        self.waiting = QueueLine(self)
        self.leaving = Leaving(context, self)
        self.history: KeepsConsumed | None = None
        """Where what was consumed goes; None where it is just gone."""
        self.is_deleted = False
        self.is_set_aside = False
        self._failure = ""
        self._has_new = False
        self._context = context
        self._store = context.store
        self._on_set_aside = on_set_aside
        self._coming = self._coming_bytes = 0
        self._unused = context.timers.timer(lambda: on_unused(self))

    def apply(self, settings: Settings) -> None:
        """Have other settings from now on. What they change comes with `enforce`."""
        counted_before = self.settings.max_length_bytes is not None
        self.settings = settings
        with Contained(self):
            self.priorities.set_lazy(lazy=settings.queue_mode == "lazy")
            if settings.max_length_bytes is not None and not counted_before:
                self.backlog.count_bytes()

    def enforce(self) -> None:
        """Make what is there fit the settings, once all queues have theirs."""
        if self.is_set_aside:
            return
        self.used()
        self.touch()
        with Contained(self):
            self.backlog.watch_expiry()
            self.backlog.drop_excess()

    @property
    def is_plain(self) -> bool:
        """Whether what is published needs no more than to be appended to level 0."""
        return self.settings.is_plain and not self.is_set_aside

    @property
    def ready_count(self) -> int:
        """Messages that wait for a consumer."""
        return self.priorities.ready_count

    def check_owner(self, connection: object, *, exclusive: bool | None = None) -> None:
        """Make sure that a connection may use the queue.

        Args: exclusive, whether it declares the queue as its own; None where it does not say.
        Raises: ResourceLockedError.
        """
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
        """Raises: SetAsideError."""
        if self.is_set_aside:
            raise SetAsideError(
                f"queue '{self.name}' in vhost '{vhost}' has failed and is set aside until the "
                f"broker starts again, with all that is in it: see the broker's log "
                f"({self._failure})"
            )

    # Consumers.

    def add_consumer(self, consumer: Consumer) -> None:
        """Raises: AccessRefusedError, when a consumer has, or wants, the queue for itself."""
        self.consumers.add(consumer)
        self._unused.set(0)
        self.touch()

    def used(self) -> None:
        """Somebody did what keeps it from being unused: declared it, fetched, or left."""
        expires = self.settings.expires
        in_use = self.consumers or self.waiting
        idle = expires is not None and not (in_use or self.is_deleted or self.is_set_aside)
        now_ms = self._context.clock.monotonic_ms()
        self._unused.set(now_ms + expires if idle and expires is not None else 0)

    def touch(self) -> None:
        """Have `pump` called at the end of this turn."""
        self._context.touched[self] = None

    def catch_up(self) -> None:
        """Do now what the end of this turn would do, so that counts are right.

        A consumer that waits has what came before a get or a count that came behind it.
        """
        if self in self._context.touched:
            del self._context.touched[self]
            self.pump()

    def pump(self, *, in_turns: bool = False) -> None:
        """Hand out what is ready, while anybody can take it.

        Args: in_turns, whether those that share the limit of their channel leave some of it to the
        other queues that they consume from: the rest comes with the next `pump`.
        """
        if self.is_deleted or self.is_set_aside:
            return
        with Contained(self):
            if self._has_new:
                self._has_new = False
                self._hand_out()  # before anything is dropped: see `arrived`
            self.backlog.expire()
            self.leaving.pump()
            # Nothing is dropped that anybody could still take, so that cannot wait for a turn.
            self._hand_out(in_turns=in_turns and not self.backlog.excess)
            self.backlog.drop_excess()

    def _hand_out(self, *, in_turns: bool = False) -> None:
        """Gets that wait are first: each has one message, and is gone."""
        if self.history is not None and not self._context.has_room:
            self._context.wait_for_room(self.touch)
            return
        if self.waiting:
            self.waiting.pump()
        self.consumers.pump(in_turns=in_turns)

    # What comes in.

    def placement(
        self, envelope: ParsedEnvelope, messages: Sequence[Message], *, immediate: bool
    ) -> Placement:
        """Where messages that are alike go, when they expire, and how many it takes of them.

        To be asked once `pump` has handed out what came before, where the answer depends on it.
        """
        place = self.place_for(envelope)
        if self.is_set_aside:
            return place._replace(most=0)
        if immediate or self.settings.rejects:
            largest = max([len(message.body) for message in messages])
            able = 0
            if not self.ready_count:
                able = self.waiting.able_count + self.consumers.capacity(largest)
            place = place._replace(most=able if immediate else self._room(messages, able))
        return place

    def place_for(self, envelope: ParsedEnvelope) -> Placement:
        """Where messages go that it takes in however full it is, and when they expire."""
        expires_ms = self._expires_ms(envelope)
        return Placement(self._level(envelope, expires_ms), expires_ms)

    def arrived(self, messages: Sequence[Message], placement: Placement) -> None:
        """Messages were placed as `placement` said, and are ready."""
        if self._count_in(messages, placement):
            with Contained(self):
                # Whoever can take it at once does, before anything is dropped: with a length of 0,
                # or a TTL of 0, that is the only way through.
                self._hand_out()
                self.backlog.expire_until(self._context.clock.wall_ms())
                self.backlog.drop_excess()

    def moved_in(self, messages: Sequence[Message], placement: Placement) -> None:
        """As `arrived`, of messages from other queues: it sees to them when it has its turn.

        At once would be in the middle of the work of the queue that they left, and so on in a
        chain of any length.
        """
        self._has_new |= self._count_in(messages, placement)

    def _count_in(self, messages: Sequence[Message], placement: Placement) -> bool:
        """Count new messages. Returns whether some of what is here may have to leave for it."""
        if self.is_set_aside:
            return False
        self.touch()
        if self.is_plain and not placement.expires_ms:
            return False
        placed = messages if placement.most is None else messages[: placement.most]
        self.backlog.arrived(placed, placement.expires_ms)
        return self.settings.is_limited or 0 < placement.expires_ms <= self._context.clock.wall_ms()

    def expect(self, messages: Sequence[Message], placement: Placement, sign: int = 1) -> None:
        """Messages will arrive once a transaction is durable; with a sign of -1, they do not."""
        placed = messages if placement.most is None else messages[: placement.most]
        self._coming += sign * len(placed)
        self._coming_bytes += sign * sum([len(message.body) for message in placed])

    @property
    def buries_refused(self) -> bool:
        """Whether messages that it has no room for become dead letters."""
        return self.settings.overflow == REJECT_PUBLISH_DLX and not self.is_set_aside

    def _level(self, envelope: ParsedEnvelope, expires_ms: int) -> amqpstore.Queue:  # noqa: ARG002
        """Where a message goes that comes now."""
        return self.priorities.at(min(envelope.priority, self.settings.max_priority))

    def _expires_ms(self, envelope: ParsedEnvelope) -> int:
        """When a message that comes now expires; 0 is never."""
        ttl = self.settings.message_ttl
        if envelope.expiration_ms is not None:
            ttl = envelope.expiration_ms if ttl is None else min(ttl, envelope.expiration_ms)
        return 0 if ttl is None else self._context.clock.wall_ms() + ttl

    def _room(self, messages: Sequence[Message], able: int) -> int:
        """How many messages it takes before it is full; `able` of them leave it at once."""
        settings = self.settings
        count = len(messages)
        if settings.max_length is not None:
            room = settings.max_length - self.ready_count - self._coming
            count = min(count, max(room, 0) + able)
        if settings.max_length_bytes is not None:
            room = settings.max_length_bytes - self.backlog.ready_bytes - self._coming_bytes
            for place in range(able, count):
                room -= len(messages[place].body)
                if room < 0:
                    return place
        return count

    # What becomes of what was delivered.

    def ack(self, taken: Taken) -> None:
        """The run is done with."""
        with Contained(self):
            if self.history is None:
                self._store.ack(taken.level, taken.run)
            elif self.leaving or taken.run.messages is None:
                self.leaving.add(taken, self._consumed)
            else:
                self.history.consumed(self, taken)

    def _consumed(self, taken: Taken) -> bool:
        """A run that was acked some time ago leaves for the history."""
        if self.history is not None:
            self.history.consumed(self, taken)
        else:
            self._store.ack(*taken)
        return True

    def requeue(self, taken: Taken, giver: object) -> None:
        """The run goes back to its place; `giver` gets it again only where there is nobody else."""
        level, run = taken
        if self.is_deleted:
            self._store.ack(level, run)
            return
        limit = self.settings.delivery_limit
        if limit is not None and run.delivery_count + 1 > limit:
            run.delivery_count += 1
            self._leave(taken, Reason.DELIVERY_LIMIT)
            return
        run.returned_by = giver
        with Contained(self):
            self.backlog.requeue(taken)
            self.touch()

    def reject(self, taken: Taken) -> None:
        """The run is not wanted: it becomes a dead letter, or is dropped."""
        if self.is_deleted:
            self._store.ack(*taken)
            return
        # It was delivered: where it cannot leave now, it has to say so when it comes again.
        taken.run.delivery_count += 1
        self._leave(taken, Reason.REJECTED)

    def _leave(self, taken: Taken, reason: Reason) -> None:
        """Have a run that a consumer had leave: at once, where nothing has to be read for it."""
        needs_bodies = taken.run.messages is None and self.sends_on
        if self.is_set_aside or not (self.leaving or needs_bodies):
            if not self.backlog.send_away(taken, reason):
                self.touch()
            return
        self.leaving.add(taken, partial(self.backlog.send_away, reason=reason))

    def redeliver(self, taken: Taken) -> bool:
        """The run, which is unacked, is delivered to who has it once more.

        Returns False where that would be too often: it is gone then.
        """
        limit = self.settings.delivery_limit
        if limit is not None and taken.run.delivery_count + 1 > limit:
            self.requeue(taken, None)
            return False
        self._store.redeliver(taken.level, taken.run)
        return True

    def bring_back(self, taken: Taken) -> tuple[Taken | None, Taken | None]:
        """A run that is unacked, with its messages: as much of it as comes, and the rest.

        None for the first where a message cannot be read, and is in quarantine; or cannot be read
        now: the run is in its queue again then, and there is no rest.
        """
        part, rest = self._store.bring_back(*taken)
        if isinstance(part, ReadLaterError):
            self.requeue(taken, None)
            return None, None
        left = None if rest is None else taken._replace(run=rest)
        if isinstance(part, MessageDamagedError):
            extra = {"queue": self.name, "reason": str(part)}
            _log.error("some messages cannot be read; the others are served", extra=extra)
            return None, left
        return taken._replace(run=part), left

    # Its end.

    def closed(self) -> None:
        """It was deleted."""
        self.is_deleted = True
        self.leaving.forget()
        self.history = None
        self._rest()

    def set_aside(self, error: Exception) -> None:
        """Stop serving the queue until the next start, because it has failed. Its messages stay in
        it."""
        if self.is_set_aside:
            return
        self.is_set_aside = True
        self._failure = f"{type(error).__name__}: {error}"
        self.leaving.stay()
        self._rest()
        self._on_set_aside(self, error)

    def _rest(self) -> None:
        """Nothing is to be done from now on."""
        self.backlog.rest()
        self._unused.set(0)
        self.waiting.dissolve()

    def came_back(self, count: int) -> None:
        """Messages that could not be read are ready again, in their places."""
        _log.info("messages can be read again", extra={"queue": self.name, "count": count})
        if self.is_deleted or self.is_set_aside:
            return
        with Contained(self):
            if self.settings.max_length_bytes is not None:
                # It was perhaps not known what they had when they left.
                self.backlog.count_bytes()
        self.enforce()

    @property
    def sends_on(self) -> bool:
        """Whether what leaves it without a consumer goes elsewhere."""
        return self.settings.dead_letter_exchange is not None
