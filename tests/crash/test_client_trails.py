"""Clients publish, get and ack while it is noted who they are, and the power is cut at every
operation of it.

Nothing is promised about notes: a crash loses the last of them. But what they say is true after any
crash, of the messages that are there then and of those that are published afterwards under
sequences that the crash has freed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from amqpstore import Run
from amqpstore.format.records import checksum_seed
from amqpstore.log.log import Log
from amqpstore.provenance.client_trails import Note, read_notes
from amqpstore_server.broker.channels.firehose import Origin
from amqpstore_server.broker.work.services import BrokerServices
from amqpstore_tools.simulation.crash_images import crash_images
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.operations import Operation
from tests.simulated_broker import DIRECTORY, SimulatedBroker
from tests.unit.broker.simulated import Client

IMAGES = 4


class NotingBroker(SimulatedBroker):
    """A broker that notes its clients, in small files."""

    def make_services(self) -> BrokerServices:
        services = super().make_services()
        services.trails = self.store.provenance.client_trails(max_files=2, file_bytes=400)
        return services

    def client(self, user: str) -> Client:
        return Client(self, Origin(user, 1, user))

    def flush(self) -> None:
        assert self.services.trails is not None
        self.services.trails.flush()

    def notes(self) -> list[Note]:
        seed = checksum_seed(self.store.store_id)
        return [note for notes in read_notes(self.disk, DIRECTORY, seed) for note in notes]


def history() -> tuple[MemoryFiles, list[Operation]]:
    """Have two clients publish in turn, and a third one get some. Returns the disk before it."""
    simulated = NotingBroker()
    simulated.queue("q")
    base = simulated.disk.fork()
    events: list[Operation] = []
    simulated.disk.record = events.append
    users = [simulated.client(user) for user in ("ann", "bob")]
    carl = simulated.client("carl")
    for number in range(6):
        user = users[number % 2]
        user.publish("", "q", f"{user.channel.origin.user} {number}")
        simulated.flush()
        if number % 3 == 2:
            body = carl.get("q")
            assert body is not None
            simulated.settle()
            carl.ack(body)
        simulated.settle()
        simulated.flush()
    simulated.disk.record = None
    simulated.store.abandon()
    return base, events


def untrue(simulated: NotingBroker) -> Iterator[str]:
    """Yield what is noted and does not hold, after eve has published as well; and what a start took
    for a loss, because it is noted.
    """
    if shortfall := simulated.store.recovery_report.shortfall:
        yield f"it is said to be lost: {shortfall.text}"
    eve = simulated.client("eve")
    for number in range(2):
        eve.publish("", "q", f"eve {number}")
    simulated.settle()
    simulated.flush()
    store_queue = simulated.vhost.queue("q").priorities.lowest
    notes = simulated.notes()
    assert notes
    while isinstance(run := simulated.store.take(store_queue, 100), Run):
        for sequence, message in enumerate(run.messages or (), run.first_sequence):
            publisher = message.body.decode().split()[0]
            for note in notes:
                first = note.first_sequence
                if not first <= sequence < first + note.message_count:
                    continue
                is_true = note.client.user == publisher
                if note.what.name != "PUBLISHED":
                    is_true = publisher != "eve"
                if not is_true:
                    yield f"{message.body!r} at {sequence}: {note}"


def violations() -> Iterator[str]:
    disk, events = history()
    rng = random.Random("trails")
    for event in events:
        disk.redo(event)
        for image in crash_images(disk, rng, IMAGES):
            simulated = NotingBroker(disk=image.files)
            yield from untrue(simulated)
            simulated.store.abandon()


def test_what_is_noted_is_true_after_any_crash() -> None:
    assert list(violations()) == []


def test_a_note_before_the_disk_has_the_message_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    durable = Log.when_durable

    def at_once(log: Log, callback: Callable[[], None]) -> None:
        if "ClientTrails" in repr(callback):
            callback()
        else:
            durable(log, callback)

    monkeypatch.setattr(Log, "when_durable", at_once)
    assert any("it is said to be lost" in found for found in violations())
