"""Tables that are too large cost a channel; letters fit in the frames of their consumer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from amqpstore_server.clients.limits import Limits
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.bounds import MAX_DEPTH, MAX_ENTRIES
from amqpstore_server.protocol.content import (
    BasicProperties,
    decode_properties,
    encode_properties,
)
from amqpstore_server.protocol.field_table import FieldValue
from amqpstore_server.protocol.frames import body_frames, header_frame, method_frame
from tests.content_header import encode_content_header
from tests.fuzz.simulated import SimulatedClient, SimulatedServer


def published(queue: str, headers: dict[str, Any], body: bytes, **properties: Any) -> bytes:
    raw = encode_properties(BasicProperties(headers=headers, **properties))
    publish = methods.BasicPublish(exchange="", routing_key=queue)
    header = header_frame(1, encode_content_header(60, len(body), raw))
    return b"".join((method_frame(1, publish.encode()), header, *body_frames(1, body, 4096)))


def names(client: SimulatedClient, before: int) -> list[str]:
    return [answer.method.name for answer in client.answers[before:]]


def nested(depth: int) -> dict[str, FieldValue]:
    """Return a table with this many levels, itself included."""
    table: dict[str, FieldValue] = {}
    for _ in range(depth - 1):
        table = {"d": table}
    return table


@pytest.fixture
def server() -> Iterator[SimulatedServer]:
    with SimulatedServer(limits=Limits(frame_max=1 << 20)) as server:
        yield server


@pytest.fixture
def client(server: SimulatedServer) -> SimulatedClient:
    client = SimulatedClient.opened(server, channels=2)
    client.ask(1, methods.QueueDeclare(queue="q"))
    return client


LARGEST: dict[str, dict[str, FieldValue]] = {
    "bytes": {"text": "x" * 1_000_000},
    "entries": {f"{number}": number for number in range(MAX_ENTRIES)},
    "array": {"array": [None] * (MAX_ENTRIES - 1)},
    "depth": nested(MAX_DEPTH),
}
TOO_LARGE: dict[str, dict[str, FieldValue]] = {
    "entries": {**LARGEST["entries"], "more": 1},
    "array": {"array": [None] * MAX_ENTRIES},
    "depth": nested(MAX_DEPTH + 1),
}


@pytest.mark.parametrize("kind", LARGEST)
def test_the_largest_headers_are_taken(
    client: SimulatedClient, server: SimulatedServer, kind: str
) -> None:
    client.send(published("q", LARGEST[kind], b"x"))
    assert server.headers("q") == [LARGEST[kind]]


@pytest.mark.parametrize("body", [b"", b"x", bytes(9000)])
@pytest.mark.parametrize("kind", TOO_LARGE)
def test_what_is_too_large_closes_the_channel_alone(
    client: SimulatedClient, server: SimulatedServer, kind: str, body: bytes
) -> None:
    before = len(client.answers)
    refused = published("q", TOO_LARGE[kind], body)
    for part in (refused[:-20], refused[-20:]):
        client.send(part)
    assert names(client, before) == ["channel.close"]
    close = client.answers[before].method
    assert isinstance(close, methods.ChannelClose)
    assert (close.reply_code, close.failing_class_id, close.failing_method_id) == (406, 60, 40)
    client.ask(1, methods.ChannelCloseOk(), methods.ChannelOpen())
    client.send(published("q", {}, b"next"))
    assert server.ready("q") == ["next"]


@pytest.mark.parametrize("kind", TOO_LARGE)
def test_so_do_arguments(client: SimulatedClient, kind: str) -> None:
    declare = methods.QueueDeclare(queue="r", arguments=TOO_LARGE[kind])
    (answer,) = client.ask(1, declare)
    assert isinstance(answer.method, methods.ChannelClose)
    assert (answer.method.reply_code, answer.method.failing_class_id) == (406, 50)
    (answer,) = client.ask(2, methods.QueueDeclare(queue="r"))
    assert answer.method.name == "queue.declare-ok"


def test_the_deepest_arguments_are_stored(client: SimulatedClient, server: SimulatedServer) -> None:
    arguments: dict[str, FieldValue] = {"x": nested(MAX_DEPTH - 3)}
    client.ask(1, methods.QueueDeclare(queue="r", durable=True, arguments=arguments))
    client.ask(1, methods.ExchangeDeclare(exchange="e", type="headers", durable=True))
    bind = methods.QueueBind(queue="r", exchange="e", routing_key="", arguments=arguments)
    (answer,) = client.ask(1, bind)
    assert answer.method.name == "queue.bind-ok"
    client.lose()
    server.restart()
    assert server.vhost.queue("r").arguments == arguments


@pytest.mark.parametrize("frame_max", [4096, 1 << 20])
@pytest.mark.parametrize("gets", [True, False])
def test_letters_fit_in_the_frames_of_their_consumer(
    server: SimulatedServer, *, frame_max: int, gets: bool
) -> None:
    """The client checks the size of each frame, and may publish letters again as they came."""
    arguments: dict[str, FieldValue] = {
        "x-message-ttl": 10,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "end",
    }
    limited = server.limits
    server.limits = replace(limited, frame_max=frame_max)
    client = SimulatedClient.opened(server, channels=1)
    server.limits = limited
    client.ask(1, methods.QueueDeclare(queue="q", arguments=arguments))
    client.ask(1, methods.QueueDeclare(queue="end"))
    text = "x" * (frame_max - 200)
    client.send(published("q", {"text": text}, b"x"))
    server.pass_time(10)
    before = len(client.answers)
    if gets:
        client.ask(1, methods.BasicGet(queue="end", no_ack=True))
    else:
        client.ask(1, methods.BasicConsume(queue="end", consumer_tag="t", no_ack=True))
    header = client.answers[-1].header
    assert header is not None
    headers = decode_properties(header.properties).headers or {}
    assert headers["text"] == text
    assert (headers["x-death"], headers["x-death-omitted"]) == ([], 1)
    client.send(published("q", headers, b"again"))
    assert "close" not in "".join(names(client, before))
    assert server.ready("q") == ["again"]
