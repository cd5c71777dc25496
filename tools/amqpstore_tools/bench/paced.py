"""Publishing at a fixed rate, each message stamped with the moment it was due.

The stamp is the intended send time, not the actual one: when the broker stalls the generator, the
messages that should have been sent meanwhile count their whole wait, which avoids coordinated
omission. How late the generator itself was is reported beside it as `send_lag`.
"""

import struct
from multiprocessing.connection import wait

from amqpstore_tools.bench.board import FOREVER_NS, now_ns
from amqpstore_tools.bench.histogram import Histogram
from amqpstore_tools.bench.messages import Route
from amqpstore_tools.bench.producer import connect_with_block
from amqpstore_tools.bench.worker import BenchWorker, Schedule, WorkerReport
from amqpstore_tools.client import frames
from amqpstore_tools.client.confirms import ConfirmLedger
from amqpstore_tools.client.connection import Connection, receive

_u64 = struct.Struct(">Q")
_CATCH_UP_MESSAGES = 256  # sent at once, at most, when the generator is behind
_TICK_S = 0.05


class Pace:
    """The schedule: when message `index` (from 0) is due, at `rate` messages a second from the
    start.
    """

    def __init__(self, schedule: Schedule, rate: int, quota: int) -> None:
        self._start_ns = schedule.start_ns
        self._rate = rate
        self.total = quota
        if schedule.stop_ns != FOREVER_NS:
            span_ns = schedule.stop_ns - schedule.start_ns
            self.total = min(quota, span_ns * rate // 1_000_000_000)

    def due_ns(self, index: int) -> int:
        """Return the intended send time on the monotonic clock."""
        return self._start_ns + index * 1_000_000_000 // self._rate

    def due(self, moment_ns: int) -> int:
        """Return how many messages should have been sent by this moment."""
        passed_ns = moment_ns - self._start_ns
        return max(0, min(self.total, passed_ns * self._rate // 1_000_000_000 + 1))


def produce_paced(worker: BenchWorker, routes: list[Route], rate: int, quota: int) -> WorkerReport:
    """Run a worker that publishes `rate` messages per second until `quota` or the schedule's stop.

    The outcome has the histograms `send_lag` and, with confirms, `confirm` (intended send time to
    confirm).
    """
    settings = worker.settings
    connection, block = connect_with_block(settings, routes)
    stamp_at = list(frames.whole_frames(block.octets, 0, block.message_bytes))[2].payload
    schedule = worker.start()
    connection.socket.settimeout(None)
    pace = Pace(schedule, rate, quota)
    lag, confirm = Histogram(), Histogram()

    def settled(first: int, last: int) -> None:
        now = now_ns()
        for tag in range(first, last + 1):
            due_ns = pace.due_ns(tag - 1)
            if schedule.in_window(due_ns):
                confirm.record(now - due_ns)

    ledger = ConfirmLedger(settled)
    sent = 0
    while sent < pace.total or (settings.confirm and ledger.confirmed < sent):
        now = now_ns()
        allowed = min(pace.due(now), sent + _CATCH_UP_MESSAGES)
        if settings.confirm:
            allowed = min(allowed, ledger.confirmed + settings.confirm)
        if ledger.paused:
            allowed = sent
        burst = bytearray()
        for index in range(sent, allowed):
            due_ns = pace.due_ns(index)
            message = bytearray(block.take(1))
            message[stamp_at : stamp_at + 8] = _u64.pack(due_ns)
            burst += message
            if schedule.in_window(due_ns):
                lag.record(now - due_ns)
        if burst:
            connection.socket.sendall(burst)
            sent = allowed
        full = 0 < settings.confirm <= sent - ledger.confirmed
        wait_s = _TICK_S
        if not (full or ledger.paused or sent == pace.total):
            wait_s = min(_TICK_S, max(0, pace.due_ns(sent) - now_ns()) / 1e9)
        _read_confirms(connection, ledger, wait_s)
        worker.row.publishing(sent, ledger.confirmed, now)
    connection.close(ledger.unparsed())
    histograms = {"send_lag": lag, **({"confirm": confirm} if settings.confirm else {})}
    return WorkerReport(nacked=ledger.nacked, blocked=ledger.blocked, histograms=histograms)


def _read_confirms(connection: Connection, ledger: ConfirmLedger, wait_s: float) -> None:
    """Read once if something arrives within `wait_s`."""
    if not wait([connection.socket], wait_s):
        return
    ledger.received(receive(connection.socket))
    if ledger.answer:
        connection.socket.sendall(ledger.answer)
        ledger.answer = b""
