"""The input of one connection: the events of its reads, and how many of them are handled before
others have their turn.

What is not handled waits: for others, for the client to read, or for the end of an alarm. The
connection is passed with each call and not kept, so that it is freed as soon as it has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from amqpstore import DiskFullError
from amqpstore_server.amqp.channel import AmqpChannel
from amqpstore_server.amqp.held_publishes import HeldPublishes
from amqpstore_server.amqp.refusals import refusal_of
from amqpstore_server.amqp.session import Session, Unfinished
from amqpstore_server.broker.channels.local_transaction import UncommittedBytes
from amqpstore_server.broker.errors import BrokerError
from amqpstore_server.broker.monitoring.faults import FATAL, called
from amqpstore_server.broker.work.services import BrokerServices
from amqpstore_server.clients.client_log import ClientLog
from amqpstore_server.clients.outbox import MAX_UNREAD_BYTES, Outbox
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.errors import AmqpError
from amqpstore_server.protocol.events import (
    Acks,
    Event,
    Failed,
    MoreFrames,
    Publishes,
    ReceivedMethod,
)
from amqpstore_server.protocol.receiver import Receiver
from amqpstore_server.protocol.states import ChannelState

_METHODS_AT_ONCE = 32
"""Methods, besides publishes and acks, that are handled before others have their turn."""

_EVENTS_AT_ONCE = 256
"""Events of one read that are handled before others have their turn. Acks of neighbouring tags are
one event, and so are consecutive publishes of a channel.
"""

_ENTRIES_AT_ONCE = 4096
"""Entries of tables that are looked at and handled before others have their turn. Events with more
are handled in a turn of their own, and the frames behind them after that.
"""

_OPEN = ChannelState.OPEN  # looked up once: members of an enum are slow to look up

_DEFINING = (methods.ExchangeDeclare.class_id, methods.QueueDeclare.class_id)
"""The classes of methods that change definitions."""


class EventHandler(Protocol):
    """The connection, for its input."""

    @property
    def log(self) -> ClientLog: ...

    @property
    def session(self) -> Session | None:
        """The channels, while the connection is open."""

    def handle(self, method: methods.Method) -> None:
        """Handle a method of channel 0. Raises: AmqpError."""

    def fail_received(self, failed: Failed, now: float) -> None:
        """Handle an error in what was received."""

    def fail(self, failed: Failed, now: float) -> None:
        """Close the channel or the connection because of an error of the client's."""

    def break_off(self) -> None:
        """Close the connection after an internal error."""

    def exhaust(self, reason: str, now: float) -> None:
        """Close the connection because its unfinished publishes take too much memory."""


class Input:
    """The input of one connection.

    Args: transacted, the memory of its open transactions; max_unfinished_bytes, of them and of
    partial bodies.
    """

    def __init__(
        self,
        receiver: Receiver,
        outbox: Outbox,
        transacted: UncommittedBytes,
        max_unfinished_bytes: int,
        services: BrokerServices,
    ) -> None:
        self.waiting: list[Event | MoreFrames | Unfinished] = []
        """Events of earlier reads that are not handled yet."""
        self.held = HeldPublishes()
        """Methods that wait for the end of an alarm, until `release_held`."""
        self.must_not_be_read = False
        """Whether so much is held that no more is to be read before `release_held`."""
        self.has_published = False
        self.has_defined = False
        """Whether it has changed definitions since this was last set to False."""
        self.message_count = 0
        """Methods and messages that the client has sent."""
        self._receiver = receiver
        self._outbox = outbox
        self._transacted = transacted
        self._max_unfinished_bytes = max_unfinished_bytes
        self._services = services
        self._unfinished: Unfinished | None = None

    @property
    def unfinished_bytes(self) -> int:
        """Bytes held for unfinished publishes: partial bodies, open transactions, and what waits
        for the end of an alarm.
        """
        contents = self._receiver.contents
        return contents.memory_bytes + self._transacted.byte_count + self.held.byte_count

    def hold(self, events: Sequence[Event | MoreFrames]) -> list[Event | MoreFrames]:
        """Hold what may not be handled during an alarm. Returns the other events."""
        held = self.held
        others: list[Event | MoreFrames] = []
        for event in events:
            if type(event) is Publishes:
                self.has_published = True
                held.add(event)
            # Before the first publish nothing has to wait.
            elif type(event) is MoreFrames or not held.events or not held.holds(event):
                others.append(event)
        return others

    def release_held(self) -> None:
        """Have what was held handled next, now that the alarm is over."""
        self.must_not_be_read = False
        # What has begun goes on first: nothing else may be done on its channel before its end.
        begun = 1 if self.waiting and isinstance(self.waiting[0], Unfinished) else 0
        self.waiting[begun:begun] = self.held.release()

    def drop(self) -> None:
        """Forget all that waits: the connection is not open any more."""
        self.waiting = []
        self.held.release()
        self.must_not_be_read = False
        self._unfinished = None

    def handle(
        self,
        events: Sequence[Event | MoreFrames | Unfinished],
        connection: EventHandler,
        now: float,
    ) -> None:
        """Handle events, until the others have to wait: that may be before the first, if to look at
        the read has taken long.
        """
        received = self._receiver.received
        # The tables were looked at by now, and that took milliseconds: handling them is for the
        # next turn.
        if received.entry_count > _ENTRIES_AT_ONCE:
            received.entry_count = 0
            self.waiting = [*events]
            return
        published: set[AmqpChannel] = set()
        outbox = self._outbox
        methods_left = _METHODS_AT_ONCE
        is_defining = False
        for index, event in enumerate(events):
            if index and (
                outbox.byte_count > MAX_UNREAD_BYTES
                or not methods_left
                or index == _EVENTS_AT_ONCE
                or self._unfinished is not None
            ):
                self.waiting = [*events[index:]]
                break
            if type(event) is Publishes:
                self.has_published = True
                self.message_count += len(event.bodies)
            elif type(event) is Acks:
                self.message_count += event.last - event.first + 1
                methods_left -= event.multiple
            else:
                # A get, a delete or a close has to find what was published before it.
                self._services.deferred.flush()
                if type(event) is ReceivedMethod:
                    self.message_count += 1
                    methods_left -= 1
                    is_defining = self._is_defining(event.method, is_defining)
                elif type(event) is MoreFrames:
                    self.waiting = [event]
                    break
            self._handle(event, connection, published, now)
        if self._unfinished is not None:
            self.waiting.insert(0, self._unfinished)
            self._unfinished = None
        if is_defining:
            self.has_defined = True
            # One commit of the catalog for all declares of a read: a client that declares a
            # thousand queues waits for a few syncs. Their answers leave after it.
            self._services.commit_definitions()
        for channel in published:
            called(channel.confirm_published, channel.failed)
        if self._receiver.contents or self._transacted.byte_count:
            self._check_unfinished(connection, now)

    def _is_defining(self, method: methods.Method, was_defining: bool) -> bool:
        """Note a method before it is handled. Returns whether it, or one before it in the same
        read, changes definitions, which are then stored together.
        """
        services = self._services
        services.work[method.name] = None
        if was_defining or method.class_id not in _DEFINING:
            return was_defining
        services.store.definitions.begin_group()
        return True

    def _handle(
        self,
        event: Event | Unfinished,
        connection: EventHandler,
        published: set[AmqpChannel],
        now: float,
    ) -> None:
        try:
            if type(event) is Failed:
                connection.fail_received(event, now)
            elif type(event) is ReceivedMethod and not event.channel:
                connection.handle(event.method)
            elif (session := connection.session) is not None:
                if type(event) is not Publishes:
                    self._unfinished = session.handle(event, published)
                elif (channel := session.by_number.get(event.channel)) and channel.state is _OPEN:
                    rest = channel.publish(event, published)
                    self._unfinished = None if rest is None else Unfinished(event, rest)
                else:
                    session.check_known(event.channel)
        except (AmqpError, BrokerError, DiskFullError) as raised:
            # No local name may hold the refusal: it can be the error itself, whose traceback holds
            # this frame, and the connection would live until the next garbage collection.
            cause = event.event if isinstance(event, Unfinished) else event
            connection.fail(Failed(event.channel, refusal_of(cause, raised)), now)
        except FATAL:
            raise
        except Exception:
            # An internal error costs this client its connection, and does not affect others.
            connection.log.exception("connection failed")
            connection.break_off()

    def _check_unfinished(self, connection: EventHandler, now: float) -> None:
        """Count a client that is in the middle of a publish as one that has published, and make
        sure that it does not take too much memory.
        """
        self.has_published = True
        unfinished_bytes = self._receiver.contents.memory_bytes + self._transacted.byte_count
        if unfinished_bytes > self._max_unfinished_bytes:
            connection.exhaust(f"the limit of a connection is {self._max_unfinished_bytes}", now)
