"""Messages expire, or are withdrawn, and are moved: the power is cut at every operation of it.

What is withdrawn is in no hand and in no log. So a move of it, a transaction that publishes and
acks, is all that a crash can take back: after any crash each message is in exactly one of the two
queues (I7), in the second once that was promised (I5), and no message of the first counts as
delivered (I5).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from amqpstore import Envelope, Message, Options, Queue, Run, Store
from amqpstore.catalog import tables
from amqpstore.queues.unacked import Unacked
from amqpstore.queues.withdrawals import Withdrawals
from amqpstore_tools.simulation import stores
from amqpstore_tools.simulation.crash_images import crash_images
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.operations import Operation
from tests.crash.histories import DIRECTORY
from tests.small_limits import small_limits
from tests.store_of_withdrawals import noted_stores

ENVELOPE = Envelope("", "q", b"\x10\x00\x02")
OPTIONS = Options(
    segment_bytes=2500,
    memory_bytes=300,
    checkpoint_bytes=1500,
    checkpoint_ms=1 << 60,
    compaction_bytes_s=1 << 40,
    reserve_bytes=0,
    limits=small_limits(entries_a_file=3, max_runs=1),
)

TIMES_MS = [40, 10, 0, 30, 0, 20, 50, 0, 60, 0, 0, 5]
"""The time when each message expires: 0 is never."""

Events = list[Operation | set[int]]
"""Operations of the disk and, between them, the messages whose moves were promised by then."""


def open_store(files: MemoryFiles) -> Store:
    return stores.open_store(DIRECTORY, files, OPTIONS)


def queues_of(store: Store) -> dict[str, Queue]:
    return {str(queue.definition): queue for queue in store.queues.values()}


def body(number: int) -> bytes:
    return b"%d " % number + bytes([number]) * (50 + 90 * (number % 3))


def numbers_of(run: Run) -> list[int]:
    assert run.messages is not None
    return [int(message.body.split()[0]) for message in run.messages]


class History:
    """Fills `source`, and moves what has expired, and then the rest, to `target`.

    What was withdrawn is given back now and then, and checkpoints come in between.
    """

    def __init__(self) -> None:
        self.events: Events = []
        self.moved: set[int] = set()
        files = stores.new_disk(DIRECTORY)
        self.store = open_store(files)
        source, target = self.store.create_queue("source"), self.store.create_queue("target")
        for number, expires_ms in enumerate(TIMES_MS):
            message = [Message(ENVELOPE, body(number))]
            self.store.publish([source], message, expires_ms=expires_ms)
        self.store.sync()
        self.store.upkeep.checkpoint()
        assert source.paged
        self.base = files.fork()
        files.record = self.events.append
        self._move_all(source, target)
        self.store.abandon()

    def _move_all(self, source: Queue, target: Queue) -> None:
        for now_ms in (7, 20, 45):
            held = self._expired(source, now_ms)
            if held is not None and now_ms == 20:
                # The target was full, say. It is moved the next time.
                self.store.withdrawals.put_back(source, held)
                self.store.upkeep.checkpoint()
                held = self._expired(source, now_ms)
            while held is not None:
                self._move(source, held, target)
                held = self._expired(source, now_ms)
        while (run := self.store.withdrawals.withdraw(source, 2)) is not None:
            assert isinstance(run, Run)
            # Something else becomes durable, and a checkpoint is made, while it is in no queue.
            self.store.create_queue(f"other-{run.first_sequence}")
            self.store.publish([target], [Message(ENVELOPE, b"-1 in between")])
            self.store.sync()
            self.store.upkeep.checkpoint()
            self._move(source, run, target)

    def _expired(self, source: Queue, now_ms: int) -> Run | None:
        run = self.store.withdrawals.withdraw_expired(source, now_ms, bodies=True)
        assert run is None or isinstance(run, Run)
        return run

    def _move(self, source: Queue, run: Run, target: Queue) -> None:
        numbers = numbers_of(run)
        with self.store.transaction() as transaction:
            transaction.publish([target], run.messages or [])
            transaction.ack(source, run)
        self.store.sync()
        self.moved |= set(numbers)
        self.events.append(set(self.moved))


def drained(store: Store, queue: Queue) -> tuple[list[int], set[int]]:
    """The numbers of the messages in a queue, and their delivery counts."""
    found: list[int] = []
    counts: set[int] = set()
    while (run := store.take(queue, 100)) is not None:
        assert isinstance(run, Run), run
        counts.add(run.delivery_count)
        found += [number for number in numbers_of(run) if number >= 0]
    return found, counts


def violations() -> Iterator[str]:
    """Yield what is wrong with any of the disks that a crash may leave."""
    history = History()
    assert history.moved == set(range(len(TIMES_MS)))
    disk = history.base
    promised: set[int] = set()
    rng = random.Random("expiry")
    for event in history.events:
        if isinstance(event, set):
            promised = event
            continue
        disk.redo(event)
        for image in crash_images(disk, rng, 10):
            where = f"at {event} ({image.description})"
            store = open_store(image.files)
            queues = queues_of(store)
            first_ms = store.withdrawals.next_expiry(queues["source"])
            source, counts = drained(store, queues["source"])
            target, _ = drained(store, queues["target"])
            store.abandon()
            if sorted(source + target) != list(range(len(TIMES_MS))):
                yield f"I7 {where}: {source} and {target}"
            if source != sorted(source):
                yield f"I6 {where}: {source}"
            if not promised <= set(target):
                yield f"I5 {where}: {promised} were moved, and {target} are there"
            if counts - {0}:
                yield f"I5 {where}: delivered {counts} times, and nobody got them"
            left_ms = [TIMES_MS[number] for number in source if TIMES_MS[number]]
            if (first_ms > 0) < bool(left_ms) or first_ms > min(left_ms, default=first_ms):
                yield f"next_expiry {where}: {first_ms}, of {left_ms}"


def test_what_expires_or_is_withdrawn_is_in_exactly_one_queue() -> None:
    assert list(violations()) == []


def acks_come_first(patch: pytest.MonkeyPatch) -> None:
    """Drop a message, and only then publish it elsewhere."""
    stores = noted_stores(patch)
    withdraw_expired = Withdrawals.withdraw_expired

    def dropped(self: Withdrawals, queue: Queue, now_ms: int, *, bodies: bool) -> object:
        run = withdraw_expired(self, queue, now_ms, bodies=bodies)
        if isinstance(run, Run):
            stores[self].ack(queue, run)
            stores[self].sync()
        return run

    patch.setattr(Withdrawals, "withdraw_expired", dropped)


def what_is_withdrawn_counts_as_delivered(patch: pytest.MonkeyPatch) -> None:
    stores = noted_stores(patch)
    withdraw = Withdrawals.withdraw
    takes: list[Queue] = []

    def taken(
        self: Withdrawals,
        queue: Queue,
        limit: int,
        first_sequence: int = 0,
        *,
        in_chunks: bool = False,
    ) -> object:
        if takes:
            return withdraw(self, queue, limit, first_sequence, in_chunks=in_chunks)
        takes.append(queue)
        try:
            return stores[self].take(
                queue, limit, first_sequence=first_sequence, in_chunks=in_chunks
            )
        finally:
            takes.pop()

    patch.setattr(Withdrawals, "withdraw", taken)
    # What was taken leaves memory where it is too much, and this history moves what it has there.
    patch.setattr(Unacked, "let_go", lambda *_: None)


def the_catalog_does_not_know_of_expiry(patch: pytest.MonkeyPatch) -> None:
    row = tables.INDEX.row
    patch.setattr(tables.INDEX, "row", lambda state: {**row(state), "expires_ms": 0})


BUGS: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    acks_come_first: "I7",
    what_is_withdrawn_counts_as_delivered: "I5",
    the_catalog_does_not_know_of_expiry: "next_expiry",
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_is_caught(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    assert any(found.startswith(BUGS[bug]) for found in violations())
