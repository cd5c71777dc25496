"""Descriptors: a store has few files open, and lives on where the process can open no more."""

import errno
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import amqpstore.log.segments
import amqpstore.system.descriptors
from amqpstore import ReadLaterError, Store, UndecidableError
from amqpstore.catalog.catalog import LmdbCatalog
from amqpstore.system.clock import SimulatedClock
from amqpstore.system.descriptors import Descriptors, insist
from amqpstore.system.files import SPARE, OsFiles, SpareDescriptors
from amqpstore_tools.simulation.faulty_files import UnreadableFiles
from tests.unit.engine.stores import (
    TRANSIENT,
    Disk,
    bodies,
    drain,
    messages,
    publish_batches,
    queue_named,
    take,
)

SEGMENTS = 100
SHORTAGES = [errno.EMFILE, errno.ENFILE, errno.ENOMEM]


def open_descriptors() -> list[str]:
    """Return what this process has open, by path."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue  # The listing's own.
    return found


def open_in(directory: str) -> int:
    return sum(path.startswith(directory) for path in open_descriptors())


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(str(tmp_path / "store"), segment_bytes=1)


def test_few_segments_are_open_however_many_there_are(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    store.memory.set_lazy(queue, lazy=True)
    written = [b"%d" % number for number in range(SEGMENTS)]
    publish_batches(store, queue, [[body] for body in written])
    assert open_in(f"{disk.directory}/segments") == 1
    assert drain(store, queue) == written
    assert (
        open_in(f"{disk.directory}/segments") <= amqpstore.system.descriptors.MAX_OPEN_TO_READ + 1
    )
    store.abandon()
    assert open_in(disk.directory) == 0


def test_few_segments_are_open_after_a_start(disk: Disk) -> None:
    store = disk.open()
    publish_batches(store, store.create_queue("q"), [[b"%d" % n] for n in range(SEGMENTS)])
    store.abandon()
    store = disk.open()
    assert open_in(f"{disk.directory}/segments") <= amqpstore.system.descriptors.MAX_OPEN_TO_READ
    store.abandon()


def test_transient_segments_are_closed_as_well(disk: Disk) -> None:
    disk.options = disk.options._replace(memory_bytes=0)
    store = disk.open()
    queue = store.create_queue("q", durable=False)
    store.memory.set_lazy(queue, lazy=True)
    for number in range(10):
        store.publish([queue], messages(b"%d" % number, envelope=TRANSIENT))
        store.upkeep.housekeep()
    assert len(os.listdir(f"{disk.directory}/transient")) == 10
    assert open_in(f"{disk.directory}/transient") == 1
    store.abandon()


def test_the_last_used_stay_open(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in "abc"]
    for path in paths:
        Path(path).write_bytes(path.encode())
    descriptors = Descriptors(OsFiles(), most=2)
    first = descriptors.open(paths[0])
    descriptors.open(paths[1])
    assert descriptors.open(paths[0]) is first
    descriptors.open(paths[2])
    assert len(descriptors) == 2
    assert descriptors.open(paths[0]) is first
    assert descriptors.detach(paths[1]) is None
    descriptors.close()
    assert open_in(str(tmp_path)) == 0


class Scarce(OsFiles):
    """Files of which the process may have at most `most` open."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.opened: list[str] = []

    def open(self, path: str):  # type: ignore[no-untyped-def]
        if open_in(os.path.dirname(path)) >= self.most:
            raise OSError(errno.EMFILE, "Too many open files", path)
        return super().open(path)


def test_where_no_descriptor_is_left_it_gives_up_its_own(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in "abcdef"]
    for path in paths:
        Path(path).write_bytes(path.encode())
    descriptors = Descriptors(Scarce(2))
    for path in [*paths, *reversed(paths)]:
        assert descriptors.open(path).read(0, 100) == path.encode()
    descriptors.close()


@pytest.mark.parametrize("number", SHORTAGES)
@pytest.mark.parametrize("checkpointed", [False, True])
def test_what_cannot_be_read_for_now_stays_ready(
    tmp_path: Path, number: int, checkpointed: bool
) -> None:
    """A message stays ready if its segment or its index file cannot be read."""
    disk = Disk(str(tmp_path / "store"))
    store = disk.open()
    publish_batches(store, store.create_queue("q"), [[b"one", b"two"]])
    (store.close if checkpointed else store.abandon)()
    files = UnreadableFiles(OsFiles(), number=number)
    store = disk.open(files)
    queue = queue_named(store, "q")
    index = f"{disk.directory}/index"
    files.bad = [(disk.path(1), 0, 0)]
    if checkpointed:
        files.bad += [(f"{index}/{name}", 0, 0) for name in os.listdir(index)]
    store.log._descriptors.close()
    for call in (store.take, store.withdrawals.withdraw):
        answer = call(queue, 10)
        assert isinstance(answer, ReadLaterError)
        assert "Nothing is lost" in str(answer)
    assert store.withdrawals.peek(queue) is None
    if checkpointed:
        with pytest.raises(ReadLaterError):
            store.stored.paging.read_index(queue)
        with pytest.raises(ReadLaterError):
            store.withdrawals.withdraw_range(queue, 1, 2)
    assert queue.ready_count == 2
    assert (queue.quarantined.count, queue.unreadable_count) == (0, 0)
    files.bad = []
    assert bodies(take(store, queue)) == [b"one", b"two"]
    store.abandon()


def test_a_read_without_memory_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(str(tmp_path / "store"))
    store = disk.open()
    queue = store.create_queue("q")
    store.memory.set_lazy(queue, lazy=True)
    publish_batches(store, queue, [[b"one"]])

    def without_memory(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(amqpstore.log.segments, "read_messages", without_memory)
        found = store.take(queue, 1)
    assert isinstance(found, ReadLaterError)
    assert drain(store, queue) == [b"one"]
    store.abandon()


@pytest.mark.parametrize("number", SHORTAGES)
def test_a_start_that_cannot_read_now_changes_nothing(tmp_path: Path, number: int) -> None:
    disk = Disk(str(tmp_path / "store"))
    store = disk.open()
    publish_batches(store, store.create_queue("q"), [[b"one", b"two"]])
    store.abandon()
    before = disk.catalog.clone()
    for start in (0, 1):
        with pytest.raises(OSError, match=os.strerror(number)):
            disk.open(UnreadableFiles(OsFiles(), (disk.path(1), 0, start), number=number))
    assert disk.catalog.rows("ends") == before.rows("ends")
    store = disk.open()
    assert drain(store, queue_named(store, "q")) == [b"one", b"two"]
    store.abandon()


# A prepared transaction is committed whole or not at all.


@pytest.mark.parametrize("number", [*SHORTAGES, errno.EIO])
def test_a_prepared_transaction_that_cannot_be_read_stays_prepared(
    tmp_path: Path, number: int
) -> None:
    disk = Disk(str(tmp_path / "store"), segment_bytes=1)
    store = disk.open()
    target = store.create_queue("target")
    publish_batches(store, target, [[b"acked"]])
    for lonely in (b"1", b"2"):
        transaction = store.transaction()
        transaction.publish([target], messages(lonely))
        if lonely == b"1":
            transaction.publish([target], messages(b"and more"))
            transaction.ack(target, take(store, target))
        transaction.prepare(lonely.decode())
        store.sync()
    store.close()
    files = UnreadableFiles(OsFiles(), number=number)
    store = disk.open(files)
    target = queue_named(store, "target")
    store.log._descriptors.close()
    files.bad = [(disk.path(2), 0, 0)]
    unreadable, other = store.prepared.values()
    with pytest.raises(UndecidableError if number == errno.EIO else ReadLaterError):
        unreadable.commit(unreadable.publishes())
    assert list(store.prepared.values()) == [unreadable, other]
    other.commit(other.publishes())
    store.sync()
    assert drain(store, target) == [b"2"]
    files.bad = []
    unreadable.commit(unreadable.publishes())
    store.sync()
    assert drain(store, target) == [b"1", b"and more"]
    store.abandon()


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.ENOMEM])
def test_a_transaction_is_not_committed_until_what_it_acks_is_known(
    tmp_path: Path, number: int
) -> None:
    clock = SimulatedClock(1_700_000_000_000)
    disk = Disk(str(tmp_path / "store"), clock=clock)
    store = disk.open()
    queue = store.create_queue("q")
    publish_batches(store, queue, [[b"locked"]])
    store.upkeep.checkpoint()
    transaction = store.transaction()
    transaction.ack(queue, take(store, queue))
    transaction.prepare("label")
    store.sync()
    store.close()
    index = f"{disk.directory}/index"
    (name,) = (one for one in os.listdir(index) if int(one[:20]) == queue.id)
    path = f"{index}/{name}"
    files = UnreadableFiles(OsFiles(), (path, 0, 0), number=number)
    store = disk.open(files)
    assert [one[0] for one in store.recovery_report.damage] == [path]
    (prepared,) = store.prepared.values()
    with pytest.raises(UndecidableError, match=r"label.*index of queue"):
        prepared.commit(prepared.publishes())
    files.bad = []
    clock.advance(1000)
    # It is readable, and locked.
    assert (store.read_again(), queue_named(store, "q").ready_count) == ({}, 0)
    prepared.commit(prepared.publishes())
    store.close()
    store = disk.open()
    assert queue_named(store, "q").ready_count == 0
    store.abandon()


# Spare descriptors.


@pytest.fixture
def no_more() -> Iterator[list[int]]:
    """Open files until only spare descriptors are left; yields those that a test may close."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Descriptors that earlier tests have not closed yet must not get in the way.
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 256, limits[1]))
    SPARE.fill()
    taken: list[int] = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    yield taken
    for descriptor in taken:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_catalog_that_finds_no_descriptor_is_not_damaged(
    tmp_path: Path, no_more: list[int]
) -> None:
    os.close(no_more.pop())
    with pytest.raises(OSError, match="Too many open files") as raised:
        LmdbCatalog(str(tmp_path), True)
    assert raised.value.errno == errno.EMFILE


def test_the_next_segment_can_always_be_made(disk: Disk, no_more: list[int]) -> None:
    for _ in range(20):
        os.close(no_more.pop())
    store = disk.open()
    queue = store.create_queue("q")
    publish_batches(store, queue, [[b"one"]])
    while True:
        try:
            no_more.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            break
    # What was given up is taken by others: there are enough for some segments more.
    publish_batches(store, queue, [[b"two"], [b"three"], [b"four"]])
    assert drain(store, queue) == [b"one", b"two", b"three", b"four"]
    os.close(no_more.pop())
    store.abandon()


def test_a_backlog_is_read_without_a_descriptor_left(disk: Disk, no_more: list[int]) -> None:
    for _ in range(40):
        os.close(no_more.pop())
    store = disk.open()
    written = [b"%d" % number for number in range(30)]
    publish_batches(store, store.create_queue("q"), [[body] for body in written])
    store.close()
    store = disk.open()
    store.log._descriptors.close()
    SPARE.fill()
    while True:
        try:
            no_more.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            break
    assert drain(store, queue_named(store, "q")) == written
    store.abandon()


def test_spare_descriptors_are_given_up_and_filled_again() -> None:
    spare = SpareDescriptors(3)
    before = len(open_descriptors())
    assert not spare.give_up()
    spare.fill()
    spare.fill()
    assert len(open_descriptors()) == before + 3
    assert spare.give_up(keep=2)
    assert not spare.give_up(keep=2)
    spare.fill()
    assert [spare.give_up() for _ in range(4)] == [True, True, True, False]
    assert len(open_descriptors()) == before


def test_what_must_not_fail_waits_for_a_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []
    monkeypatch.setattr("amqpstore.system.descriptors.SPARE", SpareDescriptors(0))
    monkeypatch.setattr("amqpstore.system.descriptors.time.sleep", paused.append)

    def scarce(number: int) -> None:
        if len(paused) < 5:
            raise OSError(number, os.strerror(number))

    insist(scarce, errno.EMFILE)
    assert len(paused) == 5
    del paused[:]
    with pytest.raises(OSError, match="No space"):
        insist(scarce, errno.ENOSPC)
    assert paused == []


def test_serve_takes_all_descriptors_that_it_may() -> None:
    program = (
        "import resource; from amqpstore.system.files import raise_descriptor_limit as r;"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1];"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard));"
        "assert r() == (100, hard), r()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# A store that is abandoned while its committer writes.


def test_a_file_that_is_written_to_is_not_closed_by_another_thread(tmp_path: Path) -> None:
    """A closed descriptor becomes that of the next file that is opened: a client's socket."""
    disk = Disk(str(tmp_path / "store"))
    store = disk.open()
    queue = store.create_queue("q")
    publish_batches(store, queue, [[b"one"]])
    store.publish([queue], messages(b"two"))
    batch = store.log.seal(0)
    assert batch is not None
    assert batch.segment is not None
    file = batch.segment.writer
    under_way, go_on = threading.Event(), threading.Event()
    datasync = file.datasync

    def slow() -> None:
        under_way.set()
        assert go_on.wait(60)
        datasync()

    file.datasync = slow  # type: ignore[method-assign]
    thread = threading.Thread(target=store.log.write, args=(batch,))
    thread.start()
    assert under_way.wait(60)
    store.abandon()
    assert open_in(f"{disk.directory}/segments") == 1
    go_on.set()
    thread.join()
    assert open_in(disk.directory) == 0
    store = disk.open()
    assert drain(store, queue_named(store, "q")) == [b"one", b"two"]
    store.abandon()


def test_nothing_is_written_to_a_store_that_was_abandoned(tmp_path: Path) -> None:
    disk = Disk(str(tmp_path / "store"))
    store: Store = disk.open()
    queue = store.create_queue("q")
    store.publish([queue], messages(b"one"))
    batch = store.log.seal(0)
    assert batch is not None
    store.abandon()
    with pytest.raises(amqpstore.DurabilityError, match="closed"):
        store.log.write(batch)
    assert not Path(disk.path(1)).exists()
    assert isinstance(disk.open(), Store)
