"""Messages in an open store and across an orderly reopening."""

from pathlib import Path

import pytest

from amqpstore import Envelope, Message, Store
from amqpstore.catalog.catalog import Change
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


def test_messages_are_taken_in_the_order_of_their_publishes(disk: Disk) -> None:
    with disk.open() as store:
        queue = store.create_queue("q")
        store.publish([queue], messages(b"one", b"two"))
        store.publish([queue], messages(b"three"))
        assert queue.ready_count == 3
        assert drain(store, queue) == [b"one", b"two", b"three"]


def test_take_takes_no_more_than_was_asked_for(disk: Disk) -> None:
    with disk.open() as store:
        queue = store.create_queue("q")
        store.publish([queue], messages(b"one", b"two", b"three"))
        assert bodies(take(store, queue, 2)) == [b"one", b"two"]
        assert queue.ready_count == 1


@pytest.mark.parametrize("reopened", [False, True])
def test_a_requeued_run_goes_back_to_its_place_and_says_so(disk: Disk, reopened: bool) -> None:
    store = disk.open()
    store.publish([store.create_queue("q")], messages(b"one", b"two", b"three"))
    if reopened:
        store.close()
        store = disk.open()
    queue = queue_named(store, "q")
    first, second = take(store, queue, 1), take(store, queue, 1)
    store.requeue(queue, second)
    store.requeue(queue, first)
    assert spans(queue) == [(1, 2, 1), (3, 1, 0)]
    assert drain(store, queue) == [b"one", b"two", b"three"]
    store.close()


def test_one_message_in_several_queues_is_written_once(disk: Disk) -> None:
    body = b"x" * 10_000
    with disk.open() as store:
        queues = [store.create_queue(f"q{number}") for number in range(5)]
        assert store.publish(queues, messages(body))
    assert disk.size(1) < 2 * len(body)
    with disk.open() as store:
        assert [drain(store, queue) for queue in store.queues.values()] == [[body]] * 5


def test_a_message_acked_in_one_queue_is_still_in_the_other(disk: Disk) -> None:
    store = disk.open()
    one, two = store.create_queue("one"), store.create_queue("two")
    store.publish([one, two], messages(b"both"))
    store.ack(one, take(store, one))
    store.close()
    store = disk.open()
    assert queue_named(store, "one").ready_count == 0
    assert drain(store, queue_named(store, "two")) == [b"both"]
    store.close()


def test_a_fan_out_that_is_not_synced_is_in_none_of_its_queues(disk: Disk) -> None:
    store = disk.open()
    queues = [store.create_queue(f"q{number}") for number in range(3)]
    store.publish(queues, messages(b"one"))
    store.abandon()
    store = disk.open()
    assert [queue.ready_count for queue in store.queues.values()] == [0, 0, 0]
    store.abandon()


def test_what_enters_the_log_is_persistent_and_in_a_durable_queue(disk: Disk) -> None:
    with disk.open() as store:
        durable = store.create_queue("durable")
        passing = store.create_queue("passing", durable=False)
        assert store.publish([durable], messages(b"one"))
        assert store.publish([durable, passing], messages(b"two"))
        assert not store.publish([passing], messages(b"three"))
        assert not store.publish([durable], messages(b"four", envelope=TRANSIENT))
        assert not store.publish([], messages(b"nowhere"))
        assert durable.ready_count == 3
        assert passing.ready_count == 2
    with disk.open() as store:
        assert [queue.definition for queue in store.queues.values()] == ["durable"]
        assert drain(store, queue_named(store, "durable")) == [b"one", b"two"]


def test_transient_messages_are_handled_as_others_and_leave_no_trace(disk: Disk) -> None:
    with disk.open() as store:
        queue = store.create_queue("q")
        store.publish([queue], messages(b"one", b"two", b"three", envelope=TRANSIENT))
        run = take(store, queue, 1)
        store.requeue(queue, run)
        assert spans(queue) == [(1, 1, 1), (2, 2, 0)]
        store.ack(queue, take(store, queue, 1))
        assert store.purge(queue) == 2
        assert store.log.is_empty
    assert not Path(disk.path(1)).exists()


def test_a_body_a_key_and_properties_come_back_as_they_went(disk: Disk) -> None:
    envelope = Envelope("größe", "a.b.ü", bytes(range(256)))
    long = Envelope("x" * 255, "y" * 255)
    everything = [Message(envelope, b""), Message(envelope, bytes(range(256))), Message(long, b"z")]
    with disk.open() as store:
        store.publish([store.create_queue("q")], everything)
    with disk.open() as store:
        run = take(store, queue_named(store, "q"))
        assert run.messages is not None
        for before, after in zip(everything, run.messages, strict=True):
            assert after.body == before.body
            assert after.envelope.exchange == before.envelope.exchange
            assert after.envelope.routing_key == before.envelope.routing_key
            assert after.envelope.properties == before.envelope.properties


@pytest.mark.parametrize("acked", [False, True])
def test_take_with_acked_is_done_with_the_run(disk: Disk, acked: bool) -> None:
    with disk.open() as store:
        queue = store.create_queue("q")
        store.publish([queue], messages(b"one"))
        take(store, queue, acked=acked)
    with disk.open() as store:
        assert queue_named(store, "q").ready_count == (0 if acked else 1)


def test_purge_removes_what_is_ready_and_no_more(disk: Disk) -> None:
    with disk.open() as store:
        queue = store.create_queue("q")
        store.publish([queue], messages(b"one", b"two", b"three"))
        take(store, queue, 1)
        assert store.purge(queue) == 2
        assert store.purge(queue) == 0
    with disk.open() as store:
        assert drain(store, queue_named(store, "q")) == [b"one"]


def test_a_deleted_queue_takes_its_messages_with_it(disk: Disk) -> None:
    with disk.open() as store:
        queue = store.create_queue("q")
        store.publish([queue], messages(b"one", b"two"))
        run = take(store, queue, 1)
        store.delete_queue(queue)
        assert queue.deleted
        assert queue.ready_count == 0
        # Who still holds a run of it may let go of it in either way.
        store.requeue(queue, run)
        store.ack(queue, run)
        assert queue.ready_count == 0
        assert store.queues == {}
    with disk.open() as store:
        assert store.queues == {}


def test_definitions_that_come_with_a_queue_hold_with_it(disk: Disk) -> None:
    with disk.open() as store:
        bound = Change("bindings", "b", {"queue": "q"})
        queue = store.create_queue("q", changes=[bound])
        passing = store.create_queue("p", durable=False, changes=[Change("users", "u", {})])
        assert store.definitions.rows("bindings") == {"b": {"queue": "q"}}
        assert store.definitions.rows("users") == {"u": {}}
        store.delete_queue(queue, changes=[Change("bindings", "b", None)])
        store.delete_queue(passing, changes=[Change("users", "u", None)])
        assert store.definitions.rows("bindings") == store.definitions.rows("users") == {}


def test_definitions_are_durable_when_define_returns(disk: Disk) -> None:
    store = disk.open()
    store.definitions.define([Change("vhosts", "/", {"a": 1}), Change("users", "guest", {})])
    store.definitions.define([Change("users", "guest", None)])
    store.abandon()
    store = disk.open()
    assert store.definitions.rows("vhosts") == {"/": {"a": 1}}
    assert store.definitions.rows("users") == {}
    store.abandon()


def test_a_queues_definition_is_kept_as_given(tmp_path: Path) -> None:
    # In LMDB: the other catalog of these tests knows no msgpack.
    definition = {"name": "q", "arguments": {"x-max-length": 5, "raw": b"\xff", "none": None}}
    with Store.open(str(tmp_path / "s")) as store:
        store.create_queue(definition)
    with Store.open(str(tmp_path / "s")) as store:
        assert [queue.definition for queue in store.queues.values()] == [definition]


def test_a_callback_is_called_by_the_sync_that_makes_it_true(disk: Disk) -> None:
    told: list[str] = []
    with disk.open() as store:
        queue = store.create_queue("q")
        store.publish([queue], messages(b"one"))
        store.log.when_durable(lambda: told.append("one"))
        assert told == []
        store.sync()
        assert told == ["one"]
        store.publish([queue], messages(b"two", envelope=TRANSIENT))
        store.log.when_durable(lambda: told.append("nothing to wait for"))
        assert told == ["one", "nothing to wait for"]


def test_reopening_many_times_keeps_everything(disk: Disk) -> None:
    expected: list[bytes] = []
    for number in range(6):
        with disk.open() as store:
            queue = queue_named(store, "q") if number else store.create_queue("q")
            assert queue.ready_count == len(expected)
            expected.append(b"%d" % number)
            store.publish([queue], messages(expected[-1]))
    with disk.open() as store:
        assert drain(store, queue_named(store, "q")) == expected
