"""Paging: runs that an index file has leave memory, and come back in order."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from amqpstore import Queue, Run, Store
from amqpstore.format.index import IndexState, PagedFile
from amqpstore.format.limits import StoreLimits
from tests.unit.engine.stores import TRANSIENT, Disk, messages, queue_named, take

# What is paged is whole files: small ones, so that a few hundred messages make some.
FILE_ENTRIES = 256
MAX_RUNS = 64
COUNT = 2 * FILE_ENTRIES + 10


def interleaved(store: Store, queues: list[Queue], count: int) -> None:
    """Publish to the queues in turn: no two neighbours of one have contiguous ids."""
    for _ in range(count):
        for queue in queues:
            store.publish([queue], messages(b"%d-%d" % (queue.id, queue.next_sequence)))
    store.sync()


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    limits = StoreLimits(entries_a_file=FILE_ENTRIES, max_runs=MAX_RUNS, joined_bytes=0)
    disk = Disk(str(tmp_path / "store"), segment_bytes=16 << 20, limits=limits)
    disk.options = disk.options._replace(memory_bytes=2_000)
    return disk


def paged(disk: Disk, count: int = COUNT) -> tuple[Store, Queue, Queue]:
    """Two queues of which all but the ends is in index files only."""
    store = disk.open()
    one, two = store.create_queue("one"), store.create_queue("two")
    interleaved(store, [one, two], count)
    store.upkeep.checkpoint()
    for queue in (one, two):
        assert queue.ready_count == count
        assert len(queue.paged) >= 1
        check(queue)
    return store, one, two


def check(queue: Queue) -> None:
    """Check that counts are right, and that paged runs do not overlap."""
    assert queue.paged_count == sum(file.live for file in queue.paged)
    assert queue.ready.count == sum(run.count for run in queue.ready)
    spans = [(run.first_sequence, run.end) for run in queue.ready]
    spans += [(file.first, file.end) for file in queue.paged]
    spans.sort()
    assert all(before_end <= first for (_, before_end), (first, _) in pairwise(spans))


def drained(store: Store, queue: Queue) -> list[int]:
    """Take and ack everything; return the sequences, each checked against its body."""
    found = []
    while queue.ready_count:
        run = store.take(queue, 1000)
        assert isinstance(run, Run)
        for place, message in enumerate(run.messages or []):
            sequence = run.first_sequence + place
            assert message.body == b"%d-%d" % (queue.id, sequence)
            found.append(sequence)
        store.ack(queue, run)
        if len(found) % 100 == 0:
            check(queue)
    return found


def test_runs_are_paged_out_and_in_in_order(disk: Disk) -> None:
    store, one, two = paged(disk)
    assert len(one.ready) <= MAX_RUNS + 2 * FILE_ENTRIES
    everything = list(range(1, COUNT + 1))
    assert drained(store, one) == everything
    interleaved(store, [two], 10)
    assert drained(store, two) == [*everything, *range(COUNT + 1, COUNT + 11)]
    store.sync()
    store.upkeep.checkpoint()
    assert list(Path(disk.directory, "index").iterdir()) == []
    store.abandon()


def test_a_start_pages_everything_and_counts_it(disk: Disk) -> None:
    store, one, _ = paged(disk)
    held = take(store, one, 5)
    store.ack(one, take(store, one, 7))
    store.sync()
    store.upkeep.checkpoint()
    store.abandon()
    store = disk.open()
    one, two = queue_named(store, "one"), queue_named(store, "two")
    assert (len(one.ready), len(two.ready)) == (0, 0)
    left = COUNT - 1
    assert store.recovery_report.kept == {one.id: left, two.id: COUNT}
    assert store.recovery_report.redelivered == {one.id: held.count, two.id: 0}
    assert store.recovery_report.scanned_bytes == 0
    check(one)
    # The one that was acked is the second; each was a run of its own.
    assert (held.count, held.first_sequence) == (1, 1)
    assert drained(store, one) == [1, *range(3, COUNT + 1)]
    store.abandon()


def test_a_requeued_run_goes_back_in_front_of_what_is_paged(disk: Disk) -> None:
    store, one, _ = paged(disk)
    runs = [take(store, one, 1) for _ in range(FILE_ENTRIES + 10)]
    store.sync()
    store.upkeep.checkpoint()
    check(one)
    for run in (runs[5], runs[FILE_ENTRIES + 5], runs[0]):
        store.requeue(one, run)
        check(one)
    store.upkeep.checkpoint()
    assert one.ready_count == COUNT - len(runs) + 3
    found = [take(store, one, 1).first_sequence for _ in range(4)]
    assert found == [1, 6, FILE_ENTRIES + 6, FILE_ENTRIES + 11]
    store.abandon()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_purge_takes_what_is_paged_with_it(disk: Disk, restarted: bool) -> None:
    store, one, two = paged(disk, FILE_ENTRIES + 80)
    held = take(store, one, 1)
    assert store.purge(one) == FILE_ENTRIES + 79
    assert (one.ready_count, len(one.paged)) == (0, 0)
    store.sync()
    if not restarted:
        store.upkeep.checkpoint()
    store.abandon()
    store = disk.open()
    one, two = queue_named(store, "one"), queue_named(store, "two")
    assert (one.ready_count, two.ready_count) == (1, FILE_ENTRIES + 80)
    assert take(store, one, 1).first_sequence == held.first_sequence
    assert one.next_sequence == FILE_ENTRIES + 81
    store.upkeep.checkpoint()
    assert len({path.name[:20] for path in Path(disk.directory, "index").iterdir()}) == 2
    store.abandon()


def test_deleting_a_paged_queue_removes_its_files(disk: Disk) -> None:
    store, one, two = paged(disk, FILE_ENTRIES + 80)
    store.delete_queue(one)
    assert one.ready_count == 0
    store.upkeep.checkpoint()
    names = {path.name[:20] for path in Path(disk.directory, "index").iterdir()}
    assert names == {f"{two.id:020}"}
    assert two.ready_count == FILE_ENTRIES + 80
    store.abandon()


def test_what_is_delivered_or_held_is_not_paged_out(disk: Disk) -> None:
    store = disk.open()
    one, two = store.create_queue("one"), store.create_queue("two")
    interleaved(store, [one, two], 2 * FILE_ENTRIES)
    for run in [take(store, one, 1) for _ in range(FILE_ENTRIES + 2)][1:]:
        store.requeue(one, run)
    store.sync()
    store.upkeep.checkpoint()
    check(one)
    check(two)
    # Each file of the first has something delivered, one even held.
    assert (one.paged, len(two.paged)) == ([], 1)
    assert one.ready_count == 2 * FILE_ENTRIES - 1
    store.abandon()


def test_reading_the_index_brings_all_runs_into_memory(disk: Disk) -> None:
    store, one, _ = paged(disk)
    store.stored.paging.read_index(one)
    assert (one.paged, one.ready.count) == ([], COUNT)
    check(one)
    assert [run.first_sequence for run in one.ready] == list(range(1, COUNT + 1))
    store.abandon()


def test_what_many_checkpoints_add_to_a_file_is_paged_out_as_well(disk: Disk) -> None:
    store = disk.open()
    queues = [store.create_queue("one"), store.create_queue("two")]
    for _ in range(12):
        interleaved(store, queues, 80)
        store.upkeep.checkpoint()
    for queue in queues:
        assert len(queue.ready) <= MAX_RUNS + FILE_ENTRIES
    store.abandon()


def test_transient_messages_that_were_written_aside_are_not_paged_out(disk: Disk) -> None:
    store = disk.open()
    one, two = store.create_queue("one"), store.create_queue("two")
    one.lazy = True
    interleaved(store, [one, two], FILE_ENTRIES + 48)
    for _ in range(3):
        store.publish([one], messages(b"transient", envelope=TRANSIENT))
    interleaved(store, [one, two], 48)
    store.upkeep.housekeep()
    # A consumer holds as many of the second file's messages as there are transient ones.
    held = one.ready.remove(FILE_ENTRIES + 1, 3)
    assert sum(run.count for run in held) == 3
    store.upkeep.checkpoint()
    store.stored.paging.read_index(one)
    assert one.ready_count == FILE_ENTRIES + 96
    assert sum(run.first_id >= 1 << 63 for run in one.ready)
    store.abandon()


def test_a_lazy_queue_leaves_all_of_it_to_its_index_files(disk: Disk) -> None:
    with disk.open() as store:
        lazy, other = store.create_queue("lazy"), store.create_queue("other")
        store.memory.set_lazy(lazy, lazy=True)
        interleaved(store, [lazy, other], 50)
        store.upkeep.checkpoint()
        assert (len(lazy.ready), lazy.ready_count) == (0, 50)
        assert len(other.ready) == 50
        check(lazy)
        assert drained(store, lazy) == list(range(1, 51))


class CountedFiles(list[PagedFile]):
    """Counts how often all of them are iterated over."""

    walks = 0

    def __iter__(self) -> Iterator[PagedFile]:
        self.walks += 1
        return super().__iter__()


def test_leaving_runs_to_index_files_goes_through_what_is_paged_once() -> None:
    """Each checkpoint does it, where clients wait for it."""
    queue = Queue(1, "deep", durable=True)
    states = [IndexState(number, 100, 10, 10 * number, 10 * number + 10) for number in range(500)]
    queue.restore_index(states)
    queue.paged = files = CountedFiles(queue.paged)
    queue.next_sequence = 5001
    queue.ready.append(Run(5000, 1))
    queue.page_out(states, 0)
    assert files.walks <= 3
    assert len(queue.paged) == 500
