"""Ready messages of a queue are read from any sequence on, and left as they are."""

import random
from pathlib import Path

import pytest

from amqpstore import Placement, Queue, Run, Store
from amqpstore.format.index import Entries, PagedFile
from amqpstore.format.limits import StoreLimits
from amqpstore.queues.browsing import Browser
from tests.unit.engine.stores import TRANSIENT, Disk, messages, queue_named

A_FILE = 16


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(str(tmp_path / "store"), limits=StoreLimits(entries_a_file=A_FILE))


def reopened(disk: Disk, store: Store) -> tuple[Store, Queue]:
    store.close()
    store = disk.open()
    return store, queue_named(store, "orders")


def browsed(store: Store, queue: Queue, first: int = 0, most: int = 5) -> list[tuple[int, str]]:
    browser = Browser(store.stored, queue)
    found = []
    while True:
        part, first = browser.read(first, most)
        assert len(part) <= most
        found += [(one.sequence, one.message.body.decode()) for one in part if one.message]
        if not first:
            return found


def test_a_page_of_a_deep_queue_is_read_without_paging_it_in(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("orders")
    store.publish([queue], messages(*[b"%d" % number for number in range(1, 401)]))
    store, queue = reopened(disk, store)
    paged = list(queue.paged)
    assert len(paged) == 400 // A_FILE
    part, following = Browser(store.stored, queue).read(200, 10)
    assert [one.sequence for one in part] == list(range(200, 200 + len(part)))
    assert [one.message.body for one in part if one.message] == [
        b"%d" % number for number in range(200, 200 + len(part))
    ]
    assert following == 200 + len(part) > 200
    assert queue.paged == paged
    assert queue.ready_count == 400
    store.close()


def test_skipping_reads_one_index_file_at_most(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    store = disk.open()
    queue = store.create_queue("orders")
    store.publish([queue], messages(*[b"%d" % number for number in range(400)]))
    store, queue = reopened(disk, store)
    reads: list[int] = []
    entries_of = store.stored.paging.entries_of

    def noted(queue: Queue, file: PagedFile) -> Entries:
        reads.append(file.number)
        return entries_of(queue, file)

    monkeypatch.setattr(store.stored.paging, "entries_of", noted)
    browser = Browser(store.stored, queue)
    sequence, left = 0, 250
    while left:
        sequence, left = browser.skip(sequence, left)
    assert sequence == 251
    assert len(reads) == 1
    store.close()


class Modelled:
    """A queue, and what is ready in it by sequence, in random steps."""

    def __init__(self, disk: Disk) -> None:
        self.draw = random.Random(7)
        self.disk = disk
        self.store = disk.open()
        self.queue = self.store.create_queue("orders")
        self.model: dict[int, str] = {}
        self.taken: list[Run] = []
        self.steps = [self.publish] * 4 + [self.take] * 3
        self.steps += [self.publish_transient, self.requeue, self.ack, self.checkpoint, self.reopen]

    def publish(self) -> None:
        first = self.queue.next_sequence
        bodies = [f"{first}-{place}" for place in range(self.draw.randrange(1, 30))]
        self.store.publish([self.queue], messages(*[body.encode() for body in bodies]))
        self.model |= dict(enumerate(bodies, first))

    def publish_transient(self) -> None:
        self.model[self.queue.next_sequence] = "transient"
        sent = messages(b"transient", envelope=TRANSIENT)
        self.store.enqueue([Placement(self.queue)], sent)

    def take(self) -> None:
        run = self.store.take(self.queue, self.draw.randrange(1, 20))
        if isinstance(run, Run):
            self.taken.append(run)
            for sequence in range(run.first_sequence, run.end):
                del self.model[sequence]

    def _are_ready_again(self, run: Run) -> None:
        for place, one in enumerate(run.messages or []):
            self.model[run.first_sequence + place] = one.body.decode()

    def _any_taken(self) -> Run:
        return self.taken.pop(self.draw.randrange(len(self.taken)))

    def requeue(self) -> None:
        if self.taken:
            run = self._any_taken()
            self._are_ready_again(run)
            self.store.requeue(self.queue, run)

    def ack(self) -> None:
        if self.taken:
            self.store.ack(self.queue, self._any_taken())

    def checkpoint(self) -> None:
        self.store.upkeep.checkpoint()

    def reopen(self) -> None:
        for run in self.taken:
            self._are_ready_again(run)
        self.taken.clear()
        self.store, self.queue = reopened(self.disk, self.store)
        self.model = {key: body for key, body in self.model.items() if body != "transient"}

    def step(self) -> list[tuple[int, str]]:
        self.draw.choice(self.steps)()
        return sorted(self.model.items())


def test_what_is_walked_is_what_is_ready_whatever_was_done_before(disk: Disk) -> None:
    """A queue with messages in index files and in memory, gaps, requeued and transient ones."""
    modelled = Modelled(disk)
    draw = modelled.draw
    for _ in range(100):
        wanted = modelled.step()
        store, queue = modelled.store, modelled.queue
        assert browsed(store, queue, most=draw.choice([1, 3, 7, 100])) == wanted
        # After some that are skipped.
        left = count = draw.randrange(len(wanted) + 2)
        browser, sequence = Browser(store.stored, queue), 0
        while left:
            sequence, left = browser.skip(sequence, left)
            if not sequence:
                break
        rest = browsed(store, queue, sequence) if sequence or not count else []
        assert rest == wanted[count:]
        # And from any sequence on, also one that is gone.
        first = draw.randrange(queue.next_sequence + 1)
        assert browsed(store, queue, first) == [row for row in wanted if row[0] >= first]
        assert queue.ready_count == len(wanted)
    modelled.store.close()
