"""A shared store loses power at every operation: what its transactions promised is there.

Orders are moved: received from `orders`, which keeps a history, and sent to `done`, some of them
prepared first, some rolled back. After any crash, and the rollback of what is undecided then:

- a commit is all or none (I4), and one that returned is there (I5);
- an order is in exactly one of `orders` and the history (I7), and nothing is there that was never
  committed, nor any queue or message that cannot be reached (a leak);
- what was prepared, and only that, is undecided.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from amqpstore import Options, Run, SharedPrepared, SharedStore, SharedTransaction, Store
from amqpstore.log.batch import Batch
from amqpstore.queues.queue import Placement, Queue
from amqpstore.shared import commit_effects
from amqpstore.shared.locked_store import LockedStore
from amqpstore.system.clock import SimulatedClock
from amqpstore.transaction import Transaction
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.simulation.crash_images import crash_images
from amqpstore_tools.simulation.memory_catalog import MemoryCatalog
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.operations import Operation
from tests.crash.histories import DIRECTORY
from tests.small_limits import small_limits

OPTIONS = Options(
    segment_bytes=2500,
    memory_bytes=300,
    checkpoint_bytes=1500,
    checkpoint_ms=1 << 60,
    compaction_bytes_s=1 << 40,
    least_free_bytes=0,
    reserve_bytes=0,
    limits=small_limits(entries_a_file=6, max_runs=2),
)
ORDERS = 6


class UndoneError(Exception):
    """A transaction is to be rolled back."""


State = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[str, ...]]
"""The messages that can be received from `orders` and `done`, those in the history, and the
transactions that are undecided.
"""

START: State = (tuple(range(ORDERS)), (), (), ())


class Teller:
    """Records a history. `events` are the operations of the disk and, between them, states: one
    that a call may lead to, with False, and the same with True once the call has returned.
    """

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.files.make_directory(DIRECTORY.rpartition("/")[0])
        self.events: list[Operation | tuple[State, bool]] = []
        self.state = START

    def open(self) -> SharedStore:
        return open_shared(self.files)

    def may(self, call: Callable[[], object], state: State) -> None:
        """A call that leads to a state, once it returned."""
        self.events.append((state, False))
        call()
        self.events.append((state, True))
        self.state = state

    def received(self, shared: SharedStore, count: int) -> SharedTransaction:
        """A transaction that moves some orders. It has begun."""
        transaction = shared.transaction().__enter__()
        for one in transaction.receive("orders", limit=count, timeout_s=0):
            transaction.send("done", [one.body])
        return transaction

    def moved(self, count: int, undecided: tuple[str, ...] = ()) -> State:
        orders, done, history, _ = self.state
        moved = orders[:count]
        return orders[count:], done + moved, history + moved, undecided

    def locked(self, count: int, label: str) -> State:
        orders, done, history, undecided = self.state
        return orders[count:], done, history, (*undecided, label)

    def tell(self) -> MemoryFiles:
        """Returns the disk before it."""
        shared = self.open()
        shared.declare("orders", history_length=100)
        shared.declare("done")
        with shared.transaction() as transaction:
            transaction.send("orders", [body(number) for number in range(ORDERS)])
        base = self.files.fork()
        self.files.record = self.events.append
        self.may(self.received(shared, 1).commit, self.moved(1))
        undone = self.received(shared, 2)
        undone.rollback()
        self.may(self.received(shared, 2).commit, self.moved(2))
        begun = self.received(shared, 1)
        # Who waits for the disk takes along what others have done, and not committed.
        transaction = shared.transaction().__enter__()
        transaction.send("done", [body(99)])
        orders, done, history, undecided = self.state
        self.may(transaction.commit, (orders, (*done, 99), history, undecided))
        before = self.state
        prepare = functools.partial(begun.prepare, "t")
        self.may(prepare, self.locked(1, "t"))
        shared.abandon()
        shared = self.open()
        left = shared.prepared()
        if not left:
            return base  # It is lost: what was promised so far says so.
        (prepared,) = left
        orders, done, history, _ = before
        after = orders[1:], (*done, orders[0]), (*history, orders[0]), ()
        self.may(prepared.commit, after)
        orders = self.state[0]
        held: list[SharedPrepared] = []
        self.may(lambda: held.append(self.received(shared, 1).prepare("u")), self.locked(1, "u"))
        self.may(held[0].rollback, (orders, *self.state[1:3], ()))
        self.may(self.received(shared, 2).commit, self.moved(2))
        shared.abandon()
        return base


def open_shared(files: MemoryFiles) -> SharedStore:
    return SharedStore.open(
        DIRECTORY,
        files=files,
        open_catalog=functools.partial(MemoryCatalog, files),
        options=OPTIONS,
        worker=InlineWorker(),
        clock=SimulatedClock(1_000),
    )


def body(number: int) -> bytes:
    return b"%d " % number + b"the same " * 20


def number_of(content: bytes) -> int:
    return int(content.split()[0])


def state_of(shared: SharedStore) -> State:
    """Return what is there. It is in no order that two crashes could not change: sorted."""
    undecided = tuple(prepared.label for prepared in shared.prepared())
    found: dict[str, list[int]] = {}
    for name in ("orders", "done"):
        transaction = shared.transaction().__enter__()
        found[name] = []
        if (state := shared.find(name)) and state.ready_count:
            received = transaction.receive(name, limit=1000, timeout_s=0)
            found[name] = [number_of(one.body) for one in received]
        transaction.rollback()
    history = [number_of(one.message.body) for one in shared.history("orders")]
    return tuple(found["orders"]), tuple(found["done"]), tuple(history), undecided


def leaks(shared: SharedStore) -> list[str]:
    """Return the queues of the store that belong neither to a session nor to a prepared
    transaction.
    """
    store = shared._locked_store.store
    named = {one.queue.id for one in shared._queues}
    named |= {one.history.queue.id for one in shared._queues if one.history}
    return [str(queue.definition) for key, queue in store.queues.items() if key not in named]


def violations() -> Iterator[str]:
    """Yield what is wrong with any of the disks that a crash may leave."""
    teller = Teller()
    disk = teller.tell()
    promised = possible = START
    rng = random.Random("shared")
    for event in teller.events:
        if isinstance(event, tuple) and isinstance(event[1], bool):
            possible, is_promised = event
            promised = possible if is_promised else promised
            continue
        disk.redo(event)
        for image in crash_images(disk, rng, 6):
            yield from examine(image.files, {promised, possible}, f"{event} ({image.description})")


def examine(files: MemoryFiles, allowed: set[State], where: str) -> Iterator[str]:
    shared = open_shared(files)
    try:
        found = state_of(shared)
        if found not in allowed:
            yield f"{found} and not one of {allowed} at {where}"
        for prepared in shared.prepared():
            prepared.rollback()
        if leaked := leaks(shared):
            yield f"leaked {leaked} at {where}"
        orders, done, history, undecided = state_of(shared)
        if sorted((*orders, *history)) != list(range(ORDERS)) or undecided:
            yield f"I7: {orders} and {history} at {where}"
        if sorted(set(done) - {99}) != sorted(history):
            yield f"I4: {done} and {history} at {where}"
    finally:
        shared.abandon()


def test_whatever_the_power_cut_meets_what_was_promised_holds() -> None:
    assert list(violations()) == []


def acked_when_received(store: Store, queue: Queue, limit: int) -> Run | None:
    found = TAKE(store, queue, limit, acked=True)
    assert found is None or isinstance(found, Run)
    return found


TAKE = Store.take


def is_told(store: Store) -> bool:
    """Tell whether the history has begun: a bug before it would break what it starts from."""
    return cast("MemoryFiles", store.log._descriptors.files).record is not None


def sent_at_once(self: SharedTransaction, queue: str, messages: list[bytes]) -> None:
    """The messages are in the log, and ready, before the commit."""
    SEND(self, queue, messages)
    if is_told(self._locked_store.store):
        publish = self._sends.pop().publish
        self._locked_store.store.enqueue(publish.placements, publish.messages)


def sent_not_ready(self: SharedTransaction, queue: str, messages: list[bytes]) -> None:
    """The messages wait in a queue of their own for the commit. No start looks for it."""
    SEND(self, queue, messages)
    store = self._locked_store.store
    if is_told(store):
        aside = store.create_queue({"library": 1, "history_of": "?"})
        store.enqueue([Placement(aside)], self._sends[-1].publish.messages)
        store.sync()
        store.delete_queue(aside)


SEND = SharedTransaction.send


def copied_apart(
    store: Store, queues: object, received: list[tuple[Queue, Run]], now_ms: int
) -> list[object]:
    """The history is written in a batch of its own."""
    for publish in COPIES(store, queues, received, now_ms):  # type: ignore[arg-type]
        store.enqueue(publish.placements, publish.messages)
        store.sync()
    return []


COPIES = commit_effects.copies


def committed_in_two(self: Transaction) -> None:
    """Make what is sent durable before what was received is acked."""
    for publish in self._publishes:
        self._store.enqueue(publish.placements, publish.messages)
    self._store.sync()
    for queue, run in self._acks.runs:
        self._store.ack(queue, run)
    self._has_ended = True


def written_later(self: LockedStore) -> None:
    """A commit returns when its batch was taken, and the next one writes it."""
    log = self.store.log
    if not is_told(self.store):
        WAIT(self)
    elif batch := log.seal(0):
        log.complete(batch)
        if LATE:
            log.write(LATE.pop())
        LATE.append(batch)


LATE: list[Batch] = []
WAIT = LockedStore.wait_durable


@pytest.mark.parametrize(
    ("target", "bug"),
    [
        ("amqpstore.store.Store.take", acked_when_received),
        ("amqpstore.shared.transaction.SharedTransaction.send", sent_at_once),
        ("amqpstore.shared.commit_effects.copies", copied_apart),
        ("amqpstore.transaction.Transaction.commit", committed_in_two),
        ("amqpstore.shared.transaction.SharedTransaction.send", sent_not_ready),
        ("amqpstore.shared.locked_store.LockedStore.wait_durable", written_later),
    ],
)
def test_a_broken_copy_is_caught(
    monkeypatch: pytest.MonkeyPatch, target: str, bug: Callable[..., object]
) -> None:
    LATE.clear()
    monkeypatch.setattr(target, bug)
    assert next(violations(), None)
