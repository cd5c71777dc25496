"""Tables of thousands of entries: others are served between two of them, whatever they are for.

What is done in one go of the broker's loop is counted in calls, which are the same however busy the
machine is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from amqpstore_server.clients.limits import Limits
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.bounds import MAX_ENTRIES
from amqpstore_server.protocol.content import (
    BasicProperties,
    encode_properties,
)
from amqpstore_server.protocol.field_table import FieldValue
from amqpstore_server.protocol.frames import body_frames, header_frame, method_frame
from tests.calls import Counts
from tests.content_header import encode_content_header
from tests.fuzz.simulated import SimulatedClient, SimulatedServer

READ_BYTES = 100 << 10
"""The broker reads up to 512 KiB at once: several of the tables below."""

MAX_CALLS = 20 * MAX_ENTRIES
"""Calls of functions in one go: a table of the most entries is looked at a few times."""

TABLES: dict[str, dict[str, FieldValue]] = {
    "entries": {f"{number}": number for number in range(MAX_ENTRIES)},
    "strings": {f"{number}": f"{number}" for number in range(MAX_ENTRIES)},
    "array": {"array": [None] * (MAX_ENTRIES - 1)},
    "tables": {"array": [{} for _ in range(MAX_ENTRIES - 1)]},
}


@pytest.fixture
def server() -> Iterator[SimulatedServer]:
    with SimulatedServer(limits=Limits(frame_max=1 << 20)) as server:
        yield server


@pytest.fixture
def quiet(server: SimulatedServer) -> SimulatedClient:
    quiet = SimulatedClient.opened(server, channels=1)
    quiet.ask(1, methods.QueueDeclare(queue="quiet"))
    return quiet


@pytest.fixture
def client(server: SimulatedServer) -> SimulatedClient:
    client = SimulatedClient.opened(server, channels=1)
    letters: dict[str, FieldValue] = {"x-message-ttl": 10, "x-dead-letter-exchange": "headers"}
    client.ask(1, methods.QueueDeclare(queue="q"))
    client.ask(1, methods.QueueDeclare(queue="short", durable=True, arguments=letters))
    for kind in ("headers", "topic"):
        client.ask(1, methods.ExchangeDeclare(exchange=kind, type=kind, durable=True))
    matched: dict[str, FieldValue] = {"x-match": "any", "9": 9, "array": None}
    bind = methods.QueueBind(queue="q", exchange="headers", routing_key="", arguments=matched)
    client.ask(1, bind)
    return client


class Goes:
    """The goes in which the broker works: `most` is the calls of the one with the most calls.

    After each go a quiet client is served, in a go of its own.
    """

    def __init__(self, server: SimulatedServer, quiet: SimulatedClient) -> None:
        self.most = self.count = 0
        self._server = server
        self._quiet = quiet

    def _go(self, work: Callable[[], object]) -> None:
        counts = Counts()
        with counts:
            work()
        self.most = max(self.most, counts.python.total() + counts.built_in.total())
        self.count += 1

    def _serve_the_quiet_one(self) -> None:
        declare = methods.QueueDeclare(queue="quiet", passive=True)
        quiet = self._quiet
        quiet.connection.receive(method_frame(1, declare.encode()), self._server.now_s)
        quiet.take_output()
        assert quiet.answers.pop().method.name == "queue.declare-ok"

    def read(self, client: SimulatedClient, octets: bytes) -> None:
        """Do all that comes of one read."""
        self._go(lambda: client.connection.receive(octets, self._server.now_s))
        while client.connection.input.waiting:
            self._serve_the_quiet_one()
            self._go(lambda: client.connection.go_on(self._server.now_s))

    def pass_time(self, ms: int) -> None:
        """Let time pass, and the broker do what is due."""
        server = self._server
        server.store.sync()
        server.clock.advance(ms)
        while server.services.run_timers() | server.broker.pumping.has_work:
            self._go(server.broker.pumping.pump)
            self._serve_the_quiet_one()
            if not server.store.log.is_empty:
                server.store.sync()


@pytest.fixture
def goes(server: SimulatedServer, quiet: SimulatedClient) -> Goes:
    return Goes(server, quiet)


def a_read_of(exchange: str, key: str, table: dict[str, FieldValue]) -> bytes:
    """Return as many messages with these headers as one read has room for."""
    raw = encode_properties(BasicProperties(headers=table, delivery_mode=2))
    publish = methods.BasicPublish(exchange=exchange, routing_key=key)
    header = header_frame(1, encode_content_header(60, 1, raw))
    message = b"".join((method_frame(1, publish.encode()), header, *body_frames(1, b"x", 4096)))
    return message * (READ_BYTES // len(message) or 1)


@pytest.mark.parametrize(
    ("kind", "exchange"), [("array", ""), ("tables", "headers"), ("array", "headers")]
)
def test_one_go_takes_in_few_headers(
    client: SimulatedClient, goes: Goes, kind: str, exchange: str
) -> None:
    goes.read(client, a_read_of(exchange, "q", TABLES[kind]))
    assert goes.count > 1
    assert goes.most <= MAX_CALLS


@pytest.mark.parametrize("kind", ["entries", "array"])
def test_so_it_does_of_letters(client: SimulatedClient, goes: Goes, kind: str) -> None:
    goes.read(client, a_read_of("", "short", TABLES[kind]))
    goes.most = 0
    goes.pass_time(20)
    assert goes.most <= MAX_CALLS


DECLARATIONS: dict[str, Callable[[dict[str, FieldValue]], methods.Method]] = {
    "queue": lambda table: methods.QueueDeclare(queue="new", durable=True, arguments=table),
    "exchange": lambda table: methods.ExchangeDeclare(
        exchange="new", type="topic", durable=True, arguments=table
    ),
    "binding": lambda table: methods.QueueBind(
        queue="short", exchange="topic", routing_key="k", arguments=table
    ),
    "binding by headers": lambda table: methods.QueueBind(
        queue="short", exchange="headers", routing_key="", arguments=table
    ),
    "consumer": lambda table: methods.BasicConsume(queue="q", consumer_tag="t", arguments=table),
}


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        *((kind, what) for kind in ("entries", "strings") for what in DECLARATIONS),
        ("array", "queue"),
    ],
)
def test_so_it_does_of_arguments(client: SimulatedClient, goes: Goes, kind: str, what: str) -> None:
    """Work for one table is done in one go, so no entry has more than a few calls."""
    declare = method_frame(1, DECLARATIONS[what](TABLES[kind]).encode())
    before = len(client.answers)
    goes.read(client, declare * (READ_BYTES // len(declare) or 1))
    assert goes.most <= 5 * MAX_ENTRIES
    client.take_output()
    assert "close" not in client.answers[before].method.name


def test_what_is_refused_is_looked_at_one_by_one(client: SimulatedClient, goes: Goes) -> None:
    table: dict[str, FieldValue] = {**TABLES["entries"], "more": 1}
    goes.read(client, a_read_of("", "q", table))
    assert goes.most <= MAX_CALLS


def test_the_messages_all_arrive_in_order(client: SimulatedClient, server: SimulatedServer) -> None:
    """Behind a large one there are others, and a method that must not overtake them."""
    octets = a_read_of("", "q", TABLES["array"])
    declare = methods.QueueDeclare(queue="q", passive=True)
    before = len(client.answers)
    for part in (octets[:100_000], octets[100_000:] + method_frame(1, declare.encode())):
        client.send(part)
    (answer,) = client.answers[before:]
    assert isinstance(answer.method, methods.QueueDeclareOk)
    assert answer.method.message_count == len(server.ready("q")) == READ_BYTES // (16 << 10)
