"""A checkpoint has the entries of few index files in memory, whatever happens to a deep queue."""

import weakref
from array import array
from pathlib import Path

import pytest

from amqpstore import Queue, Store
from amqpstore.format.index import Entries, IndexReader, IndexState
from amqpstore.format.limits import StoreLimits
from amqpstore.system.filenames import INDEX
from tests.unit.engine.stores import Disk, drain, messages, queue_named, take

A_FILE = 16
FILES = 30


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(str(tmp_path / "store"), limits=StoreLimits(entries_a_file=A_FILE))


class Reads:
    """Counts reads of index files, and the most whose entries are in memory at a time."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = self.most = 0
        held: list[weakref.ref[array[int]]] = []
        entries = IndexReader.entries

        def counted(reader: IndexReader, queue_id: int, state: IndexState) -> Entries:
            found = entries(reader, queue_id, state)
            held[:] = [weakref.ref(found.ids), *(one for one in held if one() is not None)]
            self.count += 1
            self.most = max(self.most, len(held))
            return found

        patch.setattr(IndexReader, "entries", counted)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


def deep(disk: Disk) -> tuple[Store, Queue, Queue]:
    """A queue in many index files, and one that has every message of it as well."""
    store = disk.open()
    deep, other = store.create_queue("deep"), store.create_queue("other")
    for number in range(FILES):
        bodies = [b"%d" % place for place in range(number * A_FILE, (number + 1) * A_FILE)]
        store.publish([deep, other], messages(*bodies))
        store.sync()
    store.upkeep.checkpoint()
    store.abandon()
    store = disk.open()
    return store, queue_named(store, "deep"), queue_named(store, "other")


def index_files(disk: Disk) -> int:
    return len(list(Path(disk.directory, INDEX).iterdir()))


def reopened(disk: Disk, store: Store) -> tuple[Store, Queue]:
    store.abandon()
    store = disk.open()
    return store, queue_named(store, "other")


def numbers(bodies: list[bytes]) -> list[int]:
    return [int(body) for body in bodies]


def test_a_purge_reads_one_file_after_the_other(disk: Disk, reads: Reads) -> None:
    store, queue, _ = deep(disk)
    assert store.purge(queue) == FILES * A_FILE
    store.sync()
    store.upkeep.checkpoint()
    assert reads.count == FILES
    assert reads.most <= 2
    assert index_files(disk) == FILES
    store, other = reopened(disk, store)
    assert numbers(drain(store, other)) == [*range(FILES * A_FILE)]
    store.abandon()


def test_a_restart_behind_a_purge_reads_nothing_of_what_is_gone(disk: Disk, reads: Reads) -> None:
    store, queue, _ = deep(disk)
    run = take(store, queue, 3)
    store.purge(queue)
    store.sync()
    store.abandon()
    before = reads.count
    store = disk.open()
    queue = queue_named(store, "deep")
    # Only the first file, some messages of which were taken and are there still: for its messages,
    # and for the sizes of those that are left.
    assert reads.count - before == 2
    assert [one.first_sequence for one in queue.ready] == [run.first_sequence]
    assert queue.ready_count == run.count
    store.upkeep.checkpoint()
    assert index_files(disk) == FILES + 1
    store.abandon()


def test_a_deleted_queue_is_let_go_of_file_by_file(disk: Disk, reads: Reads) -> None:
    store, queue, _ = deep(disk)
    store.delete_queue(queue)
    store.upkeep.checkpoint()
    assert reads.count == FILES
    assert reads.most <= 2
    assert index_files(disk) == FILES
    store, other = reopened(disk, store)
    assert numbers(drain(store, other)) == [*range(FILES * A_FILE)]
    store.abandon()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_very_deep_queue_is_let_go_of_by_several_checkpoints(disk: Disk, restarts: bool) -> None:
    disk.limits = disk.limits._replace(max_released_files=7)
    store, queue, other = deep(disk)
    store.delete_queue(queue)
    for left in (23, 16, 9, 2, 0, 0):
        store.upkeep.checkpoint()
        assert index_files(disk) == FILES + left
        if restarts:
            store, other = reopened(disk, store)
    assert numbers(drain(store, other)) == [*range(FILES * A_FILE)]
    assert len(store.definitions.rows("heads")) == 1
    store.abandon()


def test_acks_here_and_there_read_each_file_once(disk: Disk, reads: Reads) -> None:
    store, queue, _ = deep(disk)
    runs = []
    while queue.ready_count:
        runs.append(take(store, queue, 1))
    store.sync()
    before = reads.count
    # Each ack is a batch of its own, and none is in the file of the one before it.
    for place in range(0, A_FILE, 3):
        for run in runs[place::A_FILE]:
            store.ack(queue, run)
            store.sync()
    store.upkeep.checkpoint()
    assert reads.count - before == FILES
    assert reads.most <= 2
    store.abandon()
    store = disk.open()
    queue = queue_named(store, "deep")
    left = [one for one in range(FILES * A_FILE) if (one % A_FILE) % 3]
    assert queue.ready_count == len(left)
    assert numbers(drain(store, queue)) == left
    store.abandon()


def test_acks_in_many_queues_read_one_file_after_the_other(disk: Disk, reads: Reads) -> None:
    store = disk.open()
    queues = [store.create_queue(str(number)) for number in range(20)]
    store.publish(queues, messages(*[b"x"] * A_FILE))
    store.sync()
    store.upkeep.checkpoint()
    for queue in queues:
        take(store, queue, 1, acked=True)
    store.sync()
    store.upkeep.checkpoint()
    assert reads.count == 20
    assert reads.most <= 2
    store.abandon()
    store = disk.open()
    assert [queue.ready_count for queue in store.queues.values()] == [A_FILE - 1] * 20
    store.abandon()
