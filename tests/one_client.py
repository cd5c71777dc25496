"""The real app with some clients, whose rounds of reads are run by the test, on a disk in memory
whose datasyncs end as those of the kernel do.
"""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from amqpstore import Options
from amqpstore_server.app import App
from amqpstore_server.config import Config
from amqpstore_server.listening import listen
from amqpstore_tools.bench.messages import MessageBlock, block_of
from amqpstore_tools.client import wire
from amqpstore_tools.client.connection import Address, Connection
from amqpstore_tools.simulation import stores
from amqpstore_tools.simulation.memory_files import MemoryFiles
from tests.committers import LaterDatasyncs

DIRECTORY = "/data"


def log_in(port: int) -> socket.socket:
    """Open a connection, and a channel with confirms."""
    connection = Connection(Address.parse(f"amqp://guest:guest@127.0.0.1:{port}"))
    connection.declare_queue("q", {})
    connection.call(wire.CONFIRM_SELECT, b"\0", wire.CONFIRM_SELECT_OK)
    return connection.socket


@asynccontextmanager
async def one_client() -> AsyncIterator[tuple[App, socket.socket]]:
    """The app, and the socket of its only client: see `some_clients`."""
    async with some_clients(1) as (app, (sock,)):
        yield app, sock


@asynccontextmanager
async def some_clients(count: int) -> AsyncIterator[tuple[App, list[socket.socket]]]:
    """The app, and the sockets of its clients, each with a channel that confirms; and a queue
    "q".
    """
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
                turns.start_soon(app._turn.run, committer)
                turns.start_soon(app._accept, listener, clients)
                port = listener.getsockname()[1]
                socks = [await trio.to_thread.run_sync(log_in, port) for _ in range(count)]
                turns.cancel_scope.cancel()
            committer._housekeep_at = float("inf")
            yield app, socks
            for sock in socks:
                sock.close()
            clients.cancel_scope.cancel()
        committer.stop()
        app.sockets.close()


def messages() -> MessageBlock:
    """Persistent messages of 1 KiB for the queue, each with its own properties."""
    return block_of([("", "q")], size=1024, persistent=True, vary=True, frame_max=131_072)
