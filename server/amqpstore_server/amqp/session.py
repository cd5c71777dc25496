"""The open connection: its channels, and the methods that clients send on them.

A channel follows its table in `protocol.states`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, final

from amqpstore_server.amqp.channel import AmqpChannel
from amqpstore_server.amqp.context import ChannelContext
from amqpstore_server.amqp.refusals import channel_close
from amqpstore_server.broker.monitoring.audit import By, audit_refusal
from amqpstore_server.broker.rights.quotas import Usage
from amqpstore_server.broker.work.events import BrokerEvent
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.errors import (
    AccessRefused,
    AmqpError,
    ChannelError,
    ChannelException,
    CommandInvalid,
    NotAllowed,
)
from amqpstore_server.protocol.events import Acks, Publishes, ReceivedMethod
from amqpstore_server.protocol.frames import method_frame
from amqpstore_server.protocol.states import (
    CHANNEL,
    CHANNEL_METHODS,
    CONNECTION_CLASS,
    ChannelEvent,
    ChannelState,
)

# Looked up once: see `AmqpConnection`.
_OPEN = ChannelState.OPEN


@final
class Unfinished(NamedTuple):
    """The rest of an event that takes several turns: each step of `rest` is one."""

    event: Publishes | Acks | ReceivedMethod
    rest: Iterator[None]

    @property
    def channel(self) -> int:
        """The number of its channel."""
        return self.event.channel


class Session:
    """The channels of one connection, from connection.open-ok until either side closes it."""

    def __init__(
        self, context: ChannelContext, channel_max: int, max_consumers: int, usage: Usage
    ) -> None:
        self.context = context
        self._channel_max = channel_max
        self._max_consumers = max_consumers
        self._most_consumers = 0
        """There are no more consumers than this."""
        self._usage = usage
        self.by_number: dict[int, AmqpChannel] = {}
        """The channels, those that are being closed too."""
        self._simple_targets = context.simple_targets
        context.access.on_change.add(self._recheck_permissions)

    def handle(
        self, event: Acks | ReceivedMethod | Unfinished, published: set[AmqpChannel]
    ) -> Unfinished | None:
        """Handle an event of a channel; publishes are for the channel itself, if it is open.

        Args: published, the channels that confirm once the read was handled.
        Returns what is left to do, after others had their turn and before the next event; None if
        nothing is.
        Raises: AmqpError, BrokerError, DiskFullError.
        """
        channel = self.by_number.get(event.channel)
        if type(event) is ReceivedMethod and (moves := CHANNEL_METHODS.get(type(event.method))):
            self._move(event, channel, moves, published)
        elif channel is None:
            raise _not_open(event.channel)
        # A comparison instead of a table look-up: this is the hot path. Events that the table
        # ignores are dropped.
        elif channel.state is _OPEN:
            if type(event) is Acks:
                return self._ack(channel, event)
            if type(event) is Unfinished:
                published.add(channel)
                for _ in event.rest:
                    return event
            # Section 4.2.3: methods of class connection on another channel than 0 are 503.
            elif event.method.class_id == CONNECTION_CLASS:
                raise CommandInvalid(f"{event.method.name} on channel {event.channel}")
            elif (rest := channel.handle(event.method)) is not None:
                return Unfinished(event, rest)
        return None

    def check_known(self, number: int) -> None:
        """Make sure that a channel is open, or about to be closed: then what it gets is ignored.

        Raises: ChannelError.
        """
        if number not in self.by_number:
            raise _not_open(number)

    def _ack(self, channel: AmqpChannel, acks: Acks) -> Unfinished | None:
        rest = channel.ack(acks)
        return None if rest is None else Unfinished(acks, rest)

    def _move(
        self,
        received: ReceivedMethod,
        channel: AmqpChannel | None,
        event: ChannelEvent,
        published: set[AmqpChannel],
    ) -> None:
        """Open or end a channel. Raises: ChannelError, NotAllowed."""
        number = received.channel
        if event not in CHANNEL[channel.state if channel else ChannelState.CLOSED]:
            if channel is None:
                raise _not_open(number)
            raise ChannelError(f"{received.method.name} on channel {number}, which is open already")
        if channel is None:
            self._open(number)
        elif event is ChannelEvent.CLOSE:
            if channel in published:
                # Confirms of earlier publishes go first.
                channel.confirm_published()
            # A fault is told before close-ok: the client would take what it has published for
            # accepted.
            channel.tell_fault()
            self._end(channel, event)
            self._send(number, methods.ChannelCloseOk())
        elif event is ChannelEvent.CLOSE_OK:
            self._end(channel, event)

    def _open(self, number: int) -> None:
        """Raises: NotAllowed, NotAllowedError."""
        # The reply code is 530, as in RabbitMQ: the frame is right, and the client has asked for
        # too much.
        if number > self._channel_max:
            raise NotAllowed(
                f"number of channels opened is limited: channel-max is {self._channel_max}"
            )
        self._usage.open_channel()
        self.by_number[number] = AmqpChannel(self.context, number, self._check_consumers)
        self.context.vhost.services.statistics.churn.channel_created += 1
        self._tell_channel("created", number, {"number": number, "user": self.context.access.user})
        self._send(number, methods.ChannelOpenOk())

    def _check_consumers(self) -> None:
        """Make sure that there may be one more consumer. Raises: NotAllowed."""
        # The number is an upper bound, so that all channels are counted only when the limit may be
        # reached.
        self._most_consumers += 1
        limit = self._max_consumers
        if not limit or self._most_consumers <= limit:
            return
        # Those that were cancelled since are not subtracted.
        count = sum(len(channel.broker_channel.consumers) for channel in self.by_number.values())
        if count >= limit:
            raise NotAllowed(f"number of consumers is limited: max_consumers is {limit}")
        self._most_consumers = count + 1

    def _tell_channel(self, what: str, number: int, headers: dict[str, Any]) -> None:
        """Tell that a channel was created or closed."""
        context = self.context
        events = context.vhost.services.events
        if not events.is_heard:
            return
        user = context.access.user
        name = f"{context.name} ({number})"
        about = {"pid": name, "name": name, "connection": context.name, "vhost": context.vhost.name}
        event = BrokerEvent(f"channel.{what}", {**about, **headers})
        events.happened("", event, by=By(user, ""))

    def _end(self, channel: AmqpChannel, event: ChannelEvent) -> None:
        channel.end(event)
        if channel.state is ChannelState.CLOSED:
            del self.by_number[channel.number]
            self._usage.close_channel()
            self._tell_channel("closed", channel.number, {})
            self.context.vhost.services.statistics.churn.channel_closed += 1

    def contain(self, number: int, error: AmqpError) -> AmqpError | None:
        """Close the channel that an error concerns, and no more if that is enough.

        Returns: the error with which the whole connection has to be closed, or None.
        """
        channel = self.by_number.get(number)
        if channel is None:
            if number and not isinstance(error, NotAllowed):
                return _not_open(number).at(error.class_id, error.method_id)
            return error
        if channel.state is not ChannelState.OPEN:
            return None  # input up to its close-ok is ignored
        if not isinstance(error, ChannelException):
            return error
        context = self.context
        if isinstance(error, AccessRefused):
            audit_refusal(
                "access refused",
                **context.log.fields,
                channel=number,
                reason=error.reply_text,
            )
        else:
            extra = {"channel": number, "reason": error.reply_text}
            context.log.warning("channel error", extra=extra)
        channel.fail(channel_close(error))
        return None

    def tell_faults(self) -> None:
        """Tell the client of each error that closes a channel, before its own close is answered."""
        for channel in self.by_number.values():
            channel.tell_fault()

    def free_caches(self) -> None:
        """Forget what only saves time."""
        self.context.envelopes.free_caches()
        self._simple_targets.forget()

    @property
    def channels(self) -> list[AmqpChannel]:
        """All channels."""
        return list(self.by_number.values())

    @property
    def has_unacked(self) -> bool:
        """Whether the client has deliveries that it may still ack."""
        return any(channel.has_unacked for channel in self.by_number.values())

    @property
    def is_consuming(self) -> bool:
        """Whether the client has consumers, or deliveries that it may still ack."""
        return self.has_unacked or any(
            channel.broker_channel.consumers for channel in self.by_number.values()
        )

    def resume(self) -> None:
        """Continue deliveries on all channels: the outbox has room again."""
        for channel in self.by_number.values():
            channel.resume()

    def _recheck_permissions(self) -> None:
        """Have all channels check what the user's changed permissions no longer allow."""
        self._simple_targets.forget()
        for channel in list(self.by_number.values()):
            channel.recheck_permissions()

    def close(self) -> None:
        """Release everything that the client had: consumers, unacked messages, exclusive queues."""
        context = self.context
        channels = list(self.by_number.values())
        self.by_number.clear()
        context.vhost.services.statistics.churn.channel_closed += len(channels)
        try:
            for channel in channels:
                channel.end(ChannelEvent.END)
                self._tell_channel("closed", channel.number, {})
        # Whatever fails above, the user's count of connections and its exclusive queues must not
        # stay.
        finally:
            # Its routes lead to exclusive queues, which know their owner.
            self._simple_targets.forget()
            self._usage.close()
            context.access.on_change.discard(self._recheck_permissions)
            context.vhost.owned_queues.end(context)

    def _send(self, number: int, method: methods.Method) -> None:
        self.context.outbox.add(method_frame(number, method.encode()))


def _not_open(number: int) -> ChannelError:
    return ChannelError(f"channel {number} is not open")
