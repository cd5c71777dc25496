"""Prepared transactions: undecided through any restart, and then all of it or none."""

import pytest

from amqpstore import (
    Placement,
    Prepared,
    Run,
    Store,
    TransactionEndedError,
    UndecidableError,
)
from tests.unit.engine.stores import (
    TRANSIENT,
    Disk,
    bodies,
    drain,
    messages,
    queue_named,
    spans,
    take,
)


def prepared_store(disk: Disk) -> Store:
    """One of six messages is acked, two and three are to be acked, and two are published."""
    store = disk.open()
    source, target = store.create_queue("source"), store.create_queue("target")
    store.publish([source], messages(*(b"%d" % number for number in range(1, 7))))
    store.sync()
    store.ack(source, take(store, source, 1))
    run = take(store, source, 2)
    transaction = store.transaction()
    transaction.ack(source, run)
    transaction.publish([target, source], messages(b"one", b"two"), priority=3, expires_ms=77)
    transaction.prepare({"name": "t"})
    store.sync()
    return store


def only(store: Store) -> Prepared:
    (found,) = store.prepared.values()
    return found


def restarted(disk: Disk, store: Store) -> Store:
    store.abandon()
    return disk.open()


@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_what_is_prepared_is_locked_and_invisible(disk: Disk, restarts: int) -> None:
    store = prepared_store(disk)
    for _ in range(restarts):
        store = restarted(disk, store)
    assert only(store).label == {"name": "t"}
    assert [(queue.definition, run.count) for queue, run in only(store).locked] == [("source", 2)]
    assert drain(store, queue_named(store, "target")) == []
    assert drain(store, queue_named(store, "source")) == [b"4", b"5", b"6"]
    store.abandon()


@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_a_commit_places_and_acks_whatever_happened_before(disk: Disk, restarts: int) -> None:
    store = prepared_store(disk)
    for _ in range(restarts):
        store = restarted(disk, store)
    prepared = only(store)
    prepared.commit(prepared.publishes())
    assert queue_named(store, "target").ready_count == 0
    store.sync()
    for _ in range(2):
        assert not store.prepared
        assert not store.definitions.rows("prepared")
        assert len(store.queues) == 2
        run = store.take(queue_named(store, "target"), 9)
        assert isinstance(run, Run)
        assert (bodies(run), run.priority, run.expires_ms) == ([b"one", b"two"], 3, 77)
        assert drain(store, queue_named(store, "source")) == [b"4", b"5", b"6", b"one", b"two"]
        store = restarted(disk, store)
    store.abandon()


@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_a_rollback_leaves_what_was_and_says_that_it_was_delivered(
    disk: Disk, restarts: int
) -> None:
    store = prepared_store(disk)
    for _ in range(restarts):
        store = restarted(disk, store)
    for queue, run in only(store).rollback():
        store.withdrawals.put_back(queue, run)
    for _ in range(2):
        assert not store.prepared
        assert len(store.queues) == 2
        assert spans(queue_named(store, "source")) == [(2, 2, 1), (4, 3, 0)]
        assert queue_named(store, "target").ready_count == 0
        store = restarted(disk, store)
    store.abandon()


def test_what_was_not_durable_was_not_prepared(disk: Disk) -> None:
    store = prepared_store(disk)
    run = take(store, queue_named(store, "source"), 1)
    transaction = store.transaction()
    transaction.ack(queue_named(store, "source"), run)
    transaction.prepare({"name": "lost"})
    store = restarted(disk, store)
    assert only(store).label == {"name": "t"}
    assert len(store.queues) == 3
    assert drain(store, queue_named(store, "source")) == [b"4", b"5", b"6"]
    store.abandon()


def test_it_is_decided_once(disk: Disk) -> None:
    store = prepared_store(disk)
    prepared = only(store)
    prepared.commit(prepared.publishes())
    with pytest.raises(TransactionEndedError):
        prepared.commit([])
    store.sync()
    with pytest.raises(TransactionEndedError):
        prepared.rollback()
    store.abandon()


def test_a_queue_deleted_before_the_decision_gets_nothing_and_the_rest_goes_on(disk: Disk) -> None:
    store = prepared_store(disk)
    store.delete_queue(queue_named(store, "source"))
    store = restarted(disk, store)
    prepared = only(store)
    assert prepared.locked == []
    prepared.commit(prepared.publishes())
    store.sync()
    assert drain(store, queue_named(store, "target")) == [b"one", b"two"]
    store.abandon()


def test_the_owner_may_place_what_was_prepared_elsewhere(disk: Disk) -> None:
    store = prepared_store(disk)
    other = store.create_queue("other")
    prepared = only(store)
    (publish,) = prepared.publishes()
    prepared.commit([publish._replace(placements=[Placement(other)])])
    store.sync()
    assert drain(store, other) == [b"one", b"two"]
    store.abandon()


def test_checkpoints_and_paging_change_nothing_about_it(disk: Disk) -> None:
    store = prepared_store(disk)
    store.memory.set_lazy(queue_named(store, "source"), lazy=True)
    store.upkeep.checkpoint()
    store = restarted(disk, store)
    store.upkeep.checkpoint()
    for queue, run in only(store).rollback():
        store.withdrawals.put_back(queue, run)
    store.upkeep.checkpoint()
    store = restarted(disk, store)
    assert drain(store, queue_named(store, "source")) == [b"2", b"3", b"4", b"5", b"6"]
    store.abandon()


def test_a_limit_on_a_queue_is_kept_with_it(disk: Disk) -> None:
    store = disk.open()
    few, all_of_them = store.create_queue("few"), store.create_queue("all")
    transaction = store.transaction()
    transaction.enqueue([Placement(few, 0, 1), Placement(all_of_them)], messages(b"one", b"two"))
    transaction.enqueue([Placement(few, 0, 0)], messages(b"nowhere"))
    transaction.prepare({})
    store.sync()
    store = restarted(disk, store)
    prepared = only(store)
    prepared.commit(prepared.publishes())
    store.sync()
    assert drain(store, queue_named(store, "few")) == [b"one"]
    assert drain(store, queue_named(store, "all")) == [b"one", b"two"]
    store.abandon()


def test_transient_messages_of_it_last_as_long_as_the_process(disk: Disk) -> None:
    for restarts, expected in ((0, [b"kept", b"transient"]), (1, [b"kept"])):
        store = disk.open()
        queue = store.create_queue(f"q{restarts}")
        transaction = store.transaction()
        transaction.publish([queue], messages(b"kept"))
        transaction.publish([queue], messages(b"transient", envelope=TRANSIENT))
        transaction.prepare({})
        store.sync()
        if restarts:
            store = restarted(disk, store)
        prepared = only(store)
        prepared.commit(prepared.publishes())
        store.sync()
        assert drain(store, queue_named(store, f"q{restarts}")) == expected
        store.abandon()


def test_where_a_message_of_it_is_damaged_it_can_only_be_rolled_back(disk: Disk) -> None:
    """A commit without that message would be half of a transaction."""
    store = prepared_store(disk)
    store = restarted(disk, store)
    store.abandon()
    content = disk.read(1)
    disk.flip(1, content.index(b"two"))
    store = disk.open()
    prepared = only(store)
    for _ in range(2):
        with pytest.raises(UndecidableError, match="1 of its messages cannot be read"):
            prepared.commit(prepared.publishes())
    prepared.rollback()
    assert store.prepared == {}
    assert drain(store, queue_named(store, "target")) == []
    store.abandon()
