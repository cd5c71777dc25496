"""The opening of a connection, from the protocol header to connection.open-ok: which method is due,
what it is answered with, and the login. `Negotiation` has what was agreed on.

The connection is passed with each call and not kept, so that it is freed as soon as it has ended.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from amqpstore_server.amqp.context import ChannelContext
from amqpstore_server.amqp.envelopes import Envelopes, SimpleTargets
from amqpstore_server.amqp.negotiation import Negotiation
from amqpstore_server.amqp.session import Session
from amqpstore_server.amqp.telling import ConnectionEvents
from amqpstore_server.broker.broker import Broker
from amqpstore_server.broker.channels.local_transaction import UncommittedBytes
from amqpstore_server.broker.errors import BrokerError
from amqpstore_server.broker.monitoring.audit import audit_refusal
from amqpstore_server.clients.authorization import Authorization
from amqpstore_server.clients.client_log import ClientLog
from amqpstore_server.clients.limits import Limits
from amqpstore_server.clients.login import CheckedLogin
from amqpstore_server.clients.outbox import Outbox
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.errors import AmqpError, NotAllowed
from amqpstore_server.protocol.frames import method_frame
from amqpstore_server.protocol.handshake import Handshake
from amqpstore_server.protocol.spec import PROTOCOL_HEADER
from amqpstore_server.protocol.states import (
    CONNECTION_METHODS,
    DUE,
    ConnectionEvent,
    ConnectionState,
)

_REFUSED_S = 3.0
"""How long a client has to answer connection.close after a login that was refused, as in RabbitMQ.
"""


class OpeningConnection(Protocol):
    """The connection, for its opening."""

    @property
    def state(self) -> ConnectionState: ...

    @property
    def name(self) -> str: ...

    def move(self, event: ConnectionEvent) -> None:
        """Move to the next state of the table."""

    def close(
        self, event: ConnectionEvent, error: AmqpError, now: float, answer_s: float = ...
    ) -> None:
        """Send connection.close, to which the client has some seconds to answer."""

    def tuned(self, heartbeat_s: int, now: float) -> None:
        """Use the frame-max and the heartbeat that were agreed on."""

    def opened(self, session: Session, vhost: str) -> None:
        """Use the channels of the connection that is open now."""

    def break_off(self) -> None:
        """Close the connection after an internal error."""

    def refuse(self, channel: int, error: BrokerError) -> None:
        """Refuse what was published on a channel: it cannot be stored now."""


class Opening:
    """The server's side of the handshake of one connection.

    Args: transacted, the memory of its transactions; told, which tells what happens to it.
    """

    def __init__(
        self,
        broker: Broker,
        limits: Limits,
        negotiation: Negotiation,
        authorization: Authorization,
        outbox: Outbox,
        transacted: UncommittedBytes,
        told: ConnectionEvents,
        log: ClientLog,
    ) -> None:
        self._broker = broker
        self._limits = limits
        self._negotiation = negotiation
        self._authorization = authorization
        self._outbox = outbox
        self._transacted = transacted
        self._told = told
        self._log = log
        self._handshake = Handshake()

    def receive(self, read: bytes) -> None:
        """Add the bytes of one read, for `go_on`."""
        self._handshake.receive(read)

    def go_on(self, connection: OpeningConnection, now: float) -> None:
        """Handle what has arrived and is due. Raises: AmqpError, FatalFramingError."""
        if connection.state is ConnectionState.GREETING:
            self._greet(connection)
        while (due := DUE.get(connection.state)) and (method := self._handshake.take(due)):
            self._handle(method, connection, now)

    def take_rest(self) -> bytes:
        """Return the bytes behind the last method of the handshake, once."""
        rest, self._handshake.rest = self._handshake.rest, b""
        return rest

    def _greet(self, connection: OpeningConnection) -> None:
        """Answer the protocol header once it has arrived."""
        header = self._handshake.take_header()
        if header is None:
            return
        if not self._negotiation.speaks(header):
            # Section 4.2.2: the client learns from this header what is spoken here, and then the
            # socket is closed.
            self._outbox.add(PROTOCOL_HEADER)
            connection.move(ConnectionEvent.END)
            return
        connection.move(ConnectionEvent.HEADER)
        self._outbox.add(method_frame(0, self._negotiation.start()))

    def _handle(self, method: methods.Method, connection: OpeningConnection, now: float) -> None:
        if isinstance(method, methods.ConnectionOpen):
            self._open(method, connection, now)
            return
        # This is noted first: from here on no second method of this kind is legal, whatever comes
        # of this one.
        connection.move(CONNECTION_METHODS[type(method)])
        if isinstance(method, methods.ConnectionStartOk):
            is_accepted = self._negotiation.start_ok(method)
        else:
            assert isinstance(method, methods.ConnectionTuneOk)  # narrows the type; `DUE` says so
            is_accepted = self._negotiation.tune_ok(method)
            if is_accepted:
                connection.tuned(method.heartbeat, now)
        if not is_accepted:
            connection.move(ConnectionEvent.END)

    def logged_in(self, checked: CheckedLogin, connection: OpeningConnection, now: float) -> bool:
        """Answer the login, which was checked. Returns whether it was granted."""
        negotiation = self._negotiation
        # The password is forgotten, whatever the answer is.
        negotiation.forget_password()
        if checked.granted:
            if checked.rights is not None:
                self._authorization.token = checked.rights
                negotiation.login = replace(negotiation.login, user=checked.rights.user)
            self._log.logged_in(negotiation.login.user)
            self._told.logged_in()
            connection.move(ConnectionEvent.GRANTED)
            self._outbox.add(method_frame(0, negotiation.tune().encode()))
        else:
            self._told.login_refused(checked.reason)
            if negotiation.has_capability("authentication_failure_close"):
                # A RabbitMQ extension: a client with this capability is told that the login failed,
                # but not why. It has some time to read that: a socket that is closed while the
                # client still sends is reset, and then the client does not see what it was told.
                connection.close(ConnectionEvent.REFUSED, negotiation.refusal(), now, _REFUSED_S)
            else:
                connection.move(ConnectionEvent.END)
        return checked.granted

    def _open(
        self, method: methods.ConnectionOpen, connection: OpeningConnection, now: float
    ) -> None:
        negotiation = self._negotiation
        user = negotiation.login.user
        try:
            access = self._authorization.access(self._broker, user, method.virtual_host)
            vhost = self._broker.vhost(method.virtual_host)
            # This check comes last, as it counts: a connection that is refused before must not use
            # up its user's limit.
            usage = self._broker.quotas.connect(user, method.virtual_host)
        except BrokerError as error:
            refused = NotAllowed(str(error)).at(method.class_id, method.method_id)
            fields = {
                **self._log.fields,
                "vhost": method.virtual_host,
                "reason": refused.reply_text,
            }
            audit_refusal("vhost refused", **fields)
            connection.close(ConnectionEvent.REFUSED, refused, now)
            return
        envelopes = Envelopes(user, self._authorization.impersonates)
        deferred = self._broker.services.deferred
        context = ChannelContext(
            name=connection.name,
            log=self._log,
            vhost=vhost,
            access=access,
            envelopes=envelopes,
            simple_targets=SimpleTargets(vhost.router, envelopes, access, deferred),
            outbox=self._outbox,
            transacted=self._transacted,
            frame_max=negotiation.frame_max,
            max_prefetch=self._limits.prefetch,
            takes_cancels=negotiation.has_capability("consumer_cancel_notify"),
            shares_prefetch=negotiation.shares_prefetch,
            break_off=connection.break_off,
            refuse=connection.refuse,
        )
        session = Session(context, negotiation.channel_max, self._limits.consumers, usage)
        connection.opened(session, method.virtual_host)
