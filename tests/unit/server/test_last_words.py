"""Tests of the time that a client has to answer a close, read the last bytes and disconnect."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from amqpstore_server.amqp import connection as amqp_connection
from amqpstore_server.amqp import opening
from amqpstore_server.clients.login import CheckedLogin
from amqpstore_server.loop import client_writing
from amqpstore_server.loop.client_writing import Writing
from amqpstore_server.process import stopping
from amqpstore_server.process.stopping import say_goodbye
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.field_table import FieldValue
from amqpstore_server.protocol.spec import PROTOCOL_HEADER
from amqpstore_server.protocol.states import ConnectionState
from tests.fuzz.simulated import SimulatedClient, SimulatedServer
from tests.unit.server.test_connection import names, sent


@pytest.fixture
def server() -> Iterator[SimulatedServer]:
    with SimulatedServer() as server:
        yield server


def test_a_close_that_is_not_answered_ends_the_connection(server: SimulatedServer) -> None:
    client = SimulatedClient.opened(server)
    now = server.now_s
    client.connection.receive(sent(methods.ChannelOpen(), channel=0), now)
    client.connection.tick(now + amqp_connection._CLOSE_S - 0.1)
    assert not client.connection.is_finished
    client.take_output()
    assert names(client.answers[-1:]) == ["connection.close"]
    client.connection.tick(now + amqp_connection._CLOSE_S)
    assert client.connection.is_finished


def test_who_is_refused_has_some_time_to_read_that(server: SimulatedServer) -> None:
    client = SimulatedClient(server)
    connection, now = client.connection, server.now_s
    capabilities: FieldValue = {"authentication_failure_close": True}
    login = dataclasses.replace(client.start_ok(), client_properties={"capabilities": capabilities})
    connection.receive(PROTOCOL_HEADER, now)
    connection.receive(sent(login, channel=0), now)
    connection.logged_in(CheckedLogin(granted=False, reason="wrong"), now)
    connection.tick(now + opening._REFUSED_S - 0.1)
    assert not connection.is_finished
    connection.tick(now + opening._REFUSED_S)
    assert connection.is_finished


@pytest.mark.trio
@pytest.mark.parametrize(
    ("state", "end_s"),
    [(ConnectionState.CLOSING, 0), (ConnectionState.CLOSED, client_writing._CLOSING_S)],
    ids=["closed by the broker", "closed by the client"],
)
async def test_a_client_that_does_not_close_its_side_sees_the_end_and_is_left(
    autojump_clock: trio.testing.MockClock, state: ConnectionState, end_s: float
) -> None:
    outbox = SimpleNamespace(byte_count=0, withheld_count=0, writable_bytes=1)
    amqp: Any = SimpleNamespace(outbox=outbox, state=state)
    reading: Any = SimpleNamespace(is_broken=False, is_unread=False, end=lambda: None)
    others: Any = SimpleNamespace()
    ours, theirs = socket.socketpair()
    seen_s: list[float] = []

    async def see_the_end() -> None:
        await trio.lowlevel.wait_readable(theirs)
        seen_s.append(trio.current_time())

    with ours, theirs:
        ours.setblocking(False)
        of_client: Any = ours
        writing = Writing(of_client, amqp, reading, others, others, 1 << 16)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(see_the_end)
            await writing.last_words(1 << 20, has_no_input=False)
    assert seen_s == [pytest.approx(end_s)]
    assert trio.current_time() == pytest.approx(client_writing._LAST_WORDS_S)


@pytest.mark.trio
async def test_clients_of_a_broker_that_stops_have_a_limited_time_to_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    closed_s: list[float] = []
    silent: Any = SimpleNamespace(close=closed_s.append)
    began_s = trio.current_time()
    assert await say_goodbye({1: silent}.values()) == 1
    assert closed_s == [began_s]
    assert trio.current_time() - began_s == pytest.approx(stopping._GOODBYE_S)
