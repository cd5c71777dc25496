"""Recovery of sound logs and of torn tails: whole batches, in order, twice the same as once."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from amqpstore import Store
from amqpstore.catalog.tables import SEGMENT_ENDS, SegmentEndRow
from amqpstore.format.batches import torn_bytes
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


def crash_with(disk: Disk, *batches: list[bytes]) -> list[int]:
    """Sync batches to queue q and die; return the segment's size before each and at the end."""
    store = disk.open()
    offsets = publish_batches(store, store.create_queue("q"), batches)
    store.abandon()
    return offsets


def test_what_was_synced_is_there_after_a_crash(disk: Disk) -> None:
    crash_with(disk, [b"one"], [b"two", b"three"])
    store = disk.open()
    assert drain(store, queue_named(store, "q")) == [b"one", b"two", b"three"]
    assert store.recovery_report.is_clean
    store.abandon()


def test_what_was_not_synced_is_not_there_after_a_crash(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    publish_batches(store, queue, [[b"one"]])
    store.publish([queue], messages(b"two"))
    store.abandon()
    store = disk.open()
    assert drain(store, queue_named(store, "q")) == [b"one"]
    store.abandon()


def test_a_batch_that_was_written_and_not_settled_is_adopted(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    store.publish([queue], messages(b"one"))
    batch = store.log.seal(0)
    assert batch is not None
    store.log.write(batch)
    store.abandon()
    store = disk.open()
    assert drain(store, queue_named(store, "q")) == [b"one"]
    store.abandon()


def test_what_is_adopted_is_made_durable_before_it_is_served(disk: Disk) -> None:
    crash_with(disk, [b"one"])
    files = FailingFiles()
    files.fails = {"datasync"}
    with pytest.raises(OSError, match="datasync"):
        disk.open(files)
    files.fails = set()
    del files.calls[:]
    disk.open(files).abandon()
    assert files.calls[-2:] == ["datasync", "sync_directory"]
    # Noted in the catalog now: durable, and not made so again.
    del files.calls[:]
    disk.open(files).abandon()
    assert "datasync" not in files.calls


def test_the_last_batch_cut_at_every_byte_is_a_torn_tail_and_taken_back_whole(
    disk: Disk,
) -> None:
    start, end = crash_with(disk, [b"one", b"two"], [b"three", b"four"])[1:]
    content = disk.read(1)
    assert len(content) == end
    catalog = disk.catalog.clone()
    for size in range(start, end):
        disk.write(1, content[:size])
        disk.catalog = catalog.clone()
        store = disk.open()
        report = store.recovery_report
        assert report.damage == []
        assert report.lost == []
        assert report.torn_bytes == size - start
        assert report.is_clean == (size == start)
        assert drain(store, queue_named(store, "q")) == [b"one", b"two"], size
        store.abandon()


def test_the_first_batch_cut_at_every_byte_leaves_an_empty_store(disk: Disk) -> None:
    crash_with(disk, [b"one", b"two"])
    content = disk.read(1)
    catalog = disk.catalog.clone()
    for size in range(len(content)):
        disk.write(1, content[:size])
        disk.catalog = catalog.clone()
        store = disk.open()
        assert store.recovery_report.damage == []
        assert store.recovery_report.torn_bytes == size
        assert queue_named(store, "q").ready_count == 0
        store.abandon()


@pytest.mark.parametrize("fill", [b"\0", b"\xff"])
def test_a_hole_in_the_last_batch_is_a_torn_tail(disk: Disk, fill: bytes) -> None:
    start, end = crash_with(disk, [b"one"], [b"two", b"three"])[1:]
    content = disk.read(1)
    catalog = disk.catalog.clone()
    for at in range(start, end, 7):
        hole = content[:at] + fill * min(20, end - at) + content[at + 20 :]
        if hole == content:
            continue  # the end of an operation is zeros anyway
        disk.write(1, hole)
        disk.catalog = catalog.clone()
        store = disk.open()
        report = store.recovery_report
        assert (report.damage, report.torn_bytes) == ([], torn_bytes(hole[start:]))
        assert drain(store, queue_named(store, "q")) == [b"one"]
        store.abandon()


@pytest.mark.parametrize("fill", [b"\0", b"\xff", b"\xc7REC"])
def test_a_file_that_grew_before_its_content_came_is_a_torn_tail(disk: Disk, fill: bytes) -> None:
    end = crash_with(disk, [b"one"])[-1]
    disk.write(1, disk.read(1) + fill * 1000)
    store = disk.open()
    report = store.recovery_report
    assert (report.damage, report.torn_bytes) == ([], 1000 * len(fill.strip(b"\0")))
    assert drain(store, queue_named(store, "q")) == [b"one"]
    store.abandon()
    assert disk.catalog.rows("ends") == {"0000000001": {"end": end}}


def test_zeros_behind_the_last_batch_are_not_a_torn_tail(disk: Disk) -> None:
    end = crash_with(disk, [b"one"], [b"two"])[-1]
    disk.write(1, disk.read(1) + bytes(3000))
    store = disk.open()
    assert store.recovery_report.is_clean
    assert drain(store, queue_named(store, "q")) == [b"one", b"two"]
    store.abandon()
    assert disk.catalog.rows("ends") == {"0000000001": {"end": end}}


def test_zeros_behind_a_torn_batch_are_no_sign_of_a_later_one(disk: Disk) -> None:
    """The first message of the last batch is lost, and its TRANSACTION is not."""
    start, _ = crash_with(disk, [b"one"], [b"two", b"three"])[1:]
    content = disk.read(1)
    disk.write(1, content[:start] + bytes(40) + content[start + 40 :] + bytes(3000))
    store = disk.open()
    report = store.recovery_report
    assert (report.damage, report.lost) == ([], [])
    assert (report.torn_bytes, report.rolled_back) == (len(content[start:].rstrip(b"\0")), 1)
    assert drain(store, queue_named(store, "q")) == [b"one"]
    store.abandon()
    assert disk.catalog.rows("ends") == {"0000000001": {"end": start}}


def test_zeros_before_a_noted_end_are_damage(disk: Disk) -> None:
    end = crash_with(disk, [b"one"])[-1]
    disk.catalog.commit([SEGMENT_ENDS.put(1, SegmentEndRow(end + 100))])
    disk.write(1, disk.read(1) + bytes(3000))
    store = disk.open()
    ((_, offset, size, _),) = store.recovery_report.damage
    assert (offset, size, store.recovery_report.torn_bytes) == (end, 100, 0)
    store.abandon()


def test_a_torn_tail_is_counted_with_the_messages_in_it(disk: Disk) -> None:
    start, end = crash_with(disk, [b"one"], [b"two", b"three"])[1:]
    disk.write(1, disk.read(1)[:-1])
    store = disk.open()
    report = store.recovery_report
    assert (report.torn_bytes, report.rolled_back) == (end - 1 - start, 2)
    assert not report.is_clean
    store.abandon()


def test_nothing_is_written_behind_a_torn_tail(disk: Disk) -> None:
    start, _ = crash_with(disk, [b"one"], [b"two"])[1:]
    disk.write(1, disk.read(1)[:-1])
    torn = disk.read(1)
    store = disk.open()
    publish_batches(store, queue_named(store, "q"), [[b"after"]])
    store.abandon()
    assert disk.read(1) == torn
    assert disk.catalog.rows("ends") == {"0000000001": {"end": start}}
    store = disk.open()
    assert store.recovery_report.damage == []
    assert drain(store, queue_named(store, "q")) == [b"one", b"after"]
    store.abandon()


def test_ids_of_a_torn_batch_that_can_be_read_are_not_given_again(disk: Disk) -> None:
    crash_with(disk, [b"one"], [b"two", b"three"])
    disk.write(1, disk.read(1)[:-1])
    store = disk.open()
    queue = queue_named(store, "q")
    store.publish([queue], messages(b"new"))
    store.sync()
    ids = [run.first_id for run in queue.ready if run.messages]
    assert ids == [4]
    store.abandon()


@pytest.mark.parametrize("cut", [0, 1, 100])
def test_recovering_twice_is_the_same_as_once(disk: Disk, cut: int) -> None:
    crash_with(disk, [b"one"], [b"two", b"three"])
    disk.write(1, disk.read(1)[: disk.size(1) - cut])
    store = disk.open()
    queue = queue_named(store, "q")
    first = spans(queue), queue.next_sequence
    store.abandon()
    catalog = disk.catalog.clone()
    store = disk.open()
    queue = queue_named(store, "q")
    assert (spans(queue), queue.next_sequence) == first
    assert store.recovery_report.torn_bytes == 0
    store.abandon()
    assert disk.catalog.rows("ends") == catalog.rows("ends")
    assert len(catalog.rows("ends")) == 1


def test_an_empty_last_segment_is_no_damage(disk: Disk) -> None:
    crash_with(disk, [b"one"])
    disk.write(2, b"")
    store = disk.open()
    assert store.recovery_report.is_clean
    publish_batches(store, queue_named(store, "q"), [[b"two"]])
    store.abandon()
    assert disk.size(3) > 0
    store = disk.open()
    assert store.recovery_report.is_clean
    assert drain(store, queue_named(store, "q")) == [b"one", b"two"]
    store.abandon()


def test_a_message_that_was_delivered_is_ready_again_and_says_so(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    store.publish([queue], messages(b"one", b"two", b"three"))
    take(store, queue, 1)
    store.sync()
    store.abandon()
    store = disk.open()
    queue = queue_named(store, "q")
    assert spans(queue) == [(1, 1, 1), (2, 2, 0)]
    assert store.recovery_report.kept == {queue.id: 3}
    assert store.recovery_report.redelivered == {queue.id: 1}
    assert bodies(take(store, queue, 1)) == [b"one"]
    store.abandon()


def test_each_delivery_counts_across_crashes(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    publish_batches(store, queue, [[b"one"]])
    for deliveries in range(1, 4):
        take(store, queue)
        store.sync()
        store.abandon()
        store = disk.open()
        queue = queue_named(store, "q")
        assert spans(queue) == [(1, 1, deliveries)]
    store.abandon()


def test_each_delivery_counts_within_one_batch(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    store.publish([queue], messages(b"one", b"two"))
    for _ in range(3):
        store.requeue(queue, take(store, queue))
    take(store, queue, 1)
    assert spans(queue) == [(2, 1, 3)]
    store.sync()
    store.abandon()
    store = disk.open()
    assert spans(queue_named(store, "q")) == [(1, 1, 4), (2, 1, 3)]
    store.abandon()


def test_an_acked_message_does_not_come_back(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    publish_batches(store, queue, [[b"one", b"two", b"three"]])
    take(store, queue, 1)
    store.ack(queue, take(store, queue, 1))
    store.sync()
    store.abandon()
    store = disk.open()
    queue = queue_named(store, "q")
    assert spans(queue) == [(1, 1, 1), (3, 1, 0)]
    assert queue.next_sequence == 4
    store.abandon()


@pytest.mark.parametrize("remove", ["ack", "take", "purge"])
def test_the_sequences_of_removed_messages_are_not_given_again(disk: Disk, remove: str) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    publish_batches(store, queue, [[b"one", b"two"]])
    if remove == "ack":
        store.ack(queue, take(store, queue))
    elif remove == "take":
        take(store, queue, acked=True)
    else:
        assert store.purge(queue) == 2
    store.close()
    store = disk.open()
    assert queue_named(store, "q").next_sequence == 3
    assert queue_named(store, "q").ready_count == 0
    store.abandon()


def test_messages_of_a_deleted_queue_are_ignored(disk: Disk) -> None:
    store = disk.open()
    gone, kept = store.create_queue("gone"), store.create_queue("kept")
    store.publish([gone, kept], messages(b"both"))
    store.publish([gone], messages(b"gone"))
    store.sync()
    store.delete_queue(gone)
    store.abandon()
    store = disk.open()
    assert [queue.definition for queue in store.queues.values()] == ["kept"]
    assert drain(store, queue_named(store, "kept")) == [b"both"]
    assert store.recovery_report.is_clean
    # And its id is not given to another.
    assert store.create_queue("new").id > gone.id
    assert queue_named(store, "new").ready_count == 0
    store.abandon()


def test_transient_messages_leave_a_durable_queue_and_its_sequences_hold(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    store.publish([queue], messages(b"one"))
    store.publish([queue], messages(b"transient", envelope=TRANSIENT))
    store.publish([queue], messages(b"two"))
    store.close()
    store = disk.open()
    store.stored.paging.read_index(queue_named(store, "q"))
    assert spans(queue_named(store, "q")) == [(1, 1, 0), (3, 1, 0)]
    assert drain(store, queue_named(store, "q")) == [b"one", b"two"]
    store.abandon()


def test_segments_of_one_run_and_of_many_are_read_in_order(disk: Disk) -> None:
    disk.segment_bytes = 300
    written: list[bytes] = []
    for start in range(3):
        store = disk.open()
        queue = queue_named(store, "q") if start else store.create_queue("q")
        for number in range(5):
            written.append(b"%d-%d" % (start, number) * 10)
            store.publish([queue], messages(written[-1]))
            store.sync()
        if start == 1:
            store.close()
        else:
            store.abandon()
    store = disk.open()
    assert store.recovery_report.segments > 6
    assert store.recovery_report.is_clean
    assert drain(store, queue_named(store, "q")) == written
    store.abandon()


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "1.segment",
        "0000000002.segment.bak",
        "0000000000.segment",
        "00000000020.segment",
    ],
)
def test_a_file_that_the_store_does_not_know_is_left_alone_and_named(disk: Disk, name: str) -> None:
    crash_with(disk, [b"one"])
    stray = os.path.join(disk.directory, "segments", name)
    Path(stray).write_bytes(b"mine")
    store = disk.open()
    assert store.recovery_report.unknown_files == [name]
    assert store.recovery_report.damage == []
    publish_batches(store, queue_named(store, "q"), [[b"two"]])
    store.close()
    assert Path(stray).read_bytes() == b"mine"


def test_a_segments_name_with_a_line_feed_behind_it_is_not_a_segments_name(disk: Disk) -> None:
    crash_with(disk, [b"one"])
    Path(disk.path(1) + "\n").write_bytes(b"mine")
    store = disk.open()
    report = store.recovery_report
    store.abandon()
    assert (report.unknown_files, report.damage) == (["0000000001.segment\n"], [])


def test_the_report_is_plain_json(disk: Disk) -> None:
    crash_with(disk, [b"one"], [b"two"])
    disk.flip(1, 130)
    store = disk.open()
    found = json.loads(json.dumps(asdict(store.recovery_report)))
    assert found["segments"] == 1
    assert found["scanned_bytes"] == disk.size(1)
    assert len(found["damage"]) == 1
    store.abandon()


def test_a_new_store_has_nothing_to_report(disk: Disk) -> None:
    store: Store = disk.open()
    report = store.recovery_report
    assert report.is_clean
    assert (report.segments, report.scanned_bytes, report.kept) == (0, 0, {})
    store.abandon()
