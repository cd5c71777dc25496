"""A full disk: publishers are refused, and everything that makes room goes on."""

from collections.abc import Sequence

import pytest

from amqpstore import DiskFullError, Envelope, Message, Options, Queue, Run, Store
from amqpstore.catalog.catalog import Change
from amqpstore.log.space import Space
from amqpstore_tools.simulation import stores
from amqpstore_tools.simulation.memory_catalog import MemoryCatalog
from amqpstore_tools.simulation.memory_files import MemoryFiles

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
    return stores.open_store("/store", files, OPTIONS)


def publish(store: Store, queue: Queue, body: bytes = bytes(10_000)) -> None:
    store.publish([queue], [Message(ENVELOPE, body) for _ in range(10)])
    store.sync()


def fill(store: Store, queue: Queue) -> int:
    """Publish until the store refuses, and return how many batches it took."""
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
        publish(store, queue)
    assert caught.value.free_bytes == files.free_bytes("/store")
    assert queue.ready_count == 10 * batches
    store.close()


@pytest.mark.parametrize("how", ["publish", "transaction"])
def test_transient_messages_that_are_logged_need_room_too(files: MemoryFiles, how: str) -> None:
    store = open_store(files)
    classic, queue = store.create_queue("classic"), store.create_queue("q")
    store.set_keeps_transient(queue, keeps=True)
    envelope = Envelope("", "q", persistent=False)
    transient = [Message(envelope, bytes(MIB)) for _ in range(40)]
    with pytest.raises(DiskFullError, match="bytes free"):
        if how == "publish":
            store.publish([classic, queue], transient)
        else:
            transaction = store.transaction()
            transaction.publish([classic, queue], transient)
            transaction.commit()
    assert queue.ready_count == 0
    store.close()


def test_a_transaction_that_publishes_is_refused_whole(files: MemoryFiles) -> None:
    store = open_store(files)
    queue = store.create_queue("q")
    fill(store, queue)
    run = store.take(queue, 1)
    assert isinstance(run, Run)
    transaction = store.transaction()
    transaction.publish([queue], [Message(ENVELOPE, bytes(MIB))])
    transaction.ack(queue, run)
    with pytest.raises(DiskFullError):
        transaction.commit()
    assert transaction.rollback() == [(queue, run)]
    store.close()


def test_publishers_should_wait_a_while_before_they_are_refused(files: MemoryFiles) -> None:
    store = open_store(files)
    queue = store.create_queue("q")
    seen = []
    while not store.space.is_low:
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
    # The store's own publishers did not do it: the file of another program has it all.
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
    store.upkeep.checkpoint()
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
    store.upkeep.housekeep()
    store.space.make_room()
    assert not files.exists("/store/reserve")
    files.remove("/other")
    store.upkeep.housekeep()
    assert len(files.content("/store/reserve")) == OPTIONS.reserve_bytes
    assert not store.space.is_low
    store.close()


def fill_disk(files: MemoryFiles, left_bytes: int = 0) -> None:
    """Write as another program would, until no more than that is free."""
    path = f"/other-{len(files.contents())}"
    other = files.create(path)
    other.append([bytes(max(files.free_bytes("/") - left_bytes, 0))])
    other.close()


@pytest.mark.parametrize("how", ["publish", "transaction", "prepare", "prepared"])
def test_what_is_larger_than_the_room_is_refused_whole(files: MemoryFiles, how: str) -> None:
    store = open_store(files)
    queue = store.create_queue("q")
    bodies = [Message(ENVELOPE, bytes(MIB)) for _ in range(40)]
    with pytest.raises(DiskFullError, match="bytes free"):
        if how == "publish":
            store.publish([queue], bodies)
        else:
            transaction = store.transaction()
            for message in bodies:
                transaction.publish([queue], [message])
            if how == "transaction":
                transaction.commit()
            elif how == "prepare":
                transaction.prepare("label")
            else:
                files.capacity_bytes = 100 * MIB
                prepared = transaction.prepare("label")
                store.sync()
                files.capacity_bytes = 70 * MIB
                store.upkeep.housekeep()
                prepared.commit(prepared.publishes())
    store.sync()
    assert store.failure is None
    assert queue.ready_count == 0
    publish(store, queue)
    store.close()
    store = open_store(files)
    assert next(iter(store.queues.values())).ready_count == 10
    store.close()


def test_properties_count_as_well(files: MemoryFiles) -> None:
    store = open_store(files)
    queue = store.create_queue("q")
    envelope = Envelope("", "q", bytes(MIB))
    with pytest.raises(DiskFullError):
        store.publish([queue], [Message(envelope, b"") for _ in range(40)])
    store.close()


def test_what_waits_for_its_sync_counts_as_well(files: MemoryFiles) -> None:
    store = open_store(files)
    queue = store.create_queue("q")
    with pytest.raises(DiskFullError):
        for _ in range(40):
            store.publish([queue], [Message(ENVELOPE, bytes(MIB))])
    assert queue.ready_count > 10
    store.sync()
    assert files.free_bytes("/store") > 5 * MIB
    store.close()


@pytest.mark.parametrize("left_bytes", [0, 1, 1000])
def test_a_batch_that_finds_no_room_has_that_of_the_reserve(
    files: MemoryFiles, monkeypatch: pytest.MonkeyPatch, left_bytes: int
) -> None:
    """Other programs fill the disk after it was looked at: the write goes on where it ended."""
    store = open_store(files)
    store.upkeep.housekeep()
    queue = store.create_queue("q")
    for number in range(6):
        store.publish([queue], [Message(ENVELOPE, b"%d" % number * 50_000)])
        if number % 2:
            with monkeypatch.context() as patch:
                patch.setattr(Space, "make_room", lambda *_: fill_disk(files, left_bytes))
                store.sync()
            assert not files.exists("/store/reserve")
            for path in [name for name in files.list_directory("/") if name.startswith("other")]:
                files.remove(f"/{path}")
            store.upkeep.housekeep()
            assert files.exists("/store/reserve")
    store.abandon()
    store = open_store(files.power_cut({}, {}))
    (queue,) = store.queues.values()
    run = store.take(queue, 10)
    assert isinstance(run, Run)
    assert run.count == 6
    assert store.recovery_report.is_clean
    store.close()


def test_deletes_have_the_reserve_and_declares_have_not(files: MemoryFiles) -> None:
    store = open_store(files)
    queues = [store.create_queue({"name": f"q{number}"}) for number in range(50)]
    publish(store, queues[0])
    fill_disk(files)
    with pytest.raises(DiskFullError):
        store.create_queue({"name": "x" * 1000})
    assert files.exists("/store/reserve")
    assert store.failure is None
    for queue in queues:
        store.delete_queue(queue)
    store.sync()
    store.upkeep.checkpoint()
    store.close()
    store = open_store(files)
    assert store.queues == {}
    store.close()


def test_restarts_leave_the_reserve_alone(files: MemoryFiles) -> None:
    store = open_store(files)
    queue = store.create_queue("q")
    for _ in range(5):
        publish(store, queue)
    store.upkeep.housekeep()
    fill_disk(files, left_bytes=1000)
    store.abandon()
    for _ in range(3):
        store = open_store(files)
        assert files.exists("/store/reserve")
        store.abandon()
    store = open_store(files)
    (queue,) = store.queues.values()
    while queue.ready_count:
        run = store.take(queue, 10)
        assert isinstance(run, Run)
        store.ack(queue, run)
        store.sync()
    store.close()


def test_a_checkpoint_that_finds_no_room_for_its_commit_is_made_later(
    files: MemoryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(files)
    queue = store.create_queue("q")
    for _ in range(20):
        publish(store, queue)
    run = store.take(queue, 25)
    assert isinstance(run, Run)
    store.ack(queue, run)
    store.sync()
    refused = []

    def refuse(self: MemoryCatalog, changes: Sequence[Change]) -> None:
        refused.append(changes)
        raise OSError(28, "No space left on device")

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(MemoryCatalog, "commit", refuse)
            with pytest.raises(OSError, match="No space left"):
                store.upkeep.checkpoint()
    assert len(refused) == 4
    publish(store, queue)
    store.upkeep.checkpoint()
    left = queue.ready_count
    store.abandon()
    store = open_store(files)
    assert store.recovery_report.scanned_bytes < 1000
    assert [one.ready_count for one in store.queues.values()] == [left]
    store.close()


def test_a_disk_that_cannot_be_asked_takes_no_messages_and_stops_nothing(
    files: MemoryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(files)
    queue = store.create_queue("q")
    publish(store, queue)

    free_bytes = MemoryFiles.free_bytes

    def fail(self: MemoryFiles, path: str) -> int:
        if path == "/store":
            raise OSError(5, "Input/output error")
        return free_bytes(self, path)  # the disk's own

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFiles, "free_bytes", fail)
        store.upkeep.housekeep()
        with pytest.raises(DiskFullError, match="/store cannot be reached: Input/output error"):
            publish(store, queue)
        assert store.space.problem == "Input/output error"
        run = store.take(queue, 10, acked=True)
        assert isinstance(run, Run)
        store.sync()
    store.upkeep.housekeep()
    assert not store.space.problem
    publish(store, queue)
    store.close()


class CountedFiles(MemoryFiles):
    """Counts how often the disk is asked what is free."""

    asked = 0

    def free_bytes(self, path: str) -> int:
        self.asked += 1
        return super().free_bytes(path)


def test_while_plenty_is_free_the_disk_is_not_asked_before_each_write() -> None:
    """Bytes written since the last look count all the same, also for publishers."""
    files = CountedFiles()
    files.capacity_bytes = 1024 * MIB
    space = Space(files, "/", least_free_bytes=600 * MIB, reserve_bytes=0)
    space.look()
    asked = files.asked
    for _ in range(300):
        space.make_room(MIB)
    space.check(100 * MIB)
    assert files.asked == asked
    fill_disk(files, 724 * MIB)
    with pytest.raises(DiskFullError):
        space.check(125 * MIB)
    space.look()
    asked = files.asked
    fill_disk(files, 100 * MIB)
    for _ in range(474):
        space.make_room(MIB)
    assert files.asked > asked
    assert space._spare_bytes < space.written_bytes
