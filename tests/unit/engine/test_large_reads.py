"""Large messages on disk are read in parts if the caller asks for that."""

from pathlib import Path

import pytest

from amqpstore import MessageDamagedError, Options, PartlyReadError, Queue, Run, Store
from amqpstore.format.limits import StoreLimits
from amqpstore.system.clock import SimulatedClock
from tests.unit.engine.stores import TRANSIENT, Disk, bodies, messages, queue_named

LARGE = bytes(range(256)) * 40
CHUNKS = 11
"""Calls that read LARGE, with the one that finds it."""

LIMITS = StoreLimits(table_step_bytes=500, read_ahead_bytes=1000, read_chunk_bytes=1024)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    """Queues one to three, each with a small, a large and a small message, on disk only."""
    disk = Disk(str(tmp_path / "store"), clock=SimulatedClock(1_700_000_000_000), limits=LIMITS)
    store = disk.open()
    for name in ("one", "two", "three"):
        store.publish([store.create_queue(name)], messages(b"before", LARGE, b"after"))
    store.close()
    return disk


def attempts(store: Store, queue: Queue) -> tuple[int, list[bytes]]:
    """Take a run once it is there; return how many calls that took, and the run."""
    for count in range(1, 100):
        found = store.take(queue, 1, in_chunks=True)
        if isinstance(found, Run):
            return count, bodies(found)
        assert isinstance(found, PartlyReadError)
    raise AssertionError("it is never there")


def test_a_large_message_takes_some_calls(disk: Disk) -> None:
    store = disk.open()
    one = queue_named(store, "one")
    assert attempts(store, one) == (1, [b"before"])
    assert attempts(store, one) == (CHUNKS, [LARGE])
    assert attempts(store, one) == (1, [b"after"])
    store.close()


def test_it_is_read_whole_for_whoever_does_not_ask(disk: Disk) -> None:
    store = disk.open()
    one = queue_named(store, "one")
    assert attempts(store, one) == (1, [b"before"])
    assert isinstance(store.take(one, 1, in_chunks=True), PartlyReadError)
    found = store.take(one, 1)
    assert isinstance(found, Run)
    assert bodies(found) == [LARGE]
    store.close()


def test_as_many_are_read_at_a_time_as_memory_allows(disk: Disk) -> None:
    store = disk.open()
    queues = [queue_named(store, name) for name in ("one", "two", "three")]
    for queue in queues:
        assert attempts(store, queue) == (1, [b"before"])
    for _ in range(CHUNKS - 1):
        found = [store.take(queue, 1, in_chunks=True) for queue in queues]
        assert all(isinstance(one, PartlyReadError) for one in found)
    assert attempts(store, queues[0]) == (1, [LARGE])
    assert attempts(store, queues[1]) == (1, [LARGE])
    assert attempts(store, queues[2]) == (CHUNKS, [LARGE])
    store.close()


def test_what_nobody_asks_for_any_more_makes_room(disk: Disk) -> None:
    store = disk.open()
    queues = [queue_named(store, name) for name in ("one", "two", "three")]
    for queue in queues:
        assert attempts(store, queue) == (1, [b"before"])
        assert isinstance(store.take(queue, 1, in_chunks=True), PartlyReadError)
    assert isinstance(disk.clock, SimulatedClock)
    disk.clock.advance(2000)
    assert store.read_again() == {}
    assert attempts(store, queues[2]) == (CHUNKS, [LARGE])
    assert attempts(store, queues[0]) == (CHUNKS, [LARGE])
    store.close()


def test_damage_is_told_as_if_it_were_read_whole(disk: Disk) -> None:
    store = disk.open()
    one = queue_named(store, "one")
    assert attempts(store, one) == (1, [b"before"])
    assert isinstance(store.take(one, 1, in_chunks=True), PartlyReadError)
    disk.flip(1, disk.read(1).index(LARGE) + 9_000)
    found: object = None
    for _ in range(CHUNKS - 1):
        found = store.take(one, 1, in_chunks=True)
        assert not isinstance(found, Run)
    assert isinstance(found, MessageDamagedError)
    assert one.quarantined.count == 1
    assert attempts(store, one) == (1, [b"after"])
    store.close()


def test_a_queue_may_be_purged_while_its_message_is_read(disk: Disk) -> None:
    store = disk.open()
    one = queue_named(store, "one")
    assert attempts(store, one) == (1, [b"before"])
    assert isinstance(store.take(one, 1, in_chunks=True), PartlyReadError)
    assert store.purge(one) == 2
    assert store.take(one, 1, in_chunks=True) is None
    store.close()


def test_a_transient_message_is_read_in_parts_too(tmp_path: Path) -> None:
    options = Options(memory_bytes=0, reserve_bytes=0)
    disk = Disk(str(tmp_path / "store"), options=options, limits=LIMITS)
    store = disk.open()
    queue = store.create_queue("q", durable=False)
    store.publish([queue], messages(LARGE, envelope=TRANSIENT))
    store.upkeep.housekeep()
    assert attempts(store, queue) == (CHUNKS, [LARGE])
    store.close()
