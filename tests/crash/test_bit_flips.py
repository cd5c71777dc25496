"""One bit of a segment comes back flipped: it is named, and costs no more than its record."""

import functools
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from amqpstore import MessageDamagedError, Store, marker
from amqpstore.records import Gap, Kind, Record, checksum_seed, scan
from amqpstore.worker import InlineWorker
from tests.crash.histories import DIRECTORY, OPTIONS, open_store, outside_of
from tools.drill.faulty_files import RottenFiles
from tools.drill.memory_catalog import MemoryCatalog
from tools.drill.memory_files import MemoryFiles
from tools.drill.observation import Observation, Seen, observe

SEGMENTS = f"{DIRECTORY}/segments"


@functools.cache
def closed_store() -> tuple[MemoryFiles, Observation]:
    """A store of a few segments that was closed in order, and what is in it."""
    outside = outside_of(open_store)
    outside.open()
    outside.create_queue("orders")
    outside.create_queue("audit")
    for size in (40, 700, 0, 1500, 20, 900, 300, 1100):
        outside.publish(["orders", "audit"], [random.Random(size).randbytes(size), b"small"])
        outside.publish(["audit"], [b"only here"])
        outside.sync()
        outside.take("orders", 1)
        outside.take("orders", 1)
        outside.sync()
        outside.ack("orders")
    outside.close()
    store = open_store(outside.files)
    try:
        return outside.files, observe(store)
    finally:
        store.abandon()


def records() -> Iterator[tuple[str, Record]]:
    """Every record of the closed store, with its path: there is nothing between them."""
    files, _ = closed_store()
    store_id = marker.read(files, DIRECTORY)
    assert store_id is not None
    seed = checksum_seed(store_id.bytes)
    for number, name in enumerate(files.list_directory(SEGMENTS), 1):
        path = f"{SEGMENTS}/{name}"
        for found in scan(files.content(path), number, seed):
            assert not isinstance(found, Gap)
            yield path, found


def open_rotten(path: str, offset: int, bit: int) -> Store:
    files = closed_store()[0].fork()
    return open_on(RottenFiles(files, path, offset, bit), files)


def open_on(rotten: RottenFiles, files: MemoryFiles) -> Store:
    return Store.open(
        DIRECTORY,
        files=rotten,
        open_catalog=functools.partial(MemoryCatalog, files),
        options=OPTIONS,
        worker=InlineWorker(),
    )


def check(path: str, record: Record, offset: int, bit: int) -> None:
    _, whole = closed_store()
    store = open_rotten(path, offset, bit)
    try:
        seen = observe(store)
    finally:
        store.abandon()
    where = f"bit {bit} at {offset} of {path}, in {record}"
    assert seen.faults == (), where
    named = [(damaged, at, at + size) for damaged, at, size, _ in seen.report.damage if size]
    assert any(damaged == path and at <= offset < end for damaged, at, end in named), where
    sequences = {
        name: {message.sequence for message in queue.ready} for name, queue in seen.queues.items()
    }
    for name, queue in whole.queues.items():
        before = {message.sequence: message for message in queue.ready}
        for message in seen.queues[name].ready:
            check_served(message, before, record, where)
        missing = before.keys() - sequences[name]
        lost = {sequence for queue_id, sequence, _ in seen.report.lost if queue_id == queue.id}
        if record.kind == Kind.TRANSACTION:
            # It said which messages there are, so what it enqueued cannot be named one by one.
            assert lost == set(), where
            continue
        assert missing == lost, where
        ids = {message_id for _, _, message_id in seen.report.lost}
        assert ids <= ({record.number} if record.kind == Kind.MESSAGE else set()), where


def check_served(message: Seen, before: dict[int, Seen], record: Record, where: str) -> None:
    """Served is only what was published, byte for byte; and, where the record of an ack was
    damaged, perhaps what had been acked."""
    if message.sequence in before:
        assert message.payload == before[message.sequence].payload, where
    else:
        assert record.kind == Kind.TRANSACTION, where
        assert message.payload.body in all_bodies(), where


@functools.cache
def all_bodies() -> set[bytes]:
    sizes = (40, 700, 0, 1500, 20, 900, 300, 1100)
    return {b"small", b"only here", *(random.Random(size).randbytes(size) for size in sizes)}


def test_a_bit_in_every_part_of_every_record() -> None:
    rng = random.Random("bit flips")
    kinds = set()
    for path, record in records():
        kinds.add(record.kind)
        header = range(record.offset, record.payload_offset)
        payload = range(record.payload_offset, record.end)
        offsets = [*header[::3], *rng.sample(payload, min(10, len(payload))), record.end - 1]
        for offset in offsets:
            check(path, record, offset, rng.randrange(8))
    assert kinds == set(Kind)


@pytest.mark.long
def test_every_bit() -> None:
    for path, record in records():
        for offset in range(record.offset, record.end):
            for bit in range(8):
                check(path, record, offset, bit)


def test_rot_that_comes_after_opening_is_named_when_it_is_read() -> None:
    for path, record in records():
        if record.kind != Kind.MESSAGE:
            continue
        files, whole = closed_store()
        rotten = RottenFiles(files.fork(), path, record.end - 1, 0)
        rotten.is_rotten = False
        store = open_on(rotten, files.fork())
        rotten.is_rotten = True
        names = {queue.id: name for name, queue in whole.queues.items()}
        for queue in store.queues.values():
            before = [seen.payload.body for seen in whole.queues[names[queue.id]].ready]
            bodies: list[bytes] = []
            damaged: list[int] = []
            while queue.ready_count:
                run = store.take(queue, 10)
                if isinstance(run, MessageDamagedError):
                    damaged.append(run.message_id)
                else:
                    bodies += [message.body for message in run.messages or ()]
            assert damaged in ([], [record.number])
            assert len(bodies) == len(before) - len(damaged)
            assert not Counter(bodies) - Counter(before)
        store.abandon()
