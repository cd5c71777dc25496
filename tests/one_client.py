"""The real app with some clients, whose rounds of reads the test runs, on a disk in memory whose
datasyncs end as the kernel's do.
"""

import os
import socket
import time
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import pytest
import trio

import amqpstore_server.loop.client_reading
import amqpstore_server.loop.rounds
import amqpstore_server.loop.sockets
from amqpstore import Options
from amqpstore_server.app import App
from amqpstore_server.config.config import Config
from amqpstore_server.listening.listening import listen
from amqpstore_server.loop.loop_limits import LOOP_LIMITS, LoopLimits
from amqpstore_server.loop.read_size import ReadSize
from amqpstore_tools.bench.messages import MessageBlock, block_of
from amqpstore_tools.client import wire
from amqpstore_tools.client.connection import Address, Connection
from amqpstore_tools.simulation import stores
from amqpstore_tools.simulation.memory_files import MemoryFiles
from tests.committers import LaterDatasyncs
from tests.waiting import wait_readable

DIRECTORY = "/data"
CLOCKED = (
    amqpstore_server.loop.client_reading,
    amqpstore_server.loop.sockets,
    amqpstore_server.loop.rounds,
)
"""The modules that time the reads of a client."""


class StillClock:
    """A stand-in for both clocks of a process: time passes only when a test says so."""

    def __init__(self) -> None:
        self._now_s = time.perf_counter()

    def advance(self, seconds: float) -> None:
        """Let that much time pass."""
        self._now_s += seconds

    def perf_counter(self) -> float:
        """Return the time."""
        return self._now_s

    def thread_time(self) -> float:
        """Return the same time: no other thread uses this processor."""
        return self._now_s


@contextmanager
def still_clock() -> Generator[StillClock]:
    """Have reads timed by a clock that stands still, so that a slow machine makes no client costly
    and ends no round of reads. Only for rounds that the test runs: the other tasks' turn does not
    come.
    """
    clock = StillClock()
    with pytest.MonkeyPatch.context() as patch:
        for module in CLOCKED:
            patch.setattr(module, "time", clock)
        yield clock


def log_in(port: int) -> socket.socket:
    """Open a connection, and a channel with confirms."""
    connection = Connection(Address.parse(f"amqp://guest:guest@127.0.0.1:{port}"))
    connection.declare_queue("q", {})
    connection.call(wire.CONFIRM_SELECT, b"\0", wire.CONFIRM_SELECT_OK)
    return connection.socket


@asynccontextmanager
async def one_client(limits: LoopLimits = LOOP_LIMITS) -> AsyncIterator[tuple[App, socket.socket]]:
    """The app, and the socket of its only client: see `some_clients`."""
    async with some_clients(1, limits) as (app, (sock,)):
        yield app, sock


@asynccontextmanager
async def some_clients(
    count: int, limits: LoopLimits = LOOP_LIMITS
) -> AsyncIterator[tuple[App, list[socket.socket]]]:
    """The app, and the sockets of its clients, each with a channel that confirms; and a queue
    "q".
    """
    with stores.open_store(DIRECTORY, MemoryFiles(), Options(reserve_bytes=0)) as store:
        app = App(Config(data=DIRECTORY), store, None, loop_limits=limits)
        committer = app.committer
        if committer._datasyncs:
            committer._datasyncs.close()
        datasyncs = committer._datasyncs = LaterDatasyncs()
        # As the kernel does it: without a call of the broker.
        datasyncs.signal = partial(os.eventfd_write, app.sockets.signal, 1)
        (listener,) = await listen([("127.0.0.1", 0)])
        async with trio.open_nursery() as clients:
            async with trio.open_nursery() as turns:
                turns.start_soon(app._rounds.run, committer)
                turns.start_soon(app._accept, listener, clients)
                port = listener.getsockname()[1]
                socks = [await trio.to_thread.run_sync(log_in, port) for _ in range(count)]
                turns.cancel_scope.cancel()
            committer._housekeep_at = float("inf")
            for client in app.connections:
                client._reading._read_size = ReadSize(limits)  # its login may have taken long
                client._reading.is_costly = False
            yield app, socks
            for sock in socks:
                sock.close()
            clients.cancel_scope.cancel()
        committer.stop()
        app.sockets.close()


def wait_for_reads(app: App, count: int) -> None:
    """Return when `count` clients can be read: what was sent may arrive later."""
    wait_readable(*(client._socket for client in app.connections), count=count)


def messages() -> MessageBlock:
    """Persistent messages of 1 KiB for the queue, each with its own properties."""
    return block_of([("", "q")], size=1024, persistent=True, vary=True, frame_max=131_072)
