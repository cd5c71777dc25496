"""The clients that are to be served: a publisher with confirms and a consumer at full speed, a
quiet publisher that times its confirms, and logins.
"""

import time
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from amqpstore_tools.bench.board import FOREVER_NS, Totals, now_ns
from amqpstore_tools.bench.consumer import consume
from amqpstore_tools.bench.fleet import Fleet
from amqpstore_tools.bench.histogram import Histogram
from amqpstore_tools.bench.producer import UNLIMITED, produce
from amqpstore_tools.bench.server_process import ServerProcess
from amqpstore_tools.bench.settings import BenchSettings
from amqpstore_tools.bench.worker import Schedule, Task
from amqpstore_tools.client.connection import Address, Connection
from amqpstore_tools.client.errors import BenchError
from tests.bench.interference.quiet import QuietClient, histogram

_WINDOW = 1000
_TICK_S = 0.1
_LOGIN_EVERY = 3
_LOGIN_LIMIT_S = 30.0


@dataclass
class Slice:
    """Measurements of the other clients over some seconds."""

    began_ns: int
    ended_ns: int = 0
    delivered: int = 0
    logins: Histogram = field(default_factory=Histogram)
    rss_bytes: int = 0  # the most that was seen
    cpu_s: float = 0.0  # the broker's processor time; 0 if its process is unknown

    @property
    def rate(self) -> float:
        """Messages delivered a second."""
        return self.delivered / max(1, self.ended_ns - self.began_ns) * 1e9

    @property
    def cpu_us(self) -> float:
        """The broker's processor time for each message delivered, whatever it was spent on."""
        return self.cpu_s / max(1, self.delivered) * 1e6


class Others:
    """Runs them. Leaving the context ends them."""

    def __init__(self, address: Address, queue: str, timeout_s: float) -> None:
        self._address = address
        self._queue = queue
        settings = BenchSettings(
            workload="through",
            address=address,
            queue=queue,
            keep=False,
            seconds=0,
            messages=UNLIMITED,
            warmup=0,
            timeout=timeout_s,
            pid=0,
            vary=True,
            confirm=_WINDOW,
            prefetch=500,
        )
        control = Connection(address)
        control.declare_queue(queue, {})
        control.purge_queue(queue)
        control.close()
        routes = [("", queue)]
        self._fleet = Fleet(
            settings,
            [
                Task("producer", partial(produce, routes=routes, quota=UNLIMITED)),
                Task("consumer", partial(consume, queues=[queue])),
            ],
        )
        self._quiet = QuietClient(address, f"{queue}-quiet", timeout_s)

    def __enter__(self) -> Self:
        try:
            self._fleet.wait_until_ready()
            now = now_ns()
            self._fleet.start(Schedule(now, now, FOREVER_NS))
            self._quiet.wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self._fleet.__exit__()
        self._quiet.__exit__()
        control = Connection(self._address)
        control.delete_queue(self._queue)
        control.close()

    def watch(self, seconds: float, server: ServerProcess | None) -> Slice:
        """Let some seconds pass. Raises: BenchError, if one of the others was not served."""
        before = self._totals()
        cpu_s = server.cpu_s() if server else 0.0
        found = Slice(now_ns())
        ticks = 0
        while now_ns() < found.began_ns + int(seconds * 1e9):
            if ticks % _LOGIN_EVERY == 0:
                began_ns = now_ns()
                Connection(self._address, _LOGIN_LIMIT_S).close()
                found.logins.record(now_ns() - began_ns)
            ticks += 1
            if server is not None:
                found.rss_bytes = max(found.rss_bytes, server.rss_bytes())
            time.sleep(_TICK_S)
        found.delivered = self._totals().delivered - before.delivered
        found.ended_ns = now_ns()
        if server is not None:
            found.cpu_s = server.cpu_s() - cpu_s
        return found

    def _totals(self) -> Totals:
        self._fleet.collect(0)
        if any(worker.outcome for worker in self._fleet.workers):
            raise BenchError("a client that was to be served has ended")
        return self._fleet.board.totals()

    def confirms(self, slices: list[list[Slice]]) -> list[Histogram]:
        """End the quiet publisher. Returns the waits for its confirms, for each list of slices."""
        waits = self._quiet.finish()
        found = []
        for some in slices:
            merged = Histogram()
            merged.merge([histogram(waits.confirms, one.began_ns, one.ended_ns) for one in some])
            found.append(merged)
        return found
