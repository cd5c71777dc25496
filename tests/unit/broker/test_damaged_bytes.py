"""Damaged messages count in a queue's limit of bytes until they are found, not for good."""

from collections.abc import Callable

import pytest

from amqpstore_tools.simulation.memory_files import MemoryFile
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client


def taken(simulated: SimulatedBroker) -> None:
    """Have a client take all messages."""
    client = Client(simulated)
    assert [client.get("q") for _ in range(3)] == ["good one", "good two", None]


def dropped(simulated: SimulatedBroker) -> None:
    """Publish a message for which all others have to go."""
    Client(simulated).publish("", "q", "x" * 100)
    simulated.settle()
    assert simulated.ready("q") == ["x" * 100]


def expired(simulated: SimulatedBroker) -> None:
    """Let the messages of the queue expire."""
    simulated.pass_time(1000)
    assert simulated.ready("q") == []


@pytest.mark.parametrize("leave", [taken, dropped, expired])
def test_what_cannot_be_read_is_not_counted_for_good(
    leave: Callable[[SimulatedBroker], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated = SimulatedBroker()
    simulated.queue("q", max_length_bytes=100, message_ttl=1000)
    Client(simulated).publish("", "q", "good one", "rotten", "good two")
    simulated.settle()
    simulated.restart()
    read = MemoryFile.read

    def read_rotten(file: MemoryFile, offset: int, size: int) -> bytes:
        return read(file, offset, size).replace(b"rotten", b"rotted")

    monkeypatch.setattr(MemoryFile, "read", read_rotten)
    queue = simulated.vhost.queue("q")
    assert queue.backlog.ready_bytes == 22
    leave(simulated)
    simulated.settle()
    assert queue.backlog.ready_bytes == sum(map(len, simulated.ready("q")))
