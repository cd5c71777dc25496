"""The history of a queue: what was received from it, for a time and up to a number."""

from __future__ import annotations

import pytest

from amqpstore import Envelope, Message, SharedStore
from amqpstore.system.clock import SimulatedClock
from tests.unit.shared.conftest import OPTIONS
from tests.unit.shared.waiting import ready, receive, send


def bodies(shared: SharedStore, first_ms: int = 0, last_ms: int | None = None) -> list[bytes]:
    found = shared.history("h", first_ms=first_ms, last_ms=last_ms)
    return [one.message.body for one in found]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_what_is_received_is_in_the_history_once_it_is_committed(
    shared: SharedStore, clock: SimulatedClock
) -> None:
    shared.declare("h", history_length=10)
    with shared.transaction() as transaction:
        transaction.send("h", [Message(Envelope("e", "k", b"\x10\x00\x02"), b"one"), b"two"])
    with shared.transaction() as transaction:
        transaction.receive("h")
        clock.set_wall(5_000)
        assert bodies(shared) == []
    assert receive(shared, "h") == [b"two"]
    first, second = shared.history("h")
    assert (first.consumed_at_ms, first.message.body) == (5_000, b"one")
    envelope = first.message.envelope
    assert (envelope.exchange, envelope.routing_key, envelope.properties) == (
        "e",
        "k",
        b"\x10\x00\x02",
    )
    assert (second.consumed_at_ms, second.message.body) == (5_000, b"two")
    assert list(shared.history("q")) == []


def test_a_history_is_of_so_many_messages(shared: SharedStore) -> None:
    shared.declare("h", history_length=3)
    send(shared, "h", *numbers(20))
    for _ in range(5):
        receive(shared, "h", 2)
    assert bodies(shared) == [b"7", b"8", b"9"]
    state = shared.find("h")
    assert state is not None
    assert (state.ready_count, state.history_count) == (10, 3)
    receive(shared, "h", 10)
    assert bodies(shared) == [b"17", b"18", b"19"]


def test_a_history_is_of_such_an_age(shared: SharedStore, clock: SimulatedClock) -> None:
    shared.declare("h", history_ttl_ms=100)
    send(shared, "h", *numbers(3))
    for _ in range(3):
        receive(shared, "h")
        clock.advance(40)
    assert bodies(shared) == [b"1", b"2"]
    clock.advance(70)
    assert bodies(shared) == []


def test_a_history_is_browsed_by_time_and_read_as_it_is_asked_for(
    shared: SharedStore, clock: SimulatedClock
) -> None:
    shared.declare("h", history_length=1000)
    send(shared, "h", *numbers(600))
    for _ in range(6):
        receive(shared, "h", 100)
        clock.advance(10)
    assert bodies(shared) == numbers(600)
    assert bodies(shared, 1_010, 1_020) == numbers(600)[100:300]
    assert bodies(shared, last_ms=1_000) == numbers(100)
    lazily = shared.history("h")
    assert next(lazily).message.body == b"0"
    held = shared._queues.get("h").history
    assert held is not None
    assert held.queue.memory_bytes == 0
    shared.delete("h")
    assert len(list(lazily)) < 600
    with pytest.raises(StopIteration):
        next(lazily)


def test_a_replay_sends_copies_in_the_transaction(
    shared: SharedStore, clock: SimulatedClock
) -> None:
    shared.declare("h", history_length=10)
    send(shared, "h", *numbers(4))
    for _ in range(4):
        receive(shared, "h")
        clock.advance(10)
    with shared.transaction() as transaction:
        assert transaction.replay("h", first_ms=1_010, last_ms=1_020) == 2
        assert transaction.replay("h", to="q") == 4
        assert transaction.replay("q") == 0
        assert ready(shared, "h") == 0
    assert receive(shared, "q", 9) == numbers(4)
    assert receive(shared, "h", 9) == [b"1", b"2"]
    assert bodies(shared) == [*numbers(4), b"1", b"2"]


def test_a_prepared_receive_is_in_the_history_once_it_is_decided(
    directory: str, clock: SimulatedClock
) -> None:
    with SharedStore.open(directory, options=OPTIONS, clock=clock) as shared:
        shared.declare("h", history_length=2)
        send(shared, "h", *numbers(5))
        for label in ("to commit", "to roll back"):
            with shared.transaction() as transaction:
                transaction.receive("h", limit=2)
                transaction.prepare(label)
    with SharedStore.open(directory, options=OPTIONS, clock=clock) as shared:
        assert bodies(shared) == []
        first, second = shared.prepared()
        clock.set_wall(7_000)
        first.commit()
        second.rollback()
        assert [one.consumed_at_ms for one in shared.history("h")] == [7_000, 7_000]
        assert bodies(shared) == [b"0", b"1"]
        assert receive(shared, "h", 9) == [b"2", b"3", b"4"]
        assert bodies(shared) == [b"3", b"4"]


def test_a_history_is_there_after_a_crash_between_its_two_queues(directory: str) -> None:
    with SharedStore.open(directory, options=OPTIONS) as shared:
        shared.declare("h", history_length=2)
        history = shared._queues.get("h").history
        assert history is not None
        shared._locked_store.store.delete_queue(history.queue)
    with SharedStore.open(directory, options=OPTIONS) as shared:
        send(shared, "h", b"one")
        receive(shared, "h")
        assert bodies(shared) == [b"one"]
