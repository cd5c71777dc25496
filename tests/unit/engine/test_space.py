"""A full disk: publishers are refused, and everything that makes room goes on."""

import functools

import pytest

from amqpstore import DiskFullError, Envelope, Message, Options, Queue, Run, Store
from amqpstore.worker import InlineWorker
from tools.drill.memory_catalog import MemoryCatalog
from tools.drill.memory_files import MemoryFiles

MIB = 1 << 20
OPTIONS = Options(
    segment_bytes=MIB // 4,
    memory_bytes=MIB // 4,
    checkpoint_bytes=MIB // 2,
    compaction_bytes_s=1 << 40,
    least_free_bytes=6 * MIB,
    reserve_bytes=5 * MIB,
)
ENVELOPE = Envelope("", "q", b"\x10\x00\x02")


@pytest.fixture
def files() -> MemoryFiles:
    files = MemoryFiles()
    files.capacity_bytes = 30 * MIB
    return files


def open_store(files: MemoryFiles) -> Store:
    return Store.open(
        "/store",
        files=files,
        open_catalog=functools.partial(MemoryCatalog, files),
        options=OPTIONS,
        worker=InlineWorker(),
    )


def publish(store: Store, queue: Queue, body: bytes = bytes(10_000)) -> None:
    store.publish([queue], [Message(ENVELOPE, body) for _ in range(10)])
    store.sync()


def fill(store: Store, queue: Queue) -> int:
    """Publish until the store refuses. Returns how many batches it took."""
    for batches in range(1000):
        try:
            publish(store, queue)
        except DiskFullError:
            return batches
    raise AssertionError("the disk is never full")


def test_the_reserve_takes_up_room_while_there_is_some(files: MemoryFiles) -> None:
    open_store(files).close()
    assert len(files.content("/store/reserve")) == OPTIONS.reserve_bytes


def test_publishers_are_refused_before_the_disk_is_full(files: MemoryFiles) -> None:
    store = open_store(files)
    queue = store.create_queue("q")
    batches = fill(store, queue)
    assert batches > 50
    assert files.free_bytes("/store") > 5 * MIB
    with pytest.raises(DiskFullError, match="consume or purge") as caught:
        store.publish([queue], [Message(ENVELOPE, b"")])
    assert caught.value.free_bytes == files.free_bytes("/store")
    assert queue.ready_count == 10 * batches
    store.close()


def test_a_transaction_that_publishes_is_refused_whole(files: MemoryFiles) -> None:
    store = open_store(files)
    queue = store.create_queue("q")
    fill(store, queue)
    run = store.take(queue, 1)
    assert isinstance(run, Run)
    transaction = store.transaction()
    transaction.publish([queue], [Message(ENVELOPE, b"")])
    transaction.ack(queue, run)
    with pytest.raises(DiskFullError):
        transaction.commit()
    assert transaction.rollback() == [(queue, run)]
    store.close()


def test_publishers_should_wait_a_while_before_they_are_refused(files: MemoryFiles) -> None:
    store = open_store(files)
    queue = store.create_queue("q")
    seen = []
    while not store.is_disk_low:
        publish(store, queue)
        seen.append(queue.ready_count)
    assert fill(store, queue) > 20
    store.close()


@pytest.mark.parametrize("left_bytes", [0, 100_000, 3 * MIB])
def test_acks_and_purges_go_on_when_others_filled_the_disk(
    files: MemoryFiles, left_bytes: int
) -> None:
    store = open_store(files)
    queue = store.create_queue("q")
    doomed = store.create_queue("doomed")
    for _ in range(40):
        publish(store, queue)
        publish(store, doomed)
    # Not even the store's own publishers did it: somebody else's file has it all.
    other = files.create("/other")
    other.append([bytes(files.free_bytes("/") - left_bytes)])
    for _ in range(10):
        run = store.take(queue, 10)
        assert isinstance(run, Run)
        store.ack(queue, run)
        store.sync()
    store.purge(queue)
    store.delete_queue(doomed)
    store.sync()
    store.checkpoint()
    # Their room is free again, but for the segment that the log is in.
    assert files.free_bytes("/") > 7 * MIB
    store.close()
    store = open_store(files)
    assert [one.ready_count for one in store.queues.values()] == [0]
    store.close()


def test_a_store_on_a_full_disk_opens_and_serves(files: MemoryFiles) -> None:
    store = open_store(files)
    queue = store.create_queue("q")
    for _ in range(30):
        publish(store, queue)
    store.abandon()
    other = files.create("/other")
    other.append([bytes(files.free_bytes("/"))])
    store = open_store(files)
    (queue,) = store.queues.values()
    assert queue.ready_count == 300
    while queue.ready_count:
        run = store.take(queue, 10)
        assert isinstance(run, Run)
        store.ack(queue, run)
        store.sync()
    store.close()


def test_the_reserve_comes_back_with_the_room(files: MemoryFiles) -> None:
    store = open_store(files)
    store.create_queue("q")
    other = files.create("/other")
    other.append([bytes(files.free_bytes("/"))])
    (queue,) = store.queues.values()
    store.purge(queue)
    store.housekeep()
    store._space.make_room()
    assert not files.exists("/store/reserve")
    files.remove("/other")
    store.housekeep()
    assert len(files.content("/store/reserve")) == OPTIONS.reserve_bytes
    assert not store.is_disk_low
    store.close()
