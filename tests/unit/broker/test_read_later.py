"""A process without a descriptor or memory left cannot read what waits: it waits on."""

import dataclasses
import errno
import os

import pytest

from amqpstore_tools.simulation.memory_files import MemoryFile, MemoryFiles
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client


class Shortage:
    """A shortage of descriptors: while it lasts, no file can be opened."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.is_there = False
        opened = MemoryFiles.open

        def open_file(files: MemoryFiles, path: str) -> MemoryFile:
            if self.is_there:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
            return opened(files, path)

        patch.setattr(MemoryFiles, "open", open_file)


@pytest.fixture
def shortage(monkeypatch: pytest.MonkeyPatch) -> Shortage:
    return Shortage(monkeypatch)


def restarted(simulated: SimulatedBroker, shortage: Shortage, *bodies: str) -> None:
    """Queue q has messages on disk only, and nothing can be read."""
    Client(simulated).publish("", "q", *bodies)
    simulated.settle()
    simulated.restart()
    simulated.store.log._descriptors.close()
    shortage.is_there = True


def test_a_consumer_gets_what_could_not_be_read_before(
    simulated: SimulatedBroker, shortage: Shortage, caplog: pytest.LogCaptureFixture
) -> None:
    simulated.queue("q")
    restarted(simulated, shortage, "one", "two")
    client = Client(simulated)
    client.consume("q", "a")
    simulated.settle()
    for _ in range(3):
        simulated.pass_time(1000)
    queue = simulated.vhost.queue("q")
    assert (client.got, queue.ready_count) == ([], 2)
    assert "cannot be read at the moment" in caplog.text
    assert "others are served" not in caplog.text
    shortage.is_there = False
    simulated.pass_time(1000)
    assert client.bodies("a") == ["one", "two"]


def test_what_is_too_much_is_dropped_once_it_can_be_read(
    simulated: SimulatedBroker, shortage: Shortage
) -> None:
    simulated.queue("dead")
    simulated.queue("q", dead_letter_exchange="", dead_letter_routing_key="dead")
    restarted(simulated, shortage, "one", "two", "three")
    queue = simulated.vhost.queue("q")
    queue.apply(dataclasses.replace(queue.settings, max_length=1))
    queue.enforce()
    simulated.settle()
    assert queue.ready_count == 3
    shortage.is_there = False
    simulated.pass_time(1000)
    assert (queue.ready_count, simulated.vhost.queue("dead").ready_count) == (1, 2)


def test_what_expires_is_a_dead_letter_once_it_can_be_read(
    simulated: SimulatedBroker, shortage: Shortage
) -> None:
    simulated.queue("dead")
    simulated.queue("q", message_ttl=5000, dead_letter_exchange="", dead_letter_routing_key="dead")
    restarted(simulated, shortage, "one", "two")
    simulated.pass_time(6000)
    assert simulated.vhost.queue("q").ready_count == 2
    shortage.is_there = False
    simulated.pass_time(1000)
    assert simulated.vhost.queue("q").ready_count == 0
    assert simulated.vhost.queue("dead").ready_count == 2
