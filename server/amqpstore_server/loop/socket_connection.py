"""A connection's socket: passes bytes it reads to the protocol, and writes the outbox. It does not
know the protocol.

Past 600 lines because it is one state machine: what is read, held back, withheld and sent depends
on each other.
"""

from __future__ import annotations

import contextlib
import math
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from amqpstore_server.administration.first_users import is_loopback
from amqpstore_server.amqp.connection import AmqpConnection
from amqpstore_server.amqp.product import Product
from amqpstore_server.broker.broker import Broker
from amqpstore_server.broker.monitoring.faults import FATAL, called
from amqpstore_server.clients.limits import Limits
from amqpstore_server.clients.login import CheckedLogin, Login
from amqpstore_server.clients.outbox import without
from amqpstore_server.listening.doors import Visitor
from amqpstore_server.logins.login_checks import LoginChecks
from amqpstore_server.logins.logins import Logins
from amqpstore_server.loop.alarms import Alarms
from amqpstore_server.loop.committer import Committer
from amqpstore_server.loop.read_size import LONG_BYTES, ReadSize, part_of
from amqpstore_server.loop.rounds import LoopRounds
from amqpstore_server.loop.sockets import Sockets
from amqpstore_server.loop.tls import HANDSHAKE_S, ClientSocket, TlsError, TlsSocket
from amqpstore_server.protocol.states import ENDED, ConnectionState

_DRAINING_READ_BYTES = 16 << 10
_LAST_WORDS_S = 5.0
_LEAVING_S = 2.0
"""How long a client that has closed its connection may take to close its socket, before it sees the
end of it.
"""
_DRAINED_BYTES = 64 << 20
_STRANGERS_DRAINED_BYTES = 1 << 20
"""The most bytes that are still read from a client that keeps writing after the end, and from one
that never logged in.
"""


class SocketConnection:
    """One client. `run` serves it until either side ends the connection."""

    # A dictionary would take a kilobyte: Python shares the keys of at most 30 attributes.
    __slots__ = (
        "_accepted_at",
        "_alarms",
        "_attention",
        "_blocked",
        "_broker",
        "_committer",
        "_expires_at",
        "_has_left",
        "_held_back",
        "_is_broken",
        "_is_drained",
        "_is_ending",
        "_is_leaving",
        "_is_loopback",
        "_is_read",
        "_is_to_be_read",
        "_is_unread",
        "_is_withheld",
        "_is_writing",
        "_logins",
        "_octets",
        "_read_size",
        "_reading",
        "_rest",
        "_rounds",
        "_send_timeout_s",
        "_socket",
        "_sockets",
        "_taken_at",
        "_tasks",
        "_tls",
        "_tls_handshakes",
        "_unread",
        "_unsent",
        "_unstarted",
        "_visitor",
        "amqp",
        "connected_ms",
        "has_more",
        "host",
        "is_costly",
        "local",
        "peer_port",
    )

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
        self._socket: ClientSocket = sock
        self._broker = broker
        self._logins = logins
        self._sockets = sockets
        self._rounds = rounds
        self._committer = committer
        self._alarms = alarms
        self._send_timeout_s = limits.send_timeout_s
        address = sock.getpeername()
        self.host: str = address[0]
        self._is_loopback = is_loopback(self.host)
        self.peer_port: int = address[1]
        self.local: tuple[str, int] = sock.getsockname()[:2]
        """The address that the client connected to."""
        self.connected_ms = broker.context.clock.wall_ms()
        peer = f"{self.host}:{address[1]}"
        self._tls_handshakes = tls_handshakes
        self._accepted_at = trio.current_time()
        self.amqp = AmqpConnection(
            broker,
            limits,
            peer=peer,
            product=product,
            may_impersonate=logins.may_impersonate,
            on_output=partial(rounds.note_output, self),
            now=self._accepted_at,
            name=self.name,
            has_tls=tls_context is not None,
            alarms=alarms,
        )
        self._tls: TlsSocket | None = None
        if tls_context is not None:
            self._socket = self._tls = TlsSocket(sock, tls_context, self.amqp.log)
        self._expires_at = math.inf
        self._tasks: trio.Nursery | None = None
        """While `run` can start any."""
        self._unstarted: list[Callable[[], Awaitable[None]]] = []
        """Tasks that it starts in its first turn."""
        self._is_ending = False
        self._unsent: list[bytes | memoryview] = []
        self._reading = trio.CancelScope()
        self._is_read = False
        self._is_to_be_read = False
        self._is_drained = False
        self._is_leaving = False
        self._has_left = False
        """Whether the client has closed its side, and all that it has sent was read."""
        self.is_costly = self.has_more = False
        self._read_size = ReadSize(sockets.limits)
        self._attention = trio.Event()
        self._held_back: trio.CancelScope | None = None
        self._unread = trio.lowlevel.ParkingLot()
        self._blocked = trio.lowlevel.ParkingLot()
        self._is_unread = False
        self._taken_at = 0.0
        self._is_broken = False
        self._is_withheld = 0
        self._is_writing = False
        """Whether a task waits for the socket to accept the rest."""
        self._rest = b""
        """The rest of what was read, which is handled in later rounds."""

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
        return self._held_back is not None

    def begin(self, visitor: Visitor) -> None:
        """Read from the client from now on, unless TLS begins with a handshake. To be called once,
        and `run` has its first turn after that.
        """
        self._visitor = visitor
        self.amqp.on_secret = self._take_secret
        if self._tls is not None:
            self._sockets.let_others_run()
            return
        try:
            self._offer(None)
            self._read_on(at_once=True)
        except FATAL:
            raise
        except Exception:  # noqa: BLE001
            self._broke()

    async def run(self) -> None:
        """Serve the client, after `begin`."""
        visitor = self._visitor
        try:
            async with trio.open_nursery() as nursery:
                self._tasks = nursery
                for task in self._unstarted:
                    nursery.start_soon(task)
                self._unstarted.clear()
                try:
                    with self._reading:
                        if self._tls is None or await self._secure(self._tls):
                            await self._attend()
                finally:
                    # While the nursery ends it takes no more tasks, but others have their turn.
                    self._tasks = None
                    self._is_ending = True
                self._stop_reading()
                if nursery.child_tasks:
                    nursery.cancel_scope.cancel()
            drained_bytes = _STRANGERS_DRAINED_BYTES if visitor.is_stranger else _DRAINED_BYTES
            self.amqp.lost()
            if not self.amqp.is_lost:
                await self._last_words(drained_bytes)
        finally:
            called(self.amqp.lost)
            self._stop_reading()
            self._tasks = self.amqp.on_secret = None
            self._alarms.blocked.pop(self, None)
            # Free the connection with all its state now, not at the next garbage collection.
            self.amqp.outbox.close()
            if self.amqp.vhost and not self._has_left:
                # It was open. Of one that has left the round sees to it that has read its end.
                self._rounds.wake()
            self._socket.close()
            visitor.leave()
            del self._visitor
            self._broker.context.octets.add(self.amqp.octets)
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
        self._offer(tls.certificate)
        # What followed the handshake has been read from the socket already.
        self._read_on(at_once=True)
        return True

    def _offer(self, certificate: bytes | None) -> None:
        """Choose the mechanisms for this client."""
        has_tls = self._tls is not None
        mechanisms, user = self._logins.offered(
            self.amqp.log, has_tls=has_tls, is_loopback=self._is_loopback, certificate=certificate
        )
        self.amqp.offer(mechanisms, user)

    def tick(self, now: float) -> None:
        """Check heartbeats and timeouts. Call it about once a second."""
        try:
            self._look_at_time(now)
        except FATAL:
            raise
        except Exception:  # noqa: BLE001
            self._broke()

    def stood_still(self, seconds: float, now: float) -> None:
        """Do not count so much time against the client: nothing was read from it or sent to it."""
        self._taken_at = min(now, self._taken_at + seconds)
        self.amqp.stood_still(seconds, now)

    def _broke(self) -> None:
        """End this connection, and no other, because of the current error."""
        self.amqp.log.exception("connection failed")
        self._is_broken = True
        called(self.amqp.abandon)
        self.end()

    def _look_at_time(self, now: float) -> None:
        if self._held_back is not None or self.has_more:
            self.amqp.excuse(now)
        self.amqp.tick(now)
        if time.time() >= self._expires_at:
            self._expires_at = math.inf
            self.amqp.log.warning("token expired")
            self.amqp.shut_down(now, "the token has expired")
        self._let_go()
        if self._unsent and now - self._taken_at > self._send_timeout_s:
            self.amqp.log.warning("client does not read")
            self.amqp.abandon()
        if self.amqp.is_finished:
            # Unsent bytes are left: `_last_words` gives the client some seconds to read them.
            self.end()

    def end(self) -> None:
        """Make `run` return soon, whatever it waits for: the connection is finished."""
        self._stop_reading()
        self._reading.cancel()
        self._sockets.let_others_run()

    def _leave(self) -> None:
        """End the connection of a client that has closed its side, within some milliseconds.

        No one waits for that, unless there is no room for others. So its task is not cancelled,
        which takes longer: as the client is being read, it waits for attention, unless an alarm has
        just ended.
        """
        self._has_left = True
        if self._held_back is not None:
            self.end()
            return
        self._stop_reading()
        self._attention.set()
        if self._visitor.is_in_the_way:
            self._sockets.let_others_run()

    def has_unread(self) -> bool:
        """Whether the client has sent what was not read yet."""
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def evict(self) -> None:
        """End the connection at once: its place is needed for another."""
        self.amqp.abandon()
        self.end()

    def _read_on(self, *, at_once: bool = False) -> None:
        """Start or continue reading from the socket.

        Args: at_once, whether to read even if the socket is not readable.
        """
        self.has_more = at_once or bool(self.amqp.input.waiting or self._rest)
        self._is_to_be_read = True
        self._update_reading()

    def _stop_reading(self) -> None:
        self._is_to_be_read = False
        self._update_reading()

    def _update_reading(self) -> None:
        is_read = self._is_to_be_read and not self._is_drained
        if is_read and not self._is_read:
            self._sockets.add(self._socket, self)
        elif self._is_read and not is_read:
            self._sockets.remove(self._socket)
        self._is_read = is_read

    # The end of the broker, see `stopping`.

    def stop_deliveries(self) -> None:
        """Deliver nothing more to the client."""
        self.amqp.outbox.stop_deliveries()

    def drain(self, now: float) -> bool:
        """Close the connection once the client owes no ack. Returns whether it is still served."""
        if not self.amqp.is_served:
            if not self._is_leaving:
                self.close(now)
            return False
        if not self._is_drained and not self.amqp.has_unacked:
            self._is_drained = True
            self._update_reading()
            # After all confirms, and commit-oks, for what was read.
            self._broker.context.when_durable(self._close_drained)
        return True

    def _close_drained(self) -> None:
        if self.amqp.is_served:
            self.close(trio.current_time())

    def close(self, now: float) -> None:
        """Close the connection because the broker stops."""
        self._is_leaving = True
        self.amqp.shut_down(now)
        # The answer is to be read.
        self._is_drained = False
        self._update_reading()
        self._let_go()
        self._rounds.note_output(self)

    def read_ready(self, now: float) -> None:
        """Read once from the socket and handle the bytes, or go on with those of the last read."""
        try:
            self._read(now)
            if self.amqp.input.has_defined:
                self.amqp.input.has_defined = False
                self._rounds.note_definer(self)
        except FATAL:
            raise
        except Exception:  # noqa: BLE001
            self._broke()

    def _read(self, now: float) -> None:
        amqp = self.amqp
        if self.has_more:
            self.has_more = False
            if amqp.input.waiting or self._rest:
                self._go_on(now)
                return
        if amqp.input.has_published and not self._committer.has_room and amqp.is_served:
            # All clients together may send far more than fits. Who has published nothing goes on:
            # acks take little room.
            self._need_attention()
            return
        sizes = self._read_size
        limits = self._sockets.limits
        least = limits.min_read_bytes
        most = least if amqp.input.held.events else sizes.byte_count
        try:
            read = self._socket.recv(most)
        except BlockingIOError:
            return
        except OSError:
            read = b""
        if not read:
            if amqp.input.held.events:
                # It has left: that is to be noticed after what it published has been handled.
                amqp.input.must_not_be_read = True
                self._need_attention()
            else:
                # Not in the task, whose turn comes later: the client may be back before that, and
                # declare what is exclusively its own.
                amqp.lost()
                self._leave()
            return
        size = len(read)
        octets = amqp.octets
        octets.recv_oct += size
        octets.recv_cnt += 1
        if size < most == least and not sizes.is_timed:
            # To read the processor's clock takes a system call, so it times only the reads of
            # clients of which one `took_long` by the other clock, or may have.
            goes_on = amqp.receive(read, now)
        else:
            if size > LONG_BYTES and (part := part_of(read, limits)):
                self._rest = read[part:]
                read = read[:part]
            message_count = amqp.input.message_count
            began_s = time.thread_time()
            goes_on = amqp.receive(read, now) and not self._rest
            message_count = amqp.input.message_count - message_count
            sizes.note(len(read), message_count, time.thread_time() - began_s)
            self.is_costly = sizes.is_costly
        if not goes_on:
            self._pause(now)

    def took_long(self) -> None:
        """Have the next reads timed: the last one may have been costly."""
        self._read_size.is_timed = True

    def _go_on(self, now: float) -> None:
        """Handle a part of what is left of the last read."""
        amqp = self.amqp
        part = b""
        message_count = amqp.input.message_count
        began_s = time.thread_time()
        if amqp.input.waiting:
            amqp.go_on(now)
        else:
            size = part_of(self._rest, self._sockets.limits) or len(self._rest)
            part, self._rest = self._rest[:size], self._rest[size:]
            amqp.receive(part, now)
        message_count = amqp.input.message_count - message_count
        self.charge(time.thread_time() - began_s, len(part), message_count)
        # A method in steps may have defined something in any of them.
        self._rounds.when_defined(self.withhold())
        self._pause(now)

    def charge(self, seconds: float, byte_count: int = 0, message_count: int = 0) -> None:
        """Count what the last read has led to: the processor time it took, and what was handled."""
        self._read_size.charge(seconds, byte_count, message_count)
        self.is_costly = self._read_size.is_costly

    def _pause(self, now: float) -> None:
        """Stop reading from the socket if the client has to wait for something: for others, whose
        turn it is, or for what its task waits for.
        """
        amqp = self.amqp
        if amqp.is_authenticating:
            # The task of this connection would have its turn after several others.
            login = amqp.negotiated.login
            if found := self._logins.known(login, is_loopback=self._is_loopback):
                self._decided(login, found, now)
        has_more = bool(amqp.input.waiting or self._rest)
        waits = amqp.is_finished or amqp.is_authenticating or amqp.outbox.is_unread
        self.has_more = has_more and not waits
        if amqp.is_blocked:
            self._alarms.blocked[self] = None
        if waits or (amqp.input.must_not_be_read and not has_more):
            self._need_attention()

    def alarm_is_over(self) -> None:
        """Handle what was held, and read on."""
        self.amqp.unblock()
        if not self._is_ending and not self.amqp.is_finished:
            self._blocked.unpark_all()
            # Anew: if it was read all the time, it would wait for its client's next bytes.
            self._stop_reading()
            self._read_on()
            self._sockets.let_others_run()

    def _need_attention(self) -> None:
        """Stop reading, and have `_attend` wait for what this client waits for, and start again."""
        self._stop_reading()
        self._attention.set()
        self._sockets.let_others_run()

    async def _attend(self) -> None:
        """Wait for whatever the client waits for. Returns when the connection is over."""
        amqp = self.amqp
        while True:
            await self._attention.wait()
            self._attention = trio.Event()
            while not amqp.is_finished and (amqp.is_authenticating or amqp.outbox.is_unread):
                if amqp.is_authenticating:
                    await self._check_login()
                    self._rounds.wake()
                else:
                    self._is_unread = True
                    await self._unread.park()
            if amqp.is_finished or self._is_broken:
                return
            if (
                amqp.input.has_published
                and amqp.is_served
                and not (amqp.input.waiting or self._rest)
            ):
                with trio.CancelScope() as self._held_back:
                    await self._hold_back()
                self._held_back = None
            self._read_on()

    def _let_go(self) -> None:
        """Read again from a client that is held back, once its connection is being closed: its
        close-ok would not be seen otherwise, and what is before it is only discarded.
        """
        if self._held_back is not None and not self.amqp.is_served:
            self._held_back.cancel()
            self._sockets.let_others_run()

    async def _hold_back(self) -> None:
        """Wait until more may be published: no alarm holds any of it, and the disk has caught
        up.
        """
        if self.amqp.input.must_not_be_read:
            await self._blocked.park()
        if not self._committer.has_room:
            await self._rounds.wait_for_room()

    async def _check_login(self) -> None:
        login = self.amqp.negotiated.login
        self._visitor.identified()
        self._decided(login, await self._checked(login), trio.current_time())

    def _decided(self, login: Login, found: CheckedLogin, now: float) -> None:
        """Go on with a client whose login was checked."""
        if self._tls is None and not self._is_loopback:
            self._logins.warn(self.amqp.log.fields, login, now)
        if found.granted:
            self._visitor.logged_in()
        else:
            self._visitor.refused()
        if found.rights is not None:
            self._expires_at = found.rights.expires_at
        self.amqp.logged_in(found, now)

    async def _checked(self, login: Login) -> CheckedLogin:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_when_left)
            found = await self._logins.check(login, self.host, is_loopback=self._is_loopback)
            nursery.cancel_scope.cancel()
        return found

    def _take_secret(self, token: str) -> None:
        self._start(partial(self._renew, token))

    def _start(self, task: Callable[[], Awaitable[None]]) -> None:
        """Start a task, unless this is the end."""
        if self._is_ending:
            return
        if self._tasks is None:
            self._unstarted.append(task)
        else:
            self._tasks.start_soon(task)
        self._sockets.let_others_run()

    async def _renew(self, token: str) -> None:
        """Check a new token, while the client goes on with the old one."""
        found = await self._logins.check_token(token, self.host)
        if self.amqp.renewed(found, trio.current_time()) and found.rights is not None:
            self._expires_at = found.rights.expires_at

    async def _end_when_left(self) -> None:
        """End the connection when its client goes away while nothing is read from it."""
        await trio.lowlevel.wait_readable(self._socket)
        try:
            has_left = not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            has_left = False
        except OSError:
            has_left = True
        if has_left:
            self.end()

    def withhold(self) -> Callable[[], None]:
        """Send nothing until the result is called: what was answered is not certain yet."""
        self._is_withheld += 1

        def release() -> None:
            self._is_withheld -= 1
            if not self._is_withheld and self.amqp.outbox.byte_count:
                self._rounds.note_output(self)

        return release

    def send_now(self, now: float) -> None:
        """Send what the socket accepts; `_write_rest` sends the rest."""
        if self._unsent or self._is_broken or self._is_withheld:
            return
        outbox = self.amqp.outbox
        was_writable = outbox.byte_count < outbox.writable_bytes
        least_bytes = outbox.byte_count - self._sockets.limits.max_sent_bytes
        try:
            while outbox.byte_count:
                self._unsent = outbox.next_buffers()
                if not self._send(now) or outbox.byte_count <= least_bytes:
                    self._taken_at = now
                    self._write_later()
                    break
            if not was_writable and outbox.is_writable:
                self.amqp.writable()
                self._rounds.wake()
            if self._is_unread and not outbox.is_unread:
                self._is_unread = False
                self._unread.unpark_all()
                self._sockets.let_others_run()
            if self.amqp.state in ENDED and not outbox.byte_count and not self._unsent:
                self.end()
        except FATAL:
            raise
        except Exception:  # noqa: BLE001
            self._broke()

    def _send(self, now: float) -> bool:
        """Send as much of `_unsent` as the socket accepts. Returns whether that was everything."""
        unsent = self._unsent
        try:
            sent = self._socket.sendmsg(unsent)
        except BlockingIOError:
            return False
        except OSError:
            self._is_broken = True
            self._unsent = []
            self.end()
            return False
        amqp = self.amqp
        octets = amqp.octets
        octets.send_oct += sent
        octets.send_cnt += 1
        self._taken_at = now
        amqp.heartbeat.sent_at = now
        if len(unsent) == 1 and sent == len(unsent[0]):
            self._unsent = []
            return True
        self._unsent = without(unsent, sent)
        return not self._unsent

    def _write_later(self) -> None:
        """Have a task send the rest. After the end of all tasks, `_last_words` does."""
        if not self._is_ending and not self._is_writing:
            self._is_writing = True
            self._start(self._write_rest)

    async def _write_rest(self) -> None:
        """Send what is left once the socket accepts more, and others had their turn."""
        while self._unsent:
            try:
                await trio.lowlevel.wait_writable(self._socket)
            except (OSError, trio.ClosedResourceError):
                return
            self._send(trio.current_time())
        self._is_writing = False
        self.send_now(trio.current_time())

    async def _last_words(self, drained_bytes: int) -> None:
        """Give the client some seconds to read the last bytes, such as a close method.

        And to close its side: closing a socket with unread input resets the connection, so the
        client would fail on its next write, and lose the close method. A client that has closed
        the connection itself does so first: one whose threads close it at once would otherwise
        take the end of the socket for a failure.
        """
        if self._is_withheld:
            return  # what was answered has not become certain
        has_no_input = self._has_left and self._tls is None
        if has_no_input and not self._unsent and not self.amqp.outbox.byte_count:
            return
        with trio.move_on_after(_LAST_WORDS_S), contextlib.suppress(OSError):
            self.send_now(trio.current_time())
            while (self._unsent or self.amqp.outbox.byte_count) and not self._is_broken:
                await trio.lowlevel.wait_writable(self._socket)
                self._send(trio.current_time())
                self.send_now(trio.current_time())
            if self.amqp.state is ConnectionState.CLOSED:
                with trio.move_on_after(_LEAVING_S):
                    await self._drop_input(drained_bytes)
                    return
            if has_no_input:
                return
            self._socket.shutdown(socket.SHUT_WR)
            await self._drop_input(drained_bytes)

    async def _drop_input(self, most_bytes: int) -> None:
        """Read until the client has closed its side, or has written too much."""
        while most_bytes > 0 and not self._is_broken:
            await trio.lowlevel.wait_readable(self._socket)
            read = self._socket.recv(_DRAINING_READ_BYTES)
            if not read:
                return
            most_bytes -= len(read)
