"""A segment, changed with its checksums, that enqueues what a queue had already, or other messages.

Such an ENQUEUE is damage: it is explained and left out. Nothing is served twice, nothing ends in a
traceback, and a repair makes the store whole.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from amqpstore import Message, Run, Store
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.__main__ import main
from tests.unit.check.forged import ACK, ENQUEUE, ENVELOPE, OPTIONS, Forged, op

Batches = Callable[[Forged], list[bytes]]

CASES: dict[str, tuple[Batches, list[tuple[int, int]], str]] = {
    "a sequence that is ready": (
        lambda it: [three(it), it.batch(2, range(4, 5), op(ENQUEUE, 1, 1, 1, 4))],
        [(1, 1), (2, 2), (3, 3)],
        "sequence 1 of queue 1 is assigned twice: 4 was next",
    ),
    "some sequences that are ready": (
        lambda it: [three(it), it.batch(2, range(4, 8), op(ENQUEUE, 4, 1, 2, 4))],
        [(1, 1), (2, 2), (3, 3)],
        "sequence 2 of queue 1 is assigned twice: 4 was next",
    ),
    "a sequence that was acked": (
        lambda it: [
            three(it),
            it.batch(2, range(0), op(ACK, 3, 1, 1)),
            it.batch(3, range(4, 5), op(ENQUEUE, 1, 1, 2, 4)),
        ],
        [],
        "sequence 2 of queue 1 is assigned twice: 4 was next",
    ),
    "a sequence that was skipped": (
        lambda it: [
            it.batch(1, range(1, 4), op(ENQUEUE, 3, 1, 10, 1)),
            it.batch(2, range(4, 5), op(ENQUEUE, 1, 1, 1, 4)),
        ],
        [(10, 1), (11, 2), (12, 3)],
        "sequence 1 of queue 1 is assigned twice: 13 was next",
    ),
    "a sequence twice in a batch": (
        lambda it: [
            it.batch(1, range(1, 3), op(ENQUEUE, 1, 1, 1, 1), op(ENQUEUE, 1, 1, 1, 2)),
        ],
        [(1, 1)],
        "sequence 1 of queue 1 is assigned twice: 2 was next",
    ),
    "a message of another batch": (
        lambda it: [
            three(it),
            it.batch(2, range(4, 5), op(ENQUEUE, 1, 1, 4, 4), op(ENQUEUE, 1, 1, 5, 1)),
        ],
        [(1, 1), (2, 2), (3, 3), (4, 4)],
        "message 1 of queue 1 is behind message 4",
    ),
    "a message of another batch in another queue": (
        lambda it: [three(it), it.batch(2, range(0), op(ENQUEUE, 3, 2, 1, 1))],
        [(1, 1), (2, 2), (3, 3)],
        "message 1 of queue 2 is behind message 3",
    ),
    "a message twice": (
        lambda it: [it.batch(1, range(1, 2), op(ENQUEUE, 1, 1, 1, 1), op(ENQUEUE, 1, 1, 2, 1))],
        [(1, 1)],
        "message 1 of queue 1 is behind message 1",
    ),
    "messages in another order": (
        lambda it: [it.batch(1, range(1, 3), op(ENQUEUE, 1, 1, 1, 2), op(ENQUEUE, 1, 1, 2, 1))],
        [(1, 2)],
        "message 1 of queue 1 is behind message 2",
    ),
    "messages of no batch": (
        lambda it: [three(it), it.batch(2, range(0), op(ENQUEUE, 2, 1, 4, 50))],
        [(1, 1), (2, 2), (3, 3)],
        "messages 50 to 51 of queue 1 are not in their batch",
    ),
}


def three(forged: Forged) -> bytes:
    return forged.batch(1, range(1, 4))


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def forged(tmp_path: Path, case: str) -> Forged:
    forged = Forged(str(tmp_path / "store"))
    forged.segment(1, *CASES[case][0](forged))
    return forged


def opened(forged: Forged) -> Store:
    return Store.open(forged.directory, options=OPTIONS, worker=InlineWorker())


def taken(store: Store) -> dict[int, list[tuple[int, int]]]:
    """Take and ack all messages of all queues, one by one; return sequences and ids."""
    found: dict[int, list[tuple[int, int]]] = {}
    for queue in list(store.queues.values()):
        while run := store.take(queue, 1):
            assert isinstance(run, Run), run
            found.setdefault(queue.id, []).append((run.first_sequence, run.id_at(0)))
            store.ack(queue, run)
    return found


@pytest.mark.parametrize("checkpoint_first", [False, True])
def test_it_is_left_out_and_explained(forged: Forged, case: str, *, checkpoint_first: bool) -> None:
    _, kept, reason = CASES[case]
    with opened(forged) as store:
        assert [one[3] for one in store.recovery_report.damage] == [reason]
        if checkpoint_first:
            store.upkeep.checkpoint()
        assert taken(store) == ({1: kept} if kept else {})
        store.publish([store.queues[1]], [Message(ENVELOPE, b"new")])
    with opened(forged) as store:
        assert store.recovery_report.damage == []
        assert {queue.id: queue.ready_count for queue in store.queues.values()} == {1: 1, 2: 0}


def test_a_start_that_is_repeated_says_the_same(forged: Forged, case: str) -> None:
    for _ in range(2):
        store = opened(forged)
        assert [one[3] for one in store.recovery_report.damage] == [CASES[case][2]]
        assert store.queues[1].ready_count == len(CASES[case][1])
        store.abandon()


def test_a_check_finds_it_and_a_repair_leaves_no_message_twice(
    forged: Forged, tmp_path: Path
) -> None:
    assert main(["check", forged.directory]) == 1
    plan = str(tmp_path / "plan")
    assert main(["repair", forged.directory, "--plan", plan]) == 0
    assert main(["repair", forged.directory, "--apply", plan]) == 0
    assert main(["check", forged.directory]) == 0
    with opened(forged) as store:
        assert store.recovery_report.damage == []
        store.upkeep.checkpoint()
        found = taken(store)
    ids = [message_id for of_queue in found.values() for _, message_id in of_queue]
    assert len(set(ids)) == len(ids)
    assert all(of_queue == sorted(of_queue) for of_queue in found.values())
