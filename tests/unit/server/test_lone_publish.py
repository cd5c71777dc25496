"""What a publish that is alone costs, from its read to its confirm.

The real app, sockets and committer, on a disk in memory whose datasyncs end as those of the kernel
do. The rounds of a turn are run by this test, so trio's own calls are not counted:
`test_call_counts` has the calls of many messages, without the app.
"""

import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import FrameType

import pytest
import trio

import amqpstore_server.connection
import amqpstore_server.sockets
from amqpstore import Options
from amqpstore_server.app import App
from amqpstore_server.config import Config
from amqpstore_server.listening import listen
from amqpstore_server.read_size import LEAST_BYTES, SMALLEST_BYTES
from amqpstore_tools.bench.messages import MessageBlock, block_of
from amqpstore_tools.client import frames, wire
from amqpstore_tools.client.connection import Address, Connection
from amqpstore_tools.simulation import stores
from amqpstore_tools.simulation.memory_files import MemoryFiles
from tests.committers import LaterDatasyncs

DIRECTORY = "/data"
WARM_UP = 10
PUBLISHES = 20
LONG_S = 0.008
CEILING = (136.0, 137.0)
"""Calls a publish: of Python functions, and of built-in ones. Lower them when the broker needs
less."""

_FOREIGN = ("/tests/", "/tools/")


class Counts:
    """Calls, while it is counting."""

    def __init__(self) -> None:
        self.python: Counter[str] = Counter()
        self.built_in: Counter[str] = Counter()

    def __enter__(self) -> None:
        sys.setprofile(self._called)

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, argument: object) -> None:
        if any(part in frame.f_code.co_filename for part in _FOREIGN):
            return
        if event == "call":
            self.python[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            self.built_in[getattr(argument, "__qualname__", str(argument))] += 1


def log_in(port: int) -> socket.socket:
    """Open a connection, and a channel with confirms."""
    connection = Connection(Address.parse(f"amqp://guest:guest@127.0.0.1:{port}"))
    connection.declare_queue("q", {})
    connection.call(wire.CONFIRM_SELECT, b"\0", wire.CONFIRM_SELECT_OK)
    return connection.socket


@asynccontextmanager
async def one_client() -> AsyncIterator[tuple[App, socket.socket]]:
    """The app, whose rounds are run by `confirm`, and its only client."""
    with stores.open_store(DIRECTORY, MemoryFiles(), Options(reserve_bytes=0)) as store:
        app = App(Config(data=DIRECTORY), store, None)
        committer = app.committer
        if committer._datasyncs:
            committer._datasyncs.close()
        datasyncs = committer._datasyncs = LaterDatasyncs()
        datasyncs.signal = app.sockets.wake
        (listener,) = await listen([("127.0.0.1", 0)])
        async with trio.open_nursery() as clients:
            async with trio.open_nursery() as turns:
                turns.start_soon(app._turn.read, committer)
                turns.start_soon(app._turn.run, committer)
                turns.start_soon(app._accept, listener, clients)
                sock = await trio.to_thread.run_sync(log_in, listener.getsockname()[1])
                turns.cancel_scope.cancel()
            committer._housekeep_at = float("inf")
            yield app, sock
            sock.close()
            clients.cancel_scope.cancel()
        committer.stop()
        app.sockets.close()


def messages() -> MessageBlock:
    return block_of([("", "q")], size=1024, persistent=True, vary=True, frame_max=131_072)


async def counted(counts: Counts) -> None:
    block = messages()
    async with one_client() as (app, sock):
        for number in range(WARM_UP + PUBLISHES):
            sock.send(block.take(1))
            if number >= WARM_UP:
                with counts:
                    confirm(app, sock)
            else:
                confirm(app, sock)
        assert isinstance(app.committer._datasyncs, LaterDatasyncs)
        assert app.committer._datasyncs.started >= PUBLISHES


async def read_sizes(reads: int) -> list[int]:
    """Return how much is read at once after each of some reads that take long."""
    block = messages()
    sizes = []
    async with one_client() as (app, sock):
        (client,) = app.connections
        receive = client.amqp.receive
        until_s = 0.0

        def takes_long(read: bytes, now: float) -> bool:
            goes_on = receive(read, now)
            while time.thread_time() < until_s:
                pass
            return goes_on

        client.amqp.receive = takes_long  # type: ignore[method-assign]
        for _ in range(reads):
            sock.send(block.take(1))
            until_s = time.thread_time() + LONG_S
            done = client.amqp.octets.recv_cnt + 1
            while client.amqp.octets.recv_cnt < done:
                assert app.sockets._look(60)
                app._turn.round(app.committer, 0.0)
            sizes.append(client._read_size.byte_count)
    return sizes


def confirm(app: App, sock: socket.socket) -> None:
    """Run the rounds of one publish: the read and its batch, then the end of its sync."""
    for _ in range(2):
        assert app.sockets._look(1)
        app._turn.round(app.committer, 0.0)
    octets = sock.recv(4096, socket.MSG_DONTWAIT)
    (frame,) = frames.whole_frames(octets, 0, len(octets))
    assert frames.method_of(octets, frame) == wire.BASIC_ACK


@pytest.fixture(autouse=True)
def _two_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each publish take two rounds, however slow the machine is."""
    monkeypatch.setattr(amqpstore_server.sockets, "_SHORT_ROUND_S", 60.0)
    monkeypatch.setattr(amqpstore_server.sockets, "_READING_S", 60.0)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    monkeypatch.setattr(amqpstore_server.connection, "SUSPECT_S", 60.0)
    found = Counts()
    trio.run(counted, found)
    return found


def test_a_publish_that_is_alone_costs_no_more_calls_than_it_did(counts: Counts) -> None:
    calls = (counts.python.total() / PUBLISHES, counts.built_in.total() / PUBLISHES)
    assert calls[0] <= CEILING[0], counts.python.most_common(200)
    assert calls[1] <= CEILING[1], counts.built_in.most_common(40)


def test_a_client_whose_small_reads_take_long_is_read_in_smaller_pieces() -> None:
    """The next one may be larger. The first that takes long is noticed, the others are timed."""
    sizes = trio.run(read_sizes, 6)
    assert sizes == [SMALLEST_BYTES >> times for times in (0, 1, 2, 3, 4, 4)]
    assert sizes[-1] == LEAST_BYTES
