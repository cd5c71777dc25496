"""The bytes of a queue: what is told is right, and what is not known is not told."""

from collections.abc import Iterator

import pytest

from amqpstore_server.management import queue_bytes
from amqpstore_server.management.listing import ABSENT
from tests.fuzz.simulated import SimulatedServer
from tests.unit.broker.simulated import Client


@pytest.fixture
def server() -> Iterator[SimulatedServer]:
    with SimulatedServer() as made:
        yield made


def test_bytes_of_ready_and_unacked_messages(server: SimulatedServer) -> None:
    queue = server.queue("q")
    client = Client(server)
    assert queue_bytes.message_bytes(queue) == 0
    client.publish("", "q", "a", "bb", "ccc")
    assert queue_bytes.message_bytes_ready(queue) == 6
    assert queue_bytes.message_bytes_unacknowledged(queue) == 0
    assert queue_bytes.message_bytes(queue) == 6
    client.get("q")
    assert queue_bytes.message_bytes_ready(queue) == 5
    assert queue_bytes.message_bytes_unacknowledged(queue) is ABSENT
    assert queue_bytes.message_bytes(queue) is ABSENT


def test_bytes_under_a_limit_and_of_priorities(server: SimulatedServer) -> None:
    for name, argument in (("limited", "x-max-length-bytes"), ("several", "x-max-priority")):
        queue = server.queue(name, arguments={argument: 5})
        Client(server).publish("", name, "aaa", "bb")
        assert queue_bytes.message_bytes(queue) == 5, name


def test_a_queue_of_many_runs_is_not_counted(
    server: SimulatedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = server.queue("q")
    Client(server).publish("", "q", "a")
    assert queue_bytes.message_bytes(queue) == 1
    monkeypatch.setattr(queue_bytes, "_MAX_RUNS", 1)
    assert queue_bytes.message_bytes(queue) is ABSENT


def test_bodies_that_have_left_memory_are_known_or_left_out(server: SimulatedServer) -> None:
    queue = server.queue("q")
    Client(server).publish("", "q", "a" * 100, "b" * 10)
    for run in queue.priorities.lowest.ready:
        run.messages, run.body_bytes = None, 0
    assert queue_bytes.message_bytes_ready(queue) is ABSENT
