"""A passing error of the disk: what waits is delivered once it can be read, without a restart."""

import errno
import os

import pytest

from amqpstore_tools.simulation.memory_files import MemoryFile
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client


class Disk:
    """A disk on which no segment can be read while it is bad."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.is_bad = False
        read = MemoryFile.read

        def read_file(file: MemoryFile, offset: int, size: int) -> bytes:
            if self.is_bad and file.path.endswith(".segment"):
                raise OSError(errno.EIO, os.strerror(errno.EIO), file.path)
            return read(file, offset, size)

        patch.setattr(MemoryFile, "read", read_file)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def restarted(simulated: SimulatedBroker, disk: Disk, *bodies: str) -> None:
    """Queue q has messages on disk only, and the disk cannot read them."""
    Client(simulated).publish("", "q", *bodies)
    simulated.settle()
    simulated.restart()
    disk.is_bad = True


def wait(simulated: SimulatedBroker) -> None:
    """Let some seconds pass, in each of which the broker tries again."""
    for _ in range(11):
        simulated.pass_time(1000)
        simulated.broker.read_again()
    simulated.settle()


def test_a_consumer_gets_what_could_not_be_read_before(
    simulated: SimulatedBroker, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    simulated.queue("q")
    restarted(simulated, disk, "one", "two")
    client = Client(simulated)
    client.consume("q", "a")
    simulated.settle()
    wait(simulated)
    assert client.got == []
    assert "some messages cannot be read; the others are served" in caplog.text
    disk.is_bad = False
    Client(simulated).publish("", "q", "three")
    wait(simulated)
    assert sorted(client.bodies("a")) == ["one", "three", "two"]


def test_it_counts_and_expires_as_before(simulated: SimulatedBroker, disk: Disk) -> None:
    simulated.queue("dead")
    simulated.queue(
        "q",
        max_length_bytes=10,
        message_ttl=60_000,
        dead_letter_exchange="",
        dead_letter_routing_key="dead",
    )
    restarted(simulated, disk, "one", "two")
    client = Client(simulated)
    assert client.channel.get(simulated.vhost.queue("q"), no_ack=False) is None
    disk.is_bad = False
    wait(simulated)
    queue = simulated.vhost.queue("q")
    assert queue.ready_count == 2
    Client(simulated).publish("", "q", "eight888")
    simulated.settle()
    assert (queue.ready_count, simulated.vhost.queue("dead").ready_count) == (1, 2)
    simulated.pass_time(60_000)
    assert (queue.ready_count, simulated.vhost.queue("dead").ready_count) == (0, 3)
