"""Reads of one client: each round reads once from its socket and hands the bytes to the protocol.

A client that has to wait for something is not read meanwhile: for the check of its login, for
itself to read what it was sent, for memory or the disk if it publishes. A task, `attend`, waits for
that and has it read again.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import trio

from amqpstore_server.amqp.connection import AmqpConnection
from amqpstore_server.broker.monitoring.faults import FATAL, called
from amqpstore_server.loop.alarms import Alarms
from amqpstore_server.loop.client_login import ClientLogin
from amqpstore_server.loop.client_tasks import ClientTasks
from amqpstore_server.loop.committer import Committer
from amqpstore_server.loop.read_size import LONG_BYTES, ReadSize, first_chunk_bytes
from amqpstore_server.loop.rounds import LoopRounds
from amqpstore_server.loop.sockets import Sockets
from amqpstore_server.loop.tls import ClientSocket


class Reading:
    """Reads from one client, between `read_on` and `end`."""

    def __init__(
        self,
        sock: ClientSocket,
        amqp: AmqpConnection,
        login: ClientLogin,
        tasks: ClientTasks,
        sockets: Sockets,
        rounds: LoopRounds,
        committer: Committer,
        alarms: Alarms,
    ) -> None:
        self._socket = sock
        self._amqp = amqp
        self._input = amqp.input
        self._login = login
        self._tasks = tasks
        self._sockets = sockets
        self._rounds = rounds
        self._committer = committer
        self._alarms = alarms
        self.scope = trio.CancelScope()
        """The scope that `end` cancels."""
        self.is_broken = False
        """Whether nothing can be read or sent any more."""
        self.has_left = False
        """Whether the client has closed its side, and all that it has sent was read."""
        self.is_unread = False
        """Whether the client has to read more before it is read again: see `go_on_if_read`."""
        self.is_costly = self.has_more = False
        self._read_size = ReadSize(sockets.limits)
        self._rest = b""
        """The rest of what was read, which is handled in later rounds."""
        self._is_read = False
        self._is_to_be_read = False
        self.is_drained = False
        """Whether nothing more is read, though the connection is still served."""
        self._attention = trio.Event()
        self._held_back: trio.CancelScope | None = None
        self._unread = trio.lowlevel.ParkingLot()
        self._blocked = trio.lowlevel.ParkingLot()

    # Which sockets are read.

    def read_on(self, *, at_once: bool = False) -> None:
        """Start or continue reading from the socket.

        Args: at_once, whether to read even if the socket is not readable.
        """
        self.has_more = at_once or bool(self._input.waiting or self._rest)
        self._is_to_be_read = True
        self._update()

    def stop(self) -> None:
        """Stop reading from the socket."""
        self._is_to_be_read = False
        self._update()

    def drain(self, *, is_drained: bool) -> None:
        """Read nothing more from a client that is still served; or read again."""
        self.is_drained = is_drained
        self._update()

    def _update(self) -> None:
        is_read = self._is_to_be_read and not self.is_drained
        if is_read and not self._is_read:
            self._sockets.add(self._socket, self)
        elif self._is_read and not is_read:
            self._sockets.remove(self._socket)
        self._is_read = is_read

    # The end.

    def end(self) -> None:
        """Make `attend` return soon, whatever it waits for: the connection is finished."""
        self.stop()
        self.scope.cancel()
        self._sockets.let_others_run()

    def end_broken(self) -> None:
        """End the connection, as its socket is broken."""
        self.is_broken = True
        self.end()

    def fail(self) -> None:
        """End this connection, and no other, because of the current error."""
        self._amqp.log.exception("connection failed")
        self.is_broken = True
        called(self._amqp.abandon)
        self.end()

    def _end_closed(self) -> None:
        """End the connection of a client that has closed its side, within some milliseconds."""
        self.has_left = True
        if self._held_back is not None:
            # An alarm has just ended, and its task has not had its turn since.
            self.end()
            return
        # Its task is not cancelled, which takes longer: as the client was being read, it waits for
        # attention. Nothing waits for its end, unless there is no room for others.
        self.stop()
        self._attention.set()
        if self._login.visitor.is_in_the_way:
            self._sockets.let_others_run()

    # Reads, in the rounds of the loop.

    def read_ready(self, now: float) -> None:
        """Read once from the socket and handle the bytes, or go on with those of the last read."""
        try:
            self._read(now)
            if self._input.has_defined:
                self._input.has_defined = False
                self._rounds.note_definer(self)
        except FATAL:
            raise
        except Exception:  # noqa: BLE001
            self.fail()

    def _read(self, now: float) -> None:
        amqp = self._amqp
        if self.has_more:
            self.has_more = False
            if self._input.waiting or self._rest:
                self._go_on(now)
                return
        if self._input.has_published and not self._committer.has_room and amqp.is_served:
            # All clients together may send far more than fits. Who has published nothing goes on:
            # acks take little room.
            self._need_attention()
            return
        sizes = self._read_size
        limits = self._sockets.limits
        least = limits.min_read_bytes
        most = least if self._input.held.events else sizes.byte_count
        try:
            read = self._socket.recv(most)
        except BlockingIOError:
            return
        except OSError:
            read = b""
        if not read:
            if self._input.held.events:
                # It has left: that is to be noticed after what it published has been handled.
                self._input.must_not_be_read = True
                self._need_attention()
            else:
                # Not in the task, whose turn comes later: the client may be back before that, and
                # declare what is exclusively its own.
                amqp.lost()
                self._end_closed()
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
            if size > LONG_BYTES and (first_bytes := first_chunk_bytes(read, limits)):
                self._rest = read[first_bytes:]
                read = read[:first_bytes]
            message_count = self._input.message_count
            began_s = time.thread_time()
            goes_on = amqp.receive(read, now) and not self._rest
            message_count = self._input.message_count - message_count
            sizes.note(len(read), message_count, time.thread_time() - began_s)
            self.is_costly = sizes.is_costly
        if not goes_on:
            self._pause(now)

    def took_long(self) -> None:
        """Have the next reads timed: the last one may have been costly."""
        self._read_size.is_timed = True

    def _go_on(self, now: float) -> None:
        """Handle a chunk of what is left of the last read."""
        amqp = self._amqp
        chunk = b""
        message_count = self._input.message_count
        began_s = time.thread_time()
        if self._input.waiting:
            amqp.go_on(now)
        else:
            size = first_chunk_bytes(self._rest, self._sockets.limits) or len(self._rest)
            chunk, self._rest = self._rest[:size], self._rest[size:]
            amqp.receive(chunk, now)
        message_count = self._input.message_count - message_count
        self.charge(time.thread_time() - began_s, len(chunk), message_count)
        # A method in steps may have defined something in any of them.
        self._rounds.when_defined(self.withhold())
        self._pause(now)

    def charge(self, seconds: float, byte_count: int = 0, message_count: int = 0) -> None:
        """Count what the last read has led to: the processor time it took, and what was handled."""
        self._read_size.charge(seconds, byte_count, message_count)
        self.is_costly = self._read_size.is_costly

    def withhold(self) -> Callable[[], None]:
        """Send nothing until the result is called: what was answered is not certain yet."""
        return self._amqp.outbox.withhold()

    # Waits, and the task that has the client read again.

    @property
    def is_held_back(self) -> bool:
        """Whether the client may not publish more for now."""
        return self._held_back is not None

    def _pause(self, now: float) -> None:
        """Stop reading from the socket if the client has to wait for something: for others, whose
        turn it is, or for what its task waits for.
        """
        amqp = self._amqp
        if amqp.is_authenticating:
            self._login.decide_if_known(now)
        has_more = bool(self._input.waiting or self._rest)
        waits = amqp.is_finished or amqp.is_authenticating or amqp.outbox.is_unread
        self.has_more = has_more and not waits
        if amqp.is_blocked:
            self._alarms.blocked[self] = None
        if waits or (self._input.must_not_be_read and not has_more):
            self._need_attention()

    def _need_attention(self) -> None:
        """Stop reading, and have `attend` wait for what this client waits for, and start again."""
        self.stop()
        self._attention.set()
        self._sockets.let_others_run()

    async def attend(self) -> None:
        """Wait for whatever the client waits for. Returns when the connection is over."""
        amqp = self._amqp
        while True:
            await self._attention.wait()
            self._attention = trio.Event()
            while not amqp.is_finished and (amqp.is_authenticating or amqp.outbox.is_unread):
                if amqp.is_authenticating:
                    await self._check_login()
                    self._rounds.wake()
                else:
                    self.is_unread = True
                    await self._unread.park()
            if amqp.is_finished or self.is_broken:
                return
            if (
                self._input.has_published
                and amqp.is_served
                and not (self._input.waiting or self._rest)
            ):
                with trio.CancelScope() as self._held_back:
                    await self._hold_back()
                self._held_back = None
            self.read_on()

    async def _check_login(self) -> None:
        self._login.visitor.identified()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_when_left)
            login, checked = await self._login.check()
            nursery.cancel_scope.cancel()
        self._login.decide(login, checked, trio.current_time())

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

    async def _hold_back(self) -> None:
        """Wait until more may be published: no alarm holds any of it, and the disk has caught
        up.
        """
        if self._input.must_not_be_read:
            await self._blocked.park()
        if not self._committer.has_room:
            await self._rounds.wait_for_room()

    def alarm_is_over(self) -> None:
        """Handle what was held, and read on."""
        self._amqp.unblock()
        if not self._tasks.is_ending and not self._amqp.is_finished:
            self._blocked.unpark_all()
            # Anew: if it was read all the time, it would wait for its client's next bytes.
            self.stop()
            self.read_on()
            self._sockets.let_others_run()

    def go_on_if_read(self) -> None:
        """Go on with a client that was to read more, if it has. To be called while `is_unread`,
        after each send.
        """
        if not self._amqp.outbox.is_unread:
            self.is_unread = False
            self._unread.unpark_all()
            self._sockets.let_others_run()

    def let_go(self) -> None:
        """Read again from a client that is held back, once its connection is being closed: its
        close-ok would not be seen otherwise, and what is before it is only discarded.
        """
        if self._held_back is not None and not self._amqp.is_served:
            self._held_back.cancel()
            self._sockets.let_others_run()
