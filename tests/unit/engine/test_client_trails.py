"""Notes of who published and received messages, beside the log: true, bounded, not in the way."""

import errno
import logging
from collections.abc import Iterator

import pytest

from amqpstore import Envelope, Message, Options, Queue, Run, Store
from amqpstore.format.records import checksum_seed
from amqpstore.provenance.client_trails import (
    BLOCK_NOTES,
    MAX_WAITING_BLOCKS,
    ClientTrails,
    Note,
    NotedClient,
    What,
    read_notes,
)
from amqpstore.queues.transient import FIRST_TRANSIENT
from amqpstore.system.clock import SimulatedClock
from amqpstore.system.filenames import trail_number
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.stores import new_disk, open_store

DIRECTORY = "/disk/store"
START_MS = 1_700_000_000_000
ANN, BOB = NotedClient("ann's", 1, "ann"), NotedClient("bob's", 2, "bob")
MESSAGE = Message(Envelope("", "q", b""), b"body")


class World:
    """A store with one queue, whose clients are noted."""

    def __init__(self, max_files: int = 2, file_bytes: int = 600) -> None:
        self.clock = SimulatedClock(START_MS)
        self.disk: MemoryFiles = new_disk(DIRECTORY)
        self.max_files, self.file_bytes = max_files, file_bytes
        self.open()
        self.queue: Queue = self.store.create_queue({"name": "q"})

    def open(self) -> None:
        options = Options(reserve_bytes=0, least_free_bytes=0)
        self.store: Store = open_store(DIRECTORY, self.disk, options, clock=self.clock)
        provenance = self.store.provenance
        self.trails: ClientTrails = provenance.client_trails(self.max_files, self.file_bytes)

    def publish(self, client: NotedClient, count: int = 1) -> None:
        first = self.queue.next_sequence
        self.store.publish([self.queue], [MESSAGE] * count)
        self.trails.published(client, self.queue, first, count, persistent=True)

    def read(self) -> list[Note]:
        seed = checksum_seed(self.store.store_id)
        return [note for notes in read_notes(self.disk, DIRECTORY, seed) for note in notes]

    @property
    def files(self) -> list[str]:
        names = self.disk.list_directory(f"{DIRECTORY}/trails")
        return [name for name in names if trail_number(name)]


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.store.abandon()


def test_messages_of_many_clients_are_noted_together_a_run_of_each(world: World) -> None:
    clients = [ANN, ANN, BOB, ANN, BOB, BOB]
    world.publish(BOB, 2)
    first = world.queue.next_sequence
    world.store.publish([world.queue], [MESSAGE] * len(clients))
    world.trails.published_by(clients, world.queue, first, persistent=True)
    world.trails.published_by(clients, world.queue, first, persistent=False)  # is not in the log
    world.trails.flush()
    world.store.sync()
    found = [(note.client, note.first_sequence, note.message_count) for note in world.read()]
    assert found == [(BOB, 1, 2), (ANN, 3, 2), (BOB, 5, 1), (ANN, 6, 1), (BOB, 7, 2)]


def test_what_was_noted_is_read(world: World) -> None:
    world.publish(ANN, 3)
    world.clock.advance(7)
    run = world.store.take(world.queue, 2)
    assert isinstance(run, Run)
    world.trails.note(What.DELIVERED, BOB, "worker", world.queue.id, run)
    world.trails.flush()
    world.store.sync()
    assert world.read() == [
        Note(What.PUBLISHED, START_MS, ANN, "", 1, 1, 3),
        Note(What.DELIVERED, START_MS + 7, BOB, "worker", 1, 1, 2),
    ]


def test_nothing_is_written_before_what_it_tells_of_is_durable(world: World) -> None:
    world.publish(ANN)
    world.trails.flush()
    assert world.files == []
    world.store.sync()
    assert world.files == ["0000000001.trail"]


def test_only_what_the_log_has_is_noted(world: World) -> None:
    """The sequences of other messages are given again by the next process."""
    transient = world.store.create_queue({"name": "t"}, durable=False)
    world.trails.published(ANN, world.queue, 1, 1, persistent=False)
    world.trails.published(ANN, transient, 1, 1, persistent=True)
    for first_id in (0, FIRST_TRANSIENT):
        run = Run(1, 1, first_id=first_id)
        world.trails.note(What.DELIVERED, BOB, "", world.queue.id, run)
    world.trails.flush()
    assert world.read() == []
    world.store.set_keeps_transient(world.queue, keeps=True)
    world.trails.published(ANN, world.queue, 1, 1, persistent=False)
    world.trails.flush()
    assert [note.client for note in world.read()] == [ANN]


def test_the_oldest_files_are_removed(world: World) -> None:
    for number in range(40):
        world.publish(NotedClient(f"connection {number}", 1, "ann"))
        world.trails.flush()
        world.store.sync()
    assert len(world.files) == 2
    assert sum(world.disk.open(f"{DIRECTORY}/trails/{one}").size() for one in world.files) < 1400
    assert world.read()[-1].client.connection == "connection 39"
    first = world.read()[0].first_sequence
    assert [note.first_sequence for note in world.read()] == list(range(first, 41))


def test_a_full_block_is_written_without_a_flush(world: World) -> None:
    run = Run(1, 1, first_id=1)
    for _ in range(BLOCK_NOTES):
        world.trails.note(What.DELIVERED, BOB, "", world.queue.id, run)
    assert len(world.read()) == BLOCK_NOTES


def test_a_new_process_begins_a_new_file(world: World) -> None:
    world.publish(ANN)
    world.trails.close()
    world.store.sync()
    world.store.abandon()
    world.open()
    world.queue = world.store.queues[1]
    world.publish(BOB)
    world.trails.flush()
    world.store.sync()
    assert world.files == ["0000000001.trail", "0000000002.trail"]
    assert [note.client for note in world.read()] == [ANN, BOB]


@pytest.mark.parametrize("at", [0, 5, 12, 20, 30, 60])
def test_damage_costs_its_block_only(world: World, at: int) -> None:
    world.file_bytes = 1 << 20
    world.store.abandon()
    world.open()
    world.queue = world.store.queues[1]
    for client in (ANN, BOB):
        world.publish(client)
        world.trails.flush()
        world.store.sync()
    path = f"{DIRECTORY}/trails/{world.files[0]}"
    file = world.disk.open(path)
    content = bytearray(file.read(0, file.size()))
    content[at] ^= 1
    world.disk.remove(path)
    world.disk.create(path).append([bytes(content)])
    assert [note.client for note in world.read()] == [BOB]
    world.disk.remove(path)
    world.disk.create(path).append([bytes(content[: len(content) - at - 1])])
    assert world.read() == []


def test_a_block_of_another_file_or_store_is_left_out(world: World) -> None:
    world.publish(ANN)
    world.trails.flush()
    world.store.sync()
    path = f"{DIRECTORY}/trails/{world.files[0]}"
    file = world.disk.open(path)
    content = file.read(0, file.size())
    assert list(read_notes(world.disk, DIRECTORY, checksum_seed(bytes(16)))) == []
    world.disk.create(f"{DIRECTORY}/trails/0000000009.trail").append([content])
    assert [note.client for note in world.read()] == [ANN]


def test_a_disk_that_fails_is_left_alone_for_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(path: str) -> None:
        raise OSError(errno.EIO, "broken", path)

    world.store.publish([world.queue], [MESSAGE])
    world.store.sync()
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(world.disk, "create", fail)
        for _ in range(3):
            world.publish(ANN)
            world.trails.flush()
            world.store.sync()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    world.publish(ANN)
    world.trails.flush()
    world.store.sync()
    assert world.files == []
    world.clock.advance(60_000)
    world.publish(BOB)
    world.trails.flush()
    world.store.sync()
    assert [note.client for note in world.read()] == [BOB]


def test_a_disk_that_is_nearly_full_gets_no_notes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.publish(ANN)
    monkeypatch.setattr(world.store.space, "is_low", True)
    world.trails.flush()
    world.store.sync()
    assert world.files == []


def test_what_waits_for_the_disk_is_bounded(world: World) -> None:
    world.trails = world.store.provenance.client_trails(max_files=2)
    world.publish(ANN)
    run = Run(1, 1, first_id=1)
    for _ in range((MAX_WAITING_BLOCKS + 3) * BLOCK_NOTES):
        world.trails.note(What.DELIVERED, BOB, "", world.queue.id, run)
    world.store.sync()
    assert len(world.read()) == MAX_WAITING_BLOCKS * BLOCK_NOTES
    world.trails.note(What.ACKED, ANN, "", world.queue.id, run)
    world.trails.flush()
    assert world.read()[-1].what is What.ACKED
