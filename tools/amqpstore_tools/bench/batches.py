"""Batches of publishes and acks that wait until all of it is safe: by a commit, or by confirms."""

import socket
import struct

from amqpstore_tools.bench.board import now_ns
from amqpstore_tools.bench.histogram import Histogram
from amqpstore_tools.bench.messages import block_for
from amqpstore_tools.bench.worker import BenchWorker, WorkerReport
from amqpstore_tools.client import frames, wire
from amqpstore_tools.client.connection import CHANNEL, Connection, receive
from amqpstore_tools.client.errors import PeerError

BY_TX, BY_CONFIRMS = "tx", "confirms"

_RECEIVE_BYTES = 256 * 1024
_tag = struct.Struct(">Q")


class Reader:
    """Counts what the broker sends on one channel: deliveries, confirms and commits."""

    def __init__(self, sock: socket.socket) -> None:
        self.delivered = 0
        self.confirmed = 0
        self.committed = 0
        self._socket = sock
        self._unread = bytearray()

    def read(self) -> None:
        """Read once. Raises: PeerError, if the broker closes or refuses."""
        self._unread += receive(self._socket, _RECEIVE_BYTES)
        end = 0
        for frame in frames.whole_frames(self._unread, 0, len(self._unread)):
            end = frame.end
            found = frames.method_of(self._unread, frame)
            if found == wire.BASIC_DELIVER:
                self.delivered += 1
            elif found == wire.BASIC_ACK:
                (tag,) = _tag.unpack_from(self._unread, frame.payload + 4)
                self.confirmed = max(self.confirmed, tag)
            elif found == wire.TX_COMMIT_OK:
                self.committed += 1
            elif found == wire.BASIC_NACK:
                raise PeerError("the broker nacked a message")
            else:
                frames.raise_if_fatal(self._unread, frame)
        del self._unread[:end]

    def unread(self) -> bytes:
        """Return the octets of an incomplete frame."""
        return bytes(self._unread)


def exchange_batches(worker: BenchWorker, queues: list[str], quota: int) -> WorkerReport:
    """Run a worker that publishes a batch, acks the batch before, and waits until both are safe.

    It consumes what it publishes, on the same channel. The outcome's histogram `confirm` has the
    time from a batch's start until it was safe and delivered, within the measured window.
    """
    settings = worker.settings
    connection = Connection(settings.address)
    if settings.by == BY_TX:
        connection.call(wire.TX_SELECT, b"", wire.TX_SELECT_OK)
    else:
        connection.select_confirms()
    block = block_for(settings, [("", queue) for queue in queues], connection)
    for index, queue in enumerate(queues):
        connection.send_consume(queue, f"bench-{index:04d}", auto_ack=False)
    schedule = worker.start()
    connection.socket.settimeout(None)
    reader = Reader(connection.socket)
    latency = Histogram()
    published = acked = commits = 0
    while published < quota and (began := now_ns()) < schedule.stop_ns:
        octets = block.take(settings.batch)
        if reader.delivered > acked:
            acked = reader.delivered
            octets += wire.ack(CHANNEL, acked)
        if settings.by == BY_TX:
            octets += wire.method(CHANNEL, wire.TX_COMMIT)
            commits += 1
        connection.socket.sendall(octets)
        published += settings.batch
        while reader.delivered < published or not (
            reader.committed == commits if commits else reader.confirmed == published
        ):
            reader.read()
        now = now_ns()
        worker.row.publishing(published, published, now)
        worker.row.consuming(reader.delivered, acked, now)
        if schedule.in_window(began):
            latency.record(now - began)
    connection.close(reader.unread())
    return WorkerReport(histograms={"confirm": latency})
