"""A client that sends much at once: methods and publishes in one write, answers as they arrive."""

import select

from amqpstore_tools.bench.board import Board, now_ns
from amqpstore_tools.bench.counting import DeliveryCounter
from amqpstore_tools.bench.messages import block_of
from amqpstore_tools.bench.producer import BlockPublisher
from amqpstore_tools.client import frames, wire
from amqpstore_tools.client.connection import CHANNEL, Address, Connection, receive
from amqpstore_tools.client.errors import BenchError, PeerError

_RECEIVE_BYTES = 256 * 1024
_WINDOW = 2000  # unconfirmed messages


class Dialogue:
    """One connection, whose calls may take long."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        self.connection = Connection(address, timeout_s)
        self._timeout_s = timeout_s
        self._confirming = False

    def close(self) -> None:
        """Close the connection cleanly."""
        self.connection.close()

    def say(self, octets: bytes, answer: wire.MethodId, count: int) -> None:
        """Write everything, and return when `count` answers were read as well.

        Raises: BenchError, if the broker closes instead or the time is over.
        """
        socket = self.connection.socket
        socket.setblocking(False)
        poll = select.poll()
        poll.register(socket)
        waiting = memoryview(octets)
        unread = bytearray()
        deadline_ns = now_ns() + int(self._timeout_s * 1e9)
        while count or waiting:
            if now_ns() > deadline_ns:
                raise BenchError(f"{count} answers did not come in {self._timeout_s:g} s")
            poll.modify(socket, select.POLLIN | (select.POLLOUT if waiting else 0))
            events = dict(poll.poll(50)).get(socket.fileno(), 0)
            if events & select.POLLOUT:
                waiting = waiting[socket.send(waiting) :]
            if events & ~select.POLLOUT:
                unread += receive(socket, _RECEIVE_BYTES)
                end = 0
                for frame in frames.whole_frames(unread, 0, len(unread)):
                    frames.raise_if_fatal(unread, frame)
                    count -= frames.method_of(unread, frame) == answer
                    end = frame.end
                del unread[:end]
        socket.settimeout(self._timeout_s)

    def publish(
        self,
        count: int,
        *routes: tuple[str, str],
        size: int = 100,
        persistent: bool = True,
        vary: bool = True,
        confirm: bool = True,
    ) -> None:
        """Publish `count` messages to the routes in turn; returns when they are confirmed.

        Raises: BenchError.
        """
        if confirm and not self._confirming:
            self.connection.select_confirms()
            self._confirming = True
        block = block_of(
            routes,
            size=size,
            persistent=persistent,
            vary=vary,
            frame_max=self.connection.frame_max,
        )
        publisher = BlockPublisher(
            self.connection, block, _WINDOW if confirm else 0, Board(1).row(0)
        )
        deadline_ns = now_ns() + int(self._timeout_s * 1e9)
        while (publisher.ledger.confirmed if confirm else publisher.published) < count:
            if now_ns() > deadline_ns:
                raise BenchError(f"{count} publishes were not done in {self._timeout_s:g} s")
            publisher.step(count)
        self.connection.socket.settimeout(self._timeout_s)

    def take(self, queue: str, count: int) -> None:
        """Consume `count` messages, and ack none of them. Raises: BenchError."""
        self.connection.send_consume(queue, "bench", auto_ack=False)
        counter = DeliveryCounter()
        while counter.delivered < count:
            length = self.connection.socket.recv_into(counter.room())
            if not length:
                raise PeerError("the broker closed the socket of a consumer")
            counter.received(length)

    def ack_all(self) -> None:
        """Ack everything that was taken."""
        self.connection.socket.sendall(wire.ack(CHANNEL, 0))
