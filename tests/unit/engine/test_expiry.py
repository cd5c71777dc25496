"""Messages that expire: found wherever they are, the earliest first, and at no cost to others."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from amqpstore import Message, MessageDamagedError, Queue, Run, Store
from amqpstore.format.index import IndexState, PagedFile
from amqpstore.format.limits import StoreLimits
from amqpstore.format.runs import ReadyList
from amqpstore.log.segments import Segment, Unread
from amqpstore.queues.expiry import ExpiryHeap, earliest
from tests.unit.engine.stores import (
    TRANSIENT,
    Disk,
    bodies,
    drain,
    messages,
    queue_named,
    take,
)

LATE_MS = 1 << 50


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    """A store whose index files are full, and whose runs leave memory, after a few."""
    limits = StoreLimits(entries_a_file=4, max_runs=1, joined_bytes=0)
    return Disk(str(tmp_path / "store"), limits=limits)


def publish(store: Store, queue: Queue, *expires_ms: int) -> None:
    """One message for each of the times, with the time as its body."""
    for time_ms in expires_ms:
        store.publish([queue], messages(b"%d" % time_ms), expires_ms=time_ms)
    store.sync()


def expired(store: Store, queue: Queue, now_ms: int = LATE_MS, *, read: bool = True) -> list[int]:
    """Withdraw and drop what has expired; return the sequences in the order in which they came."""
    found: list[int] = []
    while (run := store.withdrawals.withdraw_expired(queue, now_ms, bodies=read)) is not None:
        assert isinstance(run, Run), run
        assert 0 < run.expires_ms <= now_ms
        if read:
            assert bodies(run) == [b"%d" % run.expires_ms] * run.count
        store.ack(queue, run)
        found += range(run.first_sequence, run.end)
    return found


# The heap.


def ready_list(*runs: Run) -> ReadyList:
    ready = ReadyList()
    for run in runs:
        ready.append(run)
    return ready


def test_the_earliest_of_some_times_is_not_never() -> None:
    assert earliest([0, 7, 0, 5]) == 5
    assert earliest([0, 0]) == 0
    assert earliest([]) == 0


def test_what_never_expires_has_no_entry() -> None:
    heap = ExpiryHeap()
    heap.add(Run(1, 5))
    heap.add(PagedFile(1, 6, 10, 4, 0))
    assert len(heap) == 0


def test_what_is_first_is_there_still() -> None:
    heap = ExpiryHeap()
    run, gone, file = Run(1, 5, expires_ms=30), Run(6, 1, expires_ms=10), PagedFile(1, 8, 20, 3, 20)
    for span in (run, gone, file):
        heap.add(span)
    assert heap.first(ready_list(run, gone), [file]) is gone
    assert heap.first(ready_list(run), [file]) is file
    assert heap.first(ready_list(run), []) is run
    assert heap.first(ready_list(), []) is None
    assert len(heap) == 0


def test_what_is_left_of_a_run_is_still_known() -> None:
    heap = ExpiryHeap()
    run = Run(1, 5, expires_ms=30)
    heap.add(run)
    run.split(4)
    assert heap.first(ready_list(run), []) is run


def test_stale_entries_are_sorted_out() -> None:
    heap = ExpiryHeap()
    run, never = Run(1, 1, expires_ms=5), Run(2, 1)
    ready = ready_list(run, never)
    for sequence in range(10, 1000):
        heap.add(Run(sequence, 1, expires_ms=sequence))
    heap.add(run)
    heap.trim(ready, [PagedFile(1, 8, 20, 3, 7)])
    assert len(heap) == 2
    assert heap.first(ready, []) is run


# A queue.


def test_the_earliest_comes_first_wherever_it_is(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    publish(store, queue, 50, 0, 10, 30, 0, 20)
    assert store.withdrawals.next_expiry(queue) == 10
    assert expired(store, queue, 9) == []
    assert expired(store, queue, 30) == [3, 6, 4]
    assert store.withdrawals.next_expiry(queue) == 50
    assert expired(store, queue) == [1]
    assert store.withdrawals.next_expiry(queue) == 0
    assert drain(store, queue) == [b"0", b"0"]
    store.abandon()


@pytest.mark.parametrize("durable", [True, False])
def test_no_message_that_never_expires_is_in_the_index(disk: Disk, durable: bool) -> None:
    store = disk.open()
    queue = store.create_queue("q", durable=durable)
    publish(store, queue, *[0] * 10)
    assert (len(queue.expiry), store.withdrawals.next_expiry(queue)) == (0, 0)
    assert store.withdrawals.withdraw_expired(queue, LATE_MS, bodies=True) is None
    store.abandon()


def test_the_rest_of_a_run_that_was_taken_in_part_expires(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    store.publish([queue], messages(*[b"10"] * 9), expires_ms=10)
    take(store, queue, 2)
    middle = store.take(queue, 2, first_sequence=5)
    assert isinstance(middle, Run)
    assert (middle.first_sequence, middle.count) == (5, 2)
    assert sorted(expired(store, queue)) == [3, 4, 7, 8, 9]
    store.abandon()


def test_what_was_given_back_expires(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    publish(store, queue, 10, 20)
    one, two = take(store, queue, 1), store.withdrawals.withdraw(queue, 1)
    assert isinstance(two, Run)
    assert store.withdrawals.next_expiry(queue) == 0
    store.withdrawals.put_back(queue, two)
    assert store.withdrawals.next_expiry(queue) == 20
    store.requeue(queue, one)
    assert store.withdrawals.next_expiry(queue) == 10
    assert expired(store, queue) == [1, 2]
    store.abandon()


def test_what_is_ready_when_durable_expires_only_then(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    with store.transaction() as transaction:
        transaction.publish([queue], messages(b"10"), expires_ms=10)
    assert store.withdrawals.next_expiry(queue) == 0
    store.sync()
    assert expired(store, queue) == [1]
    store.abandon()


def test_purge_and_deletion_leave_nothing_to_expire(disk: Disk) -> None:
    store = disk.open()
    queue, other = store.create_queue("q"), store.create_queue("other")
    for one in (queue, other):
        publish(store, one, *range(10, 30))
        store.upkeep.checkpoint()
    store.purge(queue)
    store.delete_queue(other)
    assert [store.withdrawals.next_expiry(one) for one in (queue, other)] == [0, 0]
    assert (len(queue.expiry), len(other.expiry)) == (0, 0)
    store.abandon()


def test_the_index_grows_with_what_is_there_and_not_with_what_was(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q", durable=False)
    for _ in range(1000):
        store.publish([queue], messages(b"x", envelope=TRANSIENT), expires_ms=LATE_MS)
        store.requeue(queue, take(store, queue, 1))
    assert len(queue.ready) == 1000
    assert len(queue.expiry) <= 2 * 1000 + 64
    while queue.ready_count > 10:
        take(store, queue, 1, acked=True)
    assert len(queue.expiry) <= 2 * 10 + 66
    assert len(expired_count(store, queue)) == 10
    store.abandon()


def expired_count(store: Store, queue: Queue) -> list[Run]:
    found: list[Run] = []
    while (run := store.withdrawals.withdraw_expired(queue, LATE_MS, bodies=False)) is not None:
        assert isinstance(run, Run)
        found.append(run)
    return found


# On disk.


@pytest.mark.parametrize("read", [True, False])
def test_without_bodies_no_message_is_read(
    disk: Disk, read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    publish(store, queue, 10, 20)
    store.close()
    read_ids: list[int] = []
    read_segment = Segment.read

    def noted(self: Segment, first_id: int, *args: Any) -> list[Message] | Unread:
        read_ids.append(first_id)
        return read_segment(self, first_id, *args)

    monkeypatch.setattr(Segment, "read", noted)
    store = disk.open()
    assert expired(store, queue_named(store, "q"), read=read) == [1, 2]
    assert read_ids == ([1, 2] if read else [])
    store.close()
    store = disk.open()
    assert queue_named(store, "q").ready_count == 0
    store.abandon()


def paged(disk: Disk, store: Store, queue: Queue, times_ms: Sequence[int]) -> None:
    publish(store, queue, *times_ms)
    store.upkeep.checkpoint()
    assert len(queue.paged) == len(times_ms) // 4 - 1


def test_what_is_paged_costs_one_entry_a_file(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    paged(disk, store, queue, range(100, 500))
    assert len(queue.expiry) <= 2 * (len(queue.ready) + len(queue.paged)) + 64
    store.abandon()
    store = disk.open()
    queue = queue_named(store, "q")
    assert (len(queue.ready), len(queue.paged), len(queue.expiry)) == (0, 100, 100)
    assert store.withdrawals.next_expiry(queue) == 100
    store.abandon()


@pytest.mark.parametrize("restarted", [False, True])
def test_only_the_file_that_is_due_is_paged_in(disk: Disk, restarted: bool) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    times_ms = [100, 90, 80, 70, 0, 0, 0, 0, 50, 0, 20, 60, 0, 10, 40, 30]
    paged(disk, store, queue, times_ms)
    if restarted:
        store.abandon()
        store = disk.open()
        queue = queue_named(store, "q")
    before = len(queue.paged)
    assert store.withdrawals.next_expiry(queue) == 10
    assert expired(store, queue, 10) == [14]
    assert len(queue.paged) == before - 1
    assert expired(store, queue, 40) == [11, 16, 15]
    assert expired(store, queue) == [9, 12, 4, 3, 2, 1]
    # What never expires was never read.
    assert [file.first for file in queue.paged] == [5]
    assert drain(store, queue) == [b"0"] * 6
    store.abandon()


def test_it_is_the_same_after_a_checkpoint_and_a_restart(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    paged(disk, store, queue, [10, 20, 30, 40, 50, 60, 70, 80])
    publish(store, queue, 25, 5)
    assert expired(store, queue, 30) == [10, 1, 2, 9, 3]
    store.sync()
    for _ in range(2):
        store.upkeep.checkpoint()
        store.abandon()
        store = disk.open()
        queue = queue_named(store, "q")
        assert store.withdrawals.next_expiry(queue) == 40
    assert expired(store, queue) == [4, 5, 6, 7, 8]
    store.abandon()


def test_an_entry_that_is_too_early_is_read_once_and_moves_on(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    publish(store, queue, 30, 10, 20, 40, 50, 60, 70, 80)
    store.close()
    # As where the first entries were acked while the index could not be read.
    for key, row in disk.catalog.rows("index").items():
        row["expires_ms"] = min(row["expires_ms"], 5)
        disk.catalog._tables["index"][key] = row
    store = disk.open()
    queue = queue_named(store, "q")
    assert store.withdrawals.next_expiry(queue) == 5
    assert store.withdrawals.withdraw_expired(queue, 7, bodies=True) is None
    assert store.withdrawals.next_expiry(queue) == 10
    store.abandon()


def test_the_catalog_follows_what_is_left_of_an_index_file(disk: Disk) -> None:
    def times_ms() -> list[int]:
        return [IndexState(**row).expires_ms for row in disk.catalog.rows("index").values()]

    store = disk.open()
    queue = store.create_queue("q")
    publish(store, queue, 10, 20, 30, 0, 0, 0, 0, 0)
    store.upkeep.checkpoint()
    assert times_ms() == [10, 0]
    for expected in (20, 30, 0):
        store.ack(queue, take(store, queue, 1))
        store.sync()
        store.upkeep.checkpoint()
        assert times_ms() == [expected, 0]
    store.abandon()


def test_an_index_file_that_grows_has_the_earliest_of_all(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    for time_ms, expected in ((0, 0), (30, 30), (0, 30), (20, 20)):
        publish(store, queue, time_ms)
        store.upkeep.checkpoint()
        (row,) = disk.catalog.rows("index").values()
        assert row["expires_ms"] == expected
    store.abandon()


def test_merged_index_files_have_the_earliest_of_what_is_live(disk: Disk) -> None:
    disk.limits = disk.limits._replace(max_small_files=3)
    store = disk.open()
    queue = store.create_queue("q")
    publish(store, queue, 10, 20, 30, 40, *range(50, 62))
    store.upkeep.checkpoint()
    kept = [4, 6, 9, 13, 15]
    while queue.ready_count:
        run = take(store, queue, 1)
        if run.first_sequence not in kept:
            store.ack(queue, run)
    store.sync()
    store.upkeep.checkpoint()
    store.abandon()
    rows = disk.catalog.rows("index").values()
    assert min(row["expires_ms"] for row in rows) == 40
    store = disk.open()
    queue = queue_named(store, "q")
    assert store.withdrawals.next_expiry(queue) == 40
    assert expired(store, queue) == kept
    store.abandon()


def test_an_index_that_cannot_be_read_is_said_once_and_does_not_stop_the_rest(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    publish(store, queue, 10, 20, 30, 40, 50, 60, 70, 80)
    store.close()
    files = sorted(Path(disk.directory, "index").iterdir())
    files[0].write_bytes(bytes(files[0].stat().st_size))
    store = disk.open()
    queue = queue_named(store, "q")
    assert isinstance(
        store.withdrawals.withdraw_expired(queue, LATE_MS, bodies=True), MessageDamagedError
    )
    assert expired(store, queue) == [5, 6, 7, 8]
    assert queue.unreadable_count == 4
    store.abandon()


def test_a_message_that_cannot_be_read_is_said_once_and_does_not_stop_the_rest(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    store.publish([queue], messages(b"10", b"10", b"10"), expires_ms=10)
    store.close()
    disk.flip(1, disk.read(1).index(b"10"))
    store = disk.open()
    queue = queue_named(store, "q")
    assert isinstance(
        store.withdrawals.withdraw_expired(queue, LATE_MS, bodies=True), MessageDamagedError
    )
    assert expired(store, queue) == [2, 3]
    assert queue.quarantined.count == 1
    store.abandon()


def test_messages_that_were_written_aside_expire(tmp_path: Path) -> None:
    disk = Disk(str(tmp_path / "store"))
    disk.options = disk.options._replace(memory_bytes=1)
    store = disk.open()
    queue = store.create_queue("q", durable=False)
    store.memory.set_lazy(queue, lazy=True)
    for time_ms in (20, 10, 10, 30):
        body = messages(b"%d" % time_ms, envelope=TRANSIENT)
        store.publish([queue], body, expires_ms=time_ms)
        store.upkeep.housekeep()
    assert queue.memory_bytes == 0
    assert store.withdrawals.next_expiry(queue) == 10
    back = store.withdrawals.withdraw_expired(queue, 10, bodies=False)
    assert isinstance(back, Run)
    assert back.messages is None
    store.withdrawals.put_back(queue, back)
    assert sorted(expired(store, queue, 10)) == [2, 3]
    assert expired(store, queue, read=False) == [1, 4]
    # Nothing is kept that is no longer reachable.
    assert list(Path(disk.directory, "transient").iterdir()) == []
    store.abandon()
