"""Checkpoints: what they write, what they remove, and what a start has to read after one."""

import errno
import os
from pathlib import Path

import pytest

from amqpstore import DurabilityError, Options, Queue, Store
from amqpstore.checkpoints.checkpoint_state import CheckpointState
from amqpstore.format.index import IndexReader, IndexState, live_runs
from amqpstore.log.batch import BatchSummary
from amqpstore.system.filenames import index_path, segment_numbers
from tests.unit.engine.stores import (
    TRANSIENT,
    Disk,
    FailingFiles,
    bodies,
    drain,
    messages,
    publish_batches,
    queue_named,
    spans,
    take,
)


def index_files(disk: Disk) -> list[str]:
    return sorted(os.listdir(os.path.join(disk.directory, "index")))


def segment_files(disk: Disk) -> list[int]:
    return segment_numbers(os.listdir(os.path.join(disk.directory, "segments")))


def restarted(disk: Disk, name: str = "q") -> tuple[Store, Queue]:
    """The store after a crash, and a queue of it with all its runs in memory."""
    store = disk.open()
    queue = queue_named(store, name)
    store.stored.paging.read_index(queue)
    return store, queue


def ack(store: Store, queue: Queue, count: int) -> None:
    while count:
        run = take(store, queue, count)
        store.ack(queue, run)
        count -= run.count


def indexed(disk: Disk, store: Store, queue: Queue) -> list[tuple[int, int]]:
    """Sequence and id of each live entry in the queue's index files."""
    reader = IndexReader(store._maintenance.checkpoints._backing.files, disk.directory, disk.seed)
    found = []
    for key, row in disk.catalog.rows("index").items():
        if int(key[:20]) == queue.id:
            state = IndexState(**row)
            for run in live_runs(reader.entries(queue.id, state), state, 0, 2**64):
                found += [
                    (run.first_sequence + place, run.first_id + place) for place in range(run.count)
                ]
    return sorted(found)


def test_what_is_published_and_acked_between_two_checkpoints_is_in_no_index_file(
    disk: Disk,
) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    store.upkeep.checkpoint()
    publish_batches(store, queue, [[b"one", b"two"], [b"three"]])
    ack(store, queue, 3)
    store.sync()
    store.upkeep.checkpoint()
    assert index_files(disk) == []
    assert disk.catalog.rows("index") == {}
    store.abandon()
    store, queue = restarted(disk)
    assert (queue.ready_count, queue.next_sequence) == (0, 4)
    store.abandon()


def test_what_a_checkpoint_writes_is_what_is_live(disk: Disk) -> None:
    store = disk.open()
    queue, other = store.create_queue("q"), store.create_queue("other")
    publish_batches(store, queue, [[b"%d" % number for number in range(6)]])
    publish_batches(store, other, [[b"other"]])
    ack(store, queue, 2)
    held = take(store, queue, 1)
    store.ack(queue, take(store, queue, 1))
    store.sync()
    store.upkeep.checkpoint()
    assert indexed(disk, store, queue) == [(3, 3), (5, 5), (6, 6)]
    assert indexed(disk, store, other) == [(1, 7)]
    # The next one changes no byte of the file: what was acked is in the catalog.
    (path,) = [
        path
        for path in (os.path.join(disk.directory, "index", name) for name in index_files(disk))
        if f"{queue.id:020}" in path
    ]
    before = Path(path).read_bytes()
    store.ack(queue, held)
    store.sync()
    store.upkeep.checkpoint()
    assert indexed(disk, store, queue) == [(5, 5), (6, 6)]
    assert Path(path).read_bytes() == before
    store.abandon()


def test_the_entries_of_the_next_checkpoint_go_behind_those_of_the_last(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    contents = []
    for number in range(3):
        publish_batches(store, queue, [[b"%d" % number]])
        store.upkeep.checkpoint()
        (name,) = index_files(disk)
        contents.append(Path(disk.directory, "index", name).read_bytes())
    assert contents[1].startswith(contents[0])
    assert contents[2].startswith(contents[1])
    store.abandon()
    # A file is appended to by the process that created it and by no other.
    store, queue = restarted(disk)
    publish_batches(store, queue, [[b"3"]])
    store.upkeep.checkpoint()
    assert len(index_files(disk)) == 2
    store.abandon()
    store, queue = restarted(disk)
    assert drain(store, queue) == [b"0", b"1", b"2", b"3"]
    store.abandon()


def test_an_index_file_whose_entries_are_all_acked_is_removed(disk: Disk) -> None:
    store = disk.open()
    queue, other = store.create_queue("q"), store.create_queue("other")
    for of in (queue, other):
        publish_batches(store, of, [[b"one", b"two"]])
    store.upkeep.checkpoint()
    kept = os.path.basename(index_path(disk.directory, other.id, 1))
    assert len(index_files(disk)) == 2
    ack(store, queue, 1)
    ack(store, other, 1)
    store.sync()
    store.upkeep.checkpoint()
    assert len(index_files(disk)) == 2
    ack(store, queue, 1)
    store.sync()
    store.upkeep.checkpoint()
    assert index_files(disk) == [kept]
    # And the queue goes on in another.
    publish_batches(store, queue, [[b"three"]])
    store.upkeep.checkpoint()
    assert len(index_files(disk)) == 2
    store.abandon()
    store, queue = restarted(disk)
    assert spans(queue) == [(3, 1, 0)]
    store.abandon()


def test_segments_with_nothing_live_are_removed_but_for_the_last(disk: Disk) -> None:
    disk.segment_bytes = 1
    store = disk.open()
    queue = store.create_queue("q")
    publish_batches(store, queue, [[b"1"], [b"2"], [b"3"]])
    ack(store, queue, 1)
    store.upkeep.checkpoint()
    # The ack is in no batch yet.
    assert segment_files(disk) == [1, 2, 3]
    store.sync()
    store.upkeep.checkpoint()
    assert segment_files(disk) == [2, 3, 4]
    for table in ("segments", "marks"):
        assert [int(key) for key in disk.catalog.rows(table)] == [2, 3, 4]
    ack(store, queue, 2)
    store.sync()
    store.upkeep.checkpoint()
    assert segment_files(disk) == [5]
    store.abandon()
    store = disk.open()
    assert store.recovery_report.is_clean
    assert queue_named(store, "q").ready_count == 0
    publish_batches(store, queue_named(store, "q"), [[b"4"]])
    # A number is not given again.
    assert segment_files(disk) == [5, 6]
    store.abandon()


def test_a_segment_stays_as_long_as_one_of_several_queues_needs_it(disk: Disk) -> None:
    disk.segment_bytes = 1
    store = disk.open()
    one, two = store.create_queue("one"), store.create_queue("two")
    store.publish([one, two], messages(b"both"))
    store.sync()
    ack(store, one, 1)
    store.sync()
    store.upkeep.checkpoint()
    assert 1 in segment_files(disk)
    ack(store, two, 1)
    store.sync()
    store.upkeep.checkpoint()
    assert 1 not in segment_files(disk)
    store.abandon()


def test_a_start_reads_only_what_is_behind_the_checkpoint(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    publish_batches(store, queue, [[b"x" * 1000] * 50])
    store.upkeep.checkpoint()
    store.abandon()
    store, queue = restarted(disk)
    assert store.recovery_report.scanned_bytes == 0
    assert store.recovery_report.kept == {queue.id: 50}
    (start, end) = publish_batches(store, queue, [[b"y"]])
    store.abandon()
    store, queue = restarted(disk)
    assert (start, store.recovery_report.scanned_bytes) == (0, end)
    assert drain(store, queue) == [b"x" * 1000] * 50 + [b"y"]
    store.abandon()


def test_a_start_goes_on_within_a_segment(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    _, position = publish_batches(store, queue, [[b"one"]])
    store.upkeep.checkpoint()
    assert disk.catalog.rows("store")["position"] == {
        "segment": 1,
        "offset": position,
        "lsn": 2,
        "message_id": 2,
    }
    publish_batches(store, queue, [[b"two"], [b"three"]])
    store.abandon()
    store, queue = restarted(disk)
    assert store.recovery_report.scanned_bytes == disk.size(1) - position
    assert spans(queue) == [(1, 3, 0)]
    assert drain(store, queue) == [b"one", b"two", b"three"]
    store.abandon()


@pytest.mark.parametrize("cut", [1, 50])
def test_a_torn_tail_behind_a_checkpoint_is_taken_back(disk: Disk, cut: int) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    publish_batches(store, queue, [[b"one"]])
    store.upkeep.checkpoint()
    (start, end) = publish_batches(store, queue, [[b"two"]])
    store.abandon()
    disk.write(1, disk.read(1)[:-cut])
    store, queue = restarted(disk)
    report = store.recovery_report
    assert (report.torn_bytes, report.damage) == (end - cut - start, [])
    publish_batches(store, queue, [[b"three"]])
    store.upkeep.checkpoint()
    store.abandon()
    store, queue = restarted(disk)
    assert store.recovery_report.is_clean
    assert drain(store, queue) == [b"one", b"three"]
    store.abandon()


def test_the_end_of_a_torn_segment_is_noted_as_long_as_the_log_is_read_from_it(disk: Disk) -> None:
    """No message in it has a row, and without its end the torn tail would be damage later on."""
    store = disk.open()
    (_, end) = publish_batches(store, store.create_queue("q"), [[b"torn"]])
    store.abandon()
    disk.write(1, disk.read(1)[: end - 1])
    store = disk.open()
    store.create_queue("other")
    store.upkeep.checkpoint()
    store.abandon()
    for _ in range(2):
        store = disk.open()
        assert not store.recovery_report.damage
        publish_batches(store, queue_named(store, "q"), [[b"behind"]])
        store.abandon()
    store = disk.open()
    assert not store.recovery_report.damage
    assert drain(store, queue_named(store, "q")) == [b"behind"] * 2
    store.abandon()


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_deleted_queue_releases_all_that_it_held(disk: Disk, checkpointed: bool) -> None:
    disk.segment_bytes = 1
    store = disk.open()
    gone, kept = store.create_queue("gone"), store.create_queue("kept")
    publish_batches(store, gone, [[b"1"], [b"2"]])
    publish_batches(store, kept, [[b"3"]])
    if checkpointed:
        store.upkeep.checkpoint()
    publish_batches(store, gone, [[b"4"]])
    take(store, gone, 1)
    store.delete_queue(gone)
    store.upkeep.checkpoint()
    assert segment_files(disk) == [3, 4]
    assert [int(key[:20]) for key in disk.catalog.rows("index")] == [kept.id]
    assert len(index_files(disk)) == 1
    assert f"{gone.id:020}" not in disk.catalog.rows("heads")
    store.abandon()


def test_a_queue_that_was_deleted_before_a_crash_is_released_after_it(disk: Disk) -> None:
    disk.segment_bytes = 1
    store = disk.open()
    gone, kept = store.create_queue("gone"), store.create_queue("kept")
    publish_batches(store, gone, [[b"1"], [b"2"]])
    store.upkeep.checkpoint()
    publish_batches(store, kept, [[b"3"]])
    store.delete_queue(gone)
    store.abandon()
    store = disk.open()
    store.upkeep.checkpoint()
    assert segment_files(disk) == [3]
    assert len(index_files(disk)) == 1
    assert drain(store, queue_named(store, "kept")) == [b"3"]
    store.abandon()


def test_a_requeued_message_keeps_its_place_across_checkpoints(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    publish_batches(store, queue, [[b"1", b"2", b"3"]])
    one, two = take(store, queue, 1), take(store, queue, 1)
    store.sync()
    store.upkeep.checkpoint()
    publish_batches(store, queue, [[b"4"]])
    store.requeue(queue, two)
    store.upkeep.checkpoint()
    store.requeue(queue, one)
    assert spans(queue) == [(1, 2, 1), (3, 2, 0)]
    store.sync()
    store.upkeep.checkpoint()
    store.abandon()
    store, queue = restarted(disk)
    assert spans(queue) == [(1, 2, 1), (3, 2, 0)]
    assert drain(store, queue) == [b"1", b"2", b"3", b"4"]
    store.abandon()


def test_deliveries_of_a_later_block_are_those_of_its_own_messages(disk: Disk) -> None:
    """A count gives its position in the file, not in the block with which it was read."""
    store = disk.open()
    queue = store.create_queue("q")
    publish_batches(store, queue, [[b"1", b"2"]])
    store.upkeep.checkpoint()
    publish_batches(store, queue, [[b"3", b"4"]])
    ack(store, queue, 2)
    take(store, queue, 1)
    store.sync()
    store.upkeep.checkpoint()
    store.abandon()
    store, queue = restarted(disk)
    assert spans(queue) == [(3, 1, 1), (4, 1, 0)]
    store.abandon()


@pytest.mark.parametrize("checkpoints", [(), (0,), (1,), (2,), (0, 1, 2)])
def test_deliveries_count_across_restarts_and_checkpoints(
    disk: Disk, checkpoints: tuple[int, ...]
) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    publish_batches(store, queue, [[b"1", b"2", b"3"]])
    for deliveries in range(3):
        if deliveries in checkpoints:
            store.upkeep.checkpoint()
        take(store, queue, 1)
        if deliveries == 1:
            take(store, queue, 1)
        store.sync()
        if deliveries in checkpoints:
            store.upkeep.checkpoint()
        store.abandon()
        store, queue = restarted(disk)
        second = 1 if deliveries else 0
        assert [
            (run.first_sequence + place, run.delivery_count)
            for run in queue.ready
            for place in range(run.count)
        ] == [(1, deliveries + 1), (2, second), (3, 0)]
        assert store.recovery_report.redelivered == {queue.id: 1 + second}
    store.abandon()


def test_a_message_that_was_delivered_and_acked_behind_a_checkpoint_is_gone(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    publish_batches(store, queue, [[b"1", b"2", b"3"]])
    store.upkeep.checkpoint()
    ack(store, queue, 2)
    store.sync()
    store.abandon()
    for _ in range(2):
        store, queue = restarted(disk)
        assert spans(queue) == [(3, 1, 0)]
        assert store.recovery_report.kept == {queue.id: 1}
        store.upkeep.checkpoint()
        store.abandon()


def test_transient_messages_are_in_no_index(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    store.publish([queue], messages(b"1", envelope=TRANSIENT))
    publish_batches(store, queue, [[b"2"]])
    store.publish([queue], messages(b"3", envelope=TRANSIENT))
    store.upkeep.checkpoint()
    assert indexed(disk, store, queue) == [(2, 1)]
    assert drain(store, queue) == [b"1", b"2", b"3"]
    store.abandon()


def test_a_purge_behind_a_checkpoint_leaves_what_somebody_holds(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    publish_batches(store, queue, [[b"1", b"2", b"3", b"4"]])
    store.upkeep.checkpoint()
    take(store, queue, 2)
    assert store.purge(queue) == 2
    store.sync()
    store.upkeep.checkpoint()
    assert indexed(disk, store, queue) == [(1, 1), (2, 2)]
    store.abandon()
    store, queue = restarted(disk)
    assert spans(queue) == [(1, 2, 1)]
    store.abandon()


def test_files_of_a_checkpoint_that_did_not_become_one_are_removed(disk: Disk) -> None:
    store = disk.open()
    publish_batches(store, store.create_queue("q"), [[b"1"]])
    before = disk.catalog.clone()
    store.upkeep.checkpoint()
    store.abandon()
    # As a crash between the index file's datasync and the commit leaves it.
    disk.catalog = before
    assert len(index_files(disk)) == 1
    store, queue = restarted(disk)
    assert index_files(disk) == []
    assert store.recovery_report.is_clean
    assert bodies(take(store, queue)) == [b"1"]
    store.abandon()


@pytest.mark.parametrize("name", ["notes.txt", "1-1.index", f"{1:020}-{1:010}.index.bak"])
def test_a_file_in_the_index_that_the_store_does_not_know_is_left_alone(
    disk: Disk, name: str
) -> None:
    store = disk.open()
    publish_batches(store, store.create_queue("q"), [[b"1"]])
    store.close()
    stray = Path(disk.directory, "index", name)
    stray.write_bytes(b"mine")
    store = disk.open()
    assert store.recovery_report.unknown_files == [name]
    store.close()
    assert stray.read_bytes() == b"mine"


def test_a_checkpoint_for_which_there_was_no_room_is_made_later(disk: Disk) -> None:
    files = FailingFiles()
    store = disk.open(files)
    queue = store.create_queue("q")
    publish_batches(store, queue, [[b"1"], [b"2"]])
    files.fails = {"create"}
    with pytest.raises(OSError, match="create fails"):
        store.upkeep.checkpoint()
    assert index_files(disk) == []
    publish_batches(store, queue, [[b"3"]])
    files.fails = {"append"}
    with pytest.raises(OSError, match="append fails"):
        store.upkeep.checkpoint()
    files.fails = set()
    store.upkeep.checkpoint()
    assert indexed(disk, store, queue) == [(1, 1), (2, 2), (3, 3)]
    store.abandon()
    store, queue = restarted(disk)
    assert (store.recovery_report.scanned_bytes, spans(queue)) == (0, [(1, 3, 0)])
    store.abandon()


def test_a_checkpoint_that_failed_at_a_batch_goes_on_with_it(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    publish_batches(store, queue, [[b"1"], [b"2"]])
    apply = CheckpointState.apply

    def fail_once(self: CheckpointState, batch: BatchSummary) -> None:
        monkeypatch.setattr(CheckpointState, "apply", apply)
        raise OSError(errno.EMFILE, "no descriptor")

    monkeypatch.setattr(CheckpointState, "apply", fail_once)
    with pytest.raises(OSError, match="no descriptor"):
        store.upkeep.checkpoint()
    store.upkeep.checkpoint()
    assert indexed(disk, store, queue) == [(1, 1), (2, 2)]
    store.abandon()


@pytest.mark.parametrize("call", ["datasync", "sync_directory"])
def test_an_index_file_that_does_not_become_durable_stops_the_store(disk: Disk, call: str) -> None:
    files = FailingFiles()
    store = disk.open(files)
    publish_batches(store, store.create_queue("q"), [[b"1"]])
    files.fails = {call}
    with pytest.raises(DurabilityError):
        store.upkeep.checkpoint()
    files.fails = set()
    store.close()
    store, queue = restarted(disk)
    assert spans(queue) == [(1, 1, 0)]
    store.abandon()


def test_checkpoints_are_made_by_log_bytes_and_by_messages(disk: Disk) -> None:
    never = disk.options
    for options, due_after in [
        (never._replace(checkpoint_bytes=1000), 8),
        (never._replace(checkpoint_messages=5), 5),
    ]:
        disk.options = options
        store = disk.open()
        queue = store.create_queue("q")
        before = disk.catalog.rows("store").get("position")
        for _ in range(due_after):
            assert disk.catalog.rows("store").get("position") == before
            publish_batches(store, queue, [[b"x"]])  # 128 bytes of log
        assert disk.catalog.rows("store").get("position") != before
        store.close()


def test_the_options_of_a_store_that_is_not_told_any_make_checkpoints() -> None:
    options = Options()
    assert options.checkpoint_bytes < 1 << 30
    assert options.checkpoint_ms <= 10_000


@pytest.mark.parametrize("missing", [False, True])
def test_an_index_file_that_cannot_be_read_costs_its_own_messages_only(
    disk: Disk, missing: bool
) -> None:
    store = disk.open()
    queue, other = store.create_queue("q"), store.create_queue("other")
    publish_batches(store, queue, [[b"1", b"2"]])
    publish_batches(store, other, [[b"3"]])
    store.upkeep.checkpoint()
    publish_batches(store, queue, [[b"4"]])
    store.abandon()
    path = Path(index_path(disk.directory, queue.id, 1))
    if missing:
        path.unlink()
    else:
        path.write_bytes(b"\0" * path.stat().st_size)
    store = disk.open()
    queue, other = queue_named(store, "q"), queue_named(store, "other")
    assert drain(store, queue) == [b"4"]
    assert queue.unreadable_count == 2
    assert drain(store, other) == [b"3"]
    store.close()
    assert 1 in segment_files(disk)


@pytest.mark.parametrize("missing", [False, True])
def test_a_start_gets_by_without_an_index_file_that_the_log_speaks_of(
    disk: Disk, missing: bool
) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    publish_batches(store, queue, [[b"1", b"2"]])
    store.upkeep.checkpoint()
    ack(store, queue, 1)
    publish_batches(store, queue, [[b"3"]])
    store.abandon()
    path = Path(index_path(disk.directory, queue.id, 1))
    if missing:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    store = disk.open()
    assert [where for where, *_ in store.recovery_report.damage] == [str(path)]
    assert drain(store, queue_named(store, "q")) == [b"3"]
    store.upkeep.checkpoint()
    store.abandon()
