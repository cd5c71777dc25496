"""One publish of many messages, each to queues of its own, and runs whose ids are a column."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpstore import Placement, Queue, Store
from amqpstore.catalog import tables
from amqpstore.format.records import MAX_COUNT, Operation, OperationKind, SpreadEnqueue
from amqpstore.format.runs import ReadyList, Run
from amqpstore.log.batch import record_bytes
from tests.unit.engine.stores import Disk, bodies, drain, messages, queue_named

ROUTES = [("a", "audit"), ("b", "audit"), ("a", "b", "audit"), ("audit",)]


def spread(store: Store, queues: dict[str, Queue], count: int) -> dict[str, list[bytes]]:
    """Publish `count` messages in one call; returns what each queue gets."""
    places: dict[Queue, list[int]] = {}
    expected: dict[str, list[bytes]] = {name: [] for name in queues}
    for place in range(count):
        for name in ROUTES[place % len(ROUTES)]:
            places.setdefault(queues[name], []).append(place)
            expected[name].append(bytes(place))
    placements = [Placement(queue, indexes=at) for queue, at in places.items()]
    assert store.enqueue(placements, messages(*map(bytes, range(count))))
    return expected


def opened(store: Store) -> dict[str, Queue]:
    return {name: queue_named(store, name) for name in ("a", "b", "audit")}


def created(disk: Disk) -> tuple[Store, dict[str, Queue]]:
    store = disk.open()
    return store, {name: store.create_queue(name) for name in ("a", "b", "audit")}


def consumed(store: Store, queue: Queue) -> list[bytes]:
    """Take and ack everything; returns the bodies."""
    found: list[bytes] = []
    while isinstance(run := store.take(queue, 7, acked=True), Run):
        found += bodies(run)
    return found


@given(st.sets(st.integers(1, 60), min_size=1))
def test_a_column_of_ids_is_as_many_operations_as_it_has_stretches(ids: set[int]) -> None:
    column = array("Q", sorted(ids))
    stretches = SpreadEnqueue(7, 100, column, 3).stretches()
    found = [one.first_id + place for one in stretches for place in range(one.message_count)]
    assert found == list(column)
    sequences = [
        one.first_sequence + place for one in stretches for place in range(one.message_count)
    ]
    assert sequences == list(range(100, 100 + len(ids)))
    assert {(one.kind, one.queue_id, one.priority) for one in stretches} == {
        (OperationKind.ENQUEUE, 7, 3)
    }
    assert len(stretches) == sum(one - 1 not in ids for one in ids)


def test_a_split_run_keeps_its_ids() -> None:
    rest = Run(10, 4, first_id=3, ids=array("Q", [3, 7, 8, 20]))
    head = rest.split(2)
    assert [head.id_at(place) for place in range(2)] == [3, 7]
    assert [rest.id_at(place) for place in range(2)] == [8, 20]
    assert (head.end_id, rest.first_id, rest.end_id) == (8, 8, 21)


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_each_queue_has_its_messages_in_order_after_a_start(
    disk: Disk, is_checkpointed: bool
) -> None:
    store, queues = created(disk)
    expected = spread(store, queues, 40)
    store.sync()
    if is_checkpointed:
        store.upkeep.checkpoint()
    store.abandon()
    store = disk.open()
    found = {name: drain(store, queue) for name, queue in opened(store).items()}
    assert found == expected
    store.abandon()


def test_ids_in_memory_are_those_on_disk(disk: Disk) -> None:
    store, queues = created(disk)
    spread(store, queues, 12)
    ids = {
        name: [run.id_at(place) for run in queue.ready for place in range(run.count)]
        for name, queue in queues.items()
    }
    store.sync()
    store.abandon()
    store = disk.open()
    assert ids == {
        name: [run.id_at(place) for run in queue.ready for place in range(run.count)]
        for name, queue in opened(store).items()
    }
    store.abandon()


def test_queues_that_share_no_message_have_contiguous_ids(disk: Disk) -> None:
    store, queues = created(disk)
    placements = [
        Placement(queues["a"], indexes=[0, 2, 4]),
        Placement(queues["b"], indexes=[1, 3, 5]),
    ]
    store.enqueue(placements, messages(*map(bytes, range(6))))
    assert [(run.first_id, run.ids) for name in "ab" for run in queues[name].ready] == [
        (1, None),
        (4, None),
    ]
    store.abandon()


def test_bodies_that_left_memory_are_read_back_in_order(disk: Disk) -> None:
    store, queues = created(disk)
    store.memory.set_lazy(queues["audit"], lazy=True)
    store.memory.set_lazy(queues["a"], lazy=True)
    expected = spread(store, queues, 40)
    store.sync()
    assert all(run.messages is None for run in queues["a"].ready)
    assert [run.ids is not None for run in queues["a"].ready] == [True]
    browsed = [message.body for part in store.stored.browse(queues["a"]) for message in part]
    assert browsed == expected["a"]
    for name, queue in queues.items():
        assert drain(store, queue) == expected[name]
    store.abandon()


def test_a_message_is_kept_while_any_of_its_queues_has_it(disk: Disk) -> None:
    store, queues = created(disk)
    expected = spread(store, queues, 40)
    store.sync()
    store.upkeep.checkpoint()
    consumed(store, queues["audit"])
    consumed(store, queues["b"])
    store.sync()
    store.upkeep.checkpoint()
    rows = tables.SEGMENTS.read(store.definitions.rows).values()
    live_bytes = sum(map(record_bytes, messages(*expected["a"])))
    assert [(row.live_count, row.live_bytes) for row in rows] == [(len(expected["a"]), live_bytes)]
    list(store.upkeep.compact())
    store.abandon()
    store = disk.open()
    assert consumed(store, queue_named(store, "a")) == expected["a"]
    store.abandon()


def test_what_is_published_one_after_another_is_taken_together(disk: Disk) -> None:
    store, queues = created(disk)
    for number in range(6):
        store.publish([queues["a" if number % 2 else "b"]], messages(b"%d" % number))
    run = store.take(queues["a"], 10)
    assert isinstance(run, Run)
    assert (bodies(run), list(run.ids or ())) == ([b"1", b"3", b"5"], [2, 4, 6])
    store.ack(queues["a"], run)
    store.sync()
    store.abandon()
    store = disk.open()
    assert {name: drain(store, queue) for name, queue in opened(store).items()} == {
        "a": [],
        "b": [b"0", b"2", b"4"],
        "audit": [],
    }
    store.abandon()


@pytest.mark.parametrize(
    "after",
    [
        Run(3, 1, messages=messages(b"x"), first_id=0),
        Run(3, 1, messages=messages(b"x"), first_id=9, priority=1),
        Run(3, 1, messages=messages(b"x"), first_id=9, expires_ms=5),
        Run(4, 1, messages=messages(b"x"), first_id=9),
    ],
    ids=["not in the log", "of another priority", "that expires", "behind a gap"],
)
def test_a_run_that_differs_stays_apart(after: Run) -> None:
    ready = ReadyList()
    ready.append_new(Run(1, 2, messages=messages(b"a", b"b"), first_id=1), MAX_COUNT)
    assert ready.append_new(after, MAX_COUNT) is after
    assert (len(ready), ready.count) == (2, 3)


def test_an_operation_of_contiguous_ids_is_as_before(disk: Disk) -> None:
    store, queues = created(disk)
    store.publish([queues["a"]], messages(b"0", b"1"))
    batch = store.log.seal(0)
    assert batch is not None
    assert batch.operations() == [Operation(OperationKind.ENQUEUE, 2, queues["a"].id, 1, 1)]
    store.abandon()
