"""Writes to one client: a round sends what is in its outbox, as far as the socket accepts it, and a
task sends the rest.
"""

from __future__ import annotations

import contextlib
import socket

import trio

from amqpstore_server.amqp.connection import AmqpConnection
from amqpstore_server.broker.monitoring.faults import FATAL
from amqpstore_server.clients.outbox import without
from amqpstore_server.loop.client_reading import Reading
from amqpstore_server.loop.client_tasks import ClientTasks
from amqpstore_server.loop.rounds import LoopRounds
from amqpstore_server.loop.tls import ClientSocket
from amqpstore_server.protocol.states import ENDED, ConnectionState

_DRAINING_READ_BYTES = 16 << 10
_LAST_WORDS_S = 5.0
_CLOSING_S = 2.0
"""How long a client that has closed its connection may take to close its socket, before it sees the
end of it.
"""


class Writing:
    """Sends the outbox of one client.

    Args: reading, of the same client: it ends when the socket is broken, or nothing is left to
    send; max_sent_bytes, which are sent to it in one round.
    """

    def __init__(
        self,
        sock: ClientSocket,
        amqp: AmqpConnection,
        reading: Reading,
        tasks: ClientTasks,
        rounds: LoopRounds,
        max_sent_bytes: int,
    ) -> None:
        self._socket = sock
        self._amqp = amqp
        self._reading = reading
        self._tasks = tasks
        self._rounds = rounds
        self._max_sent_bytes = max_sent_bytes
        self._unsent: list[bytes | memoryview] = []
        """Taken from the outbox, and not accepted by the socket yet."""
        self._taken_at = 0.0
        """The time at which the socket last accepted something, or was found to accept nothing."""
        self._is_writing = False
        """Whether a task waits for the socket to accept the rest."""

    def send_now(self, now: float) -> None:
        """Send what the socket accepts; `_write_rest` sends the rest."""
        reading = self._reading
        outbox = self._amqp.outbox
        if self._unsent or reading.is_broken or outbox.withheld_count:
            return
        was_writable = outbox.byte_count < outbox.writable_bytes
        least_bytes = outbox.byte_count - self._max_sent_bytes
        try:
            while outbox.byte_count:
                self._unsent = outbox.next_buffers()
                if not self._send(now) or outbox.byte_count <= least_bytes:
                    self._taken_at = now
                    self._write_later()
                    break
            if not was_writable and outbox.is_writable:
                self._amqp.writable()
                self._rounds.wake()
            if reading.is_unread:
                reading.go_on_if_read()
            if self._amqp.state in ENDED and not outbox.byte_count and not self._unsent:
                reading.end()
        except FATAL:
            raise
        except Exception:  # noqa: BLE001
            reading.fail()

    def _send(self, now: float) -> bool:
        """Send as much of `_unsent` as the socket accepts. Returns whether that was everything."""
        unsent = self._unsent
        try:
            sent = self._socket.sendmsg(unsent)
        except BlockingIOError:
            return False
        except OSError:
            self._unsent = []
            self._reading.end_broken()
            return False
        amqp = self._amqp
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
        """Have a task send the rest. After the end of all tasks, `last_words` does."""
        if not self._tasks.is_ending and not self._is_writing:
            self._is_writing = True
            self._tasks.start(self._write_rest)

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

    def stalled_s(self, now: float) -> float:
        """Return for how long the client has left unread what is to be sent to it; 0 if nothing
        is.
        """
        return now - self._taken_at if self._unsent else 0.0

    def stood_still(self, seconds: float, now: float) -> None:
        """Do not count so much time against the client: nothing was sent to it."""
        self._taken_at = min(now, self._taken_at + seconds)

    async def last_words(self, drained_bytes: int, *, has_no_input: bool) -> None:
        """Give the client some seconds to read the last bytes, such as a close method, and to close
        its side.

        Args: drained_bytes, the most that is still read from it; has_no_input, whether it has
        closed its side.
        """
        outbox = self._amqp.outbox
        if outbox.withheld_count:
            return  # what was answered has not become certain
        if has_no_input and not self._unsent and not outbox.byte_count:
            return
        with trio.move_on_after(_LAST_WORDS_S), contextlib.suppress(OSError):
            self.send_now(trio.current_time())
            while (self._unsent or outbox.byte_count) and not self._reading.is_broken:
                await trio.lowlevel.wait_writable(self._socket)
                self._send(trio.current_time())
                self.send_now(trio.current_time())
            # A client that has closed the connection itself closes its socket first: one whose
            # threads close it at once would take the end of the socket for a failure.
            if self._amqp.state is ConnectionState.CLOSED:
                with trio.move_on_after(_CLOSING_S):
                    await self._drop_input(drained_bytes)
                    return
            if has_no_input:
                return
            # Closing a socket with unread input resets the connection (RFC 1122, 4.2.2.13): the
            # client would fail on its next write, and lose the close method.
            self._socket.shutdown(socket.SHUT_WR)
            await self._drop_input(drained_bytes)

    async def _drop_input(self, most_bytes: int) -> None:
        """Read until the client has closed its side, or has written too much."""
        while most_bytes > 0 and not self._reading.is_broken:
            await trio.lowlevel.wait_readable(self._socket)
            read = self._socket.recv(_DRAINING_READ_BYTES)
            if not read:
                return
            most_bytes -= len(read)
