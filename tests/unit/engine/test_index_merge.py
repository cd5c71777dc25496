"""Index files that are mostly acked, or many, become one, and nothing in them changes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from amqpstore import Queue, Store
from amqpstore.format.index import ENTRIES_A_FILE
from amqpstore.system.filenames import index_path
from tests.unit.engine.stores import (
    Disk,
    FailingFiles,
    messages,
    publish_batches,
    queue_named,
    take,
)

COUNT = ENTRIES_A_FILE + 10


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(str(tmp_path / "store"), segment_bytes=16 << 20)


def index_numbers(disk: Disk) -> list[int]:
    return sorted(int(path.name[21:31]) for path in Path(disk.directory, "index").iterdir())


def taken(store: Store, queue: Queue, count: int) -> Iterator[int]:
    """Take and ack a number of messages one by one, and yield their sequences."""
    for _ in range(count):
        run = take(store, queue, 1)
        store.ack(queue, run)
        yield run.first_sequence


def two_files(disk: Disk) -> tuple[Store, Queue]:
    """A full file and one that is appended to."""
    store = disk.open()
    queue = store.create_queue("q")
    store.publish([queue], messages(*[b"x"] * COUNT))
    store.sync()
    store.upkeep.checkpoint()
    assert index_numbers(disk) == [1, 2]
    return store, queue


def acked(store: Store, queue: Queue, count: int) -> None:
    for _ in taken(store, queue, count):
        pass
    store.sync()
    store.upkeep.checkpoint()


def test_a_file_that_is_mostly_acked_is_written_anew(disk: Disk) -> None:
    store, queue = two_files(disk)
    held = take(store, queue, 3)
    acked(store, queue, ENTRIES_A_FILE // 2 - 100)
    assert index_numbers(disk) == [1, 2]
    acked(store, queue, 200)
    assert index_numbers(disk) == [2, 3]
    size = Path(index_path(disk.directory, queue.id, 3)).stat().st_size
    assert size < 34 * ENTRIES_A_FILE // 2
    store.abandon()
    store = disk.open()
    queue = queue_named(store, "q")
    store.stored.paging.read_index(queue)
    left = COUNT - ENTRIES_A_FILE // 2 - 100
    assert queue.ready_count == left
    run = take(store, queue, 10)
    assert (run.first_sequence, run.count, run.delivery_count) == (1, held.count, 1)
    assert [*taken(store, queue, left - 3)] == [*range(COUNT - left + 4, COUNT + 1)]
    store.abandon()


def test_files_of_a_few_entries_become_one(disk: Disk) -> None:
    for number in range(20):
        store = disk.open()
        queue = queue_named(store, "q") if number else store.create_queue("q")
        publish_batches(store, queue, [[b"%d" % number]])
        store.upkeep.checkpoint()
        store.abandon()
    assert len(index_numbers(disk)) < 16
    store = disk.open()
    queue = queue_named(store, "q")
    assert [*taken(store, queue, 20)] == [*range(1, 21)]
    store.sync()
    store.upkeep.checkpoint()
    assert index_numbers(disk) == []
    store.abandon()


def test_the_queues_own_reader_finds_what_was_merged_while_it_was_paged_out(disk: Disk) -> None:
    store, queue = two_files(disk)
    acked(store, queue, ENTRIES_A_FILE // 2 - 100)
    store.abandon()
    store = disk.open()
    queue = queue_named(store, "q")
    # Only what is taken is in memory; a message far behind is acked by its sequence.
    acked(store, queue, 200)
    assert 1 not in index_numbers(disk)
    left = COUNT - ENTRIES_A_FILE // 2 - 100
    assert [*taken(store, queue, left)] == [*range(COUNT - left + 1, COUNT + 1)]
    store.abandon()


def test_what_is_acked_after_a_merge_and_a_restart_stays_acked(disk: Disk) -> None:
    store, queue = two_files(disk)
    acked(store, queue, 10_000)
    assert index_numbers(disk) == [2, 3]
    store.abandon()
    store = disk.open()
    queue = queue_named(store, "q")
    acked(store, queue, COUNT - 10_000)
    store.abandon()
    store = disk.open()
    assert queue_named(store, "q").ready_count == 0
    assert index_numbers(disk) == []
    store.abandon()


def test_an_ack_behind_a_merged_file_is_found_after_a_restart(disk: Disk) -> None:
    store, queue = two_files(disk)
    acked(store, queue, 10_000)
    assert index_numbers(disk) == [2, 3]
    store.abandon()
    store = disk.open()
    queue = queue_named(store, "q")
    runs = [take(store, queue, 1) for _ in range(COUNT - 10_000)]
    store.ack(queue, runs[-1])
    store.sync()
    store.upkeep.checkpoint()
    store.abandon()
    store = disk.open()
    queue = queue_named(store, "q")
    store.stored.paging.read_index(queue)
    assert queue.ready.last.end == COUNT
    store.abandon()


def test_a_merge_that_fails_again_and_again_leaves_no_file(disk: Disk) -> None:
    """Such files would fill the rest of a full disk, at each checkpoint a little."""
    files = FailingFiles()
    store = disk.open(files)
    queue = store.create_queue("q")
    store.publish([queue], messages(*[b"x"] * COUNT))
    store.sync()
    store.upkeep.checkpoint()
    for run in store.withdrawals.withdraw_range(queue, 1, 10_000):
        store.ack(queue, run)
    for sequence in range(10_001, 10_004):
        for run in store.withdrawals.withdraw_range(queue, sequence, 1):
            store.ack(queue, run)
        store.sync()
        files.fails = {"append"}
        store.upkeep.checkpoint()
        assert index_numbers(disk) == [1, 2]
        files.fails = set()
    store.ack(queue, take(store, queue, 1))
    store.sync()
    store.upkeep.checkpoint()
    assert index_numbers(disk) == [2, 6]
    store.abandon()
