"""Tests of what the broker does with messages beside delivering them in order.

It looks at the head, takes from a sequence on, withdraws messages without a delivery, redelivers
them to the same consumer, counts bytes, and deletes several queues at once.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from amqpstore import Envelope, Message, MessageDamagedError, Placement, Queue, Run, Store
from amqpstore.catalog.catalog import Change
from amqpstore.format.limits import StoreLimits
from amqpstore.format.runs import goes_on
from tests.unit.engine.stores import (
    ENVELOPE,
    TRANSIENT,
    Disk,
    RowsCatalog,
    bodies,
    drain,
    messages,
    queue_named,
    spans,
    take,
)

WHERE = ["in memory", "on disk", "in index files", "partly paged"]


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    """A store whose index files are full, and whose runs leave memory, after a few."""
    limits = StoreLimits(entries_a_file=4, max_runs=1, joined_bytes=0)
    return Disk(str(tmp_path / "store"), limits=limits)


def filled(disk: Disk, where: str, count: int = 16) -> tuple[Store, Queue]:
    """A queue of `count` messages, each with its sequence as its body."""
    store = disk.open()
    queue = store.create_queue("q")
    other = store.create_queue("other")
    for number in range(1, count + 1):
        store.publish([queue], messages(b"%d" % number))
        store.publish([other], messages(b"in between"))
    store.sync()
    if where == "partly paged":
        store.upkeep.checkpoint()
        assert queue.paged
        assert queue.ready.count
    elif where != "in memory":
        store.close()
        store = disk.open()
        queue = queue_named(store, "q")
        if where == "on disk":
            store.stored.paging.read_index(queue)
        assert bool(queue.paged) == (where == "in index files")
    return store, queue


def withdraw(store: Store, queue: Queue, limit: int = 1000) -> Run:
    run = store.withdrawals.withdraw(queue, limit)
    assert isinstance(run, Run), run
    return run


# Take, a few of very many.


@pytest.fixture
def long_run(tmp_path: Path) -> Disk:
    """A store that splits runs of more than eight messages."""
    return Disk(str(tmp_path / "store"), limits=StoreLimits(split_messages=4))


def test_taking_one_of_very_many_copies_only_a_few(long_run: Disk) -> None:
    with long_run.open() as store:
        queue = store.create_queue("q")
        store.publish([queue], messages(*(b"%d" % number for number in range(20))))
        memory_bytes = queue.memory_bytes
        taken = [take(store, queue, 1)]
        assert [run.count for run in queue.ready] == [3, 16]  # the next does not touch the 16
        taken += [take(store, queue, 1) for _ in range(4)]
        assert [run.count for run in queue.ready] == [3, 12]
        assert sum(run.memory_bytes for run in queue.ready) == queue.memory_bytes < memory_bytes
        assert [body for run in taken for body in bodies(run)] == [b"0", b"1", b"2", b"3", b"4"]
        assert drain(store, queue) == [b"%d" % number for number in range(5, 20)]
        assert queue.memory_bytes == 0


def test_what_was_split_off_a_long_run_still_expires(long_run: Disk) -> None:
    with long_run.open() as store:
        queue = store.create_queue("q")
        store.publish([queue], messages(*(b"%d" % number for number in range(20))), expires_ms=9)
        take(store, queue, 1)
        expired: list[int] = []
        while run := store.withdrawals.withdraw_expired(queue, 10, bodies=False):
            assert isinstance(run, Run)
            expired += range(run.first_sequence, run.end)
        assert sorted(expired) == list(range(2, 21))


def test_dropping_one_of_very_many_copies_only_a_few(long_run: Disk) -> None:
    with long_run.open() as store:
        queue = store.create_queue("q")
        store.publish([queue], messages(*(b"%d" % number for number in range(20))))
        for left in ([3, 16], [2, 16], [1, 16], [16], [3, 12]):
            run = store.withdrawals.withdraw_first(queue, 1)
            assert isinstance(run, Run)
            assert run.count == 1
            store.ack(queue, run)
            assert [run.count for run in queue.ready] == left
            assert sum(run.memory_bytes for run in queue.ready) == queue.memory_bytes
        assert drain(store, queue) == [b"%d" % number for number in range(5, 20)]
        assert queue.memory_bytes == 0


# Take, from a sequence on.


def test_nothing_is_taken_where_nothing_is_ready(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    assert store.take(queue, 1) is None
    assert store.take(queue, 1, first_sequence=1) is None
    assert store.withdrawals.withdraw(queue, 1) is None
    assert store.withdrawals.peek(queue) is None
    assert store.stored.sizes.ready_bytes(queue) == 0
    store.abandon()


@pytest.mark.parametrize("where", WHERE)
def test_what_has_a_sequence_or_a_later_one_is_taken(disk: Disk, where: str) -> None:
    store, queue = filled(disk, where)
    for first, expected in ((7, 7), (7, 8), (1, 1), (15, 15), (15, 16), (6, 6), (6, 9), (2, 2)):
        run = store.take(queue, 1, first_sequence=first)
        assert isinstance(run, Run)
        assert (run.first_sequence, run.count) == (expected, 1)
        assert bodies(run) == [b"%d" % expected]
    assert store.take(queue, 1, first_sequence=15) is None
    assert drain(store, queue) == [b"%d" % number for number in (3, 4, 5, 10, 11, 12, 13, 14)]
    store.abandon()


def test_a_run_is_taken_from_the_middle_on(disk: Disk) -> None:
    for restarted in (False, True):
        store = disk.open()
        if restarted:
            queue = queue_named(store, "q")
        else:
            queue = store.create_queue("q")
            store.publish([queue], messages(b"1", b"2", b"3", b"4", b"5"))
            store.sync()
        run = store.take(queue, 2, first_sequence=3)
        assert isinstance(run, Run)
        assert (run.first_sequence, bodies(run)) == (3, [b"3", b"4"])
        assert [(one.first_sequence, one.count) for one in queue.ready] == [(1, 2), (5, 1)]
        store.abandon()


@pytest.mark.parametrize("acked", [False, True])
def test_a_run_from_the_middle_is_logged_like_any_other(disk: Disk, acked: bool) -> None:
    store, queue = filled(disk, "on disk", 4)
    assert isinstance(store.take(queue, 1, acked=acked, first_sequence=3), Run)
    store.sync()
    store.abandon()
    queue = queue_named(disk.open(), "q")
    expected = [(1, 2, 0), (4, 1, 0)] if acked else [(1, 2, 0), (3, 1, 1), (4, 1, 0)]
    assert spans(queue) == expected


def test_a_transient_message_between_paged_ones_keeps_its_place(disk: Disk) -> None:
    store = disk.open()
    queue, other = store.create_queue("q"), store.create_queue("other")
    for number in range(1, 13):
        envelope = TRANSIENT if number == 6 else ENVELOPE
        store.publish([queue], messages(b"%d" % number, envelope=envelope))
        store.publish([other], messages(b"in between"))
    held = store.take(queue, 1, first_sequence=6)
    assert isinstance(held, Run)
    store.sync()
    store.upkeep.checkpoint()
    assert any(file.first < 6 < file.end for file in queue.paged)
    store.requeue(queue, held)
    assert drain(store, queue) == [b"%d" % number for number in range(1, 13)]
    store.abandon()


# Peek.


@pytest.mark.parametrize("where", WHERE)
def test_a_look_at_the_head_takes_nothing(disk: Disk, where: str) -> None:
    store, queue = filled(disk, where)
    for number in range(1, 17):
        for _ in range(2):
            message = store.withdrawals.peek(queue)
            assert message is not None
            assert message.body == b"%d" % number
        assert queue.ready_count == 17 - number
        run = take(store, queue, 1)
        assert (run.first_sequence, run.delivery_count) == (number, 0)
    assert store.withdrawals.peek(queue) is None
    store.abandon()


def test_a_look_keeps_few_bodies_in_memory(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    store.publish([queue], messages(*[b"x" * 100] * 1000))
    store.close()
    store = disk.open()
    queue = queue_named(store, "q")
    for _ in range(3):
        assert store.withdrawals.peek(queue) is not None
        assert 0 < queue.memory_bytes <= 100 * 64
    assert queue.ready_count == 1000
    assert len(drain(store, queue)) == 1000
    assert queue.memory_bytes == 0
    store.abandon()


def test_a_look_at_what_cannot_be_read_leaves_it_to_take(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    store.publish([queue], messages(b"first", b"second"))
    store.close()
    disk.flip(1, disk.read(1).index(b"first"))
    store = disk.open()
    queue = queue_named(store, "q")
    assert store.withdrawals.peek(queue) is None
    assert queue.ready_count == 2
    assert isinstance(store.take(queue, 1), MessageDamagedError)
    message = store.withdrawals.peek(queue)
    assert message is not None
    assert message.body == b"second"
    store.abandon()


def test_a_look_at_what_has_no_readable_index_leaves_it_to_take(disk: Disk) -> None:
    store, queue = filled(disk, "in index files", 8)
    path = min(Path(disk.directory, "index").iterdir())
    sound = path.read_bytes()
    path.write_bytes(b"not an index")
    assert store.withdrawals.peek(queue) is None
    assert queue.ready_count == 8
    path.write_bytes(sound)
    assert store.withdrawals.peek(queue) is not None
    store.abandon()


# Withdraw.


@pytest.mark.parametrize("where", WHERE)
def test_what_is_withdrawn_does_not_count_as_delivered(disk: Disk, where: str) -> None:
    store, queue = filled(disk, where, 12)
    store.requeue(queue, take(store, queue, 1))
    store.sync()
    runs = [withdraw(store, queue, 1) for _ in range(3)]
    assert [run.delivery_count for run in runs] == [1, 0, 0]
    assert [bodies(run) for run in runs] == [[b"1"], [b"2"], [b"3"]]
    assert store.log.is_empty
    for run in reversed(runs):
        store.withdrawals.put_back(queue, run)
    assert store.log.is_empty
    found = [take(store, queue, 1) for _ in range(12)]
    assert [run.first_sequence for run in found] == list(range(1, 13))
    assert [run.delivery_count for run in found] == [1] + [0] * 11
    store.abandon()


@pytest.mark.parametrize("checkpointed", [False, True])
def test_what_was_withdrawn_is_ready_after_a_crash(disk: Disk, checkpointed: bool) -> None:
    store, queue = filled(disk, "on disk", 8)
    withdraw(store, queue, 1)
    store.publish([queue], messages(b"9"))
    store.sync()
    if checkpointed:
        store.upkeep.checkpoint()
    store.abandon()
    store = disk.open()
    queue = queue_named(store, "q")
    store.stored.paging.read_index(queue)
    assert spans(queue) == [(1, 9, 0)]
    store.abandon()


def test_what_was_withdrawn_can_be_dropped(disk: Disk) -> None:
    store, queue = filled(disk, "on disk", 8)
    store.ack(queue, withdraw(store, queue, 1))
    store.sync()
    store.abandon()
    store = disk.open()
    assert queue_named(store, "q").ready_count == 7
    store.abandon()


def test_what_was_withdrawn_can_be_moved(disk: Disk) -> None:
    store, queue = filled(disk, "on disk", 8)
    target = store.create_queue("target")
    run = withdraw(store, queue, 1)
    with store.transaction() as transaction:
        transaction.publish([target], run.messages or [])
        transaction.ack(queue, run)
    store.sync()
    store.abandon()
    store = disk.open()
    assert drain(store, queue_named(store, "target")) == [b"1"]
    assert queue_named(store, "q").ready_count == 7
    store.abandon()


def test_a_run_of_a_deleted_queue_is_put_back_nowhere(disk: Disk) -> None:
    store, queue = filled(disk, "in memory", 2)
    run = withdraw(store, queue, 1)
    store.delete_queue(queue)
    store.withdrawals.put_back(queue, run)
    assert queue.ready_count == 0
    store.abandon()


def test_bodies_leave_memory_behind_what_was_put_back_without_them(tmp_path: Path) -> None:
    disk = Disk(str(tmp_path / "store"))
    disk.options = disk.options._replace(memory_bytes=1)
    store = disk.open()
    queue = store.create_queue("q")
    store.memory.set_lazy(queue, lazy=True)
    store.publish([queue], messages(b"aside", envelope=TRANSIENT), expires_ms=1)
    store.upkeep.housekeep()
    run = store.withdrawals.withdraw_expired(queue, 1, bodies=False)
    assert isinstance(run, Run)
    store.withdrawals.put_back(queue, run)
    store.publish([queue], messages(b"x" * 1000))
    store.sync()
    assert queue.memory_bytes == 0
    assert drain(store, queue) == [b"aside", b"x" * 1000]
    store.abandon()


# Withdraw, without reading.


def withdraw_first(store: Store, queue: Queue, limit: int) -> Run:
    run = store.withdrawals.withdraw_first(queue, limit)
    assert isinstance(run, Run), run
    return run


@pytest.mark.parametrize("where", WHERE)
def test_what_is_withdrawn_first_is_not_read(disk: Disk, where: str) -> None:
    store, queue = filled(disk, where)
    found: list[int] = []
    while queue.ready_count:
        was_in_memory = queue.ready.count and queue.ready.first.messages is not None
        run = withdraw_first(store, queue, 3)
        assert run.count <= 3
        found += range(run.first_sequence, run.end)
        if run.messages is not None:
            assert was_in_memory
            assert bodies(run) == [b"%d" % number for number in range(run.first_sequence, run.end)]
        store.ack(queue, run)
    assert found == list(range(1, 17))
    assert store.withdrawals.withdraw_first(queue, 3) is None
    assert store.log.measures.read_messages == 0
    assert queue.memory_bytes == 0
    store.sync()
    store.abandon()
    assert queue_named(disk.open(), "q").ready_count == 0


def test_what_was_withdrawn_first_can_be_put_back(disk: Disk) -> None:
    for where in WHERE:
        store, queue = filled(Disk(f"{disk.directory} {where}", limits=disk.limits), where)
        run = withdraw_first(store, queue, 3)
        assert queue.ready_count == 16 - run.count
        store.withdrawals.put_back(queue, run)
        assert store.log.is_empty
        assert drain(store, queue) == [b"%d" % number for number in range(1, 17)]
        store.abandon()


def test_what_was_withdrawn_first_still_has_what_expires_behind_it(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    store.publish([queue], messages(b"1", b"2", b"3"), expires_ms=9)
    withdraw_first(store, queue, 1)
    assert store.withdrawals.next_expiry(queue) == 9
    run = store.withdrawals.withdraw_expired(queue, 9, bodies=False)
    assert isinstance(run, Run)
    assert (run.first_sequence, run.count) == (2, 2)
    assert not store.withdrawals.next_expiry(queue)
    store.abandon()


# Redelivery.


def test_each_redelivery_counts_also_after_a_crash(disk: Disk) -> None:
    store, queue = filled(disk, "in memory", 2)
    run = take(store, queue, 1)
    assert run.delivery_count == 0
    for count in (1, 2, 3):
        store.redeliver(queue, run)
        assert run.delivery_count == count
    store.sync()
    store.abandon()
    store = disk.open()
    queue = queue_named(store, "q")
    # Once by `take`, and three times more.
    assert spans(queue) == [(1, 1, 4), (2, 1, 0)]
    store.abandon()


def test_a_run_that_was_redelivered_and_given_back_counts_once_more(disk: Disk) -> None:
    store, queue = filled(disk, "in memory", 1)
    run = take(store, queue, 1)
    store.redeliver(queue, run)
    store.requeue(queue, run)
    assert take(store, queue, 1).delivery_count == 2
    store.sync()
    store.abandon()
    store = disk.open()
    assert spans(queue_named(store, "q")) == [(1, 1, 3)]
    store.abandon()


# Who gave a run back.


def test_both_parts_of_a_run_say_who_gave_it_back() -> None:
    consumer = object()
    run = Run(1, 3, first_id=1, delivery_count=1, returned_by=consumer)
    head = run.split(1)
    assert head.returned_by is run.returned_by is consumer


def test_runs_that_others_gave_back_do_not_become_one() -> None:
    one, two = [1], [1]
    before = Run(1, 1, first_id=1, returned_by=one)
    assert goes_on(before, Run(2, 1, first_id=2, returned_by=one))
    assert not goes_on(before, Run(2, 1, first_id=2, returned_by=two))
    assert not goes_on(before, Run(2, 1, first_id=2))


def test_who_gave_a_run_back_is_kept_through_a_checkpoint(disk: Disk) -> None:
    store, queue = filled(disk, "in memory", 12)
    consumer = object()
    for sequence in (2, 7, 11):
        run = store.take(queue, 1, first_sequence=sequence)
        assert isinstance(run, Run)
        run.returned_by = consumer
        store.withdrawals.put_back(queue, run)
    store.upkeep.checkpoint()
    found = {}
    while queue.ready_count:
        run = take(store, queue, 1)
        found[run.first_sequence] = run.returned_by
    assert {sequence for sequence, by in found.items() if by is consumer} == {2, 7, 11}
    store.abandon()


# Counting bytes.


@pytest.mark.parametrize("where", WHERE)
def test_the_bytes_of_what_is_ready_are_counted_wherever_it_is(disk: Disk, where: str) -> None:
    store, queue = filled(disk, where)
    before = (queue.ready_count, queue.memory_bytes, len(queue.paged))
    assert store.stored.sizes.ready_bytes(queue) == 9 + 2 * 7
    assert (queue.ready_count, queue.memory_bytes, len(queue.paged)) == before
    taken = take(store, queue, 1)
    assert store.stored.sizes.ready_bytes(queue) == 8 + 2 * 7
    store.requeue(queue, taken)
    assert store.stored.sizes.ready_bytes(queue) == 9 + 2 * 7
    store.abandon()


def test_bytes_are_counted_without_compression(disk: Disk) -> None:
    disk.options = disk.options._replace(compress_from_bytes=100)
    store = disk.open()
    queue = store.create_queue("q")
    for body in (b"x" * 1000, b"flipped", b"y" * 2000):
        store.publish([queue], messages(body))
    store.close()
    disk.flip(1, disk.read(1).index(b"flipped"))
    store = disk.open()
    queue = queue_named(store, "q")
    assert store.stored.sizes.ready_bytes(queue) == 3007
    assert queue.ready_count == 3
    # What cannot be read is ready until its turn comes, and who counts is told what it had.
    store.take(queue, 1)
    error = store.take(queue, 1)
    assert isinstance(error, MessageDamagedError)
    assert error.body_bytes == 7
    assert store.stored.sizes.ready_bytes(queue) == 2000
    store.abandon()


def test_the_bytes_of_what_was_written_aside_are_counted(tmp_path: Path) -> None:
    disk = Disk(str(tmp_path / "store"))
    store = disk.open()
    queue = store.create_queue("q", durable=False)
    store.memory.set_lazy(queue, lazy=True)
    store.publish([queue], messages(b"one", b"three", envelope=TRANSIENT))
    store.upkeep.housekeep()
    assert queue.memory_bytes == 0
    for _ in range(2):
        assert store.stored.sizes.ready_bytes(queue) == 8
    assert drain(store, queue) == [b"one", b"three"]
    store.abandon()


# Several queues.


class CountingCatalog(RowsCatalog):
    def __init__(self) -> None:
        super().__init__()
        self.commits: list[Sequence[Change]] = []

    def commit(self, changes: Sequence[Change]) -> None:
        self.commits.append(changes)
        super().commit(changes)


def test_queues_are_deleted_in_one_commit(disk: Disk) -> None:
    catalog = CountingCatalog()
    disk.catalog = catalog
    store = disk.open()
    names = ("one", "two", "three")
    one, two, three = (store.create_queue(name) for name in names)
    passing = store.create_queue("passing", durable=False)
    store.publish([one, two, three, passing], messages(b"1"))
    store.sync()
    catalog.commits.clear()
    store.delete_queue(one, three, passing, changes=[Change("vhosts", "/", {})])
    (changes,) = catalog.commits
    assert len(changes) == 3
    assert list(store.queues.values()) == [two]
    store.close()
    store = disk.open()
    assert [queue.definition for queue in store.queues.values()] == ["two"]
    assert store.definitions.rows("vhosts") == {"/": {}}
    assert drain(store, queue_named(store, "two")) == [b"1"]
    store.abandon()


# Some of the messages of a publish.


def test_the_log_holds_no_message_that_goes_to_no_queue(disk: Disk) -> None:
    store = disk.open()
    one, two = store.create_queue("one"), store.create_queue("two")
    passing = store.create_queue("passing", durable=False)
    three = [Message(Envelope("", "k"), b"%d" % number) for number in (1, 2, 3)]
    store.enqueue([Placement(one, 0, 1), Placement(two, 7, 2), Placement(passing)], three)
    store.enqueue([Placement(one, 0, 0)], three)
    store.publish([two], messages(b"4"))
    assert store.log.position.message_id == 1
    store.sync()
    assert store.log.position.message_id == 4
    assert drain(store, passing) == [b"1", b"2", b"3"]
    store.abandon()
    store = disk.open()
    assert store.recovery_report.is_clean
    assert drain(store, queue_named(store, "one")) == [b"1"]
    assert drain(store, queue_named(store, "two")) == [b"1", b"2", b"4"]
    store.abandon()
