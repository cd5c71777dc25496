"""Messages taken and not acked: past a limit their bodies leave memory, and come back."""

import errno
import os
from pathlib import Path

import pytest

from amqpstore import MessageDamagedError, Queue, ReadLaterError, Run, Store
from amqpstore.system.files import OsFiles
from amqpstore_tools.simulation.faulty_files import UnreadableFiles
from tests.unit.engine.stores import (
    ENVELOPE,
    TRANSIENT,
    Disk,
    bodies,
    drain,
    messages,
    take,
)

WRITTEN = [b"%03d" % number * (number + 1) for number in range(100)]


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    """A store without room for anything in memory."""
    disk = Disk(str(tmp_path / "store"))
    disk.options = disk.options._replace(memory_bytes=0)
    return disk


def filled(store: Store, *written: bytes, transient: bool = False) -> Queue:
    """A queue with messages in it, which came together."""
    queue = store.create_queue("q")
    envelope = TRANSIENT if transient else ENVELOPE
    store.publish([queue], messages(*(written or WRITTEN), envelope=envelope))
    return queue


def brought_back(store: Store, queue: Queue, run: Run) -> list[Run]:
    """A run with its messages, in the parts in which they came."""
    parts: list[Run] = []
    rest: Run | None = run
    while rest is not None:
        part, rest = store.stored.bring_back(queue, rest)
        assert isinstance(part, Run)
        parts.append(part)
    return parts


def aside(disk: Disk) -> list[str]:
    """Files of messages that are not in the log."""
    path = f"{disk.directory}/transient"
    return os.listdir(path) if os.path.exists(path) else []


def test_bodies_leave_memory_once_they_are_durable(disk: Disk) -> None:
    store = disk.open()
    queue = filled(store)
    run = take(store, queue)
    store.upkeep.free_memory()
    assert bodies(run) == WRITTEN
    store.sync()
    assert run.messages is None
    assert store._unacked.memory_bytes == 0
    (part,) = brought_back(store, queue, run)
    assert part is run
    assert bodies(run) == WRITTEN
    store.upkeep.free_memory()
    assert run.messages is None
    store.ack(queue, run)
    store.close()


def test_a_quarter_of_the_budget_stays(disk: Disk) -> None:
    disk.options = disk.options._replace(memory_bytes=400_000)
    store = disk.open()
    queue = store.create_queue("q")
    for number in range(200):
        store.publish([queue], messages(b"%03d" % number * 1000))
    store.sync()
    runs = [take(store, queue, 1) for _ in range(200)]
    store.upkeep.free_memory()
    kept = [run for run in runs if run.messages is not None]
    assert 100_000 - 4000 < sum(run.memory_bytes for run in kept) <= 400_000
    assert kept == runs[-len(kept) :], "those that were taken first go first"
    assert store._unacked.memory_bytes == sum(run.memory_bytes for run in kept)
    for run in runs:
        store.ack(queue, run)
    assert store._unacked.memory_bytes == 0
    store.close()


@pytest.mark.parametrize("unloaded_first", [True, False])
def test_a_run_is_split(disk: Disk, unloaded_first: bool) -> None:
    store = disk.open()
    queue = filled(store)
    last = take(store, queue)
    if unloaded_first:
        store.sync()
    first = last.split(30)
    middle = last.split(30)
    store.ack(queue, middle)
    store.sync()
    assert first.messages is None
    assert last.messages is None
    assert store._unacked.memory_bytes == 0
    for run, written in ((first, WRITTEN[:30]), (last, WRITTEN[60:])):
        assert run.body_bytes == sum(map(len, written))
        (part,) = brought_back(store, queue, run)
        assert bodies(part) == written
        assert part.body_bytes == sum(map(len, written))
    store.close()


def test_much_comes_back_in_parts(disk: Disk) -> None:
    store = disk.open()
    written = [b"%02d" % number * 100_000 for number in range(30)]
    queue = filled(store, *written)
    run = take(store, queue)
    store.sync()
    parts = brought_back(store, queue, run)
    assert len(parts) > 4
    assert [body for part in parts for body in bodies(part)] == written
    store.upkeep.free_memory()
    for part in parts:
        store.requeue(queue, part)
    assert drain(store, queue) == written
    store.close()


@pytest.mark.parametrize("transient", [False, True])
def test_what_goes_back_is_read_when_it_is_taken(disk: Disk, transient: bool) -> None:
    store = disk.open()
    queue = filled(store, transient=transient)
    run = take(store, queue)
    store.sync()
    assert run.messages is None
    store.requeue(queue, run)
    assert (run.memory_bytes, queue.memory_bytes) == (0, 0)
    assert run.body_bytes == queue.ready_bytes == queue.stored_bytes
    again = take(store, queue)
    assert again.delivery_count == 1
    assert bodies(again) == WRITTEN
    store.ack(queue, again)
    assert aside(disk) == []
    store.close()


def test_what_is_transient_is_written_aside_until_it_is_acked(disk: Disk) -> None:
    store = disk.open()
    queue = filled(store, transient=True)
    last = take(store, queue)
    store.upkeep.free_memory()
    assert last.messages is None
    first = last.split(10)
    assert len(aside(disk)) == 1
    (part,) = brought_back(store, queue, last)
    assert bodies(part) == WRITTEN[10:]
    store.ack(queue, part)
    assert len(aside(disk)) == 1
    store.ack(queue, first)
    assert aside(disk) == []
    store.close()


def test_of_a_queue_that_is_deleted_nothing_is_kept(disk: Disk) -> None:
    store = disk.open()
    queue = filled(store, transient=True)
    run = take(store, queue)
    store.delete_queue(queue)
    store.upkeep.free_memory()
    assert (run.messages, aside(disk)) == (None, [])
    store.ack(queue, run)
    store.close()


def test_one_that_is_damaged_stays_for_the_next_start(disk: Disk) -> None:
    store = disk.open()
    queue = filled(store, b"good one", b"rotten", b"good two")
    run = take(store, queue)
    store.sync()
    sound = disk.read(1)
    disk.write(1, sound.replace(b"rotten", b"rotted"))
    with pytest.raises(MessageDamagedError):
        store.stored.read_all(run)
    first, rest = store.stored.bring_back(queue, run)
    assert isinstance(first, Run)
    assert rest is not None
    damaged, last = store.stored.bring_back(queue, rest)
    assert isinstance(damaged, MessageDamagedError)
    assert last is not None
    (last,) = brought_back(store, queue, last)
    assert bodies(first) + bodies(last) == [b"good one", b"good two"]
    assert queue.quarantined.count == 1
    store.ack(queue, first)
    store.ack(queue, last)
    store.close()
    disk.write(1, sound)
    store = disk.open()
    (queue,) = store.queues.values()
    again = take(store, queue)
    assert (bodies(again), again.delivery_count) == ([b"rotten"], 1)
    store.close()


def test_what_cannot_be_read_now_is_as_it_was(disk: Disk) -> None:
    files = UnreadableFiles(OsFiles(), number=errno.ENOMEM)
    store = disk.open(files)
    queue = filled(store)
    run = take(store, queue)
    store.sync()
    files.bad = [(disk.path(1), 0, 1 << 30)]
    error, rest = store.stored.bring_back(queue, run)
    assert isinstance(error, ReadLaterError)
    assert rest is run
    with pytest.raises(ReadLaterError):
        store.stored.read_all(run)
    files.bad = []
    (part,) = brought_back(store, queue, run)
    assert bodies(part) == WRITTEN
    store.close()


@pytest.mark.parametrize("transient", [False, True])
def test_bodies_of_a_deleted_queue_leave_memory_however_much_room_there_is(
    disk: Disk, *, transient: bool
) -> None:
    disk.options = disk.options._replace(memory_bytes=1 << 30)
    store = disk.open()
    deleted, other = filled(store, transient=transient), store.create_queue("other")
    store.publish([other], messages(b"kept"))
    store.sync()
    held = [take(store, deleted, 1) for _ in WRITTEN]
    kept = take(store, other)
    store.delete_queue(deleted)
    store.upkeep.housekeep()
    assert [run.messages for run in held] == [None] * len(WRITTEN)
    assert bodies(kept) == [b"kept"]
    assert store._unacked.memory_bytes == kept.memory_bytes
    assert not aside(disk)
    for run in held:
        store.ack(deleted, run)
    store.ack(other, kept)
    assert store._unacked.memory_bytes == 0
    store.close()
