"""Checkpoints, index files and compaction: what the histories have of them, and single crashes."""

import functools
import random
from collections import Counter

import msgpack
import pytest

from amqpstore import Queue, Store
from amqpstore.system.filenames import FIRST_COMPACTED, index_key, segment_number
from amqpstore_tools.drill.accounting import misaccounted
from amqpstore_tools.drill.explorer import Explorer
from amqpstore_tools.drill.invariants import broken_promises, faults_at_openings
from amqpstore_tools.drill.observation import observe
from amqpstore_tools.drill.outside import Outside
from amqpstore_tools.drill.promises import Promises
from amqpstore_tools.drill.prover import Prover
from amqpstore_tools.drill.trace import StoreOpened, Trace
from amqpstore_tools.simulation.crash_images import crash_images
from amqpstore_tools.simulation.faulty_files import Faults, RottenFiles
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.operations import CatalogCommit, Create, Operation, Remove, Write
from tests.crash.histories import (
    DIRECTORY,
    OPTIONS,
    open_faulty_store,
    open_store,
    outside_of,
    random_history,
    record,
    short_history,
)
from tests.crash.test_faults import faults_left_behind, is_unread

INDEX = f"{DIRECTORY}/index"
SEGMENTS = f"{DIRECTORY}/segments"


def kind_of(path: str) -> str:
    name = path.rpartition("/")[2]
    if index_key(name):
        return "index file"
    if number := segment_number(name):
        return "segment" if number < FIRST_COMPACTED else "merged segment"
    return "other file"


def contained(trace: Trace) -> Counter[str]:
    """Count what a history contains."""
    found: Counter[str] = Counter()
    written: set[str] = set()
    positions: set[str] = set()
    for event in trace.events:
        if isinstance(event, CatalogCommit):
            tables = msgpack.unpackb(event.content, strict_map_key=False)
            positions.add(tables["store"].get(b"position", b""))
        elif isinstance(event, Create):
            found[f"{kind_of(event.path)} created"] += 1
        elif isinstance(event, Write):
            if event.path in written:
                found[f"{kind_of(event.path)} appended to"] += 1
            written.add(event.path)
        elif isinstance(event, Remove):
            found[f"{kind_of(event.path)} removed"] += 1
    found["checkpoint"] = len(positions) - 1
    return found


@pytest.fixture
def paging(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts index files that queues were left to, and read again from."""
    counts: Counter[str] = Counter()
    page_out, paged_in = Queue.page_out, Queue.paged_in

    def counted_out(self: Queue, *args: object) -> int:
        before = len(self.paged)
        freed = page_out(self, *args)  # type: ignore[arg-type]
        counts["out"] += len(self.paged) - before
        return freed

    def counted_in(self: Queue, *args: object) -> None:
        counts["in"] += 1
        paged_in(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Queue, "page_out", counted_out)
    monkeypatch.setattr(Queue, "paged_in", counted_in)
    return counts


EVERYTHING = {
    "checkpoint": 5,
    "index file created": 5,
    "index file appended to": 2,
    "index file removed": 3,
    "segment created": 5,
    "segment removed": 3,
    "merged segment created": 1,
}


def test_the_short_history_has_everything(paging: Counter[str]) -> None:
    found = contained(record(short_history))
    assert {what for what, least in EVERYTHING.items() if found[what] < least} == set()
    assert paging["out"] >= 3
    assert paging["in"] >= 3


def test_random_histories_have_everything_among_them(paging: Counter[str]) -> None:
    histories = [contained(random_history(f"random {seed}", 60)) for seed in range(40)]
    having = Counter(what for found in histories for what in found)
    for what in EVERYTHING:
        assert having[what] >= 25, what
    assert having["merged segment removed"] >= 10
    assert paging["out"] > 40
    assert paging["in"] > 40


def fast_and_slow(outside: Outside) -> None:
    """Three segments of which only a small message each is live, and a checkpoint that says so."""
    outside.open()
    outside.create_queue("slow")
    outside.create_queue("fast")
    for number in range(3):
        outside.publish(["slow"], [b"stays %d" % number])
        outside.publish(["fast"], [bytes(1000)])
        outside.begin_sync()
        outside.finish_sync()


def test_the_segment_that_recovery_starts_in_is_not_merged() -> None:
    """The segment has messages behind the checkpoint, which the segment counts do not have yet."""

    def history(outside: Outside) -> None:
        fast_and_slow(outside)
        for _ in range(3):
            outside.take("fast", 1, acked=True)
        outside.begin_sync()
        outside.finish_sync()
        outside.checkpoint()
        outside.publish(["slow"], [b"behind the checkpoint" * 50])
        outside.begin_sync()
        outside.finish_sync()
        outside.publish(["slow"], [b"in the next segment"])
        outside.begin_sync()
        outside.finish_sync()
        outside.housekeep(2)
        outside.kill()
        outside.open()

    result = Explorer(open_store, "position", images_an_operation=4).explore(record(history))
    assert [str(violation) for violation in result.violations] == []


@pytest.mark.parametrize("kind", ["index file", "merged segment"])
def test_what_a_crash_left_without_a_row_is_removed(kind: str) -> None:
    """The power is cut before each commit, and all that was written survives."""
    trace = record(short_history)
    prover = Prover(open_store, 2)
    disk = trace.base.fork()
    leftovers = 0
    for event in trace.events:
        if isinstance(event, CatalogCommit):
            names = {name for path in (INDEX, SEGMENTS) for name in listed(disk, path)}
            after = disk.fork()
            recovered = prover.recover(after)
            assert recovered.faults == ()
            gone = names - {name for path in (INDEX, SEGMENTS) for name in listed(after, path)}
            leftovers += sum(kind_of(name) == kind for name in gone)
        if isinstance(event, Operation):
            disk.redo(event)
    assert leftovers > 0


def listed(disk: MemoryFiles, path: str) -> list[str]:
    return disk.list_directory(path) if disk.exists(path) else []


def test_a_merged_segment_that_cannot_be_removed_does_not_stop_the_store() -> None:
    """The swap is done: what is left has no row, and the next start removes it."""
    faults = Faults(-1, of="remove")
    outside = outside_of(functools.partial(open_faulty_store, faults=faults))
    fast_and_slow(outside)
    for _ in range(3):
        outside.take("fast", 1, acked=True)
    outside.begin_sync()
    outside.finish_sync()
    outside.checkpoint()
    outside.housekeep()
    faults.nth = len(faults.calls)
    outside.housekeep(3)
    assert faults.has_struck
    outside.close()
    outside.open()
    assert outside.ready_count("slow") == 3
    outside.close()
    assert Prover(open_store, 2).recover(outside.files).faults == ()


def test_nothing_is_merged_while_a_checkpoint_is_put_off() -> None:
    """The store is then ahead of the catalog: what is garbage to it is not yet to recovery."""
    faults = Faults(-1, of="create")
    outside = outside_of(functools.partial(open_faulty_store, faults=faults))
    fast_and_slow(outside)
    outside.checkpoint()
    outside.kill()
    # An index file of another process is not appended to.
    outside.open()
    for _ in range(3):
        outside.take("fast", 1, acked=True)
    outside.publish(["slow"], [b"new"])
    outside.begin_sync()
    outside.finish_sync()
    faults.nth = len(faults.calls)
    outside.checkpoint()
    assert outside.put_off
    outside.housekeep(4)
    outside.kill()
    assert Prover(open_store, 2).recover(outside.files.fork()).faults == ()
    outside.open()
    outside.purge("slow")
    outside.sync()
    outside.checkpoint()


@pytest.mark.parametrize("call", ["open", "read"])
def test_a_deleted_queue_lets_go_of_its_messages_once_its_index_can_be_read(call: str) -> None:
    faults = Faults(-1, of=call)
    outside = outside_of(functools.partial(open_faulty_store, faults=faults))
    outside.open()
    outside.create_queue("orders")
    outside.create_queue("audit")
    outside.publish(["orders", "audit"], [b"in both"])
    outside.sync()
    outside.checkpoint()
    outside.delete_queue("orders")
    faults.nth = len(faults.calls)
    outside.checkpoint()
    assert faults.has_struck
    outside.checkpoint()
    outside.kill()
    assert Prover(open_store, 2).recover(outside.files).faults == ()


@pytest.mark.parametrize("call", ["open", "read"])
def test_acks_hold_when_a_checkpoint_cannot_read_an_index_at_first(call: str) -> None:
    faults = Faults(-1, of=call)
    outside = outside_of(functools.partial(open_faulty_store, faults=faults))
    outside.open()
    outside.create_queue("orders")
    outside.publish(["orders"], [b"acked", b"kept"])
    outside.sync()
    outside.checkpoint()
    outside.take("orders", 1, acked=True)
    outside.begin_sync()
    outside.finish_sync()
    faults.nth = len(faults.calls)
    outside.checkpoint()
    assert faults.has_struck
    outside.kill()
    outside.open()
    assert outside.ready_count("orders") == 1


class RottenDisk:
    """A disk on which a bit of the first index file is flipped from time to time."""

    def __init__(self) -> None:
        self._is_rotten = False
        self._files: list[RottenFiles] = []

    def open(self, files: MemoryFiles) -> Store:
        self._files.append(RottenFiles(files, f"{INDEX}/{1:020}-{1:010}.index", 40, 1))
        self.rot(is_rotten=self._is_rotten)
        return open_store(files, self._files[-1])

    def rot(self, *, is_rotten: bool) -> None:
        """Have the bit be flipped from now on, or not."""
        self._is_rotten = self._files[-1].is_rotten = is_rotten


def test_acks_hold_that_had_to_wait_for_an_index_file_to_be_read() -> None:
    """A checkpoint keeps in mind what was acked, and the next one that can read it does it."""
    disk = RottenDisk()
    outside = outside_of(disk.open)
    outside.open()
    outside.create_queue("orders")
    outside.publish(
        ["orders"], [b"acked", b"acked as well", b"kept", b"acked too", b"kept as well"]
    )
    outside.take("orders", 2)
    outside.take("orders", 1)
    outside.take("orders", 1)
    outside.sync()
    outside.checkpoint()
    outside.ack("orders")
    outside.ack("orders", 1)
    outside.begin_sync()
    outside.finish_sync()
    disk.rot(is_rotten=True)
    outside.checkpoint()
    assert outside.store.definitions.rows("index").popitem()[1]["postponed"] == [[1, 3], [4, 5]]
    outside.kill()
    disk.rot(is_rotten=False)
    outside.open()
    outside.publish(["orders"], [b"more"])
    outside.sync()
    outside.checkpoint()
    outside.kill()
    assert faults_at_openings(Promises(), outside.trace) == []
    assert faults_left_behind(outside, Prover(open_store, 2), random.Random("postponed")) == []


def test_deliveries_hold_that_had_to_wait_for_an_index_file_to_be_read() -> None:
    """Two processes make checkpoints without it; the power may be cut at any write."""
    disk = RottenDisk()
    outside = outside_of(disk.open)
    outside.open()
    outside.create_queue("orders")
    outside.publish(["orders"], [b"twice", b"once", b"acked", b"never"])
    outside.sync()
    outside.checkpoint()
    outside.take("orders", 2)
    outside.take("orders", 1)
    outside.begin_sync()
    outside.finish_sync()
    disk.rot(is_rotten=True)
    outside.checkpoint()
    outside.requeue("orders")
    outside.take("orders", 1)
    outside.ack("orders")
    outside.begin_sync()
    outside.finish_sync()
    outside.checkpoint()
    (row,) = outside.store.definitions.rows("index").values()
    assert row["postponed_deliveries"] == [[1, 2, 2], [2, 4, 1]]
    outside.kill()
    outside.open()
    outside.publish(["orders"], [b"more"])
    outside.sync()
    outside.checkpoint()
    outside.kill()
    disk.rot(is_rotten=False)
    outside.open()
    outside.checkpoint()
    rows = [*outside.store.definitions.rows("index").values()]
    assert {1: 1, 0: 2} in [row["delivered"] for row in rows]
    assert not any(row["postponed_deliveries"] for row in rows)
    outside.kill()
    rng = random.Random("postponed deliveries")
    assert faults_left_behind(outside, Prover(open_store, 2), rng) == []
    assert faults_at_cuts(outside.trace, rng) == []


def faults_at_cuts(trace: Trace, rng: random.Random) -> list[object]:
    """Return what is wrong on disks that a power cut leaves, at each operation of a history."""
    disk, promises = trace.base.fork(), Promises()
    found: list[object] = []
    for event in trace.events:
        if not isinstance(event, Operation):
            # What a start could not read it did not promise either.
            if not (isinstance(event, StoreOpened) and is_unread(event)):
                promises.note(event)
            continue
        disk.redo(event)
        for image in crash_images(disk, rng, 4):
            store = open_store(image.files)
            observation = observe(store)
            faults = [*observation.faults, *broken_promises(promises, observation)]
            store.upkeep.checkpoint()
            faults += misaccounted(store, image.files)
            store.abandon()
            found += [(str(event), image.description, fault) for fault in faults]
    return found


def test_a_crash_between_the_checkpoints_that_let_go_of_a_deep_queue() -> None:
    """Each lets go of one index file here. What is in another queue as well stays."""
    limits = OPTIONS.limits._replace(max_released_files=1)
    open_it = functools.partial(open_store, options=OPTIONS._replace(limits=limits))

    def history(outside: Outside) -> None:
        outside.open()
        outside.create_queue("deep")
        outside.create_queue("other")
        for number in range(4):
            outside.publish(["deep", "other"], [b"%d" % number] * 6)
            outside.sync()
        outside.checkpoint()
        outside.take("deep", 3, acked=True)
        outside.publish(["deep", "other"], [b"not in an index file yet"])
        outside.sync()
        outside.delete_queue("deep")
        for _ in range(6):
            outside.checkpoint()

    rng = random.Random("deep")
    trace = record(history, open_it)
    disk, promises, count = trace.base.fork(), Promises(), 0
    for event in trace.events:
        if not isinstance(event, Operation):
            promises.note(event)
            continue
        disk.redo(event)
        for image in crash_images(disk, rng, 4):
            store = open_it(image.files)
            observation = observe(store)
            faults = [*observation.faults, *broken_promises(promises, observation)]
            for _ in range(6):
                store.upkeep.checkpoint()
            faults += misaccounted(store, image.files)
            assert faults == [], f"{event}, {image.description}"
            store.abandon()
            count += 1
    assert count > 100


def test_a_new_index_file_is_found_beside_one_that_was_appended_to() -> None:
    """The directory is synced for any of those that a checkpoint writes together."""
    outside = outside_of(open_store)
    outside.open()
    for name in ("first", "second"):
        outside.create_queue(name)
        outside.publish(["first"], [b"in the file that is there"])
        outside.publish([name], [b"perhaps in a new one"])
        outside.sync()
        outside.checkpoint()
    store = open_store(left := outside.files.power_cut({}, {}))
    assert [queue.ready_count for queue in store.queues.values()] == [3, 1]
    assert misaccounted(store, left) == []
    store.abandon()
