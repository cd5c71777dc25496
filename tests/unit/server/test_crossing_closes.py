"""A close of the client's that crosses an error which closes the channel."""

from collections.abc import Iterator

import pytest

from amqpstore_server.protocol import methods
from tests.fuzz.simulated import SimulatedClient, SimulatedServer
from tests.unit.server.test_connection import (
    CHANNEL_CLOSE,
    CONNECTION_CLOSE,
    names,
    published,
    sent,
)


@pytest.fixture
def server() -> Iterator[SimulatedServer]:
    with SimulatedServer() as server:
        yield server


@pytest.fixture
def client(server: SimulatedServer) -> SimulatedClient:
    client = SimulatedClient.opened(server, channels=1)
    client.ask(1, methods.QueueDeclare(queue="q", durable=True))
    return client


@pytest.mark.parametrize(
    ("close", "answers"),
    [
        (sent(CHANNEL_CLOSE), ["channel.close", "channel.close-ok"]),
        (sent(CONNECTION_CLOSE, channel=0), ["channel.close", "connection.close-ok"]),
    ],
    ids=["channel", "connection"],
)
def test_who_closes_is_told_before_of_a_publish_that_was_refused(
    server: SimulatedServer, client: SimulatedClient, close: bytes, answers: list[str]
) -> None:
    """Also while messages of others are on their way to the disk, which the refusal waits for: a
    client without confirms takes a close-ok alone for its message's good end.
    """
    other = SimulatedClient.opened(server, channels=1)
    other.connection.receive(published(b"m"), server.now_s)
    before = len(client.answers)
    client.connection.receive(published(b"x", exchange="missing"), server.now_s)
    client.take_output()
    assert names(client.answers[before:]) == []
    client.connection.receive(close, server.now_s)
    server.settle()
    client.take_output()
    assert names(client.answers[before:]) == answers


def test_a_channel_that_both_sides_closed_can_be_opened_again(
    server: SimulatedServer, client: SimulatedClient
) -> None:
    SimulatedClient.opened(server, channels=1).connection.receive(published(b"m"), server.now_s)
    refused = published(b"x", exchange="missing")
    client.connection.receive(refused + sent(CHANNEL_CLOSE), server.now_s)
    client.connection.receive(sent(methods.ChannelCloseOk()), server.now_s)
    answers = client.ask(1, methods.ChannelOpen(), methods.QueueDeclare(queue="q", passive=True))
    assert names(answers)[-2:] == ["channel.open-ok", "queue.declare-ok"]
