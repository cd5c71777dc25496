"""Messages that the disk could not read for a while are served once it can, without a restart."""

import os
from pathlib import Path

import pytest

from amqpstore import MessageDamagedError, Options, Queue, Run, Store
from amqpstore.format.limits import StoreLimits
from amqpstore.format.records import Kind, Record, scan
from amqpstore.system.clock import SimulatedClock
from amqpstore.system.files import File, OsFiles
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

START_MS = 1_700_000_000_000
PAGE = 16
"""A page so small that only some of the store cannot be read."""


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    """Queues one and two share three messages, which are on disk only."""
    limits = StoreLimits(page_bytes=PAGE)
    disk = Disk(str(tmp_path / "store"), clock=SimulatedClock(START_MS), limits=limits)
    store = disk.open()
    queues = [store.create_queue(name) for name in ("one", "two")]
    store.publish(queues, messages(b"first", b"second", b"third"))
    store.close()
    return disk


def wait(disk: Disk, store: Store, ms: int = 10_000) -> dict[str, int]:
    """Let time pass; return how many messages of which queue can be read again."""
    assert isinstance(disk.clock, SimulatedClock)
    disk.clock.advance(ms)
    return {str(queue.definition): count for queue, count in store.read_again().items()}


def unreadable(disk: Disk, place: int) -> UnreadableFiles:
    """Files of which the record of one message cannot be read."""
    found = scan(disk.read(1), 1, disk.seed)
    record = [one for one in found if isinstance(one, Record) and one.kind == Kind.MESSAGE][place]
    # Whole pages, so that its neighbours have lost nothing.
    start, end = -(-record.offset // PAGE) * PAGE, record.end // PAGE * PAGE
    return UnreadableFiles(OsFiles(), (disk.path(1), start, end))


def test_a_message_is_served_in_its_place_after_a_read_that_failed(disk: Disk) -> None:
    files = unreadable(disk, 1)
    store = disk.open(files)
    one, two = queue_named(store, "one"), queue_named(store, "two")
    assert bodies(take(store, one)) == [b"first"]
    assert isinstance(store.take(one, 1), MessageDamagedError)
    assert wait(disk, store) == {}
    files.bad = []
    assert wait(disk, store) == {"one": 1}
    assert one.quarantined.count == 0
    assert drain(store, one) == [b"second", b"third"]
    assert drain(store, two) == [b"first", b"second", b"third"]
    assert wait(disk, store) == {}
    store.close()


def test_who_shares_the_segment_gets_what_was_believed_to_be_unreadable(disk: Disk) -> None:
    files = unreadable(disk, 0)
    store = disk.open(files)
    one, two = queue_named(store, "one"), queue_named(store, "two")
    assert isinstance(store.take(one, 1), MessageDamagedError)
    files.bad = []
    taken = store.take(two, 1)
    assert wait(disk, store) == {"one": 1} | ({} if taken is None else {"two": 1})
    assert drain(store, one) == drain(store, two) == [b"first", b"second", b"third"]
    store.close()


@pytest.mark.parametrize("how", ["close", "abandon"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_fault_that_lasts_over_two_starts(tmp_path: Path, place: int, how: str) -> None:
    """The fault is in the log, which a start reads, or before the checkpoint, where it does not."""
    limits = StoreLimits(page_bytes=PAGE)
    disk = Disk(str(tmp_path / "store"), clock=SimulatedClock(START_MS), limits=limits)
    store = disk.open()
    publish_batches(store, store.create_queue("q"), [[b"first", b"second", b"third"]])
    getattr(store, how)()
    disk.note_end()
    files = unreadable(disk, place)
    for _ in range(2):
        store = disk.open(files)
        queue = queue_named(store, "q")
        while queue.ready_count:
            store.take(queue, 1)
        assert queue.quarantined.count == 1
        store.sync()
        store.abandon()
    store = disk.open(files)
    queue = queue_named(store, "q")
    while queue.ready_count:
        store.take(queue, 1)
    files.bad = []
    assert wait(disk, store) == {"q": 1}
    assert drain(store, queue) == [[b"first", b"second", b"third"][place]]
    store.close()
    store = disk.open()
    assert (store.recovery_report.lost, store.recovery_report.damage) == ([], [])
    store.abandon()


def test_an_index_file_that_can_be_read_again(disk: Disk) -> None:
    index = f"{disk.directory}/index"
    files = UnreadableFiles(OsFiles())
    store = disk.open(files)
    one = queue_named(store, "one")
    files.bad = [(f"{index}/{name}", 0, 1) for name in os.listdir(index)]
    assert isinstance(store.take(one, 1), MessageDamagedError)
    assert (one.ready_count, one.unreadable_count) == (0, 3)
    assert wait(disk, store) == {}
    publish_batches(store, one, [[b"more"]])
    store.upkeep.checkpoint()
    files.bad = []
    assert wait(disk, store) == {"one": 3}
    assert (one.ready_count, one.unreadable_count) == (4, 0)
    assert drain(store, one) == [b"first", b"second", b"third", b"more"]
    store.close()
    disk.open().abandon()


class ReadOnce(UnreadableFiles):
    """Files of which an index file can be opened once, until `is_well`."""

    is_well = False
    opened = 0

    def open(self, path: str) -> File:
        self.opened += "/index/" in path
        if "/index/" in path and self.opened > 1 and not self.is_well:
            raise self.error(path)
        return super().open(path)


def take_one(store: Store, queue: Queue) -> None:
    """Ack the first message."""
    run = store.take(queue, 1)
    assert isinstance(run, Run)
    store.ack(queue, run)


@pytest.mark.parametrize("taken", [0, 1])
def test_bytes_that_could_not_be_counted_are_counted_again(disk: Disk, taken: int) -> None:
    store = disk.open()
    take_one(store, queue_named(store, "one"))
    store.sync()
    store.abandon()
    files = ReadOnce(OsFiles())
    store = disk.open(files)
    queue = queue_named(store, "one")
    assert (queue.ready_count, queue.sized_bytes) == (2, None)
    for _ in range(taken):
        take_one(store, queue)
    publish_batches(store, queue, [[b"more"]])
    assert wait(disk, store) == {}
    assert (queue.ready_count, queue.sized_bytes) == (3 - taken, None)
    files.is_well = True
    assert wait(disk, store) == {}
    assert queue.sized_bytes == [15, 9][taken]
    assert store.stored.sizes.ready_bytes(queue) == queue.sized_bytes
    assert queue.stored_count <= queue.ready_count
    rest = [b"second", b"third", b"more"][taken:]
    assert drain(store, queue) == rest
    assert (queue.ready_bytes, queue.stored_bytes, queue.stored_count) == (0, 0, 0)
    store.close()


def test_what_a_prepared_transaction_locks_is_not_served_to_others(disk: Disk) -> None:
    store = disk.open()
    one = queue_named(store, "one")
    transaction = store.transaction()
    transaction.ack(one, take(store, one))
    transaction.prepare("label")
    store.close()
    index = f"{disk.directory}/index"
    files = UnreadableFiles(
        OsFiles(),
        *((f"{index}/{name}", 0, 1) for name in os.listdir(index) if int(name[:20]) == one.id),
    )
    store = disk.open(files)
    files.bad = []
    for _ in range(3):
        assert wait(disk, store) == {}
    assert queue_named(store, "one").ready_count == 0
    store.abandon()


def test_a_queue_that_was_deleted_is_not_tried(disk: Disk) -> None:
    files = UnreadableFiles(OsFiles(), (disk.path(1), 0, 1 << 20))
    store = disk.open(files)
    one = queue_named(store, "one")
    assert isinstance(store.take(one, 1), MessageDamagedError)
    store.delete_queue(one)
    files.bad = []
    assert wait(disk, store) == {}
    store.close()


def test_what_stays_unreadable_takes_a_few_reads_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = StoreLimits(page_bytes=PAGE)
    disk = Disk(str(tmp_path / "store"), clock=SimulatedClock(START_MS), limits=limits)
    store = disk.open()
    publish_batches(store, store.create_queue("q"), [[b"%d" % number for number in range(100)]])
    store.close()
    files = UnreadableFiles(OsFiles(), (disk.path(1), 0, 1 << 20))
    store = disk.open(files)
    queue = queue_named(store, "q")
    while queue.ready_count:
        store.take(queue, 1)
    assert queue.quarantined.count == 100
    read = store.log.read
    asked: list[int] = []

    def noted(first_id: int, count: int) -> object:
        asked.append(first_id)
        return read(first_id, count)

    monkeypatch.setattr(store.log, "read", noted)
    for second in range(1, 26):
        assert wait(disk, store, 1000) == {}
        assert len(asked) == 4 * second
        assert store.read_again() == {}
    assert sorted(asked) == list(range(1, 101))
    files.bad = []
    assert sum(wait(disk, store)["q"] for _ in range(2)) == 100
    assert drain(store, queue) == [b"%d" % number for number in range(100)]
    store.close()


# Transient messages that were written aside: nothing else has them.


@pytest.fixture
def aside(tmp_path: Path) -> Disk:
    """A store that keeps no transient message in memory."""
    options = Options(memory_bytes=0, reserve_bytes=0)
    return Disk(
        str(tmp_path / "store"), options=options, clock=SimulatedClock(START_MS), segment_bytes=1000
    )


def written_aside(store: Store, *queues: Queue) -> list[bytes]:
    """Publish transient messages, which leave memory, and return their bodies."""
    written = [b"%d" % number * 400 for number in range(1, 7)]
    for body in written:
        store.publish(list(queues), messages(body, envelope=TRANSIENT))
        store.upkeep.housekeep()
    return written


def transient_files(disk: Disk) -> list[str]:
    directory = f"{disk.directory}/transient"
    return [f"{directory}/{name}" for name in sorted(os.listdir(directory))]


def test_a_transient_message_is_served_in_its_place_after_a_read_that_failed(aside: Disk) -> None:
    files = UnreadableFiles(OsFiles())
    store = aside.open(files)
    queue = store.create_queue("q", durable=False)
    written = written_aside(store, queue)
    files.bad = [(path, 0, 1 << 20) for path in transient_files(aside)]
    found = [store.take(queue, 1) for _ in range(2)]
    assert all(isinstance(one, MessageDamagedError) for one in found)
    assert wait(aside, store) == {}
    files.bad = []
    assert wait(aside, store) == {"q": 2}
    assert drain(store, queue) == written
    assert transient_files(aside) == []
    store.close()


def test_a_transient_message_that_cannot_be_read_goes_with_its_queue(aside: Disk) -> None:
    files = UnreadableFiles(OsFiles())
    store = aside.open(files)
    queue = store.create_queue("q", durable=False)
    written_aside(store, queue)
    files.bad = [(path, 0, 1 << 20) for path in transient_files(aside)]
    assert isinstance(store.take(queue, 1), MessageDamagedError)
    store.delete_queue(queue)
    assert transient_files(aside) == []
    assert wait(aside, store) == {}
    store.close()
