"""The meaning of a stream of frames does not depend on how the network cuts it into reads.

Each stream is given to a receiver, and to a broker, whole and cut in several ways. The comparison
of brokers leaves out what may differ: how many confirms are in one basic.ack, and what a broker
still sends to a client whose connection it closes.
"""

import itertools
import random
from typing import NamedTuple

import pytest

from amqpstore_server.protocol import methods
from amqpstore_server.protocol.content import BasicProperties
from amqpstore_server.protocol.methods import Method
from amqpstore_server.protocol.states import ConnectionState
from tests.fuzz.reads import CLOSES, QUEUES, Streams
from tests.fuzz.simulated import Answer, SimulatedClient, SimulatedServer
from tests.fuzz.test_codec import FRAME_MAX, published, receive, said
from tests.fuzz.test_connection import content, encoded

CONSUMING = 4
"""The channel of the consumer. No stream has frames of it."""

FETCHED = 4
"""Deliveries that the client may ack: it can send nothing about those that it has not received."""


class Outcome(NamedTuple):
    """The outcome of one stream."""

    state: ConnectionState
    answers: dict[int, list[tuple[Method, bytes]]]
    """The answers by channel; only those on channel 0 where the connection was closed for an
    error.
    """
    confirmed: set[int]
    bodies: dict[str, list[bytes]]
    """By queue: the bodies that were delivered to its consumer, then those left in it."""


def outcome(stream: bytes, cuts: list[int], *, is_transactional: bool) -> Outcome:
    """Have a broker take the stream in the reads that the cuts make of it."""
    with SimulatedServer() as server:
        client = opened(server, is_transactional=is_transactional)
        for start, end in itertools.pairwise([0, *cuts, len(stream)]):
            if not client.connection.is_finished:
                client.send(stream[start:end])
        state = client.connection.state
        client.lose()
        bodies = {name: [message.body for message in server.messages(name)] for name in QUEUES}
    answers: dict[int, list[tuple[Method, bytes]]] = {}
    confirmed: set[int] = set()
    delivered: list[bytes] = []
    for channel, method, _, body in client.answers:
        if isinstance(method, methods.BasicDeliver):
            delivered.append(body)
        elif isinstance(method, methods.BasicAck):
            first = 1 if method.multiple else method.delivery_tag
            confirmed.update(range(first, method.delivery_tag + 1))
        else:
            answers.setdefault(channel, []).append((method, body))
    bodies["q2"][:0] = delivered
    if state is ConnectionState.OPEN:
        return Outcome(state, answers, confirmed, bodies)
    return Outcome(state, {0: answers.get(0, [])}, set(), bodies)


def opened(server: SimulatedServer, *, is_transactional: bool) -> SimulatedClient:
    """Connect a client that may ack some messages on channel 1, and consumes a queue without acks
    on a channel of its own: what it takes in between has no tags on others.
    """
    client = SimulatedClient.opened(server, channels=2)
    ask = client.ask
    ask(CONSUMING, methods.ChannelOpen())
    ask(1, *(methods.QueueDeclare(queue=name, durable=name != "q2") for name in QUEUES))
    for name in ("q1", "q2"):
        ask(1, methods.QueueBind(queue=name, exchange="amq.topic", routing_key=name))
    client.send(b"".join(published(1) for _ in range(FETCHED + 1)))
    ask(1, *[methods.BasicGet(queue="b")] * FETCHED)
    ask(1, methods.TxSelect() if is_transactional else methods.ConfirmSelect())
    ask(CONSUMING, methods.BasicConsume(queue="q2", consumer_tag="t", no_ack=True))
    client.answers.clear()
    return client


def compare_events(rng: random.Random) -> None:
    drawn = Streams(rng)
    stream = drawn.stream()
    expected = said(receive(stream, []))
    for cuts in drawn.cuts(len(stream)):
        for large_bytes in (FRAME_MAX, 1):
            assert said(receive(stream, cuts, large_bytes)) == expected, (stream, cuts)


def compare_outcomes(rng: random.Random) -> None:
    # A client's close of a channel may cross the broker's, depending on the time.
    drawn = Streams(rng, without=CLOSES)
    stream = drawn.stream()
    is_transactional = rng.random() < 0.2
    expected = outcome(stream, [], is_transactional=is_transactional)
    for cuts in drawn.cuts(len(stream)):
        found = outcome(stream, cuts, is_transactional=is_transactional)
        assert found == expected, (stream, cuts)


@pytest.mark.rounds(1)
def test_some_streams_are_the_same_events_however_they_are_read(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(150):
        compare_events(rng)


@pytest.mark.long
@pytest.mark.rounds(4)
def test_many_streams_are_the_same_events_however_they_are_read(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(4000):
        compare_events(rng)


@pytest.mark.rounds(1)
def test_some_streams_have_the_same_outcome_however_they_are_read(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        compare_outcomes(rng)


@pytest.mark.long
@pytest.mark.rounds(4)
def test_many_streams_have_the_same_outcome_however_they_are_read(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(500):
        compare_outcomes(rng)


def test_what_comes_while_a_connection_closes_is_ignored_however_it_is_read() -> None:
    """A client that goes on sending until it reads the close is waited for: also behind messages
    without a body, and one that is too large.
    """
    error = encoded(1, methods.ChannelOpen())
    empty, method = published(1, b""), methods.BasicPublish(exchange="", routing_key="q1")
    large = content(1, method, b"", BasicProperties(), 200_000, 1)
    for behind in (empty * 2, large, empty + large + empty, published(2) * 3 + empty * 2):
        stream = error + behind
        for cuts in ([], [len(error)], list(range(len(stream)))):
            with SimulatedServer() as server:
                client = opened(server, is_transactional=False)
                for start, end in itertools.pairwise([0, *cuts, len(stream)]):
                    client.send(stream[start:end])
                [answer] = client.answers
                assert isinstance(answer, Answer)
                assert isinstance(answer.method, methods.ConnectionClose)
                assert client.connection.state is ConnectionState.CLOSING
                client.lose()
