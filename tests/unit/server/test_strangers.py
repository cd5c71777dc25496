"""Tests of what clients cost that come, and go before they have logged in."""

import socket

import pytest
import trio

from amqpstore_server.loop.client_reading import Reading
from amqpstore_server.loop.rounds import LoopRounds
from amqpstore_server.loop.socket_connection import SocketConnection
from amqpstore_tools.testing.broker import MemoryBroker
from tests.conformance.wire_client import PROTOCOL_HEADER, WireClient
from tests.waiting import wait_until

ACCEPTED = '"connection accepted"'
CLOSED = '"connection closed"'


def silent(broker: MemoryBroker, count: int) -> list[socket.socket]:
    return [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(count)]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[SocketConnection]:
    """The connections that have ended, in the brokers of this process."""
    found: list[SocketConnection] = []
    run = SocketConnection.run

    async def run_and_note(self: SocketConnection) -> None:
        await run(self)
        found.append(self)

    monkeypatch.setattr(SocketConnection, "run", run_and_note)
    return found


def test_of_a_crowd_a_few_are_logged_and_the_others_are_counted(
    ended: list[SocketConnection],
) -> None:
    with MemoryBroker() as broker:
        for sock in silent(broker, 50):
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert sock.recv(8) == PROTOCOL_HEADER
            sock.close()
        wait_until(lambda: len(ended) == 50)
        assert broker.log.count(ACCEPTED) == 20
        assert broker.log.count('"not AMQP 0-9-1"') == 20
        # All of a client that logs in is logged, from then on.
        with WireClient.connected(broker.url):
            pass
        wait_until(lambda: len(ended) == 51)
        assert broker.log.count(CLOSED) == 21
        assert "user=guest" in broker.log.splitlines()[-1]
        broker.advance(11)
        with WireClient.connected(broker.url):
            pass
        assert broker.log.count(ACCEPTED) == 21
        assert "suppressed=31" in broker.log


def test_strangers_leave_nothing_to_do(
    ended: list[SocketConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Because of strangers, no queue is looked at and no batch is started."""
    woken: list[LoopRounds] = []
    wake = LoopRounds.wake

    def wake_and_note(self: LoopRounds) -> None:
        woken.append(self)
        wake(self)

    monkeypatch.setattr(LoopRounds, "wake", wake_and_note)
    with MemoryBroker() as broker:
        before = len(woken)
        for sock in silent(broker, 20):
            sock.close()
        wait_until(lambda: len(ended) == 20)
        assert len(woken) - before < 10, "not one for each: what is there beside them is no matter"


def test_what_is_written_while_a_connection_ends_starts_no_task(
    ended: list[SocketConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nursery of a connection has its end while others have their turn."""
    ending = Reading.stop

    async def write(reading: Reading) -> None:
        reading._tasks.start(trio.lowlevel.checkpoint)

    def end_and_write(self: Reading) -> None:
        ending(self)
        trio.lowlevel.spawn_system_task(write, self)

    monkeypatch.setattr(Reading, "stop", end_and_write)
    with MemoryBroker() as broker:
        for sock in silent(broker, 20):
            sock.close()
        wait_until(lambda: len(ended) == 20)
        with WireClient.connected(broker.url, channels=1) as client:
            client.expect_alive()
