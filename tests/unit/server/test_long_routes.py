"""Publishes whose routes take long to find: one client with very many keys delays no other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from amqpstore_server.broker.exchanges.topic import TopicExchange
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.content import (
    BasicProperties,
    encode_properties,
)
from amqpstore_server.protocol.frames import body_frames, header_frame, method_frame
from tests.content_header import encode_content_header
from tests.fuzz.simulated import SimulatedClient, SimulatedServer

KEYS = [f"k.{number}" for number in range(40)]
TOOK_S = 0.001
"""How long it takes to find a route, on the clock of the test."""


@pytest.fixture
def server() -> Iterator[SimulatedServer]:
    with SimulatedServer() as server:
        yield server


@pytest.fixture
def client(server: SimulatedServer) -> SimulatedClient:
    client = SimulatedClient.opened(server, channels=1)
    client.ask(1, methods.QueueDeclare(queue="q"))
    client.ask(1, methods.ExchangeDeclare(exchange="topic", type="topic"))
    client.ask(1, methods.QueueBind(queue="q", exchange="topic", routing_key="#"))
    return client


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys for which the exchange was asked."""
    asked: list[str] = []
    route = TopicExchange.route

    def noted(exchange: TopicExchange, key: str, properties: BasicProperties) -> object:
        asked.append(key)
        return route(exchange, key, properties)

    monkeypatch.setattr(TopicExchange, "route", noted)
    return asked


def a_read(keys: list[str]) -> bytes:
    raw = encode_properties(BasicProperties())
    header = header_frame(1, encode_content_header(60, 1, raw))
    content = b"".join((header, *body_frames(1, b"x", 4096)))
    publishes = [methods.BasicPublish(exchange="topic", routing_key=key) for key in keys]
    return b"".join(method_frame(1, publish.encode()) + content for publish in publishes)


def goes(server: SimulatedServer, client: SimulatedClient, asked: list[str]) -> list[int]:
    """Have the client publish a message with each key in one read. Returns how many routes were
    looked for before others had their turn, each time.
    """
    connection = client.connection
    connection.receive(a_read(KEYS), server.now_s)
    counts = [len(asked)]
    while connection.input.waiting:
        server.broker.pumping.pump()
        before = len(asked)
        connection.go_on(server.now_s)
        counts.append(len(asked) - before)
    server.services.deferred.flush()
    return counts


def test_one_go_looks_for_few_long_routes(
    server: SimulatedServer, client: SimulatedClient, asked: list[str]
) -> None:
    ticks = itertools.count()
    server.services.cpu_s = server.services.elapsed_s = lambda: next(ticks) * TOOK_S
    counts = goes(server, client, asked)
    assert max(counts) <= 5
    assert sum(counts) == len(KEYS)
    assert len(server.ready("q")) == len(KEYS)


def test_usual_routes_are_looked_for_in_one_go(
    server: SimulatedServer, client: SimulatedClient, asked: list[str]
) -> None:
    ticks = itertools.count()
    server.services.cpu_s = server.services.elapsed_s = lambda: next(ticks) / 1e6
    assert goes(server, client, asked) == [len(KEYS)]


def test_an_interruption_is_no_long_route(
    server: SimulatedServer, client: SimulatedClient, asked: list[str]
) -> None:
    """Another process may have the processor in the middle of a search."""
    ticks = itertools.count()
    server.services.cpu_s = lambda: next(ticks) / 1e6
    server.services.elapsed_s = lambda: next(ticks) * TOOK_S
    assert goes(server, client, asked) == [len(KEYS)]
