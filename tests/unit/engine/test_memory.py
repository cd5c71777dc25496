"""Memory: bodies beyond the budget are dropped once they are durable, and read back when taken."""

from pathlib import Path

import pytest

import amqpstore.queues.memory
from amqpstore import Envelope, Message, Placement, Queue, Run, Store
from amqpstore.format.runs import overhead_bytes
from tests.unit.engine.stores import TRANSIENT, Disk, bodies, drain, messages, take

BODY = b"x" * 1000
LEAST_SHARE = 64 << 10
BUDGET = 1_600_000
PLENTY = 200_000
EXPIRES_MS = 1_000


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    disk = Disk(str(tmp_path / "store"))
    disk.options = disk.options._replace(memory_bytes=BUDGET)
    return disk


def publish(store: Store, queue: Queue, count: int, body: bytes = BODY) -> None:
    for _ in range(count):
        store.publish([queue], messages(body))
    store.sync()


def in_memory(queue: Queue) -> int:
    """Bytes of bodies in the queue's runs."""
    return sum(len(one.body) for run in queue.ready for one in run.messages or [])


def held(queue: Queue) -> int:
    """Return what the queue's runs have in memory, of bodies and all that belongs to them."""
    return in_memory(queue) + sum(overhead_bytes(run.messages or []) for run in queue.ready)


def check(store: Store) -> None:
    """Check that the counts agree with what is there."""
    assert [queue.memory_bytes for queue in store.queues.values()] == [
        held(queue) for queue in store.queues.values()
    ]
    assert store.memory.memory_bytes == sum(queue.memory_bytes for queue in store.queues.values())


def test_bodies_within_the_budget_stay(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    publish(store, queue, 140)
    assert in_memory(queue) == 140_000
    check(store)
    store.abandon()


def test_bodies_of_many_runs_are_dropped_a_few_at_a_time(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amqpstore.queues.memory, "_MAX_DROPPED", 100)
    store = disk.open()
    queue = store.create_queue("q")
    store.memory.set_lazy(queue, lazy=True)
    for _ in range(250):
        store.publish([queue], messages(BODY), expires_ms=EXPIRES_MS << 40)
    for left in (150_000, 50_000, 0):
        store.sync()
        assert in_memory(queue) == left
        check(store)
    store.abandon()


def test_bodies_beyond_the_budget_are_dropped_and_read_back_in_order(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    written = [b"%d" % number * 300 for number in range(1000)]
    for body in written:
        store.publish([queue], messages(body))
        store.sync()
    # An eighth of the budget is for all queues, and a queue has its least share in any case.
    assert in_memory(queue) <= PLENTY + LEAST_SHARE
    assert queue.ready.first.messages is not None
    assert any(run.messages is None for run in queue.ready)
    check(store)
    assert drain(store, queue) == written
    check(store)
    store.abandon()


def test_a_body_stays_until_it_is_durable(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    for _ in range(1000):
        store.publish([queue], messages(BODY))
    store.upkeep.housekeep()
    assert in_memory(queue) == 1_000_000
    store.sync()
    assert in_memory(queue) <= PLENTY + LEAST_SHARE
    check(store)
    store.abandon()


def test_what_was_dropped_is_one_run_again(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    publish(store, queue, 2000)
    assert len(queue.ready) < 300
    assert queue.ready_count == 2000
    store.abandon()


def test_a_lazy_queue_keeps_no_body(disk: Disk) -> None:
    store = disk.open()
    queue, other = store.create_queue("q"), store.create_queue("other")
    store.memory.set_lazy(queue, lazy=True)
    publish(store, queue, 10)
    publish(store, other, 10)
    assert (in_memory(queue), in_memory(other)) == (0, 10_000)
    assert len(queue.ready) == 1
    check(store)
    assert drain(store, queue) == [BODY] * 10
    store.abandon()


def test_a_lazy_queue_keeps_no_transient_body_either(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    store.memory.set_lazy(queue, lazy=True)
    for number in range(10):
        store.publish([queue], messages(b"%d" % number, envelope=TRANSIENT))
    store.sync()
    store.upkeep.housekeep()
    assert in_memory(queue) == 0
    check(store)
    assert drain(store, queue) == [b"%d" % number for number in range(10)]
    store.abandon()


def test_a_requeued_body_of_a_lazy_queue_is_dropped_again(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    store.memory.set_lazy(queue, lazy=True)
    publish(store, queue, 3)
    store.requeue(queue, take(store, queue, 1))
    assert in_memory(queue) == 1000
    store.upkeep.housekeep()
    assert in_memory(queue) == 0
    run = take(store, queue, 1)
    assert (run.delivery_count, bodies(run)) == (1, [BODY])
    check(store)
    store.abandon()


def test_a_queue_that_is_lazy_from_now_on_keeps_no_further_body(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    publish(store, queue, 5)
    store.memory.set_lazy(queue, lazy=True)
    publish(store, queue, 5)
    assert in_memory(queue) <= 5000
    store.memory.set_lazy(queue, lazy=False)
    publish(store, queue, 5)
    assert queue.ready.last.messages is not None
    check(store)
    assert drain(store, queue) == [BODY] * 15
    store.abandon()


def test_a_queue_that_becomes_lazy_drops_the_bodies_that_it_has(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    publish(store, queue, 5)
    store.memory.set_lazy(queue, lazy=True)
    store.upkeep.housekeep()
    publish(store, queue, 1)
    assert in_memory(queue) == 0
    store.abandon()


def test_the_shares_follow_the_rates(disk: Disk) -> None:
    store = disk.open()
    fast, slow, idle = (store.create_queue(name) for name in ("fast", "slow", "idle"))
    for _ in range(12):
        fast.taken_bytes, slow.taken_bytes = 300_000, 100_000
        store.memory.share(list(store.queues.values()))
    assert idle.share_bytes == 0
    assert sum(queue.share_bytes for queue in (fast, slow)) <= BUDGET
    assert fast.share_bytes == pytest.approx(BUDGET * 3 / 4, rel=0.01)
    assert slow.share_bytes == pytest.approx(BUDGET / 4, rel=0.01)
    for _ in range(30):
        store.memory.share(list(store.queues.values()))
    assert (fast.share_bytes, slow.share_bytes) == (0, 0)
    store.abandon()


def test_a_queue_that_is_emptied_keeps_more_than_one_that_is_not(disk: Disk) -> None:
    store = disk.open()
    fast, idle = store.create_queue("fast"), store.create_queue("idle")
    publish(store, fast, 300)
    assert drain(store, fast) == [BODY] * 300
    for _ in range(8):
        fast.taken_bytes = 1
        store.memory.share(list(store.queues.values()))
    for _ in range(40):
        publish(store, idle, 20)
        publish(store, fast, 10)
    assert in_memory(idle) <= PLENTY
    assert held(fast) >= 350_000
    check(store)
    store.abandon()


@pytest.mark.parametrize("how", ["take", "purge", "delete", "expire", "drop"])
def test_nothing_is_held_when_everything_is_gone(disk: Disk, how: str) -> None:
    store = disk.open()
    first, second = store.create_queue("one"), store.create_queue("two")
    for number in range(600):
        placements = [Placement(queue, EXPIRES_MS) for queue in (first, second)]
        store.enqueue(placements, messages(BODY, b"%d" % number))
        store.sync()
    for queue in (first, second):
        if how == "take":
            drain(store, queue)
        elif how == "purge":
            assert store.purge(queue) == 1200
        elif how == "expire":
            while run := store.withdrawals.withdraw_expired(queue, EXPIRES_MS, bodies=False):
                assert isinstance(run, Run)
                store.ack(queue, run)
        elif how == "drop":
            while run := store.withdrawals.withdraw(queue, 100):
                assert isinstance(run, Run)
                store.ack(queue, run)
        else:
            store.delete_queue(queue)
    assert store.memory.memory_bytes == 0
    store.upkeep.housekeep()
    assert store.memory.memory_bytes == 0
    store.abandon()


HEADERS = b"h" * 10_000


def with_headers(number: int, *, persistent: bool = True) -> list[Message]:
    """An empty message with properties of its own."""
    properties = b"%d" % number + HEADERS
    return [Message(Envelope("", "q", properties, persistent=persistent), b"")]


@pytest.mark.parametrize("persistent", [True, False])
def test_properties_leave_memory_as_bodies_do(disk: Disk, persistent: bool) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    for number in range(300):
        store.publish([queue], with_headers(number, persistent=persistent))
        store.sync()
    # Transient ones would have to be written first.
    assert held(queue) <= (PLENTY if persistent else BUDGET // 2) + LEAST_SHARE
    check(store)
    for number in range(300):
        (message,) = take(store, queue, 1).messages or []
        assert message.envelope.properties == b"%d" % number + HEADERS
        check(store)
    store.abandon()


def test_an_envelope_of_neighbours_counts_once_and_until_the_last_is_gone(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    shared, other = (with_headers(number)[0].envelope for number in range(2))
    envelopes = [shared, shared, other, other, shared, shared]
    store.publish([queue], [Message(envelope, b"body") for envelope in envelopes])
    assert 6 * len(HEADERS) < queue.memory_bytes < 6.5 * len(HEADERS)
    check(store)
    runs = []
    for left in (6, 4, 4, 2, 2, 0):
        runs.append(take(store, queue, 1))
        assert left * len(HEADERS) <= queue.memory_bytes < (left + 0.5) * len(HEADERS)
        assert runs[-1].body_bytes == len(b"body")
        check(store)
    for run in runs:
        store.requeue(queue, run)
        check(store)
    store.abandon()


def test_large_envelopes_that_were_read_back_are_not_remembered(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    store.memory.set_lazy(queue, lazy=True)
    for number in range(100):
        store.publish([queue], with_headers(number))
    store.sync()
    drain(store, queue)
    assert not store.log._decoder.envelopes
    store.abandon()


def test_an_envelope_counts_for_what_stays_on_both_sides(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    (shared,) = {message.envelope for message in with_headers(0)}
    store.publish([queue], [Message(shared, b"body")] * 6)
    store.withdrawals.withdraw_range(queue, 2, 1)
    check(store)
    store.withdrawals.withdraw(queue, 1, first_sequence=4)
    check(store)
    store.abandon()


def test_transient_messages_do_not_wait_for_housekeeping_to_leave_memory(disk: Disk) -> None:
    disk.options = disk.options._replace(memory_bytes=400_000)
    store = disk.open()
    queue = store.create_queue("q", durable=False)
    for number in range(200):
        store.publish([queue], with_headers(number, persistent=False))
        assert held(queue) <= 900_000
        check(store)
    store.abandon()


def test_a_look_at_a_transient_message_finds_it_however_short_memory_is(disk: Disk) -> None:
    """A count of bytes asks for the message's size, and no message would mean any size."""
    disk.options = disk.options._replace(memory_bytes=1_000)
    store = disk.open()
    queue = store.create_queue("q")
    written = [b"%d" % number * 300 for number in range(10)]
    store.publish([queue], messages(*written, envelope=TRANSIENT))
    assert in_memory(queue) == 0
    for body in written:
        for _ in range(2):
            message = store.withdrawals.peek(queue)
            assert message is not None
            assert message.body == body
        assert bodies(take(store, queue, 1)) == [body]
    check(store)
    store.abandon()


def test_transient_messages_of_many_queues_leave_memory_a_few_at_a_time(disk: Disk) -> None:
    """Each is a write to a file: those of a fan-out to 1,000 queues would hold up all clients."""
    disk.options = disk.options._replace(memory_bytes=400_000)
    store = disk.open()
    queues = [store.create_queue(number, durable=False) for number in range(600)]
    store.publish(queues, [Message(TRANSIENT, BODY)])
    before = len([queue for queue in queues if in_memory(queue)])
    store.upkeep.housekeep()
    left = len([queue for queue in queues if in_memory(queue)])
    assert 0 < before - left <= 128
    for _ in range(5):
        store.upkeep.housekeep()
    assert store.memory.memory_bytes <= 400_000
    assert [bodies(take(store, queue, 1)) for queue in queues] == [[BODY]] * 600
    check(store)
    store.abandon()


def test_transient_messages_are_written_out_a_few_at_a_time(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amqpstore.queues.memory, "_MAX_MESSAGES_ASIDE", 100)
    store = disk.open()
    queue = store.create_queue("q")
    store.memory.set_lazy(queue, lazy=True)
    for _ in range(50):
        store.publish([queue], messages(*[b"x" * 100] * 10, envelope=TRANSIENT))
    for left in range(500 - 100, -1, -100):
        store.upkeep.housekeep()
        assert in_memory(queue) == 100 * left
    check(store)
    store.abandon()
