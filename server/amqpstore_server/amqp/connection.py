"""One AMQP connection, without its socket: bytes in, frames in the outbox, time passed in.

It follows its table in `protocol.states`: `Negotiation` is what it is before it is open, `Session`
what it is from then on. An AmqpError of a channel closes the channel, one of the connection closes
the connection, and both say so to the client with the specification's reply code; before the
connection is open the socket is closed without a word (section 2.2.4).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from amqpstore import DiskFullError
from amqpstore_server.amqp.channel import AmqpChannel
from amqpstore_server.amqp.context import ChannelContext
from amqpstore_server.amqp.heartbeat import Heartbeat
from amqpstore_server.amqp.limits import Limits
from amqpstore_server.amqp.login import Login
from amqpstore_server.amqp.negotiation import Negotiation
from amqpstore_server.amqp.outbox import Outbox
from amqpstore_server.amqp.product import Product
from amqpstore_server.amqp.publishing import Envelopes
from amqpstore_server.amqp.refusals import connection_close, refusal_of
from amqpstore_server.amqp.session import Session
from amqpstore_server.broker.broker import Broker
from amqpstore_server.broker.channels.local_transaction import Tally
from amqpstore_server.broker.errors import BrokerError
from amqpstore_server.broker.faults import FATAL, called
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.errors import (
    AmqpError,
    CommandInvalid,
    ConnectionForced,
    FatalFramingError,
    InternalError,
    NotAllowed,
    ResourceError,
)
from amqpstore_server.protocol.frames import HEARTBEAT_FRAME, method_frame
from amqpstore_server.protocol.handshake import Handshake
from amqpstore_server.protocol.receiver import Event, Failed, Received, Receiver
from amqpstore_server.protocol.spec import PROTOCOL_HEADER, PROTOCOL_HEADERS
from amqpstore_server.protocol.states import (
    CONNECTION,
    CONNECTION_METHODS,
    DUE,
    ENDED,
    FRAMED,
    SERVED,
    ConnectionEvent,
    ConnectionState,
)

_log = logging.getLogger(__name__)

_HANDSHAKE_S = 10.0
_CLOSE_S = 10.0


class Connection:
    """The server's side of one connection.

    Args: peer, what the log calls the client; product, what the server calls itself;
    may_impersonate, whether a user may publish in the name of others; on_output, called when the
    outbox stops being empty; now, seconds on the clock that `receive` and `tick` are given too.

    `_session` is there while the connection is OPEN or BLOCKED, and at no other time.
    """

    _session: Session

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
        self.has_published = False
        self.is_paused = False
        """Nothing is read from it for now, so that it is not to be missed."""
        self.state = ConnectionState.GREETING
        self._broker = broker
        self._limits = limits
        self._may_impersonate = may_impersonate
        self._negotiation = Negotiation(limits, product, peer)
        self._handshake = Handshake()
        self._receiver = Receiver(limits.frame_max, limits.max_message_bytes)
        self._transacted = Tally()
        self._waiting: list[Event] = []
        self._now = now
        self._deadline = now + _HANDSHAKE_S
        self._heartbeat = Heartbeat(0, now)

    @property
    def is_finished(self) -> bool:
        """Whether the socket is to be closed once the outbox is empty."""
        return self.state in ENDED

    @property
    def is_lost(self) -> bool:
        """Whether the client does not answer, so that nothing is sent to it any more."""
        return self.state is ConnectionState.ABANDONED

    @property
    def is_authenticating(self) -> bool:
        """Whether somebody has to check the `login`, and to call `logged_in`."""
        return self.state is ConnectionState.AUTHENTICATING

    @property
    def login(self) -> Login:
        """Who the client says it is."""
        return self._negotiation.login

    @property
    def frame_max(self) -> int:
        """Bytes of the largest frame that the client takes."""
        return self._negotiation.frame_max

    @property
    def is_held(self) -> bool:
        """Whether nothing that the client sends is handled: it leaves too much unread, or a login
        is being checked. Nothing is to be received then; `go_on` when it is over."""
        return self.state is ConnectionState.AUTHENTICATING or self.outbox.is_unread

    @property
    def unfinished_bytes(self) -> int:
        """Return the bytes held for unfinished publishes: partial bodies and open transactions."""
        return self._receiver.unfinished_bytes + self._transacted.byte_count

    # What the socket's side calls.

    def receive(self, read: bytes, now: float) -> None:
        """Handle what one read brought, and settle it."""
        self._now = now
        self._heartbeat.received(now)
        if self.state in FRAMED:
            self._events(self._receiver.receive(read), now)
        elif self.state not in ENDED:
            self._handshake.receive(read)
            self._shake_hands(now)

    def _shake_hands(self, now: float) -> None:
        """Go on with the handshake, as far as what came goes."""
        if self.state is ConnectionState.GREETING:
            self._greet()
        try:
            while (due := DUE.get(self.state)) and (method := self._handshake.take(due)):
                self._method(method, now)
        except (AmqpError, FatalFramingError) as error:
            self._failed(Failed(0, error), now)
            return
        if self.state in FRAMED:
            rest, self._handshake.rest = self._handshake.rest, b""
            self._events(self._receiver.receive(rest), now)

    def logged_in(self, *, granted: bool, now: float) -> None:
        """Go on with the handshake: the login was checked."""
        if not self.is_authenticating:
            return
        negotiation = self._negotiation
        negotiation.forget_password()
        if granted:
            self._move(ConnectionEvent.GRANTED)
            self._send(negotiation.tune())
            self._shake_hands(now)
            return
        extra = {"peer": self.peer, "user": negotiation.login.user}
        _log.warning("login refused", extra=extra)
        if negotiation.hears("authentication_failure_close"):
            # An extension of RabbitMQ's: a client that knows it gets a reason, not just a closed
            # socket, and nothing more is said than that.
            self._send(connection_close(negotiation.refusal()))
        self._move(ConnectionEvent.REFUSED)

    def go_on(self, now: float) -> None:
        """Handle what waits since the connection `is_held`, as far as it is not again."""
        waiting, self._waiting = self._waiting, []
        self._events(waiting, now)

    def pause(self, reason: str) -> None:
        """Nothing is read from the client for now: it is told, where it wants to be."""
        self.is_paused = True
        if self.state is ConnectionState.OPEN:
            self._move(ConnectionEvent.BLOCK)
            if self._negotiation.hears("connection.blocked"):
                self._send(methods.ConnectionBlocked(reason=reason))

    def resume(self) -> None:
        """The client is read from again."""
        self.is_paused = False
        if self.state is ConnectionState.BLOCKED:
            self._move(ConnectionEvent.UNBLOCK)
            if self._negotiation.hears("connection.blocked"):
                self._send(methods.ConnectionUnblocked())

    def tick(self, now: float) -> None:
        """Have heartbeats sent and missed ones noticed: call it about once a second."""
        self._now = now
        if self.state not in SERVED:
            if now >= self._deadline and not self.is_finished:
                extra = {"peer": self.peer, "state": self.state.value}
                _log.warning("connection timed out", extra=extra)
                self._move(ConnectionEvent.END)
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
        if self.state in SERVED:
            self._session.resume()

    def exhaust(self, reason: str, now: float) -> None:
        """Close the connection, since it has too much in memory that is not published yet."""
        if self.state in SERVED:
            held = f"{self.unfinished_bytes} bytes of unfinished bodies and open transactions"
            self._failed(Failed(0, ResourceError(f"{held}: {reason}")), now)

    def break_off(self) -> None:
        """Close the connection after an error of ours: the client would wait for ever for what it
        kept back. It is of no channel, as the client may wait on one that is being closed."""
        self._failed(Failed(0, InternalError("see the log of the broker")), self._now)

    def shut_down(self, now: float) -> None:
        """The server stops: say so to the client."""
        if self.state in SERVED:
            self._close(ConnectionEvent.SHUT_DOWN, ConnectionForced("broker shut down"), now)
        else:
            self._move(ConnectionEvent.SHUT_DOWN)

    def abandon(self) -> None:
        """The client does not answer: end this, and have nothing more sent."""
        self.outbox.close()
        self._move(ConnectionEvent.ABANDON)

    def lost(self) -> None:
        """The client has gone, or nothing more is read from it."""
        if self.state in SERVED:
            _log.warning("client unexpectedly closed TCP connection", extra={"peer": self.peer})
        self._move(ConnectionEvent.END)

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
            elif not event.channel and isinstance(event, Received):
                self._method(event.method, now)
            elif self.state in SERVED:
                self._session.handle(event, published)
        except (AmqpError, BrokerError, DiskFullError) as raised:
            # No name may stay in the frame that caught the error: its traceback has that frame, and
            # with it the connection, which then would stay for the garbage collector.
            self._failed(Failed(event.channel, refusal_of(event, raised)), now)
        except FATAL:
            raise
        except Exception:  # noqa: BLE001
            # An error of ours: it costs this client its connection, and nobody else anything.
            _log.exception("connection failed", extra={"peer": self.peer})
            self.break_off()

    def _failed(self, failed: Failed, now: float) -> None:
        """Answer what went wrong in the way its kind asks for."""
        error = failed.error
        if isinstance(error, FatalFramingError):
            self._log_silent_end(error)
            self._move(ConnectionEvent.END)
        elif self.state not in SERVED:
            self._log_silent_end(error)
            self._move(ConnectionEvent.FAULT)
        elif fault := self._session.contain(failed.channel, error):
            self._log_error(fault, failed.channel)
            self._close(ConnectionEvent.FAULT, fault, now)
            if self._receiver.is_lost:
                self._move(ConnectionEvent.END)

    def _log_silent_end(self, error: AmqpError | FatalFramingError) -> None:
        if self.state is not ConnectionState.CLOSING and not self.is_finished:
            extra = {"peer": self.peer, "reason": str(error)}
            _log.warning("the connection was closed without a reply", extra=extra)

    def _log_error(self, error: AmqpError, channel: int) -> None:
        extra = {"peer": self.peer, "channel": channel, "reason": error.reply_text}
        _log.warning("connection error", extra=extra)

    # The connection's own methods.

    def _greet(self) -> None:
        """Answer the protocol header, once it is there."""
        header = self._handshake.take_header()
        if header is None:
            return
        if header not in PROTOCOL_HEADERS:
            _log.warning("not AMQP 0-9-1", extra={"peer": self.peer, "header": header.hex()})
            self.outbox.add(PROTOCOL_HEADER)
            self._move(ConnectionEvent.END)
            return
        self._move(ConnectionEvent.HEADER)
        self._send(self._negotiation.start())

    def _method(self, method: methods.Method, now: float) -> None:
        """Raises: AmqpError."""
        event = CONNECTION_METHODS.get(type(method))
        if event is None or event not in CONNECTION[self.state]:
            if self.state in SERVED:
                raise CommandInvalid(f"{method.name} on a connection that is {self.state.value}")
            return
        if isinstance(method, methods.ConnectionOpen):
            self._open(method, now)
            return
        self._move(event)
        match method:
            case methods.ConnectionStartOk():
                if not self._negotiation.start_ok(method):
                    self._move(ConnectionEvent.REFUSED)
            case methods.ConnectionTuneOk():
                self._tune_ok(method, now)
            case methods.ConnectionUpdateSecret():
                # Whoever is logged in with a password stays so: there is nothing that could end.
                self._send(methods.ConnectionUpdateSecretOk())
            case methods.ConnectionClose():
                self._send(methods.ConnectionCloseOk())

    def _tune_ok(self, method: methods.ConnectionTuneOk, now: float) -> None:
        if not self._negotiation.tune_ok(method):
            self._move(ConnectionEvent.END)
            return
        self._receiver.frame_max = self._negotiation.frame_max
        self._heartbeat = Heartbeat(method.heartbeat, now)

    def _open(self, method: methods.ConnectionOpen, now: float) -> None:
        negotiation = self._negotiation
        user = negotiation.login.user
        try:
            access = self._broker.access(user, method.virtual_host)
        except BrokerError as error:
            refused = NotAllowed(str(error)).at(method.class_id, method.method_id)
            self._log_error(refused, 0)
            self._close(ConnectionEvent.REFUSED, refused, now)
            return
        context = ChannelContext(
            peer=self.peer,
            vhost=self._broker.vhost(method.virtual_host),
            access=access,
            envelopes=Envelopes(user, self._may_impersonate),
            outbox=self.outbox,
            transacted=self._transacted,
            frame_max=negotiation.frame_max,
            hears_cancels=negotiation.hears("consumer_cancel_notify"),
            shares_prefetch=negotiation.shares_prefetch,
            break_off=self.break_off,
        )
        self._session = Session(context, negotiation.channel_max)
        self._move(ConnectionEvent.OPEN)
        self._send(methods.ConnectionOpenOk())

    # Ends.

    def _send(self, method: methods.Method) -> None:
        self.outbox.add(method_frame(0, method.encode()))

    def _close(self, event: ConnectionEvent, error: AmqpError, now: float) -> None:
        """Close with a handshake: the client has some seconds to answer."""
        self._receiver.discard_contents()
        self._send(connection_close(error))
        self._deadline = now + _CLOSE_S
        self._move(event)

    def _move(self, event: ConnectionEvent) -> None:
        """Go on along the table."""
        before, self.state = self.state, CONNECTION[self.state][event]
        if before in SERVED and self.state not in SERVED:
            self._release()

    def _release(self) -> None:
        """Give back all that the connection holds: consumers, unacked messages, its own queues."""
        self._waiting = []
        session = self._session
        # It has this connection in turn: both are freed when they are let go of.
        del self._session
        session.close()
