"""One client, from its accept to its end: the handshake of TLS, its login, what is read from it and
written to it, and its last words. It does not know the protocol.
"""

from __future__ import annotations

import socket
import ssl
from functools import partial

import trio

from amqpstore_server.amqp.connection import AmqpConnection
from amqpstore_server.amqp.product import Product
from amqpstore_server.broker.broker import Broker
from amqpstore_server.broker.monitoring.faults import FATAL, called
from amqpstore_server.clients.limits import Limits
from amqpstore_server.listening.doors import Visitor
from amqpstore_server.logins.login_checks import LoginChecks
from amqpstore_server.logins.logins import Logins
from amqpstore_server.loop.alarms import Alarms
from amqpstore_server.loop.client_login import ClientLogin
from amqpstore_server.loop.client_reading import Reading
from amqpstore_server.loop.client_tasks import ClientTasks
from amqpstore_server.loop.client_writing import Writing
from amqpstore_server.loop.committer import Committer
from amqpstore_server.loop.rounds import LoopRounds
from amqpstore_server.loop.sockets import Sockets
from amqpstore_server.loop.tls import HANDSHAKE_S, ClientSocket, TlsError, TlsSocket

_DRAINED_BYTES = 64 << 20
_STRANGERS_DRAINED_BYTES = 1 << 20
"""The most bytes that are still read from a client that keeps writing after the end, and from one
that never logged in.
"""


class SocketConnection:
    """One client. `run` serves it until either side ends the connection."""

    def __init__(
        self,
        sock: socket.socket,
        broker: Broker,
        logins: Logins,
        limits: Limits,
        sockets: Sockets,
        rounds: LoopRounds,
        committer: Committer,
        alarms: Alarms,
        product: Product,
        tls_context: ssl.SSLContext | None,
        tls_handshakes: LoginChecks,
    ) -> None:
        self._broker = broker
        self._sockets = sockets
        self._rounds = rounds
        self._alarms = alarms
        self._send_timeout_s = limits.send_timeout_s
        address = sock.getpeername()
        self.host: str = address[0]
        self.peer_port: int = address[1]
        self.local: tuple[str, int] = sock.getsockname()[:2]
        """The address that the client connected to."""
        self.connected_ms = broker.services.clock.wall_ms()
        self._tls_handshakes = tls_handshakes
        self._accepted_at = trio.current_time()
        has_tls = tls_context is not None
        self.amqp = AmqpConnection(
            broker,
            limits,
            peer=f"{self.host}:{self.peer_port}",
            product=product,
            may_impersonate=logins.may_impersonate,
            now=self._accepted_at,
            name=self.name,
            has_tls=has_tls,
            alarms=alarms,
        )
        self._socket: ClientSocket = sock
        self._tls: TlsSocket | None = None
        if tls_context is not None:
            self._socket = self._tls = TlsSocket(sock, tls_context, self.amqp.log)
        self._tasks = ClientTasks(sockets)
        self._login = ClientLogin(self.amqp, logins, self.host, has_tls=has_tls)
        self._reading = Reading(
            self._socket,
            self.amqp,
            self._login,
            self._tasks,
            sockets,
            rounds,
            committer,
            alarms,
        )
        self._writing = Writing(
            self._socket,
            self.amqp,
            self._reading,
            self._tasks,
            rounds,
            sockets.limits.max_sent_bytes,
        )
        self.amqp.outbox.on_output = partial(rounds.note_output, self._writing)
        self._is_stopped = False

    @property
    def name(self) -> str:
        """The connection's name in the management API, as in RabbitMQ."""
        return f"{self.host}:{self.peer_port} -> {self.local[0]}:{self.local[1]}"

    @property
    def tls_version(self) -> tuple[str, str] | None:
        """The version and the cipher of TLS; None without it."""
        return self._tls.version_and_cipher if self._tls else None

    @property
    def is_held_back(self) -> bool:
        """Whether the client may not publish more for now."""
        return self._reading.is_held_back

    def begin(self, visitor: Visitor) -> None:
        """Read from the client from now on, unless TLS begins with a handshake. To be called once,
        and `run` has its first turn after that.
        """
        self._login.visitor = visitor
        tasks, login = self._tasks, self._login
        self.amqp.on_secret = lambda token: tasks.start(partial(login.renew, token))
        if self._tls is not None:
            self._sockets.let_others_run()
            return
        try:
            self._login.offer(None)
            self._reading.read_on(at_once=True)
        except FATAL:
            raise
        except Exception:  # noqa: BLE001
            self._reading.fail()

    async def run(self) -> None:
        """Serve the client, after `begin`."""
        reading = self._reading
        visitor = self._login.visitor
        try:
            async with trio.open_nursery() as nursery:
                self._tasks.begin(nursery)
                try:
                    with reading.scope:
                        if self._tls is None or await self._secure(self._tls):
                            await reading.attend()
                finally:
                    self._tasks.end()
                reading.stop()
                if nursery.child_tasks:
                    nursery.cancel_scope.cancel()
            self.amqp.lost()
            if not self.amqp.is_lost:
                await self._writing.last_words(
                    _STRANGERS_DRAINED_BYTES if visitor.is_stranger else _DRAINED_BYTES,
                    has_no_input=reading.has_left and self._tls is None,
                )
        finally:
            called(self.amqp.lost)
            reading.stop()
            self.amqp.on_secret = None
            self._alarms.blocked.pop(reading, None)
            # Free the connection with all its state now, not at the next garbage collection.
            self.amqp.outbox.close()
            if self.amqp.vhost and not reading.has_left:
                # It was open. Of one that has left the round sees to it that has read its end.
                self._rounds.wake()
            self._socket.close()
            visitor.disconnected()
            del self._login.visitor
            self._broker.services.statistics.octets.add(self.amqp.octets)
            self.amqp.log.info("connection closed")

    async def _secure(self, tls: TlsSocket) -> bool:
        """Do the handshake of TLS, and begin to read. Returns whether the client is to be
        served.
        """
        deadline = self._accepted_at + HANDSHAKE_S
        try:
            await tls.shake_hands(deadline, self._tls_handshakes, self.host)
        except TlsError as error:
            extra = {"reason": str(error)}
            self.amqp.log.warning("TLS handshake failed", extra=extra)
            return False
        version, cipher = tls.version_and_cipher
        extra = {"version": version, "cipher": cipher}
        self.amqp.log.info("TLS handshake done", extra=extra)
        self._login.offer(tls.certificate)
        # What followed the handshake has been read from the socket already.
        self._reading.read_on(at_once=True)
        return True

    # Time.

    def tick(self, now: float) -> None:
        """Check heartbeats and timeouts. Call it about once a second."""
        try:
            self._look_at_time(now)
        except FATAL:
            raise
        except Exception:  # noqa: BLE001
            self._reading.fail()

    def stood_still(self, seconds: float, now: float) -> None:
        """Do not count so much time against the client: nothing was read from it or sent to it."""
        self._writing.stood_still(seconds, now)
        self.amqp.stood_still(seconds, now)

    def _look_at_time(self, now: float) -> None:
        if self._reading.is_held_back or self._reading.has_more:
            self.amqp.excuse(now)
        self.amqp.tick(now)
        self._login.end_if_expired(now)
        self._reading.let_go()
        if self._writing.stalled_s(now) > self._send_timeout_s:
            self.amqp.log.warning("client does not read")
            self.amqp.abandon()
        if self.amqp.is_finished:
            # Unsent bytes are left: `last_words` gives the client some seconds to read them.
            self._reading.end()

    # Room for others.

    def has_unread(self) -> bool:
        """Whether the client has sent what was not read yet."""
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def evict(self) -> None:
        """End the connection at once: its place is needed for another."""
        self.amqp.abandon()
        self._reading.end()

    # The end of the broker, see `stopping`.

    def stop_deliveries(self) -> None:
        """Deliver nothing more to the client."""
        self.amqp.outbox.stop_deliveries()

    def drain(self, now: float) -> bool:
        """Close the connection once the client owes no ack. Returns whether it is still served."""
        if not self.amqp.is_served:
            if not self._is_stopped:
                self.close(now)
            return False
        if not self._reading.is_drained and not self.amqp.has_unacked:
            self._reading.drain(is_drained=True)
            # After all confirms, and commit-oks, for what was read.
            self._broker.services.when_durable(self._close_drained)
        return True

    def _close_drained(self) -> None:
        if self.amqp.is_served:
            self.close(trio.current_time())

    def close(self, now: float) -> None:
        """Close the connection because the broker stops."""
        self._is_stopped = True
        self.amqp.shut_down(now)
        # The answer is to be read.
        self._reading.drain(is_drained=False)
        self._reading.let_go()
        self._rounds.note_output(self._writing)
