"""Publishing as fast as the broker takes it: blocks of publishes, a window of confirms."""

import select

from amqpstore_tools.bench.board import Row, now_ns
from amqpstore_tools.bench.messages import MessageBlock, Route, block_for
from amqpstore_tools.bench.settings import BenchSettings
from amqpstore_tools.bench.worker import BenchWorker, WorkerReport
from amqpstore_tools.client.confirms import ConfirmLedger
from amqpstore_tools.client.connection import Connection, receive
from amqpstore_tools.client.errors import PeerError

UNLIMITED = 2**62  # messages
_TICK_MS = 20  # the longest sleep between two checks of the clock
# With confirms, a send waits for this many free places (an eighth of a small window): a send for
# every single confirm costs both sides more than the message itself.
_SEND_MESSAGES = 64


class BlockPublisher:
    """Sends a block repeatedly on a non-blocking socket, within window and quota.

    The stream is counted in bytes; a message counts as published when its last octet was handed to
    the kernel.
    """

    def __init__(self, connection: Connection, block: MessageBlock, window: int, row: Row) -> None:
        self.ledger = ConfirmLedger()
        self._socket = connection.socket
        self._socket.setblocking(False)
        self._block = block
        self._octets = memoryview(block.octets)
        self._message_bytes = block.message_bytes
        self._window = window
        self._least_bytes = min(_SEND_MESSAGES, max(1, window // 8)) * block.message_bytes
        self._row = row
        self._sent_bytes = 0
        self._cursor = 0
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self._either = select.poll()
        self._either.register(self._socket, select.POLLIN | select.POLLOUT)

    @property
    def published(self) -> int:
        """Messages handed to the kernel completely."""
        return self._sent_bytes // self._message_bytes

    @property
    def begun(self) -> int:
        """Messages of which at least one octet was handed to the kernel."""
        return -(-self._sent_bytes // self._message_bytes)

    def step(self, quota: int) -> None:
        """Wait up to 20 ms for room or confirms, then sends and reads once.

        Raises:
            PeerError: the broker closed, returned a message or confirmed what was never sent.
        """
        limit = self._limit_bytes(quota)
        poller = self._either if limit > self._sent_bytes else self._readable
        for _, events in poller.poll(_TICK_MS):
            if events & ~select.POLLOUT:
                self._read()
            if events & select.POLLOUT and limit > self._sent_bytes:
                part = self._octets[self._cursor : self._cursor + limit - self._sent_bytes]
                self._sent(self._socket.send(part))
        self._row.publishing(self.published, self.ledger.confirmed, now_ns())

    def _limit_bytes(self, quota: int) -> int:
        """Return where the stream of bytes must stop for now."""
        message_bytes = self._message_bytes
        limit = quota * message_bytes
        if self._window:
            window_end = (self.ledger.confirmed + self._window) * message_bytes
            cut_off = self._sent_bytes % message_bytes
            room_bytes = window_end - self._sent_bytes
            if window_end < limit and not cut_off and room_bytes < self._least_bytes:
                window_end = self._sent_bytes
            limit = min(limit, window_end)
        if self.ledger.paused:
            limit = min(limit, self.begun * message_bytes)
        return limit

    def _read(self) -> None:
        self.ledger.received(receive(self._socket))
        if self.ledger.answer:
            # At a message boundary only: channel.flow-ok must not fall into a content. A few
            # octets always fit, since a paused publisher sends nothing else.
            self._finish_message()
            self._socket.setblocking(True)
            self._socket.sendall(self.ledger.answer)
            self._socket.setblocking(False)
            self.ledger.answer = b""
        if self.ledger.confirmed > self.begun:
            raise PeerError("the broker confirmed messages that were not published")

    def _finish_message(self) -> None:
        missing = self.begun * self._message_bytes - self._sent_bytes
        self._socket.setblocking(True)
        self._socket.sendall(self._octets[self._cursor : self._cursor + missing])
        self._sent(missing)

    def _sent(self, octets: int) -> None:
        """Move the cursor; a block that was sent completely begins a new round."""
        self._sent_bytes += octets
        self._cursor += octets
        if self._cursor == len(self._octets):
            self._cursor = 0
            self._block.renew()


def connect_with_block(
    settings: BenchSettings, routes: list[Route]
) -> tuple[Connection, MessageBlock]:
    """Connect as the settings say. Returns the connection and the messages to send on it."""
    connection = Connection(settings.address)
    if settings.confirm:
        connection.select_confirms()
    return connection, block_for(settings, routes, connection)


def produce(worker: BenchWorker, routes: list[Route], quota: int) -> WorkerReport:
    """Run a worker that publishes to the routes in turn until `quota` or the schedule's stop.

    Returns when every message is confirmed, or without confirms when the broker has answered the
    close of the channel, and so has processed everything before it.
    """
    settings = worker.settings
    connection, block = connect_with_block(settings, routes)
    publisher = BlockPublisher(connection, block, settings.confirm, worker.row)
    ledger = publisher.ledger
    stop_ns = worker.start().stop_ns
    while publisher.published < quota and now_ns() < stop_ns:
        publisher.step(quota)
    last = publisher.begun
    while publisher.published < last or (settings.confirm and ledger.confirmed < last):
        publisher.step(last)
    connection.close(ledger.unparsed())
    return WorkerReport(nacked=ledger.nacked, blocked=ledger.blocked)
