"""One AMQP connection, without its socket (see `socket_connection`): bytes in, frames in the
outbox, time passed in.

It follows the connection table in `protocol.states`. `Opening` handles what arrives until it is
open; from then on `Input` takes the events of each read in order, and `Session` handles those of
channels. An AmqpError that concerns a channel closes the channel, one that concerns the connection
closes the connection; both tell the client, with the specification's reply code. Before the
connection is open, the socket is closed without a method (section 2.2.4).
"""

from __future__ import annotations

from collections.abc import Callable

from amqpstore_server.amqp.channel import AmqpChannel
from amqpstore_server.amqp.input import Input
from amqpstore_server.amqp.negotiation import Negotiation
from amqpstore_server.amqp.opening import Opening
from amqpstore_server.amqp.product import Product
from amqpstore_server.amqp.refusals import connection_close, refusal
from amqpstore_server.amqp.renewal import Renewal
from amqpstore_server.amqp.session import Session
from amqpstore_server.amqp.telling import ConnectionEvents
from amqpstore_server.broker.broker import Broker
from amqpstore_server.broker.channels.local_transaction import UncommittedBytes
from amqpstore_server.broker.errors import BrokerError
from amqpstore_server.clients.alarm_state import AlarmState, NoAlarm
from amqpstore_server.clients.authorization import Authorization
from amqpstore_server.clients.connection import HANDSHAKE_S, ClientConnection
from amqpstore_server.clients.heartbeat import Heartbeat
from amqpstore_server.clients.limits import Limits
from amqpstore_server.clients.login import CheckedLogin
from amqpstore_server.clients.outbox import MAX_UNREAD_BYTES
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.errors import (
    AmqpError,
    CommandInvalid,
    ConnectionForced,
    FatalFramingError,
    InternalError,
    ResourceError,
)
from amqpstore_server.protocol.events import Event, Failed, MoreFrames
from amqpstore_server.protocol.frames import HEARTBEAT_FRAME, method_frame
from amqpstore_server.protocol.receiver import Receiver
from amqpstore_server.protocol.states import (
    CONNECTION,
    CONNECTION_METHODS,
    ENDED,
    FRAMED,
    SERVED,
    ConnectionEvent,
    ConnectionState,
)

_CLOSE_S = 10.0

# Looked up once: up to Python 3.11, to look up a member of an enum takes longer than all that is
# done with it.
_OPEN, _BLOCKED = ConnectionState.OPEN, ConnectionState.BLOCKED
_AUTHENTICATING = ConnectionState.AUTHENTICATING


class AmqpConnection(ClientConnection):
    """The server's side of one connection.

    Args: product, the name and version the server gives itself; may_impersonate, whether a user may
    publish with another user's user-id; alarms, whose end publishes have to wait for; the others as
    for any connection.
    """

    def __init__(
        self,
        broker: Broker,
        limits: Limits,
        *,
        peer: str,
        product: Product,
        may_impersonate: Callable[[str], bool],
        on_output: Callable[[], None] | None = None,
        now: float,
        name: str = "",
        has_tls: bool = False,
        alarms: AlarmState = NoAlarm(),  # noqa: B008 - it has no state
    ) -> None:
        super().__init__(peer=peer, name=name, on_output=on_output, now=now)
        self.state = ConnectionState.GREETING
        self.session: Session | None = None
        """The channels, while the state is OPEN or BLOCKED."""
        self._services = services = broker.services
        self._authorization = Authorization(may_impersonate)
        self._negotiation = Negotiation(limits, product, self.log)
        self._told = ConnectionEvents(
            self.name, self._negotiation, self.log, services, has_tls=has_tls
        )
        transacted = UncommittedBytes()
        self._opening = Opening(
            broker,
            limits,
            self._negotiation,
            self._authorization,
            self.outbox,
            transacted,
            self._told,
            self.log,
        )
        self._receiver = Receiver(limits.frame_max, limits.max_message_bytes)
        self.input = Input(
            self._receiver, self.outbox, transacted, limits.unfinished_bytes, services
        )
        self._renewal = Renewal(self._authorization, self.log)
        self._alarms = alarms

    @property
    def is_finished(self) -> bool:
        return self.state in ENDED

    @property
    def negotiated(self) -> Negotiation:
        """The parameters that client and server have agreed on."""
        return self._negotiation

    @property
    def is_blocked(self) -> bool:
        """Whether the client was told that it may not publish."""
        return self.state is _BLOCKED

    @property
    def owner(self) -> object:
        """The owner of the connection's exclusive queues."""
        return self.session.context if self.session else None

    @property
    def channels(self) -> list[AmqpChannel]:
        """The open connection's channels, those that are being closed too."""
        return self.session.channels if self.session else []

    @property
    def is_lost(self) -> bool:
        """Whether the client does not answer any more; nothing more is sent to it."""
        return self.state is ConnectionState.ABANDONED

    @property
    def is_authenticating(self) -> bool:
        return self.state is _AUTHENTICATING

    @property
    def user(self) -> str:
        """The user that the client says it is; empty before its login."""
        return self._negotiation.login.user

    @property
    def is_input_paused(self) -> bool:
        return (
            bool(self.input.waiting)
            or self.input.must_not_be_read
            or self.outbox.byte_count > MAX_UNREAD_BYTES
            or self.state is _AUTHENTICATING
        )

    @property
    def unfinished_bytes(self) -> int:
        """Bytes held for unfinished publishes: see `Input`."""
        return self.input.unfinished_bytes

    # Calls from the socket's side.

    def receive(self, read: bytes, now: float) -> bool:
        """Handle the bytes of one read, and then do once what all of it needs: confirms, for
        example. Publishes may be deferred to the end of the round of reads, see
        `DeferredPublishes`.

        Returns whether more may be received at once: the connection is open, nothing that it
        publishes is blocked, and its input is not paused.
        """
        self._now = now
        self.heartbeat.received_at = now
        read_input = self.input
        if self.state in FRAMED:
            events = self._receiver.receive(read)
            if self._alarms.is_blocking or read_input.held.events:
                self._handle_in_alarm(events, now)
            else:
                read_input.handle(events, self, now)
        elif self.state not in ENDED:
            self._opening.receive(read)
            self._shake_hands(now)
        return self.state is _OPEN and not self.is_input_paused

    def _shake_hands(self, now: float) -> None:
        """Continue the handshake with the bytes that have arrived."""
        try:
            self._opening.go_on(self, now)
        except (AmqpError, FatalFramingError) as error:
            self.fail(Failed(0, error), now)
            return
        if self.state in FRAMED:
            self.receive(self._opening.take_rest(), now)

    def _handle_in_alarm(self, events: list[Event | MoreFrames], now: float) -> None:
        """Handle the events of one read but for what is published in it, which is held."""
        held = self.input.held
        self.input.handle(self.input.hold(events), self, now)
        unfinished_bytes = self._receiver.contents.memory_bytes
        # Only who publishes during the alarm is blocked: a worker that only consumes is what ends
        # it.
        if self.session is not None and (held.events or unfinished_bytes):
            self.block()
            is_consuming = self.session.is_consuming
            # TCP holds the rest back; what has been read already is bounded.
            self.input.must_not_be_read = held.is_full(unfinished_bytes, is_consuming=is_consuming)

    def offer(self, mechanisms: tuple[str, ...], certificate_user: str) -> None:
        """Set which mechanisms the client may log in with, before it has sent anything."""
        self._negotiation.mechanisms = mechanisms
        self._negotiation.certificate_user = certificate_user

    def logged_in(self, checked: CheckedLogin, now: float) -> None:
        """Continue the handshake after the login was checked."""
        # The client may have gone, or the time be up, while a thread checked its password.
        if self.is_authenticating and self._opening.logged_in(checked, self, now):
            self._deadline.extend(HANDSHAKE_S, now)
            self._shake_hands(now)

    def renewed(self, checked: CheckedLogin, now: float) -> bool:
        """Answer connection.update-secret, after the new token was checked. Returns whether the
        login was renewed.
        """
        if self.session is None:
            return False
        # A token that is not renewed in time ends the connection; a wrong one does so at once, as
        # in RabbitMQ.
        if refused := self._renewal.end(checked):
            self.fail(Failed(0, refused), now)
            return False
        self._send(methods.ConnectionUpdateSecretOk())
        return True

    def go_on(self, now: float) -> None:
        """Handle input that waited while input was paused, until it has to wait again."""
        waiting, self.input.waiting = self.input.waiting, []
        if waiting and type(waiting[0]) is MoreFrames:
            self.receive(b"", now)
        else:
            self.input.handle(waiting, self, now)
        self._services.deferred.flush()

    def block(self) -> None:
        """Send connection.blocked, if the client supports it: what it publishes has to wait."""
        if self.state is _OPEN:
            self.move(ConnectionEvent.BLOCK)
            # An extension of RabbitMQ: a client that does not announce it would take the method
            # for an error.
            if self._negotiation.has_capability("connection.blocked"):
                self._send(methods.ConnectionBlocked(reason=self._alarms.reason))

    def unblock(self) -> None:
        """Have what was held handled by `go_on`, and send connection.unblocked."""
        self.input.release_held()
        if self.state is _BLOCKED:
            self.move(ConnectionEvent.UNBLOCK)
            if self._negotiation.has_capability("connection.blocked"):
                self._send(methods.ConnectionUnblocked())

    def writable(self) -> None:
        """Continue deliveries: the outbox has room again."""
        if self.session is not None:
            self.session.resume()

    def free_caches(self) -> None:
        """Forget what only saves time."""
        self._receiver.free_caches()
        if self.session is not None:
            self.session.free_caches()

    def exhaust(self, reason: str, now: float) -> None:
        """Close the connection because its unfinished publishes take too much memory."""
        if self.state in SERVED:
            held = f"{self.unfinished_bytes} bytes of unfinished bodies and open transactions"
            self.fail(Failed(0, ResourceError(f"{held}: {reason}")), now)

    def break_off(self) -> None:
        """Close the connection after an internal error: the client would wait for ever for an
        answer that was lost. The close concerns the connection and no channel, because the client
        may be waiting on a channel that is being closed.
        """
        self.fail(Failed(0, InternalError("see the log of the broker")), self._now)

    @property
    def is_served(self) -> bool:
        return self.state in SERVED

    @property
    def has_unacked(self) -> bool:
        """Whether the client has deliveries that it may still ack."""
        return self.session is not None and self.session.has_unacked

    def shut_down(self, now: float, reason: str = "broker shut down") -> None:
        """Close the connection because the server stops, or an operator has ended its rights.

        Args: reason, told to the client.
        """
        # Before the connection is open there is no close method to send (section 2.2.4).
        if self.state in SERVED:
            self.close(ConnectionEvent.SHUT_DOWN, ConnectionForced(reason), now)
        elif not self.is_finished:
            self.move(ConnectionEvent.SHUT_DOWN)

    def abandon(self) -> None:
        self.outbox.close()
        self.move(ConnectionEvent.ABANDON)

    def _time_out(self) -> None:
        self.log.warning("connection timed out", extra={"state": self.state.value})
        self.move(ConnectionEvent.END)

    def _send_heartbeat(self) -> None:
        self.outbox.add(HEARTBEAT_FRAME)

    def lost(self) -> None:
        """End the connection: the client has gone, or nothing more is read from it."""
        if self.state in SERVED:
            self.log.warning("client unexpectedly closed TCP connection")
        self.move(ConnectionEvent.END)

    # Events.

    def fail_received(self, failed: Failed, now: float) -> None:
        """Handle an error in what was received. While the connection is being closed all is ignored
        but close and close-ok, and their frames are found as long as the boundaries are known.
        """
        if self.state is not ConnectionState.CLOSING or self._receiver.is_lost:
            self.fail(failed, now)

    def fail(self, failed: Failed, now: float) -> None:
        """Close the channel or the connection, as the kind of error demands."""
        # What was deferred came before the error, and must not be lost with the channel.
        self._services.deferred.flush()
        error = failed.error
        if isinstance(error, FatalFramingError) or self.state not in SERVED:
            if self.state is not ConnectionState.CLOSING and not self.is_finished:
                extra = {"reason": str(error)}
                self.log.warning("the connection was closed without a close method", extra=extra)
            is_fault = isinstance(error, AmqpError)
            self.move(ConnectionEvent.FAULT if is_fault else ConnectionEvent.END)
        elif fault := self._contained(failed.channel, error):
            where = {"channel": failed.channel, "reason": fault.reply_text}
            self.log.warning("connection error", extra=where)
            self.close(ConnectionEvent.FAULT, fault, now)
            # Where the next frame begins is not known: no close-ok can be found any more.
            if self._receiver.is_lost:
                self.move(ConnectionEvent.END)

    def _contained(self, channel: int, error: AmqpError) -> AmqpError | None:
        """Close the channel that an error concerns: see `Session.contain`."""
        fault = self.session.contain(channel, error) if self.session else error
        # What it had published is dropped with the channel: it was never accepted.
        if fault is None and self.input.held.events:
            self.input.held.forget(channel)
        return fault

    def refuse(self, channel: int, error: BrokerError) -> None:
        """Refuse what was published on a channel: it cannot be stored now."""
        publish = methods.BasicPublish
        refused = refusal(error).at(publish.class_id, publish.method_id)
        self.fail(Failed(channel, refused), self._now)

    # Methods of class connection.

    def handle(self, method: methods.Method) -> None:
        """Handle a method of the open connection, or of one that is being closed.

        Raises: AmqpError.
        """
        event = CONNECTION_METHODS.get(type(method))
        if event is None or event not in CONNECTION[self.state]:
            if self.state in SERVED:
                raise CommandInvalid(f"{method.name} on a connection that is {self.state.value}")
            return
        if event is ConnectionEvent.CLOSE and self.session is not None:
            # The client would take its close-ok for the answer to everything that it published.
            self.session.tell_faults()
        self.move(event)
        match method:
            case methods.ConnectionUpdateSecret():
                if not self._renewal.begin(method.new_secret, self.on_secret):
                    self._send(methods.ConnectionUpdateSecretOk())
            case methods.ConnectionClose():
                self._send(methods.ConnectionCloseOk())

    # The end of the opening.

    def tuned(self, heartbeat_s: int, now: float) -> None:
        """Use the frame-max and the heartbeat that were agreed on."""
        self._receiver.tune(self._negotiation.frame_max)
        self.heartbeat = Heartbeat(heartbeat_s, now)

    def opened(self, session: Session, vhost: str) -> None:
        """Use the channels of the connection that is open now."""
        self.session = session
        self.vhost = self.log.fields["vhost"] = vhost
        self._told.opened(vhost)
        self.move(ConnectionEvent.OPEN)
        self._send(methods.ConnectionOpenOk())

    # Closing.

    def _send(self, method: methods.Method) -> None:
        self.outbox.add(method_frame(0, method.encode()))

    def close(
        self, event: ConnectionEvent, error: AmqpError, now: float, answer_s: float = _CLOSE_S
    ) -> None:
        """Start the closing handshake: the client has some seconds to answer."""
        # Rule `stability` of connection.close: all that follows is dropped but close and close-ok.
        self._receiver.discard_contents()
        self._send(connection_close(error))
        self._deadline.restart(answer_s, now)
        self.move(event)

    def move(self, event: ConnectionEvent) -> None:
        """Move to the next state of the table."""
        before, self.state = self.state, CONNECTION[self.state][event]
        if before in SERVED and self.state not in SERVED:
            self._release()

    def _release(self) -> None:
        """Release everything that the connection holds: consumers, unacked messages, exclusive
        queues.
        """
        self._services.deferred.flush()
        self.input.drop()
        self._services.work["connection closed"] = None
        self._told.closed()
        # The session refers back to this connection: clearing it frees both at once.
        session, self.session = self.session, None
        self._authorization.close()
        if session is not None:
            session.close()
