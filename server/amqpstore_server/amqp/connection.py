"""One AMQP connection, without its socket: bytes in, frames in the outbox, time passed in.

The handshake follows `protocol.states`. An AmqpError of a channel closes the channel, one
of the connection closes the connection, and both say so to the client with the specification's
reply code; before the connection is open the socket is closed without a word (section 2.2.4).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from amqpstore import DiskFullError
from amqpstore_server.amqp.channel import AmqpChannel
from amqpstore_server.amqp.heartbeat import Heartbeat
from amqpstore_server.amqp.login import MECHANISMS, Login, login_of
from amqpstore_server.amqp.outbox import Outbox
from amqpstore_server.amqp.product import Product, shares_prefetch, start
from amqpstore_server.amqp.publishing import Labels
from amqpstore_server.amqp.refusals import refusal
from amqpstore_server.broker.broker import Broker
from amqpstore_server.broker.errors import BrokerError
from amqpstore_server.broker.faults import FATAL, called
from amqpstore_server.broker.local_transaction import Tally
from amqpstore_server.broker.permissions import Access
from amqpstore_server.broker.vhost import VirtualHost
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.errors import (
    AccessRefused,
    AmqpError,
    ChannelError,
    ChannelException,
    CommandInvalid,
    ConnectionForced,
    FatalFramingError,
    InternalError,
    NotAllowed,
    ResourceError,
)
from amqpstore_server.protocol.frames import HEARTBEAT_FRAME, method_frame
from amqpstore_server.protocol.handshake import HANDSHAKE_FRAME_BYTES, Handshake
from amqpstore_server.protocol.receiver import Acks, Event, Failed, Publishes, Received, Receiver
from amqpstore_server.protocol.spec import FRAME_MIN_SIZE, PROTOCOL_HEADER, PROTOCOL_HEADERS
from amqpstore_server.protocol.states import DUE, TRANSITIONS, State

_log = logging.getLogger(__name__)

_HANDSHAKE_S = 10.0
_CLOSE_S = 10.0


@dataclass(frozen=True)
class Limits:
    """What the server proposes in connection.tune, and what else it holds a client to.

    `max_message_bytes` is of the largest body that it takes; a client that takes nothing of what
    is sent to it for `send_timeout_s` is closed. `unfinished_bytes` of its messages may be in
    memory that are not published yet: halves of bodies, and what waits for a commit.
    """

    channel_max: int = 2047
    frame_max: int = 131_072
    heartbeat_s: int = 60
    max_message_bytes: int = 128 << 20
    send_timeout_s: int = 300
    unfinished_bytes: int = 256 << 20


class Connection:
    """The server's side of one connection.

    Args: peer, what the log calls the client; product, what the server calls itself;
    may_impersonate, whether a user may publish in the name of others; on_output, called when the
    outbox stops being empty; now, seconds on the clock that `receive` and `tick` are given too.
    """

    def __init__(
        self,
        broker: Broker,
        limits: Limits,
        *,
        peer: str,
        product: Product,
        may_impersonate: Callable[[str], bool],
        on_output: Callable[[], None],
        now: float,
    ) -> None:
        self.outbox = Outbox(on_output)
        self.peer = peer
        self.login: Login | None = None
        self.frame_max = HANDSHAKE_FRAME_BYTES
        self.client_hears_cancels = False
        self._client_hears_blocks = False
        self.shares_prefetch = False
        """Whether basic.qos means the channel, `global` or not: see `product`."""
        self.has_published = False
        self.is_paused = False
        """Nothing is read from it for now, so that it is not to be missed."""
        self.is_lost = False
        """The client does not answer: nothing is sent to it any more."""
        self.transacted = Tally()
        self._broker = broker
        self._limits = limits
        self._product = product
        self._may_impersonate = may_impersonate
        self._state: State | None = None
        self._header = b""
        self._handshake = Handshake()
        self._receiver = Receiver(limits.frame_max, limits.max_message_bytes)
        self._channel_max = limits.channel_max
        self._channels: dict[int, AmqpChannel] = {}
        self._vhost: VirtualHost | None = None
        self._access: Access | None = None
        self._labels: Labels | None = None
        self._user = ""
        self._mechanism = ""
        self._client_properties: dict[str, Any] = {}
        self._waiting: list[Event] = []
        self._now = now
        self._deadline: float | None = now + _HANDSHAKE_S
        self._heartbeat = Heartbeat(0, now)

    @property
    def is_finished(self) -> bool:
        """Whether the socket is to be closed once the outbox is empty."""
        return self._state is State.CLOSED

    @property
    def is_held(self) -> bool:
        """Whether nothing that the client sends is handled: it leaves too much unread, or a login
        is being checked. Nothing is to be received then; `go_on` when it is over."""
        return self.login is not None or self.outbox.is_unread

    @property
    def unfinished_bytes(self) -> int:
        """Of messages in memory that are not published yet: halves of bodies, transactions."""
        return self._receiver.unfinished_bytes + self.transacted.byte_count

    @property
    def is_open(self) -> bool:
        """Whether the client has logged in, and uses a virtual host."""
        return self._state is State.OPEN

    @property
    def vhost(self) -> VirtualHost:
        """The virtual host that the client chose. Only on an open connection."""
        assert self._vhost is not None
        return self._vhost

    @property
    def access(self) -> Access:
        """What the user may do. Only on an open connection."""
        assert self._access is not None
        return self._access

    @property
    def labels(self) -> Labels:
        """The labels of its publishes. Only on an open connection."""
        assert self._labels is not None
        return self._labels

    # What the socket's side calls.

    def receive(self, read: bytes, now: float) -> None:
        """Handle what one read brought, and settle it."""
        self._now = now
        self._heartbeat.received(now)
        if self._state is None:
            self._header += read
            if len(self._header) < len(PROTOCOL_HEADER) and any(
                header.startswith(self._header) for header in PROTOCOL_HEADERS
            ):
                return
            read = self._start(self._header)
        if self._state in (None, State.CLOSED):
            return
        if self._state in (State.OPEN, State.CLOSING):
            self._events(self._receiver.receive(read), now)
        else:
            self._handshake.receive(read)
            self._shake_hands(now)

    def _shake_hands(self, now: float) -> None:
        """Go on with the handshake, as far as what came goes."""
        try:
            while (due := DUE.get(self._state)) and (method := self._handshake.take(due)):
                self._connection_method(method, now)
        except (AmqpError, FatalFramingError) as error:
            self._failed(Failed(0, error), now)
            return
        if self._state in (State.OPEN, State.CLOSING):
            rest, self._handshake.rest = self._handshake.rest, b""
            self._events(self._receiver.receive(rest), now)

    def logged_in(self, *, granted: bool, now: float) -> None:
        """Go on with the handshake: the login was checked."""
        login, self.login = self.login, None
        if login is None:
            return
        if self._state is not State.AUTHENTICATING:
            return
        if granted:
            self._user = login.user
            self._labels = Labels(login.user, self._may_impersonate)
            self._state = State.TUNING
            self._send(
                methods.ConnectionTune(
                    channel_max=self._limits.channel_max,
                    frame_max=self._limits.frame_max,
                    heartbeat=self._limits.heartbeat_s,
                )
            )
            self._shake_hands(now)
            return
        _log.warning("login refused", extra={"peer": self.peer, "user": login.user})
        capabilities = self._client_properties.get("capabilities")
        if isinstance(capabilities, dict) and capabilities.get("authentication_failure_close"):
            # An extension of RabbitMQ's: a client that knows it gets a reason, not just a closed
            # socket, and nothing more is said than that.
            error = AccessRefused(
                f"Login was refused using authentication mechanism {self._mechanism}. For details "
                "see the broker logfile."
            )
            self._send_close(error)
        self._finish()

    def go_on(self, now: float) -> None:
        """Handle what waits since the connection `is_held`, as far as it is not again."""
        waiting, self._waiting = self._waiting, []
        self._events(waiting, now)

    def pause(self, reason: str) -> None:
        """Nothing is read from the client for now: it is told, where it wants to be."""
        self.is_paused = True
        if self._client_hears_blocks and self._state is State.OPEN:
            self._send(methods.ConnectionBlocked(reason=reason))

    def resume(self) -> None:
        """The client is read from again."""
        self.is_paused = False
        if self._client_hears_blocks and self._state is State.OPEN:
            self._send(methods.ConnectionUnblocked())

    def tick(self, now: float) -> None:
        """Have heartbeats sent and missed ones noticed: call it about once a second."""
        self._now = now
        if self._deadline is not None and now >= self._deadline and not self.is_finished:
            state = self._state.value if self._state else "no protocol header"
            _log.warning("connection timed out", extra={"peer": self.peer, "state": state})
            self._finish()
        if self._state is not State.OPEN:
            return
        if self.is_paused:
            self._heartbeat.received(now)
        if self._heartbeat.is_peer_gone(now):
            _log.warning("missed heartbeats from client", extra={"peer": self.peer})
            self.abandon()
        elif self._heartbeat.is_due(now):
            self.outbox.add(HEARTBEAT_FRAME)

    def sent(self, now: float) -> None:
        """Something was written to the socket."""
        self._heartbeat.sent(now)
        if self.is_held:
            # Nothing is read from it: that it takes something is the sign that it lives.
            self._heartbeat.received(now)

    def writable(self) -> None:
        """The outbox has room again."""
        for channel in self._channels.values():
            channel.resume()

    def exhaust(self, reason: str, now: float) -> None:
        """Close the connection, since it has too much in memory that is not published yet."""
        if self._state is State.OPEN:
            held = f"{self.unfinished_bytes} bytes of unfinished bodies and open transactions"
            error = ResourceError(f"{held}: {reason}")
            self._log_error("connection error", error, 0)
            self._close(error, now)

    def break_off(self) -> None:
        """Close the connection after an error of ours: the client would wait for ever for what it
        kept back. It is of no channel, as the client may wait on one that is being closed."""
        self._failed(Failed(0, InternalError("see the log of the broker")), self._now)

    def shut_down(self, now: float) -> None:
        """The server stops: say so to the client."""
        if self._state is State.OPEN:
            self._close(ConnectionForced("broker shut down"), now)
        elif self._state is not State.CLOSING:
            self._finish()

    def abandon(self) -> None:
        """The client does not answer: end this, and have nothing more sent."""
        self.is_lost = True
        self.outbox.close()
        self._finish()

    def lost(self) -> None:
        """The client has gone, or nothing more is read from it."""
        if self._state is State.OPEN:
            _log.warning("client unexpectedly closed TCP connection", extra={"peer": self.peer})
        self._finish()

    # Events.

    def _events(self, events: list[Event], now: float) -> None:
        """Handle what one read brought, until the connection `is_held`."""
        published: set[AmqpChannel] = set()
        for place, event in enumerate(events):
            if self.is_held:
                self._waiting = events[place:]
                break
            self._event(event, published, now)
        for channel in published:
            called(channel.settle, channel.failed)
            self.has_published = True
        if self.unfinished_bytes > self._limits.unfinished_bytes:
            self.exhaust(f"the limit of a connection is {self._limits.unfinished_bytes}", now)

    def _event(self, event: Event, published: set[AmqpChannel], now: float) -> None:
        """Handle one event of the receiver."""
        try:
            if isinstance(event, Failed):
                self._failed(event, now)
            elif self._state in (State.CLOSED, State.CLOSING) and not (
                isinstance(event, Received) and event.channel == 0
            ):
                pass
            elif event.channel == 0 and isinstance(event, Received):
                self._connection_method(event.method, now)
            else:
                self._channel_event(event, published)
        except (AmqpError, BrokerError, DiskFullError) as raised:
            self._refused(event, raised, now)
        except FATAL:
            raise
        except Exception:  # noqa: BLE001
            # An error of ours: it costs this client its connection, and nobody else anything.
            _log.exception("connection failed", extra={"peer": self.peer})
            self.break_off()

    def _refused(
        self, event: Event, raised: AmqpError | BrokerError | DiskFullError, now: float
    ) -> None:
        """An event cannot be done."""
        # No name may stay in the frame that caught the error: its traceback has that frame, and
        # with it the connection, which then would stay for the garbage collector.
        error = raised if isinstance(raised, AmqpError) else refusal(raised)
        if isinstance(event, (Publishes, Received)):
            method = event.publish if isinstance(event, Publishes) else event.method
            error.class_id, error.method_id = method.class_id, method.method_id
        elif isinstance(event, Acks):
            ack = methods.BasicAck
            error.class_id, error.method_id = ack.class_id, ack.method_id
        self._failed(Failed(event.channel, error), now)

    def _channel_event(
        self, event: Publishes | Acks | Received, published: set[AmqpChannel]
    ) -> None:
        """Raises: AmqpError, BrokerError."""
        number = event.channel
        channel = self._channels.get(number)
        method = event.method if isinstance(event, Received) else None
        if channel is None:
            if isinstance(method, methods.ChannelOpen):
                self._open_channel(number)
                return
            raise ChannelError(f"channel {number} is not open")
        if isinstance(method, methods.ChannelCloseOk) and channel.is_closing:
            channel.close()
            del self._channels[number]
        elif isinstance(method, methods.ChannelClose):
            self._close_channel(channel, published)
            self.outbox.add(method_frame(number, methods.ChannelCloseOk().encode()))
        elif channel.is_closing:
            pass
        elif isinstance(method, (methods.ChannelOpen, methods.ChannelCloseOk)):
            raise ChannelError(f"{method.name} on channel {number}, which is open already")
        elif isinstance(event, Publishes):
            published.add(channel)
            channel.publish(event)
        elif isinstance(event, Acks):
            channel.ack(event)
        elif isinstance(method, _ONLY_CHANNEL_0):
            raise CommandInvalid(f"{method.name} on channel {number}")
        elif method is not None:
            channel.handle(method)

    def _open_channel(self, number: int) -> None:
        """Raises: NotAllowed."""
        if number > self._channel_max:
            raise NotAllowed(
                f"number of channels opened is limited: channel-max is {self._channel_max}"
            )
        self._channels[number] = AmqpChannel(self, number)
        self.outbox.add(method_frame(number, methods.ChannelOpenOk().encode()))

    def _close_channel(self, channel: AmqpChannel, published: set[AmqpChannel]) -> None:
        """The client closes a channel: what it published before is confirmed first.

        Where its close crosses ours, the channel stays until it has answered ours as well.
        """
        if channel.is_silent:
            return
        if channel in published:
            published.remove(channel)
            channel.settle()
        channel.close()
        del self._channels[channel.number]

    def _failed(self, failed: Failed, now: float) -> None:
        """Answer what went wrong in the way its kind asks for."""
        error = failed.error
        channel = self._channels.get(failed.channel)
        if self._state is not State.OPEN or isinstance(error, FatalFramingError):
            if self._state not in (State.CLOSING, State.CLOSED):
                extra = {"peer": self.peer, "reason": str(error)}
                _log.warning("the connection was closed without a reply", extra=extra)
            self._finish()
        elif channel is not None and channel.is_closing:
            pass  # whatever comes before its close-ok is ignored
        elif isinstance(error, ChannelException) and channel is not None:
            self._log_error("channel error", error, failed.channel)
            channel.fail(
                methods.ChannelClose(
                    reply_code=error.reply_code,
                    reply_text=error.reply_text,
                    failing_class_id=error.class_id,
                    failing_method_id=error.method_id,
                )
            )
        else:
            if failed.channel and channel is None and not isinstance(error, NotAllowed):
                at_fault = error.class_id, error.method_id
                error = ChannelError(f"channel {failed.channel} is not open")
                error.class_id, error.method_id = at_fault
            self._log_error("connection error", error, failed.channel)
            self._close(error, now)
            if self._receiver.is_lost:
                self._finish()

    def _log_error(self, what: str, error: AmqpError, channel: int) -> None:
        extra = {"peer": self.peer, "channel": channel, "reason": error.reply_text}
        _log.warning(what, extra=extra)

    # The connection's own methods.

    def _start(self, header: bytes) -> bytes:
        """Answer the protocol header. Returns what came behind it."""
        if header[: len(PROTOCOL_HEADER)] not in PROTOCOL_HEADERS:
            _log.warning("not AMQP 0-9-1", extra={"peer": self.peer, "header": header[:8].hex()})
            self.outbox.add(PROTOCOL_HEADER)
            self._finish()
            return b""
        self._state = State.STARTING
        self._header = b""
        self._send(start(self._product, MECHANISMS))
        return header[len(PROTOCOL_HEADER) :]

    def _connection_method(self, method: methods.Method, now: float) -> None:
        """Raises: AmqpError."""
        state = self._state
        if state is None:
            return
        following = TRANSITIONS.get((state, type(method)))
        if following is None:
            if state is State.CLOSING:
                return
            raise CommandInvalid(f"{method.name} on a connection that is {state.value}")
        self._state = following
        if isinstance(method, methods.ConnectionStartOk):
            self._start_ok(method)
        elif isinstance(method, methods.ConnectionTuneOk):
            self._tune_ok(method, now)
        elif isinstance(method, methods.ConnectionOpen):
            self._open(method, now)
        elif isinstance(method, methods.ConnectionUpdateSecret):
            # Whoever is logged in with a password stays so: there is nothing that could end.
            self._send(methods.ConnectionUpdateSecretOk())
        elif isinstance(method, methods.ConnectionClose):
            self._send(methods.ConnectionCloseOk())
            self._finish()
        else:
            self._finish()

    def _start_ok(self, method: methods.ConnectionStartOk) -> None:
        self._client_properties = method.client_properties
        self.shares_prefetch = shares_prefetch(self._product, method.client_properties)
        capabilities = method.client_properties.get("capabilities")
        if isinstance(capabilities, dict):
            self.client_hears_cancels = bool(capabilities.get("consumer_cancel_notify"))
            self._client_hears_blocks = bool(capabilities.get("connection.blocked"))
        self._mechanism = method.mechanism
        self.login = login_of(method.mechanism, method.response)
        if self.login is None:
            extra = {"peer": self.peer, "mechanism": method.mechanism}
            _log.warning("the client chose a login mechanism that was not offered", extra=extra)
            self._finish()

    def _tune_ok(self, method: methods.ConnectionTuneOk, now: float) -> None:
        limits = self._limits
        channel_max = method.channel_max or limits.channel_max
        frame_max = method.frame_max or limits.frame_max
        if channel_max > limits.channel_max or not (
            FRAME_MIN_SIZE <= frame_max <= limits.frame_max
        ):
            extra = {"peer": self.peer, "channel_max": channel_max, "frame_max": frame_max}
            _log.warning("tune-ok exceeds the limits that were offered", extra=extra)
            self._finish()
            return
        self._channel_max = channel_max
        self.frame_max = self._receiver.frame_max = frame_max
        self._heartbeat = Heartbeat(method.heartbeat, now)

    def _open(self, method: methods.ConnectionOpen, now: float) -> None:
        try:
            self._access = self._broker.access(self._user, method.virtual_host)
        except BrokerError as error:
            refused = NotAllowed(str(error))
            refused.class_id, refused.method_id = method.class_id, method.method_id
            self._log_error("connection error", refused, 0)
            self._close(refused, now)
            return
        self._access.on_change.add(self._look_at_rights)
        self._vhost = self._broker.vhost(method.virtual_host)
        self._deadline = None
        self._send(methods.ConnectionOpenOk())

    def _look_at_rights(self) -> None:
        """The user's permissions are others."""
        for channel in list(self._channels.values()):
            if not channel.is_closing:
                channel.look_at_rights()

    # Ends.

    def _send(self, method: methods.Method) -> None:
        self.outbox.add(method_frame(0, method.encode()))

    def _send_close(self, error: AmqpError) -> None:
        self._send(
            methods.ConnectionClose(
                reply_code=error.reply_code,
                reply_text=error.reply_text,
                failing_class_id=error.class_id,
                failing_method_id=error.method_id,
            )
        )

    def _close(self, error: AmqpError, now: float) -> None:
        """Close with a handshake: the client has some seconds to answer."""
        self._receiver.discard_contents()
        self._send_close(error)
        self._state = State.CLOSING
        self._deadline = now + _CLOSE_S
        self._release()

    def _finish(self) -> None:
        """Nothing is handled any more, and nothing is sent but what is in the outbox."""
        self._state = State.CLOSED
        self._release()

    def _release(self) -> None:
        """Give back all that the connection holds: consumers, unacked messages, its own queues."""
        self._waiting = []
        channels = list(self._channels.values())
        self._channels.clear()
        for channel in channels:
            channel.close()
        if self._access is not None:
            self._access.on_change.discard(self._look_at_rights)
        if self._vhost is not None:
            self._vhost.delete_queues_of(self)
            self._vhost = None


_ONLY_CHANNEL_0 = tuple(
    method for (class_id, _), method in methods.METHODS.items() if class_id == 10
)
