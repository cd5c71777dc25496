"""One bit comes back flipped. In a segment or an index file the damage is reported, it costs no
more than its record (its index file, while that cannot be read), and nothing wrong is ever served.
In a row of the catalog the damage is reported, and the store does not open.
"""

import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from amqpstore import MessageDamagedError, Options, Queue, Run, Store
from amqpstore.errors import CatalogDamageError
from amqpstore.format.batches import is_blank
from amqpstore.format.records import Gap, Kind, Record, scan
from amqpstore.identity import marker
from amqpstore.system.filenames import CATALOG, FIRST_COMPACTED, INDEX, index_key, segment_number
from amqpstore.system.files import Files
from amqpstore_tools.drill.observation import Observation, ObservedQueue, Seen, observe
from amqpstore_tools.drill.outside import Outside
from amqpstore_tools.simulation import stores
from amqpstore_tools.simulation.faulty_files import RottenFiles
from amqpstore_tools.simulation.memory_catalog import put_rows, stored_rows
from amqpstore_tools.simulation.memory_files import MemoryFiles
from tests.crash.histories import DIRECTORY, OPTIONS, open_store, outside_of

SEGMENTS = f"{DIRECTORY}/segments"
CATALOG_PATH = f"{DIRECTORY}/{CATALOG}"


NO_CHECKPOINTS = OPTIONS._replace(checkpoint_bytes=1 << 60, checkpoint_messages=1 << 60)
"""The next start reads all of the log, and finds what is damaged there."""


def told(outside: Outside) -> None:
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


class Kept(NamedTuple):
    """A store that was closed, and what is in it."""

    files: MemoryFiles
    whole: Observation


def look_at(files: MemoryFiles) -> Kept:
    store = open_on(files.fork(), files.fork())
    try:
        return Kept(files, observe(store))
    finally:
        store.abandon()


@functools.cache
def logged_store() -> Kept:
    """A store of a few segments without a checkpoint, whose end is noted."""
    outside = outside_of(lambda files: open_on(files, files))
    told(outside)
    outside.sync()
    outside.kill()
    open_on(outside.files, outside.files).abandon()
    return look_at(outside.files)


@functools.cache
def checkpointed_store() -> Kept:
    """A store of which everything is before its checkpoint: index files, and a merged segment."""
    outside = outside_of(open_store)
    told(outside)
    outside.create_queue("slow")
    for number in range(4):
        outside.publish(["slow"], [b"waits for long %d" % number] * 3)
        outside.publish(["audit"], [bytes(1000)])
        outside.sync()
    outside.checkpoint()
    outside.publish(["audit"], [b"the last", b"of all"])
    outside.sync()
    while outside.ready_count("audit") > 2:
        outside.take("audit", 1, acked=True)
    while outside.ready_count("orders") > 2:
        outside.take("orders", 1, acked=True)
    outside.sync()
    outside.checkpoint()
    outside.housekeep(4)
    outside.close()
    return look_at(outside.files)


def records(files: MemoryFiles) -> Iterator[tuple[str, Record]]:
    """Every record of a store's segments and index files: there is nothing between them, and behind
    them what was filled ahead of use."""
    marked = marker.read(files, DIRECTORY)
    assert marked is not None
    for directory in (SEGMENTS, f"{DIRECTORY}/{INDEX}"):
        for name in files.list_directory(directory):
            key = index_key(name)
            number = key[1] if key else segment_number(name)
            assert number
            content = files.content(f"{directory}/{name}")
            for found in scan(content, number, marked.seed):
                if isinstance(found, Gap):
                    assert is_blank(content[found.offset :])
                    break
                yield f"{directory}/{name}", found


def open_on(seen: Files, files: MemoryFiles, options: Options = NO_CHECKPOINTS) -> Store:
    return stores.open_store(DIRECTORY, files, options, seen_as=seen)


def check(path: str, record: Record, offset: int, bit: int) -> None:
    kept, whole = logged_store()
    files = kept.fork()
    store = open_on(RottenFiles(files, path, offset, bit), files)
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


def offsets(record: Record, rng: random.Random) -> list[int]:
    """Offsets in every part of a record."""
    header = range(record.offset, record.payload_offset)
    payload = range(record.payload_offset, record.end)
    return [*header[::3], *rng.sample(payload, min(10, len(payload))), record.end - 1]


def test_a_bit_in_every_part_of_every_record_of_the_log() -> None:
    rng = random.Random("bit flips")
    kinds = set()
    for path, record in records(logged_store().files):
        kinds.add(record.kind)
        for offset in offsets(record, rng):
            check(path, record, offset, rng.randrange(8))
    assert kinds == {Kind.SEGMENT, Kind.MESSAGE, Kind.TRANSACTION}


@pytest.mark.long
@pytest.mark.rounds(2)
def test_a_bit_of_every_byte_of_the_log(seed: int) -> None:
    rng = random.Random(seed)
    for path, record in records(logged_store().files):
        for offset in range(record.offset, record.end):
            check(path, record, offset, rng.randrange(8))


# What is before the checkpoint is not read at open: damage is found when a message is taken.


class Taken(NamedTuple):
    """The messages of a queue that was emptied: bodies by sequence, and the damage met."""

    bodies: dict[int, bytes]
    damaged: list[MessageDamagedError]


def drain(store: Store, queue: Queue) -> Taken:
    taken = Taken({}, [])
    while queue.ready_count:
        run = store.take(queue, 10, acked=True)
        if isinstance(run, MessageDamagedError):
            taken.damaged.append(run)
        elif isinstance(run, Run):
            sequences = range(run.first_sequence, run.end)
            bodies = [message.body for message in run.messages or ()]
            taken.bodies.update(zip(sequences, bodies, strict=True))
    return taken


def bodies_by_sequence(queue: ObservedQueue) -> dict[int, bytes]:
    return {seen.sequence: seen.payload.body for seen in queue.ready}


def check_taken(path: str, record: Record, offset: int, bit: int) -> int:
    """Flip a bit, take everything, and look what is left where the bit was never flipped.

    Returns how many messages could not be read.
    """
    kept, whole = checkpointed_store()
    files = kept.fork()
    where = f"bit {bit} at {offset} of {path}, in {record}"
    store = open_on(RottenFiles(files, path, offset, bit), files)
    assert store.recovery_report.lost == [], where
    unread: dict[int, dict[int, bytes]] = {}
    for name, seen in whole.queues.items():
        queue = store.queues[seen.id]
        before = bodies_by_sequence(seen)
        assert queue.ready_count == len(before), where
        bodies, damaged = drain(store, queue)
        assert len(damaged) <= 1, where
        if damaged and record.kind == Kind.INDEX:
            assert queue.unreadable_count == len(before) - len(bodies) > 0, where
        elif damaged:
            assert damaged[0].message_id == record.number, where
            assert [run.count for run in queue.quarantined] == [1], where
        assert list(bodies) == sorted(bodies), f"{where}: {name}"
        assert bodies.items() <= before.items(), f"{where}: {name}"
        assert len(before) - len(bodies) == queue.unreadable_count + queue.quarantined.count
        unread[seen.id] = {one: before[one] for one in sorted(before.keys() - bodies.keys())}
    store.sync()
    store.upkeep.checkpoint()
    store.upkeep.housekeep()
    store.upkeep.housekeep()
    store.abandon()
    if record.kind == Kind.MESSAGE:
        # Compaction may have met it meanwhile: what cannot be read is not kept in a new segment.
        return sum(map(len, unread.values()))
    # A disk that can be read again has exactly the messages that could not be read.
    sound = open_on(files.fork(), files.fork())
    for queue_id, bodies in unread.items():
        assert drain(sound, sound.queues[queue_id]) == Taken(bodies, []), where
    sound.abandon()
    return sum(map(len, unread.values()))


def test_a_bit_in_every_part_of_what_is_before_the_checkpoint() -> None:
    rng = random.Random("before the checkpoint")
    lost: Counter[int] = Counter()
    merged = 0
    for path, record in records(checkpointed_store().files):
        merged += (segment_number(path.rpartition("/")[2]) or 0) >= FIRST_COMPACTED
        for offset in offsets(record, rng)[::3]:
            lost[record.kind] += check_taken(path, record, offset, rng.randrange(8))
    assert merged > 3
    assert lost[Kind.MESSAGE] > 10
    assert lost[Kind.INDEX] > 10
    # Messages that are read after a checkpoint need neither kind of record.
    assert lost[Kind.SEGMENT] == lost[Kind.TRANSACTION] == 0


@pytest.mark.long
@pytest.mark.rounds(2)
def test_a_bit_of_every_byte_of_what_is_before_the_checkpoint(seed: int) -> None:
    rng = random.Random(seed)
    for path, record in records(checkpointed_store().files):
        for offset in range(record.offset, record.end):
            check_taken(path, record, offset, rng.randrange(8))


def test_rot_that_comes_after_opening_is_named_when_it_is_read() -> None:
    files, whole = logged_store()
    for path, record in records(files):
        if record.kind != Kind.MESSAGE:
            continue
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
                elif isinstance(run, Run):
                    bodies += [message.body for message in run.messages or ()]
            assert damaged in ([], [record.number])
            assert len(bodies) == len(before) - len(damaged)
            assert not Counter(bodies) - Counter(before)
        store.abandon()


# Whatever the catalog says wrongly would be wrong of all that is found by it.


def rotten_rows(files: MemoryFiles) -> Iterator[tuple[str, bytes, bytes]]:
    """Every row of a catalog, as it is stored, with one bit of key or value flipped: table, the
    key as it was, and both parts in one."""
    rng = random.Random("rows")
    for table, rows in stored_rows(files, CATALOG_PATH).items():
        for key, stored in rows.items():
            for part in (range(len(key)), range(len(key), len(key) + len(stored))):
                content = bytearray(key + stored)
                for place in {part[0], part[-1], *rng.sample(part, min(2, len(part)))}:
                    content[place] ^= 1 << rng.randrange(8)
                    yield table, key, bytes(content)
                    content[:] = key + stored


@pytest.mark.parametrize("kept", [logged_store, checkpointed_store])
def test_a_bit_of_every_row_of_the_catalog(kept: Callable[[], Kept]) -> None:
    whole = kept().files
    tables = set()
    for table, key, content in rotten_rows(whole):
        files = whole.fork()
        rows = stored_rows(files, CATALOG_PATH)
        others = {name: row for name, row in rows[table].items() if name != key}
        rotten = {**others, content[: len(key)]: content[len(key) :]}
        put_rows(files, CATALOG_PATH, {**rows, table: rotten})
        before = files.fork()
        with pytest.raises(CatalogDamageError, match=r"its checksum|it has no checksum") as raised:
            open_on(files, files)
        assert raised.value.table == table
        assert raised.value.key == content[: len(key)].decode("utf-8", "backslashreplace")
        assert stored_rows(files, CATALOG_PATH) == stored_rows(before, CATALOG_PATH)
        tables.add(table)
    assert {"store", "queues", "ends"} <= tables
    if kept is checkpointed_store:
        assert {"heads", "index", "segments", "marks"} <= tables
