"""Many connections that each publish one message and wait for its confirm, in one process."""

import select

from amqpstore_tools.bench.board import now_ns
from amqpstore_tools.bench.histogram import Histogram
from amqpstore_tools.bench.messages import Route, block_for
from amqpstore_tools.bench.worker import BenchWorker, WorkerReport
from amqpstore_tools.client.confirms import ConfirmLedger
from amqpstore_tools.client.connection import Connection, receive

_RECEIVE_BYTES = 4096
_TICK_S = 0.05


class LockstepPublisher:
    """One connection of the many, with at most one message unconfirmed."""

    def __init__(self, connection: Connection) -> None:
        connection.socket.settimeout(None)
        self.connection = connection
        self.ledger = ConfirmLedger()
        self.published = 0
        self.sent_ns = 0

    def publish(self, message: bytes, now: int) -> None:
        """Send a message; the clock of its confirm starts."""
        self.sent_ns = now
        self.published += 1
        self.connection.socket.sendall(message)

    def read(self) -> bool:
        """Read once from a readable socket. Returns whether the outstanding message is now
        confirmed.
        """
        self.ledger.received(receive(self.connection.socket, _RECEIVE_BYTES))
        if self.ledger.answer:
            self.connection.socket.sendall(self.ledger.answer)
            self.ledger.answer = b""
        return self.ledger.confirmed == self.published


def publish_in_lockstep(
    worker: BenchWorker, routes: list[Route], connections: int, quota: int
) -> WorkerReport:
    """Run a worker with `connections` that each wait for every confirm.

    The outcome's histogram `confirm` has the time from send to confirm, within the measured window.
    """
    settings = worker.settings
    publishers: dict[int, LockstepPublisher] = {}
    for _ in range(connections):
        connection = Connection(settings.address)
        connection.select_confirms()
        publishers[connection.socket.fileno()] = LockstepPublisher(connection)
    block = block_for(settings, routes, connection)
    poller = select.epoll()
    for descriptor in publishers:
        poller.register(descriptor, select.EPOLLIN)
    schedule = worker.start()
    latency = Histogram()
    published = confirmed = 0
    for publisher in list(publishers.values())[:quota]:
        publisher.publish(block.take(1), now_ns())
        published += 1
    while confirmed < published:
        for descriptor, _ in poller.poll(_TICK_S):
            publisher = publishers[descriptor]
            if not publisher.read():
                continue
            now = now_ns()
            confirmed += 1
            if schedule.in_window(publisher.sent_ns):
                latency.record(now - publisher.sent_ns)
            if now < schedule.stop_ns and published < quota:
                publisher.publish(block.take(1), now)
                published += 1
        worker.row.publishing(published, confirmed, now_ns())
    poller.close()
    for publisher in publishers.values():
        publisher.connection.close(publisher.ledger.unparsed())
    ledgers = [publisher.ledger for publisher in publishers.values()]
    return WorkerReport(
        nacked=sum(ledger.nacked for ledger in ledgers),
        blocked=sum(ledger.blocked for ledger in ledgers),
        histograms={"confirm": latency},
    )
