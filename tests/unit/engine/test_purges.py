"""A purge is undone, through any restart: everything is in its old place, or gone for good."""

import random
from pathlib import Path

import pytest

from amqpstore import Placement, Purged, Queue, Run, Store
from amqpstore.format.index import Entries, IndexReader, IndexState
from amqpstore.format.limits import StoreLimits
from amqpstore.system.filenames import INDEX
from tests.unit.engine.stores import TRANSIENT, Disk, bodies, drain, messages, queue_named, take

A_FILE = 16


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(str(tmp_path / "store"), limits=StoreLimits(entries_a_file=A_FILE))


def filled(disk: Disk, count: int = 100) -> tuple[Store, Queue]:
    store = disk.open()
    queue = store.create_queue("orders")
    store.publish([queue], messages(*[b"%d" % number for number in range(count)]))
    store.sync()
    return store, queue


def purged(store: Store, *queues: Queue) -> Purged:
    found = store.purge_aside(queues, {"by": "me"})
    assert found is not None
    store.sync()
    assert found.is_durable
    return found


def only(store: Store) -> Purged:
    (found,) = store.purged.values()
    return found


def restarted(disk: Disk, store: Store, *, crashes: bool) -> tuple[Store, Queue]:
    store.abandon() if crashes else store.close()
    store = disk.open()
    return store, queue_named(store, "orders")


@pytest.mark.parametrize("restarts", ["", "crash", "close", "close crash"])
def test_an_undo_brings_everything_back_in_its_place(disk: Disk, restarts: str) -> None:
    store, queue = filled(disk)
    unacked = take(store, queue, 3)
    store.requeue(queue, take(store, queue, 1))
    assert purged(store, queue).message_count == 97
    store.publish([queue], messages(b"later"))
    store.sync()
    assert queue.ready_count == 1
    for restart in restarts.split():
        store, queue = restarted(disk, store, crashes=restart == "crash")
        assert only(store).label == {"by": "me"}
        assert only(store).message_count == 97
        assert queue.ready_count == 4  # those that were unacked are ready again
    if not restarts:
        store.requeue(queue, unacked)
    assert only(store).undo() == 97
    assert not store.purged
    assert not store.definitions.rows("prepared")
    run = store.take(queue, 1, first_sequence=4)
    assert isinstance(run, Run)
    assert run.delivery_count == 1
    store.withdrawals.put_back(queue, run)
    store.abandon()
    store = disk.open()
    queue = queue_named(store, "orders")
    assert len(store.queues) == 1
    assert drain(store, queue) == [*[b"%d" % number for number in range(100)], b"later"]
    store.close()


@pytest.mark.parametrize("restarts", ["", "crash", "close"])
def test_the_end_of_it_frees_what_was_purged(disk: Disk, restarts: str) -> None:
    store, queue = filled(disk)
    store.upkeep.checkpoint()
    files = len(list(Path(disk.directory, INDEX).iterdir()))
    assert files > 3
    purged(store, queue)
    for restart in restarts.split():
        store, queue = restarted(disk, store, crashes=restart == "crash")
    store.upkeep.checkpoint()
    assert len(list(Path(disk.directory, INDEX).iterdir())) >= files
    assert only(store).end()
    assert not store.purged
    store.sync()
    store.upkeep.checkpoint()
    assert list(Path(disk.directory, INDEX).iterdir()) == []
    assert not store.definitions.rows("prepared")
    store, queue = restarted(disk, store, crashes=True)
    assert queue.ready_count == 0
    assert len(store.queues) == 1
    store.close()


def test_a_crash_before_it_is_durable_leaves_the_messages_ready(disk: Disk) -> None:
    store, queue = filled(disk)
    assert store.purge_aside([queue], {}) is not None
    store, queue = restarted(disk, store, crashes=True)
    assert queue.ready_count == 100
    assert not store.purged
    assert len(store.queues) == 1
    store.close()


def test_a_restart_reads_no_index_file_that_was_purged_as_a_whole(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, queue = filled(disk, 20 * A_FILE + 5)
    purged(store, queue)
    store.close()
    reads: list[int] = []
    entries = IndexReader.entries

    def counted(reader: IndexReader, queue_id: int, state: IndexState) -> Entries:
        reads.append(state.number)
        return entries(reader, queue_id, state)

    monkeypatch.setattr(IndexReader, "entries", counted)
    store = disk.open()
    assert only(store).message_count == 20 * A_FILE + 5
    assert reads == []
    store.close()


def test_a_deleted_queue_takes_its_purges_with_it(disk: Disk) -> None:
    store, queue = filled(disk)
    other = store.create_queue("other")
    store.publish([other], messages(b"x"))
    purged(store, queue)
    both = purged(store, other) if queue.ready_count else None
    assert both is None
    store.publish([queue], messages(b"y"))
    purged(store, queue, other)
    store.delete_queue(queue)
    assert only(store).message_count == 1
    assert only(store).undo() == 1
    assert drain(store, other) == [b"x"]
    store.abandon()
    store = disk.open()
    assert [one.definition for one in store.queues.values()] == ["other"]
    assert not store.definitions.rows("prepared")
    store.close()


def test_transient_messages_are_gone_for_good(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("orders")
    store.enqueue([Placement(queue)], messages(b"a", b"b", envelope=TRANSIENT))
    assert store.purge_aside([queue], {}) is None
    assert queue.ready_count == 2
    store.publish([queue], messages(b"kept"))
    assert purged(store, queue).message_count == 1
    assert queue.ready_count == 0
    only(store).undo()
    assert drain(store, queue) == [b"kept"]
    store.close()


class Modelled:
    """A queue in random steps, beside what is ready in it and what was purged from it."""

    def __init__(self, disk: Disk, seed: int) -> None:
        self.draw = random.Random(seed)
        self.disk = disk
        self.store = disk.open()
        self.queue = self.store.create_queue("orders")
        self.ready: dict[int, bytes] = {}
        self.unacked: list[Run] = []
        self.purges: dict[int, dict[int, bytes]] = {}
        self.steps = [self.publish] * 4 + [self.take] * 3 + [self.checkpoint] * 2
        self.steps += [self.requeue, self.ack, self.purge, self.undo, self.end, self.reopen]

    def publish(self) -> None:
        first = self.queue.next_sequence
        sent = [b"%d" % number for number in range(first, first + self.draw.randrange(1, 40))]
        self.store.publish([self.queue], messages(*sent))
        self.ready |= dict(enumerate(sent, first))

    def take(self) -> None:
        run = self.store.take(self.queue, self.draw.randrange(1, 20))
        if isinstance(run, Run):
            self.unacked.append(run)
            for sequence in range(run.first_sequence, run.end):
                del self.ready[sequence]

    def checkpoint(self) -> None:
        self.store.sync()
        self.store.upkeep.checkpoint()

    def _any_unacked(self) -> Run | None:
        if not self.unacked:
            return None
        return self.unacked.pop(self.draw.randrange(len(self.unacked)))

    def requeue(self) -> None:
        if run := self._any_unacked():
            self.ready |= dict(enumerate(bodies(run), run.first_sequence))
            self.store.requeue(self.queue, run)

    def ack(self) -> None:
        if run := self._any_unacked():
            self.store.ack(self.queue, run)

    def purge(self) -> None:
        if found := self.store.purge_aside([self.queue], {}):
            self.purges[found.hidden.id] = self.ready
            self.ready = {}
            self.store.sync()

    def undo(self) -> None:
        if self.purges:
            number = self.draw.choice(list(self.purges))
            back = self.purges.pop(number)
            assert self.store.purged[number].undo() == len(back)
            self.ready |= back

    def end(self) -> None:
        if self.purges:
            number = self.draw.choice(list(self.purges))
            del self.purges[number]
            assert self.store.purged[number].end()

    def reopen(self) -> None:
        for run in self.unacked:
            self.ready |= dict(enumerate(bodies(run), run.first_sequence))
        self.unacked.clear()
        self.store.sync()
        crashes = self.draw.random() < 0.5
        self.store, self.queue = restarted(self.disk, self.store, crashes=crashes)

    def check(self) -> None:
        assert self.queue.ready_count == len(self.ready)
        assert {key: one.message_count for key, one in self.store.purged.items()} == {
            key: len(there) for key, there in self.purges.items()
        }
        found = [one.body for part in self.store.stored.browse(self.queue) for one in part]
        assert found == [body for _, body in sorted(self.ready.items())]


@pytest.mark.parametrize("seed", range(2))
def test_purges_come_back_or_go_whatever_happens_in_between(disk: Disk, seed: int) -> None:
    modelled = Modelled(disk, seed)
    for _ in range(60):
        modelled.draw.choice(modelled.steps)()
        modelled.check()
    modelled.store.close()
