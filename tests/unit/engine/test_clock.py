"""Clocks: durations go on, whatever happens to the wall clock."""

import os
from pathlib import Path

import pytest

from amqpstore import Options, Store
from amqpstore.catalog.definitions import read_copy
from amqpstore.system.clock import SYSTEM_CLOCK, Clock, SimulatedClock
from amqpstore.system.files import OsFiles
from tests.unit.engine.stores import Disk, messages, take

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
OPTIONS = Options(
    checkpoint_bytes=1 << 60, checkpoint_messages=1 << 60, reserve_bytes=0, least_free_bytes=0
)
JUMPS_MS = (-HOUR_MS, HOUR_MS, -40 * 365 * 24 * HOUR_MS)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock(NOW_MS)


@pytest.fixture
def disk(tmp_path: Path, clock: SimulatedClock) -> Disk:
    return Disk(str(tmp_path / "store"), segment_bytes=4096, options=OPTIONS, clock=clock)


def pass_time(store: Store, clock: SimulatedClock, seconds: int) -> None:
    for _ in range(seconds):
        clock.advance(1000)
        store.upkeep.housekeep()


def segment_bytes(disk: Disk) -> int:
    directory = os.path.join(disk.directory, "segments")
    return sum(os.path.getsize(os.path.join(directory, name)) for name in os.listdir(directory))


@pytest.mark.parametrize("clock", [SYSTEM_CLOCK, SimulatedClock(NOW_MS)], ids=["system", "other"])
def test_every_clock_tells_dates_and_durations(clock: Clock) -> None:
    assert clock.wall_ms() > NOW_MS - 1
    first = clock.monotonic_ms()
    assert 0 < first <= clock.monotonic_ms()


def test_a_simulated_clock_moves_when_it_is_told_to(clock: SimulatedClock) -> None:
    before_ms = clock.monotonic_ms()
    clock.advance(5)
    assert (clock.wall_ms(), clock.monotonic_ms()) == (NOW_MS + 5, before_ms + 5)
    clock.set_wall(3)
    assert (clock.wall_ms(), clock.monotonic_ms()) == (3, before_ms + 5)
    with pytest.raises(ValueError, match="0 ms or more"):
        clock.advance(-1)


@pytest.mark.parametrize("jump_ms", JUMPS_MS)
def test_checkpoints_by_time_come_when_the_clock_was_set(
    disk: Disk, clock: SimulatedClock, jump_ms: int
) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    pass_time(store, clock, 60)
    store.publish([queue], messages(b"a"))
    store.sync()
    pass_time(store, clock, 2)
    before = disk.catalog.rows("store")["position"]
    clock.set_wall(clock.wall_ms() + jump_ms)
    store.publish([queue], messages(b"b"))
    store.sync()
    pass_time(store, clock, 2)
    assert disk.catalog.rows("store")["position"] == before, "before its time"
    pass_time(store, clock, 2)
    assert disk.catalog.rows("store")["position"] != before
    store.abandon()


def test_garbage_leaves_the_disk_when_the_clock_was_set_back(
    disk: Disk, clock: SimulatedClock
) -> None:
    store = disk.open()
    slow, fast = store.create_queue("slow"), store.create_queue("fast")

    def work() -> None:
        for _ in range(20):
            store.publish([slow], messages(b"s"))
            store.publish([fast], messages(*[b"x" * 100] * 20))
            store.sync()
            take(store, fast, acked=True)
            store.sync()
            pass_time(store, clock, 1)

    work()
    clock.set_wall(clock.wall_ms() - HOUR_MS)
    work()
    pass_time(store, clock, 20)
    assert segment_bytes(disk) < 5 * disk.segment_bytes
    assert slow.ready_count == 40
    store.abandon()


def test_the_definitions_are_copied_when_the_clock_was_set_back(
    disk: Disk, clock: SimulatedClock
) -> None:
    store = disk.open()
    pass_time(store, clock, 60)
    clock.set_wall(clock.wall_ms() - HOUR_MS)
    queue = store.create_queue("q")
    pass_time(store, clock, 10)
    copy = read_copy(OsFiles(), disk.directory)
    assert copy is not None
    assert copy.next_queue_id == queue.id + 1
    store.abandon()


def test_batches_and_segments_are_dated_by_the_wall_clock(
    disk: Disk, clock: SimulatedClock
) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    clock.advance(7)
    clock.set_wall(NOW_MS + HOUR_MS)
    store.publish([queue], messages(b"a"))
    store.sync()
    dated = (NOW_MS + HOUR_MS).to_bytes(8, "big")
    # In the SEGMENT record, and in the TRANSACTION.
    assert disk.read(1).count(dated) == 2
    store.abandon()
