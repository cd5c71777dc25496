"""A tmpfs is a real disk that others fill: work that makes room goes on, and so do restarts."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from amqpstore import DiskFullError, Options, Queue, Run, Store
from amqpstore.upkeep.worker import InlineWorker
from tests.small_disk import small_disk
from tests.unit.engine.stores import messages

MIB = 1 << 20
OPTIONS = Options(
    segment_bytes=MIB // 2,
    checkpoint_bytes=MIB,
    compaction_bytes_s=1 << 40,
    least_free_bytes=4 * MIB,
    reserve_bytes=2 * MIB,
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[str]:
    with small_disk(str(tmp_path / "disk"), mebibytes=24) as path:
        yield path


class Others:
    """Other programs, which fill the disk."""

    def __init__(self, disk: str) -> None:
        self._path = os.path.join(disk, "other")

    def fill(self, left_bytes: int = 0) -> None:
        """Take all that is left, but so much."""
        with open(self._path, "ab", buffering=0) as file:
            for size in (MIB, 4096, 1):
                try:
                    while file.write(bytes(size)) == size:
                        pass
                except OSError:
                    continue
            file.truncate(file.tell() - left_bytes)

    def free(self) -> None:
        os.remove(self._path)


def open_store(disk: str) -> Store:
    return Store.open(os.path.join(disk, "store"), options=OPTIONS, worker=InlineWorker())


def has_reserve(store: Store) -> bool:
    return os.path.exists(os.path.join(store.directory, "reserve"))


def consume(store: Store, queue: Queue, count: int) -> None:
    """Take and ack messages, ten at a time, each time durably."""
    for _ in range(count // 10):
        run = store.take(queue, 10)
        assert isinstance(run, Run), run
        store.ack(queue, run)
        store.sync()


def queues_of(store: Store) -> list[Queue]:
    return list(store.queues.values())


def filled(disk: str, queues: int = 1) -> tuple[Store, list[Queue]]:
    """A store with 400 messages in its first queue, and its reserve."""
    store = open_store(disk)
    made = [store.create_queue({"name": f"q{n}", "note": "x" * 300}) for n in range(queues)]
    for _ in range(40):
        store.publish(made[:1], messages(*[bytes(1000)] * 10))
        store.sync()
    store.upkeep.checkpoint()
    store.upkeep.housekeep()
    assert has_reserve(store)
    return store, made


def test_a_transaction_that_is_larger_than_the_room_is_refused(disk: str) -> None:
    store, (queue,) = filled(disk)
    transaction = store.transaction()
    for _ in range(30):
        transaction.publish([queue], messages(bytes(MIB)))
    with pytest.raises(DiskFullError):
        transaction.commit()
    store.sync()
    store.abandon()
    store = open_store(disk)
    assert [one.ready_count for one in queues_of(store)] == [400]
    store.close()


@pytest.mark.parametrize("left_bytes", [0, 4096, 3 * 4096, 7 * 4096])
def test_queues_are_deleted_on_a_full_disk(disk: str, left_bytes: int) -> None:
    store, queues = filled(disk, 300)
    Others(disk).fill(left_bytes)
    for queue in queues[1:]:
        store.delete_queue(queue)
    store.purge(queues[0])
    store.sync()
    store.upkeep.checkpoint()
    for _ in range(4):
        store.upkeep.housekeep()
    store.close()
    store = open_store(disk)
    assert [one.ready_count for one in queues_of(store)] == [0]
    store.close()


def test_declares_are_refused_on_a_full_disk_and_stop_nothing(disk: str) -> None:
    store, queues = filled(disk)
    Others(disk).fill()
    with pytest.raises(DiskFullError):
        for _ in range(3000):
            store.create_queue({"note": "x" * 300})
    assert has_reserve(store)
    assert store.failure is None
    consume(store, queues[0], 400)
    store.close()


@pytest.mark.parametrize("restarts", [1, 5])
def test_restarts_on_a_full_disk_serve_and_ack(disk: str, restarts: int) -> None:
    store, _ = filled(disk)
    others = Others(disk)
    others.fill()
    store.abandon()
    for number in range(restarts):
        store = open_store(disk)
        # Whatever the last one gave up, others have it by now.
        if number + 1 < restarts:
            others.fill()
            store.abandon()
    (queue,) = queues_of(store)
    assert queue.ready_count == 400
    consume(store, queue, 400)
    others.free()
    store.upkeep.housekeep()
    assert has_reserve(store)
    store.publish([queue], messages(b"after"))
    store.sync()
    store.close()
    store = open_store(disk)
    assert [one.ready_count for one in queues_of(store)] == [1]
    store.close()


@pytest.mark.parametrize("moment", range(12))
def test_others_may_fill_the_disk_at_any_moment(disk: str, moment: int) -> None:
    """Publishers may be refused, but all that was promised is there, and nothing else fails."""
    store, (queue,) = filled(disk)
    others = Others(disk)
    expected = 400
    for step in range(12):
        if step == moment:
            others.fill()
        try:
            store.publish([queue], messages(*[bytes(1000)] * 10))
            store.sync()
            expected += 10
        except DiskFullError:
            assert step >= moment
        consume(store, queue, 20)
        expected -= 20
        if step % 3 == 0:
            store.upkeep.checkpoint()
            store.upkeep.housekeep()
        if step % 4 == 3:
            store.abandon()
            store = open_store(disk)
            (queue,) = queues_of(store)
        assert queue.ready_count == expected
        assert store.failure is None
    store.close()
