"""Tests of what the kill drill says of a store, from made lists of what clients were told."""

from collections.abc import Sequence

from amqpstore_tools.drill.client import (
    MOVES,
    QUEUES,
    REJECTS,
    TRANSACTED,
    Key,
    body_of,
    homes_of,
    routes_of,
)
from amqpstore_tools.drill.invariants import Fault
from amqpstore_tools.drill.observation import ObservedQueue, Seen
from amqpstore_tools.drill.payloads import Payload
from amqpstore_tools.drill.scenarios import kill


def key_for(queues: Sequence[str], place: int = 0, publisher: int = 0) -> Key:
    """The next key, from `place` on, that goes to exactly these queues."""
    while routes_of(key := Key(1, publisher, place)) != tuple(queues):
        place += 1
    return key


def queue_of(*keys: Key, delivery_count: int = 0) -> ObservedQueue:
    ready = tuple(
        Seen(Payload("", "", b"\x10\x00\x02", body_of(key)), place, delivery_count, place)
        for place, key in enumerate(keys, 1)
    )
    return ObservedQueue(1, {"name": "a queue"}, ready)


def names(faults: Sequence[Fault]) -> set[str]:
    return {name for name, _ in faults}


MOVED, REJECTED = Key(1, 3, 0), Key(1, 4, 0)


def test_a_message_has_a_home_in_each_queue_that_it_may_move_to() -> None:
    assert homes_of(MOVED) == MOVES
    assert homes_of(REJECTED) == REJECTS
    assert homes_of(key_for(QUEUES)) == QUEUES


def test_a_moved_message_is_in_one_of_its_two_queues() -> None:
    known = kill._Known(sent=[MOVED], confirmed={MOVED})
    for found in ({MOVES[0]: [MOVED]}, {MOVES[1]: [MOVED]}):
        assert not [*kill._pair_faults(MOVES, known, found)]
    assert names([*kill._pair_faults(MOVES, known, {})]) == {"I7"}
    both = {MOVES[0]: [MOVED], MOVES[1]: [MOVED]}
    assert names([*kill._pair_faults(MOVES, known, both)]) == {"I7"}


def test_a_move_that_was_committed_is_not_undone() -> None:
    known = kill._Known(sent=[MOVED], confirmed={MOVED}, moved={MOVED})
    assert names([*kill._pair_faults(MOVES, known, {MOVES[0]: [MOVED]})]) == {"I5"}


def test_a_rejected_message_is_dead_lettered_or_still_there() -> None:
    known = kill._Known(sent=[REJECTED], confirmed={REJECTED})
    assert not [*kill._pair_faults(REJECTS, known, {REJECTS[1]: [REJECTED]})]
    assert names([*kill._pair_faults(REJECTS, known, {})]) == {"I7"}


def test_a_transaction_is_all_or_nothing_but_for_what_was_acked() -> None:
    keys = [Key(1, TRANSACTED, place) for place in range(5)]
    known = kill._Known(sent=keys)
    every = {name: [key for key in keys if name in routes_of(key)] for name in QUEUES}
    assert not [*kill._transaction_faults(known, every)]
    assert not [*kill._transaction_faults(known, {})]
    name = next(name for name in QUEUES if every[name])
    first, *others = every[name]
    part = {**every, name: others}
    assert names([*kill._transaction_faults(known, part)]) == {"I4"}
    known.acked[name].add(first)
    assert not [*kill._transaction_faults(known, part)]


def test_a_delivery_that_was_durable_is_counted() -> None:
    known = kill._Known(sent=[MOVED], confirmed={MOVED}, delivered={MOVED})
    for count, expected in ((1, set()), (0, {"I5"})):
        queue = queue_of(MOVED, delivery_count=count)
        assert names([*kill._queue_faults(MOVES[0], queue, known, [])]) == expected


def test_an_ack_that_was_seen_to_hold_is_not_undone() -> None:
    key = key_for(QUEUES[:1])
    known = kill._Known(sent=[key], confirmed={key})
    known.gone[QUEUES[0]].add(key)
    assert names([*kill._queue_faults(QUEUES[0], queue_of(key), known, [])]) == {"I5"}


def test_queues_that_nobody_used_are_what_they_were() -> None:
    one, other = key_for(QUEUES), key_for(QUEUES[:1])
    known = kill._Known(before={"orders": queue_of(one)})
    assert not [*kill._untouched_faults(known, {"orders": queue_of(one)})]
    assert names([*kill._untouched_faults(known, {"orders": queue_of()})]) == {"I1"}
    assert names([*kill._untouched_faults(known, {"orders": queue_of(other)})]) == {"I1", "I2"}
