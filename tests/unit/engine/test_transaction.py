"""Transactions: all of it or none, and nothing before the commit."""

import pytest

from amqpstore import StoreClosedError, TransactionEndedError
from tests.unit.engine.stores import Disk, bodies, drain, messages, queue_named, spans, take


def test_nothing_happens_before_the_commit(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    store.publish([queue], messages(b"one"))
    run = take(store, queue)
    transaction = store.transaction()
    transaction.publish([queue], messages(b"two"))
    transaction.ack(queue, run)
    store.sync()
    store.abandon()
    store = disk.open()
    assert drain(store, queue_named(store, "q")) == [b"one"]
    store.abandon()


def test_a_commit_is_publishes_and_acks_in_several_queues(disk: Disk) -> None:
    store = disk.open()
    source, target, audit = (store.create_queue(name) for name in ("source", "target", "audit"))
    store.publish([source], messages(b"one", b"two"))
    store.sync()
    run = take(store, source, 1)
    with store.transaction() as transaction:
        transaction.publish([target, audit], messages(b"moved"), priority=3, expires_ms=77)
        transaction.ack(source, run)
    store.sync()
    assert [queue.ready_count for queue in (source, target, audit)] == [1, 1, 1]
    moved = take(store, target)
    assert (bodies(moved), moved.priority, moved.expires_ms) == ([b"moved"], 3, 77)
    store.abandon()
    store = disk.open()
    assert drain(store, queue_named(store, "source")) == [b"two"]
    assert drain(store, queue_named(store, "audit")) == [b"moved"]
    store.abandon()


def test_messages_of_a_transaction_are_ready_once_it_is_durable(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    with store.transaction() as transaction:
        transaction.publish([queue], messages(b"first"))
    store.publish([queue], messages(b"second"))
    assert spans(queue) == [(2, 1, 0)]
    store.sync()
    assert drain(store, queue) == [b"first", b"second"]
    store.abandon()


def test_messages_for_a_queue_deleted_meanwhile_are_nobodys(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    with store.transaction() as transaction:
        transaction.publish([queue], messages(b"first"))
    store.delete_queue(queue)
    store.sync()
    store.upkeep.checkpoint()
    assert queue.ready_count == 0
    store.close()


def test_every_cut_of_the_log_has_all_of_a_transaction_or_nothing(disk: Disk) -> None:
    store = disk.open()
    source, target = store.create_queue("source"), store.create_queue("target")
    store.publish([source], messages(b"one"))
    store.sync()
    before = disk.size(1)
    with store.transaction() as transaction:
        transaction.publish([target, source], messages(b"two", b"three"))
        transaction.ack(source, take(store, source))
    store.sync()
    store.abandon()
    content = disk.read(1)
    catalog = disk.catalog.clone()
    for size in range(before, len(content) + 1):
        disk.write(1, content[:size])
        disk.catalog = catalog.clone()
        store = disk.open()
        bodies = [drain(store, queue_named(store, name)) for name in ("source", "target")]
        store.abandon()
        whole = [[b"two", b"three"], [b"two", b"three"]]
        assert bodies == (whole if size == len(content) else [[b"one"], []]), size


def test_a_rollback_forgets_and_returns_what_was_to_be_acked(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    store.publish([queue], messages(b"one"))
    run = take(store, queue)
    transaction = store.transaction()
    transaction.publish([queue], messages(b"two"))
    transaction.ack(queue, run)
    assert transaction.rollback() == [(queue, run)]
    store.requeue(queue, run)
    assert drain(store, queue) == [b"one"]
    store.abandon()


def test_a_block_that_raises_rolls_back(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    with pytest.raises(KeyError), store.transaction() as transaction:
        transaction.publish([queue], messages(b"one"))
        raise KeyError
    store.sync()
    assert queue.ready_count == 0
    store.abandon()


def test_a_transaction_that_has_ended_is_refused(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    transaction = store.transaction()
    transaction.commit()
    with pytest.raises(TransactionEndedError):
        transaction.publish([queue], messages(b"one"))
    with pytest.raises(TransactionEndedError):
        transaction.commit()
    with pytest.raises(TransactionEndedError):
        transaction.rollback()
    store.abandon()


def test_a_commit_to_a_closed_store_is_refused(disk: Disk) -> None:
    store = disk.open()
    transaction = store.transaction()
    store.close()
    with pytest.raises(StoreClosedError):
        transaction.commit()
