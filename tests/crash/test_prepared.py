"""A prepared transaction of which the acks are in several index files, with the power cut."""

import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from amqpstore import Envelope, Message, Queue, Run, Store
from amqpstore.queues.withdrawals import Withdrawals
from amqpstore_tools.drill.trace import Trace
from amqpstore_tools.simulation.crash_images import crash_images
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.operations import Operation
from tests.crash.histories import DIRECTORY, open_store

ENVELOPE = Envelope("", "orders", b"\x10\x00\x02")

LOCKED = {"source": (1, 15), "other": (4, 8)}
"""Sequences that are to be acked, of twenty: six are in an index file."""


class Prepared(NamedTuple):
    """A history; from its operation `promised` on the transaction is prepared."""

    trace: Trace
    promised: int


def messages(count: int) -> list[Message]:
    return [Message(ENVELOPE, b"%d" % number) for number in range(count)]


def named(store: Store, name: str) -> Queue:
    (found,) = (queue for queue in store.queues.values() if queue.definition == name)
    return found


def taken(store: Store, queue: Queue, count: int) -> Run:
    run = store.take(queue, count)
    assert isinstance(run, Run)
    assert run.count == count
    return run


def history() -> Prepared:
    """Two queues in several index files each, a transaction prepared, a checkpoint, a restart."""
    files = MemoryFiles()
    files.make_directory(DIRECTORY.rpartition("/")[0])
    trace = Trace(files.fork())
    files.record = trace.note
    store = open_store(files)
    source, other, target = map(store.create_queue, ("source", "other", "target"))
    store.publish([source, other], messages(20))
    store.sync()
    store.upkeep.checkpoint()
    store.ack(other, taken(store, other, 3))
    transaction = store.transaction()
    transaction.ack(source, taken(store, source, 15))
    transaction.ack(other, taken(store, other, 5))
    transaction.publish([target], messages(2))
    transaction.prepare("it")
    store.sync()
    promised = len(trace.events)
    store.upkeep.checkpoint()
    store.abandon()
    store = open_store(files)
    store.publish([store.queues[source.id]], messages(1))
    store.sync()
    store.upkeep.checkpoint()
    store.abandon()
    return Prepared(trace, promised)


def locked(store: Store) -> dict[str, tuple[int, int]]:
    """First and last of the sequences that the one prepared transaction is to ack, by queue."""
    (prepared,) = store.prepared.values()
    sequences: dict[str, list[int]] = {}
    for queue, run in prepared.locked:
        sequences.setdefault(str(queue.definition), []).extend(range(run.first_sequence, run.end))
    assert all(found == [*range(found[0], found[-1] + 1)] for found in sequences.values())
    return {name: (found[0], found[-1]) for name, found in sequences.items()}


def ready(store: Store, name: str) -> list[int]:
    queue = named(store, name)
    said = queue.ready_count
    store.stored.paging.read_index(queue)
    found = [one for run in queue.ready for one in range(run.first_sequence, run.end)]
    assert len(found) == said
    return found


def check(files: MemoryFiles) -> None:
    """Check that the transaction is undecided, through a checkpoint and one more start, and that it
    can then be committed.
    """
    for _ in range(2):
        store = open_store(files)
        assert locked(store) == LOCKED
        assert [one for one in ready(store, "source") if one <= 20] == [*range(16, 21)]
        assert ready(store, "other") == [*range(9, 21)]
        assert ready(store, "target") == []
        store.upkeep.checkpoint()
        store.abandon()
    store = open_store(files)
    (prepared,) = store.prepared.values()
    prepared.commit(prepared.publishes())
    store.sync()
    store.abandon()
    store = open_store(files.power_cut({}, {}))
    assert store.prepared == {}
    assert [one for one in ready(store, "source") if one <= 20] == [*range(16, 21)]
    assert ready(store, "other") == [*range(9, 21)]
    assert ready(store, "target") == [1, 2]
    store.abandon()


def images(told: Prepared) -> Iterator[MemoryFiles]:
    """Yield what a crash may leave once it is prepared."""
    rng = random.Random("prepared")
    disk = told.trace.base.fork()
    for number, event in enumerate(told.trace.events, 1):
        if isinstance(event, Operation):
            disk.redo(event)
        if number >= told.promised:
            yield from (image.files for image in crash_images(disk, rng, 4))


def test_what_is_locked_in_several_index_files_is_locked_after_any_crash() -> None:
    count = 0
    for files in images(history()):
        check(files)
        count += 1
    assert count > 30


def test_a_lock_that_ends_with_the_first_index_file_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    withdraw_range = Withdrawals.withdraw_range

    def one_file(self: Withdrawals, queue: Queue, first: int, count: int) -> list[Run]:
        ends = [state.end for state in queue.index.values() if first < state.end]
        return withdraw_range(self, queue, first, min([count, *(end - first for end in ends)]))

    monkeypatch.setattr(Withdrawals, "withdraw_range", one_file)
    with pytest.raises(AssertionError):
        for files in images(history()):
            check(files)
