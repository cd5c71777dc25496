"""One AMQP connection, without its socket (see `socket_connection`): bytes in, frames in the
outbox, time passed in.

It follows the connection table in `protocol.states`. `Negotiation` handles it until it is open,
`Session` from then on. An AmqpError that concerns a channel closes the channel, one that concerns
the connection closes the connection; both tell the client, with the specification's reply code.
Before the connection is open, the socket is closed without a method (section 2.2.4).

Past 600 lines because it is one state machine: each call of the socket's side ends in its table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from amqpstore import DiskFullError
from amqpstore_server.amqp.channel import AmqpChannel
from amqpstore_server.amqp.context import ChannelContext
from amqpstore_server.amqp.envelopes import Envelopes, SimpleTargets
from amqpstore_server.amqp.held_publishes import HeldPublishes
from amqpstore_server.amqp.negotiation import Negotiation
from amqpstore_server.amqp.product import Product
from amqpstore_server.amqp.refusals import connection_close, refusal, refusal_of
from amqpstore_server.amqp.session import Session, Unfinished
from amqpstore_server.amqp.telling import ConnectionEvents
from amqpstore_server.broker.broker import Broker
from amqpstore_server.broker.channels.local_transaction import UncommittedBytes
from amqpstore_server.broker.errors import BrokerError
from amqpstore_server.broker.monitoring.audit import audit_refusal
from amqpstore_server.broker.monitoring.counters import OctetCounters
from amqpstore_server.broker.monitoring.faults import FATAL, called
from amqpstore_server.clients.alarm_state import AlarmState, NoAlarm
from amqpstore_server.clients.authorization import Authorization
from amqpstore_server.clients.client_log import ClientLog
from amqpstore_server.clients.deadline import Deadline
from amqpstore_server.clients.heartbeat import Heartbeat
from amqpstore_server.clients.limits import Limits
from amqpstore_server.clients.login import CheckedLogin
from amqpstore_server.clients.outbox import MAX_UNREAD_BYTES, Outbox
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
from amqpstore_server.protocol.events import (
    Acks,
    Event,
    Failed,
    MoreFrames,
    Publishes,
    ReceivedMethod,
)
from amqpstore_server.protocol.frames import HEARTBEAT_FRAME, method_frame
from amqpstore_server.protocol.handshake import Handshake
from amqpstore_server.protocol.receiver import Receiver
from amqpstore_server.protocol.spec import PROTOCOL_HEADER
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

HANDSHAKE_S = 10.0
LOGIN_CHECK_S = 30.0
"""How much longer a handshake may take while its login is checked, and waits for that: threads that
check leave the processor to others, and where other programs need all of it they take their time.
"""
_CLOSE_S = 10.0

_REFUSED_S = 3.0
"""How long a client has to answer connection.close after a login that was refused, as in RabbitMQ.
"""

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

# Looked up once: up to Python 3.11, to look up a member of an enum takes longer than all that is
# done with it.
_OPEN, _BLOCKED = ConnectionState.OPEN, ConnectionState.BLOCKED
_AUTHENTICATING = ConnectionState.AUTHENTICATING

_DEFINING = (methods.ExchangeDeclare.class_id, methods.QueueDeclare.class_id)
"""The classes of methods that change definitions."""


class AmqpConnection:
    """The server's side of one connection.

    Args: peer, the client's name in the log; name, that of the connection, as RabbitMQ writes it:
    "PEER -> ADDRESS"; product, the name and version the server gives itself; may_impersonate,
    whether a user may publish with another user's user-id; on_output, called when the outbox stops
    being empty; now, seconds on the clock whose readings `receive` and `tick` get too; alarms,
    whose end publishes have to wait for.

    `_session` is set while the connection is OPEN or BLOCKED, and None otherwise.
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
        name: str = "",
        has_tls: bool = False,
        alarms: AlarmState = NoAlarm(),  # noqa: B008 - it has no state
    ) -> None:
        self.name = name or peer
        self.outbox = Outbox(on_output)
        self.peer = peer
        self.log = ClientLog(peer)
        self.vhost = ""
        """The virtual host of the open connection."""
        self.on_secret: Callable[[str], None] | None = None
        """Called with a token that is to renew the login; it calls `renewed` later."""
        self.has_published = False
        self.has_defined = False
        """Whether it has changed definitions since this was last set to False."""
        self.message_count = 0
        """Methods and messages that it has sent."""
        self.octets = OctetCounters()
        """Counts of the octets that passed through its socket."""
        self.state = ConnectionState.GREETING
        self._broker = broker
        self._limits = limits
        self._authorization = Authorization(may_impersonate)
        self._negotiation = Negotiation(limits, product, self.log)
        context = broker.context
        self._told = ConnectionEvents(
            self.name, self._negotiation, self.log, context, has_tls=has_tls
        )
        self._deferred = context.deferred
        self._handshake = Handshake()
        self._receiver = Receiver(limits.frame_max, limits.max_message_bytes)
        self._transacted = UncommittedBytes()
        self.waiting: list[Event | MoreFrames | Unfinished] = []
        """Input that `go_on` is to handle."""
        self._unfinished: Unfinished | None = None
        self.held = HeldPublishes()
        """Methods that wait for the end of an alarm, until `unblock`."""
        self._alarms = alarms
        self.must_not_be_read = False
        """Whether so much is held that no more is to be read before `unblock`."""
        self._now = now
        self._deadline = Deadline(HANDSHAKE_S, now)
        self.heartbeat = Heartbeat(0, now)

    @property
    def is_finished(self) -> bool:
        """Whether the socket is to be closed once the outbox is empty."""
        return self.state in ENDED

    @property
    def negotiated(self) -> Negotiation:
        """The parameters that client and server have agreed on."""
        return self._negotiation

    @property
    def heartbeat_s(self) -> int:
        """The interval of heartbeats; 0 without."""
        return self.heartbeat.interval_s

    @property
    def is_blocked(self) -> bool:
        """Whether the client was told that it may not publish."""
        return self.state is _BLOCKED

    @property
    def owner(self) -> object:
        """The owner of the connection's exclusive queues."""
        return self._session.context if self.state in SERVED else None

    @property
    def channels(self) -> list[AmqpChannel]:
        """The open connection's channels, those that are being closed too."""
        return self._session.channels if self.state in SERVED else []

    @property
    def is_lost(self) -> bool:
        """Whether the client does not answer any more; nothing more is sent to it."""
        return self.state is ConnectionState.ABANDONED

    @property
    def is_authenticating(self) -> bool:
        """Whether the login has to be checked now; call `logged_in` afterwards."""
        return self.state is _AUTHENTICATING

    @property
    def user(self) -> str:
        """The user that the client says it is; empty before its login."""
        return self._negotiation.login.user

    @property
    def is_input_paused(self) -> bool:
        """Whether input from the client has to wait: it leaves too much unread, its login is being
        checked, others have their turn, or as much as is held waits for the end of an alarm. Do not
        call `receive` then; call `go_on` when the reason is gone.
        """
        return (
            bool(self.waiting)
            or self.must_not_be_read
            or self.outbox.byte_count > MAX_UNREAD_BYTES
            or self.state is _AUTHENTICATING
        )

    @property
    def unfinished_bytes(self) -> int:
        """Bytes held for unfinished publishes: partial bodies, open transactions, and what waits
        for the end of an alarm.
        """
        return (
            self._receiver.contents.memory_bytes
            + self._transacted.byte_count
            + self.held.byte_count
        )

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
        if self.state in FRAMED:
            alarms = self._alarms
            if alarms.is_blocking or self.held.events or (self.has_published and alarms.is_raised):
                self._receive_in_alarm(read, now)
            else:
                self._events(self._receiver.receive(read), now)
        elif self.state not in ENDED:
            self._handshake.receive(read)
            self._shake_hands(now)
        return not (
            # As `is_input_paused`; each call costs.
            self.waiting
            or self.must_not_be_read
            or self.outbox.byte_count > MAX_UNREAD_BYTES
            or self.state is not _OPEN
        )

    def _shake_hands(self, now: float) -> None:
        """Continue the handshake with the bytes that have arrived."""
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
            self.receive(rest, now)

    def _receive_in_alarm(self, read: bytes, now: float) -> None:
        """Handle the bytes of one read but for what is published in it, which is held."""
        held = self.held
        events: list[Event | MoreFrames] = []
        for event in self._receiver.receive(read):
            if type(event) is Publishes:
                self.has_published = True
                held.add(event)
            elif type(event) is MoreFrames or not held.events or not held.holds(event):
                events.append(event)
        self._events(events, now)
        unfinished_bytes = self._receiver.contents.memory_bytes
        if self.state in SERVED and (held.events or unfinished_bytes):
            self.block()
            is_consuming = self._session.is_consuming
            self.must_not_be_read = held.is_full(unfinished_bytes, is_consuming=is_consuming)

    def offer(self, mechanisms: tuple[str, ...], certificate_user: str) -> None:
        """Set which mechanisms the client may log in with, before it has sent anything."""
        self._negotiation.mechanisms = mechanisms
        self._negotiation.certificate_user = certificate_user

    def logged_in(self, checked: CheckedLogin, now: float) -> None:
        """Continue the handshake after the login was checked."""
        if not self.is_authenticating:
            return
        negotiation = self._negotiation
        negotiation.forget_password()
        if checked.granted:
            if checked.rights is not None:
                self._authorization.token = checked.rights
                negotiation.login = replace(negotiation.login, user=checked.rights.user)
            self.log.logged_in(self.user)
            self._told.logged_in()
            self._deadline.extend(HANDSHAKE_S, now)
            self._move(ConnectionEvent.GRANTED)
            self._send(negotiation.tune())
            self._shake_hands(now)
            return
        self._told.login_refused(checked.reason)
        if negotiation.has_capability("authentication_failure_close"):
            # A RabbitMQ extension: a client with this capability is told that the login failed, but
            # not why. It has some time to read that: a socket that is closed while the client still
            # sends is reset, and then the client does not see what it was told.
            self.waiting = []
            self._close(ConnectionEvent.REFUSED, negotiation.refusal(), now, _REFUSED_S)
        else:
            self._move(ConnectionEvent.END)

    def renewed(self, found: CheckedLogin, now: float) -> bool:
        """Answer connection.update-secret, after the new token was checked. Returns whether the
        login was renewed.
        """
        self._authorization.is_renewing = False
        if self.state not in SERVED:
            return False
        if reason := self._authorization.renew(found):
            audit_refusal("token refused", **self.log.fields, reason=reason)
            method = methods.ConnectionUpdateSecret
            error = NotAllowed("the new secret was refused, see the log of the broker")
            self._failed(Failed(0, error.at(method.class_id, method.method_id)), now)
            return False
        self._send(methods.ConnectionUpdateSecretOk())
        return True

    def go_on(self, now: float) -> None:
        """Handle input that waited while input was paused, until it has to wait again."""
        waiting, self.waiting = self.waiting, []
        if waiting and type(waiting[0]) is MoreFrames:
            self.receive(b"", now)
        else:
            self._events(waiting, now)
        self._deferred.flush()

    def block(self) -> None:
        """Send connection.blocked, if the client supports it: what it publishes has to wait."""
        if self.state is _OPEN:
            self._move(ConnectionEvent.BLOCK)
            if self._negotiation.has_capability("connection.blocked"):
                self._send(methods.ConnectionBlocked(reason=self._alarms.reason))

    def unblock(self) -> None:
        """Have what was held handled by `go_on`, and send connection.unblocked."""
        self.must_not_be_read = False
        begun = 1 if self.waiting and isinstance(self.waiting[0], Unfinished) else 0
        self.waiting[begun:begun] = self.held.release()
        if self.state is _BLOCKED:
            self._move(ConnectionEvent.UNBLOCK)
            if self._negotiation.has_capability("connection.blocked"):
                self._send(methods.ConnectionUnblocked())

    def tick(self, now: float) -> None:
        """Send a heartbeat if one is due, and notice missed ones. Call it about once a second."""
        self._now = now
        if self.state not in SERVED:
            more_s = LOGIN_CHECK_S if self.state is _AUTHENTICATING else 0.0
            if self._deadline.is_over(now, more_s=more_s) and not self.is_finished:
                extra = {"state": self.state.value}
                self.log.warning("connection timed out", extra=extra)
                self._move(ConnectionEvent.END)
            return
        heartbeat = self.heartbeat
        if self.is_input_paused:
            # Nothing is read from it: only that it accepts bytes shows that it is alive.
            heartbeat.received_at = max(heartbeat.received_at, heartbeat.sent_at)
        if heartbeat.is_peer_gone(now):
            self.log.warning("missed heartbeats from client")
            self.abandon()
        elif heartbeat.is_due(now):
            self.outbox.add(HEARTBEAT_FRAME)

    def excuse(self, now: float) -> None:
        """Do not count missed heartbeats: the server has stopped reading from the client."""
        self.heartbeat.received_at = now

    def stood_still(self, seconds: float, now: float) -> None:
        """Do not count so much time until now against the client: nothing could be read from it."""
        heartbeat = self.heartbeat
        heartbeat.received_at = min(now, heartbeat.received_at + seconds)
        if self.state not in SERVED:
            self._deadline.put_off(seconds)

    def writable(self) -> None:
        """Continue deliveries: the outbox has room again."""
        if self.state in SERVED:
            self._session.resume()

    def free_caches(self) -> None:
        """Forget what only saves time."""
        self._receiver.free_caches()
        if self.state in SERVED:
            self._session.free_caches()

    def exhaust(self, reason: str, now: float) -> None:
        """Close the connection because its unfinished publishes take too much memory."""
        if self.state in SERVED:
            held = f"{self.unfinished_bytes} bytes of unfinished bodies and open transactions"
            self._failed(Failed(0, ResourceError(f"{held}: {reason}")), now)

    def break_off(self) -> None:
        """Close the connection after an internal error: the client would wait for ever for an
        answer that was lost. The close concerns the connection and no channel, because the client
        may be waiting on a channel that is being closed.
        """
        self._failed(Failed(0, InternalError("see the log of the broker")), self._now)

    @property
    def is_served(self) -> bool:
        """Whether the connection is open: its channels can be used."""
        return self.state in SERVED

    @property
    def has_unacked(self) -> bool:
        """Whether the client has deliveries that it may still ack."""
        return self.state in SERVED and self._session.has_unacked

    def shut_down(self, now: float, reason: str = "broker shut down") -> None:
        """Close the connection because the server stops, or an operator has ended its rights.

        Args: reason, told to the client.
        """
        if self.state in SERVED:
            self._close(ConnectionEvent.SHUT_DOWN, ConnectionForced(reason), now)
        elif not self.is_finished:
            self._move(ConnectionEvent.SHUT_DOWN)

    def abandon(self) -> None:
        """Drop the connection without a close handshake: the client does not answer."""
        self.outbox.close()
        self._move(ConnectionEvent.ABANDON)

    def lost(self) -> None:
        """End the connection: the client has gone, or nothing more is read from it."""
        if self.state in SERVED:
            self.log.warning("client unexpectedly closed TCP connection")
        self._move(ConnectionEvent.END)

    # Events.

    def _events(  # noqa: C901 - each call counts here
        self, events: Sequence[Event | MoreFrames | Unfinished], now: float
    ) -> None:
        """Handle the events of one read until the connection `is_input_paused`: that may be before
        the first, if to look at the read has taken long.
        """
        if self._receiver.received.entry_count > _ENTRIES_AT_ONCE:
            self._receiver.received.entry_count = 0
            self.waiting = [*events]
            return
        published: set[AmqpChannel] = set()
        outbox = self.outbox
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
                self._deferred.flush()
                if type(event) is ReceivedMethod:
                    self.message_count += 1
                    methods_left -= 1
                    is_defining = self._is_defining(event.method, is_defining)
                elif type(event) is MoreFrames:
                    self.waiting = [event]
                    break
            self._event(event, published, now)
        if self._unfinished is not None:
            self.waiting.insert(0, self._unfinished)
            self._unfinished = None
        if is_defining:
            self.has_defined = True
            self._broker.context.commit_definitions()
        for channel in published:
            called(channel.confirm_published, channel.failed)
        if self._receiver.contents or self._transacted.byte_count:
            # Whoever is in the middle of a publish waits like those who have published.
            self.has_published = True
            unfinished_bytes = self._receiver.contents.memory_bytes + self._transacted.byte_count
            if unfinished_bytes > self._limits.unfinished_bytes:
                self.exhaust(f"the limit of a connection is {self._limits.unfinished_bytes}", now)

    def _is_defining(self, method: methods.Method, was_defining: bool) -> bool:
        """Note a method before it is handled. Returns whether it, or one before it in the same
        read, changes definitions, which are then stored together.
        """
        context = self._broker.context
        context.work[method.name] = None
        if was_defining or method.class_id not in _DEFINING:
            return was_defining
        context.store.definitions.begin_group()
        return True

    def _event(self, event: Event | Unfinished, published: set[AmqpChannel], now: float) -> None:
        """Handle one event of the receiver."""
        try:
            if type(event) is Failed:
                # While it is closing all is ignored but close and close-ok, and their frames are
                # found as long as the boundaries are known.
                if self.state is not ConnectionState.CLOSING or self._receiver.is_lost:
                    self._failed(event, now)
            elif type(event) is ReceivedMethod and not event.channel:
                self._method(event.method, now)
            elif self.state in SERVED:
                self._unfinished = self._session.handle(event, published)
        except (AmqpError, BrokerError, DiskFullError) as raised:
            # Clear local names here: the traceback of the error holds this frame, which would keep
            # the connection alive until the next garbage collection.
            cause = event.event if isinstance(event, Unfinished) else event
            self._failed(Failed(event.channel, refusal_of(cause, raised)), now)
        except FATAL:
            raise
        except Exception:
            # An internal error costs this client its connection, and affects no one else.
            self.log.exception("connection failed")
            self.break_off()

    def _failed(self, failed: Failed, now: float) -> None:
        """Close the channel or the connection, as the kind of error demands."""
        self._deferred.flush()
        error = failed.error
        if isinstance(error, FatalFramingError) or self.state not in SERVED:
            if self.state is not ConnectionState.CLOSING and not self.is_finished:
                extra = {"reason": str(error)}
                self.log.warning("the connection was closed without a close method", extra=extra)
            is_fault = isinstance(error, AmqpError)
            self._move(ConnectionEvent.FAULT if is_fault else ConnectionEvent.END)
        elif fault := self._contained(failed.channel, error):
            where = {"channel": failed.channel, "reason": fault.reply_text}
            self.log.warning("connection error", extra=where)
            self._close(ConnectionEvent.FAULT, fault, now)
            if self._receiver.is_lost:
                self._move(ConnectionEvent.END)

    def _contained(self, channel: int, error: AmqpError) -> AmqpError | None:
        """Close the channel that an error concerns: see `Session.contain`."""
        fault = self._session.contain(channel, error)
        if fault is None and self.held.events:
            self.held.forget(channel)
        return fault

    def _refuse(self, channel: int, error: BrokerError) -> None:
        """Refuse what was published on a channel: it cannot be stored now."""
        publish = methods.BasicPublish
        refused = refusal(error).at(publish.class_id, publish.method_id)
        self._failed(Failed(channel, refused), self._now)

    # Methods of class connection.

    def _greet(self) -> None:
        """Answer the protocol header once it has arrived."""
        header = self._handshake.take_header()
        if header is None:
            return
        if not self._negotiation.speaks(header):
            self.outbox.add(PROTOCOL_HEADER)
            self._move(ConnectionEvent.END)
            return
        self._move(ConnectionEvent.HEADER)
        self.outbox.add(method_frame(0, self._negotiation.start()))

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
        if event is ConnectionEvent.CLOSE and self.state in SERVED:
            self._session.tell_faults()
        self._move(event)
        match method:
            case methods.ConnectionStartOk():
                if not self._negotiation.start_ok(method):
                    self._move(ConnectionEvent.END)
            case methods.ConnectionTuneOk():
                self._tune_ok(method, now)
            case methods.ConnectionUpdateSecret():
                self._update_secret(method)
            case methods.ConnectionClose():
                self._send(methods.ConnectionCloseOk())

    def _update_secret(self, method: methods.ConnectionUpdateSecret) -> None:
        """Raises: CommandInvalid."""
        authorization = self._authorization
        if authorization.token is None or self.on_secret is None:
            # A password does not expire, so nothing changes for a client that is logged in with
            # one.
            self._send(methods.ConnectionUpdateSecretOk())
            return
        if authorization.is_renewing:
            raise CommandInvalid("connection.update-secret while another one is being checked")
        authorization.is_renewing = True
        self.on_secret(method.new_secret.decode("utf-8", "replace"))

    def _tune_ok(self, method: methods.ConnectionTuneOk, now: float) -> None:
        if not self._negotiation.tune_ok(method):
            self._move(ConnectionEvent.END)
            return
        self._receiver.tune(self._negotiation.frame_max)
        self.heartbeat = Heartbeat(method.heartbeat, now)

    def _open(self, method: methods.ConnectionOpen, now: float) -> None:
        negotiation = self._negotiation
        user = negotiation.login.user
        try:
            access = self._authorization.access(self._broker, user, method.virtual_host)
            vhost = self._broker.vhost(method.virtual_host)
            usage = self._broker.quotas.connect(user, method.virtual_host)
        except BrokerError as error:
            refused = NotAllowed(str(error)).at(method.class_id, method.method_id)
            fields = {**self.log.fields, "vhost": method.virtual_host, "reason": refused.reply_text}
            audit_refusal("vhost refused", **fields)
            self._close(ConnectionEvent.REFUSED, refused, now)
            return
        envelopes = Envelopes(user, self._authorization.impersonates)
        context = ChannelContext(
            name=self.name,
            log=self.log,
            vhost=vhost,
            access=access,
            envelopes=envelopes,
            simple_targets=SimpleTargets(vhost.router, envelopes, access, self._deferred),
            outbox=self.outbox,
            transacted=self._transacted,
            frame_max=negotiation.frame_max,
            max_prefetch=self._limits.prefetch,
            takes_cancels=negotiation.has_capability("consumer_cancel_notify"),
            shares_prefetch=negotiation.shares_prefetch,
            break_off=self.break_off,
            refuse=self._refuse,
        )
        self._session = Session(context, negotiation.channel_max, self._limits.consumers, usage)
        self.vhost = self.log.fields["vhost"] = method.virtual_host
        self._told.opened(self.vhost)
        self._move(ConnectionEvent.OPEN)
        self._send(methods.ConnectionOpenOk())

    # Closing.

    def _send(self, method: methods.Method) -> None:
        self.outbox.add(method_frame(0, method.encode()))

    def _close(
        self, event: ConnectionEvent, error: AmqpError, now: float, answer_s: float = _CLOSE_S
    ) -> None:
        """Start the closing handshake: the client has some seconds to answer."""
        self._receiver.discard_contents()
        self._send(connection_close(error))
        self._deadline.restart(answer_s, now)
        self._move(event)

    def _move(self, event: ConnectionEvent) -> None:
        """Move to the next state of the table."""
        before, self.state = self.state, CONNECTION[self.state][event]
        if before in SERVED and self.state not in SERVED:
            self._release()

    def _release(self) -> None:
        """Release everything that the connection holds: consumers, unacked messages, exclusive
        queues.
        """
        self._deferred.flush()
        self.waiting = []
        self.held.release()
        self.must_not_be_read = False
        self._unfinished = None
        session = self._session
        self._broker.context.work["connection closed"] = None
        self._told.closed()
        # The session refers back to this connection: clearing it frees both at once.
        del self._session
        self._authorization.close()
        session.close()
