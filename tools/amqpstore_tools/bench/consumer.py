"""Consuming as fast as the broker sends: big reads, counted by length, one ack for each read."""

import socket
import struct

from amqpstore_tools.bench.board import now_ns
from amqpstore_tools.bench.counting import DeliveryCounter
from amqpstore_tools.bench.histogram import Histogram
from amqpstore_tools.bench.worker import BenchWorker, Schedule, WorkerReport
from amqpstore_tools.client import wire
from amqpstore_tools.client.connection import CHANNEL, Connection
from amqpstore_tools.client.errors import PeerError

# The kernel's timeout on reads costs nothing while deliveries flow (Python's own timeout would poll
# before each read): seconds and microseconds of a struct timeval.
_READ_TIMEOUT = struct.pack("ll", 0, 50_000)


class Acker:
    """Acks everything up to the latest delivery, once `every` deliveries are unacked."""

    def __init__(self, connection: Connection, every: int, *, auto: bool) -> None:
        self._socket = connection.socket
        self._every = every
        self._auto = auto
        self.acked = 0

    def delivered(self, tag: int) -> None:
        """Take the latest delivery tag, and sends one ack with `multiple` if it is time."""
        if not self._auto and tag - self.acked >= self._every:
            self.flush(tag)

    def flush(self, tag: int) -> None:
        """Ack up to `tag` whatever is open."""
        if not self._auto and tag > self.acked:
            self._socket.sendall(wire.ack(CHANNEL, tag))
            self.acked = tag


def consume(
    worker: BenchWorker, queues: list[str], *, stamped: bool = False, quota: int = 0
) -> WorkerReport:
    """Run a worker that consumes the queues on one channel until the board's stop flag.

    With a `quota`, it ends when all consumers together have that many; deliveries beyond that are
    neither counted nor acked, and so are requeued (except with auto-ack). With `stamped`, bodies
    begin with their intended send time, and the outcome has a histogram `latency` of those due in
    the measured window.
    """
    settings = worker.settings
    connection = Connection(settings.address)
    if not settings.auto_ack:
        connection.set_prefetch(settings.prefetch)
    counter = DeliveryCounter(stamped=stamped)
    acker = Acker(connection, settings.ack_every, auto=settings.auto_ack)
    schedule = worker.start()
    for index, queue in enumerate(queues):
        connection.send_consume(queue, f"bench-{index:04d}", auto_ack=settings.auto_ack)
    connection.socket.settimeout(None)
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _READ_TIMEOUT)
    latency = Histogram()
    now = now_ns()
    counted = 0
    while _read(connection, counter, worker):
        now = now_ns()
        if quota:
            missing = max(0, quota - worker.board.totals().delivered)
            if counter.delivered >= counted + missing:
                counted += missing
                break
        counted = counter.delivered
        if stamped:
            _record(counter.stamps, now, schedule, latency)
        acker.delivered(counted)
        worker.row.consuming(counted, acker.acked, now)
    acker.flush(counted)
    worker.row.consuming(counted, acker.acked, now)  # the silence after it is not measured
    connection.close(counter.unread())
    return WorkerReport(histograms={"latency": latency} if stamped else {})


def _read(connection: Connection, counter: DeliveryCounter, worker: BenchWorker) -> bool:
    """Wait until deliveries were counted. Returns False when the run is over and nothing more
    arrives.

    Raises:
        PeerError: the broker closed the connection.
    """
    while True:
        try:
            length = connection.socket.recv_into(counter.room())
        except BlockingIOError:
            fresh = counter.settle()
            if not fresh and worker.board.stopped:
                return False
        else:
            fresh = counter.received(length)
            if not length:
                counter.settle()
                raise PeerError("the broker closed the socket of a consumer")
        if fresh:
            return True


def _record(stamps: list[int], now: int, schedule: Schedule, latency: Histogram) -> None:
    for stamp in stamps:
        if schedule.in_window(stamp):
            latency.record(now - stamp)
    stamps.clear()
