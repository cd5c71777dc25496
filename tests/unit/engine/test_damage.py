"""Damage to what was durable is found and named, and costs nothing else."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amqpstore import MessageDamagedError, Run, Store
from amqpstore.format.records import Gap, Kind, Record, encode_segment_header, scan
from tests.unit.engine.stores import (
    Disk,
    drain,
    messages,
    publish_batches,
    queue_named,
    spans,
    take,
)

BATCHES = [[b"one", b"two"], [b"three"], [b"four", b"five"]]


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    """A store of one segment, all in its log, its end noted: see `Disk.note_end`."""
    disk = Disk(str(tmp_path / "store"))
    store = disk.open()
    publish_batches(store, store.create_queue("q"), BATCHES)
    store.abandon()
    disk.note_end()
    return disk


@pytest.fixture
def crashed(tmp_path: Path) -> Disk:
    """A store like that of `disk` whose process died: its end is not noted."""
    disk = Disk(str(tmp_path / "crashed"))
    store = disk.open()
    publish_batches(store, store.create_queue("q"), BATCHES)
    store.abandon()
    return disk


def records(disk: Disk, kind: Kind, number: int = 1) -> list[Record]:
    found = scan(disk.read(number), number, disk.seed)
    return [one for one in found if isinstance(one, Record) and one.kind == kind]


def everything(disk: Disk, name: str = "q") -> tuple[Store, list[bytes]]:
    """An opened store (to be abandoned) and what is in a queue of it."""
    store = disk.open()
    return store, drain(store, queue_named(store, name))


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("part", ["header", "payload"])
def test_a_damaged_message_is_named_and_the_others_are_served(
    disk: Disk, place: int, part: str
) -> None:
    record = records(disk, Kind.MESSAGE)[place]
    disk.flip(1, record.offset + 10 if part == "header" else record.end - 1)
    for _ in range(2):
        store, found = everything(disk)
        report = store.recovery_report
        store.abandon()
        expected = [body for batch in BATCHES for body in batch]
        del expected[place]
        assert found == expected
        assert report.lost == [(1, place + 1, place + 1)]
        ((path, offset, size, _),) = report.damage
        assert (path, offset, size) == (disk.path(1), record.offset, record.end - record.offset)
        assert (report.torn_bytes, report.rolled_back) == (0, 0)
        assert not report.is_clean


def test_every_flipped_bit_before_the_end_is_found_and_is_no_torn_tail(disk: Disk) -> None:
    content = disk.read(1)
    catalog = disk.catalog.clone()
    for offset in range(len(content)):
        disk.write(1, content)
        disk.flip(1, offset)
        disk.catalog = catalog.clone()
        store = disk.open()
        report = store.recovery_report
        store.abandon()
        assert len(report.damage) == 1, offset
        _, start, size, _ = report.damage[0]
        assert start <= offset < start + size
        assert report.torn_bytes == 0


def test_a_flipped_bit_in_an_earlier_batch_is_damage_after_a_crash_as_well(crashed: Disk) -> None:
    content = crashed.read(1)
    catalog = crashed.catalog.clone()
    last_batch = records(crashed, Kind.TRANSACTION)[1].end
    for offset in range(last_batch):
        crashed.write(1, content)
        crashed.flip(1, offset)
        crashed.catalog = catalog.clone()
        store, found = everything(crashed)
        report = store.recovery_report
        store.abandon()
        assert len(report.damage) == 1, offset
        assert report.torn_bytes == 0
        assert found[-2:] == [b"four", b"five"]


def test_a_flipped_bit_in_the_last_batch_after_a_crash_is_taken_for_a_torn_tail(
    crashed: Disk,
) -> None:
    # The two cannot be told apart; FORMAT.md says so.
    content = crashed.read(1)
    catalog = crashed.catalog.clone()
    last_batch = records(crashed, Kind.TRANSACTION)[1].end
    for offset in range(last_batch, len(content)):
        crashed.write(1, content)
        crashed.flip(1, offset)
        crashed.catalog = catalog.clone()
        store, found = everything(crashed)
        report = store.recovery_report
        store.abandon()
        assert report.damage == []
        assert report.torn_bytes == len(content) - last_batch
        assert found == [b"one", b"two", b"three"]


@pytest.mark.parametrize("size", [1, 16, 100])
def test_zeros_over_several_records_are_one_damage(disk: Disk, size: int) -> None:
    first = records(disk, Kind.MESSAGE)[1]
    content = disk.read(1)
    disk.write(1, content[: first.offset] + bytes(size) + content[first.offset + size :])
    store, found = everything(disk)
    report = store.recovery_report
    store.abandon()
    assert len(report.damage) == 1
    assert report.damage[0][1] == first.offset
    assert b"two" not in found
    assert found[-2:] == [b"four", b"five"]


@pytest.mark.parametrize("place", range(3))
def test_a_damaged_transaction_takes_its_own_batch_and_no_other(disk: Disk, place: int) -> None:
    record = records(disk, Kind.TRANSACTION)[place]
    disk.flip(1, record.end - 1)
    store, found = everything(disk)
    report = store.recovery_report
    store.abandon()
    expected = [body for at, batch in enumerate(BATCHES) for body in batch if at != place]
    assert found == expected
    ((_, offset, size, _),) = report.damage
    assert (offset, size) == (record.offset, record.end - record.offset)


def test_a_damaged_transaction_between_two_sound_ones_is_damage_after_a_crash(
    crashed: Disk,
) -> None:
    record = records(crashed, Kind.TRANSACTION)[1]
    crashed.flip(1, record.offset)
    store, found = everything(crashed)
    report = store.recovery_report
    store.abandon()
    assert found == [b"one", b"two", b"four", b"five"]
    assert len(report.damage) == 1
    assert report.torn_bytes == 0


def test_the_acks_of_a_damaged_transaction_did_not_happen(tmp_path: Path) -> None:
    disk = Disk(str(tmp_path / "store"))
    store = disk.open()
    queue = store.create_queue("q")
    publish_batches(store, queue, [[b"one", b"two"]])
    store.ack(queue, take(store, queue, 1))
    store.sync()
    publish_batches(store, queue, [[b"three"]])
    store.abandon()
    disk.flip(1, records(disk, Kind.TRANSACTION)[1].end - 1)
    store = disk.open()
    # Their deliveries were in the same record: nothing is known of them either.
    assert spans(queue_named(store, "q")) == [(1, 3, 0)]
    assert len(store.recovery_report.damage) == 1
    store.abandon()


def test_the_messages_that_a_damaged_transaction_took_are_named(disk: Disk) -> None:
    disk.flip(1, records(disk, Kind.TRANSACTION)[1].end - 1)
    store = disk.open()
    report = store.recovery_report
    store.abandon()
    assert report.orphaned == [3]


def test_a_damaged_transaction_before_a_torn_batch_is_damage(crashed: Disk) -> None:
    # The header of the TRANSACTION is sound, and records of a later batch follow: it was durable.
    crashed.flip(1, records(crashed, Kind.TRANSACTION)[1].end - 1)
    crashed.write(1, crashed.read(1)[:-1])
    store = crashed.open()
    report = store.recovery_report
    store.abandon()
    assert len(report.damage) == 1


def test_a_missing_segment_is_named_and_the_others_are_served(tmp_path: Path) -> None:
    disk = three_segments(tmp_path)
    Path(disk.path(2)).unlink()
    for _ in range(2):
        store, found = everything(disk)
        report = store.recovery_report
        store.abandon()
        assert found == [b"segment 1", b"segment 3"]
        assert report.damage == [(disk.path(2), 0, 0, "the file is missing")]


def test_a_missing_last_segment_is_named_and_its_number_not_given_again(tmp_path: Path) -> None:
    disk = three_segments(tmp_path)
    Path(disk.path(3)).unlink()
    store = disk.open()
    assert store.recovery_report.damage == [(disk.path(3), 0, 0, "the file is missing")]
    publish_batches(store, queue_named(store, "q"), [[b"new"]])
    store.close()
    assert Path(disk.path(4)).exists()
    assert not Path(disk.path(3)).exists()


def test_a_segment_of_another_store_is_left_out_and_left_alone(tmp_path: Path) -> None:
    disk, other = three_segments(tmp_path), three_segments(tmp_path / "other")
    shutil.copy(other.path(2), disk.path(2))
    store, found = everything(disk)
    report = store.recovery_report
    store.abandon()
    assert found == [b"segment 1", b"segment 3"]
    ((path, offset, size, reason),) = report.damage
    assert (path, offset, size) == (disk.path(2), 0, other.size(2))
    assert reason.startswith("it is of another store")
    assert disk.read(2) == other.read(2)


def test_a_segment_under_another_segments_name_is_refused_record_by_record(
    tmp_path: Path,
) -> None:
    disk = three_segments(tmp_path)
    shutil.copy(disk.path(1), disk.path(2))
    store, found = everything(disk)
    report = store.recovery_report
    store.abandon()
    assert found == [b"segment 1", b"segment 3"]
    reasons = {reason for _, _, _, reason in report.damage}
    assert reasons == {"the record was written for segment 1"}
    assert sum(size for _, _, size, _ in report.damage) == disk.size(2)


def test_a_segment_of_a_newer_version_is_left_out(tmp_path: Path) -> None:
    disk = three_segments(tmp_path)
    header = encode_segment_header(2, 3, bytes(16), 0)
    disk.write(2, header + disk.read(2)[len(header) :])
    store, found = everything(disk)
    report = store.recovery_report
    store.abandon()
    assert found == [b"segment 1", b"segment 3"]
    assert [reason for _, _, _, reason in report.damage] == ["its format version is 3"]


def test_a_file_shorter_than_its_noted_end_is_damage(disk: Disk) -> None:
    content = disk.read(1)
    catalog = disk.catalog.clone()
    last_batch = records(disk, Kind.TRANSACTION)[1].end
    for size in range(last_batch, len(content)):
        disk.write(1, content[:size])
        disk.catalog = catalog.clone()
        store, found = everything(disk)
        report = store.recovery_report
        store.abandon()
        assert found == [b"one", b"two", b"three"]
        assert report.torn_bytes == 0
        shorter = "the file is shorter than when it was closed"
        assert (disk.path(1), size, len(content) - size, shorter) in report.damage


def test_bytes_behind_the_noted_end_are_not_read(disk: Disk) -> None:
    content = disk.read(1)
    disk.write(1, content + content[60:] + b"junk")
    store, found = everything(disk)
    assert store.recovery_report.is_clean
    assert store.recovery_report.scanned_bytes == len(content)
    store.abandon()
    assert found == [body for batch in BATCHES for body in batch]


def test_a_damaged_segment_header_is_reported_and_its_records_are_served(disk: Disk) -> None:
    disk.flip(1, 40)
    store, found = everything(disk)
    report = store.recovery_report
    store.abandon()
    assert found == [body for batch in BATCHES for body in batch]
    ((_, offset, size, _),) = report.damage
    assert (offset, size) == (0, 60)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_new_messages_are_served_beside_damage(disk: Disk, checkpointed: bool) -> None:
    disk.flip(1, records(disk, Kind.MESSAGE)[1].end - 1)
    store = disk.open()
    publish_batches(store, queue_named(store, "q"), [[b"six"]])
    if checkpointed:
        store.upkeep.checkpoint()
    store.abandon()
    store, found = everything(disk)
    # What the checkpoint knew is not looked at before its turn comes.
    assert store.recovery_report.lost == ([] if checkpointed else [(1, 2, 2)])
    queue = queue_named(store, "q")
    assert [run.first_sequence for run in queue.quarantined] == [2]
    store.abandon()
    assert found == [b"one", b"three", b"four", b"five", b"six"]


def test_a_new_message_does_not_take_the_place_of_a_lost_one(disk: Disk) -> None:
    disk.flip(1, records(disk, Kind.MESSAGE)[4].end - 1)
    store = disk.open()
    publish_batches(store, store.create_queue("other"), [[b"of another queue"]])
    store.close()
    store, found = everything(disk)
    store.abandon()
    assert found == [b"one", b"two", b"three", b"four"]


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_message_damaged_after_the_start_is_an_error_once_and_the_rest_is_served(
    disk: Disk, checkpointed: bool
) -> None:
    record = records(disk, Kind.MESSAGE)[1]
    store = disk.open()
    disk.flip(1, record.end - 1)
    queue = queue_named(store, "q")
    taken = [store.take(queue, 1000) for _ in range(3)]
    assert isinstance(taken[1], MessageDamagedError)
    assert taken[1].message_id == 2
    assert "the payload's checksum does not match" in taken[1].reason
    assert [run.count for run in taken if isinstance(run, Run)] == [1, 3]
    assert queue.ready_count == 0
    store.sync()
    if checkpointed:
        store.upkeep.checkpoint()
    store.abandon()
    # It was not taken off its queue: each start finds it again, until it is repaired.
    for _ in range(2):
        store = disk.open()
        queue = queue_named(store, "q")
        if checkpointed:
            store.stored.paging.read_index(queue)
            assert spans(queue) == [(1, 1, 1), (2, 1, 0), (3, 3, 1)]
            take(store, queue, 1)
            assert isinstance(store.take(queue, 1), MessageDamagedError)
            assert drain(store, queue) == [b"three", b"four", b"five"]
        else:
            assert spans(queue) == [(1, 1, 1), (3, 3, 1)]
            assert store.recovery_report.lost == [(1, 2, 2)]
            assert len(store.recovery_report.damage) == 1
        store.abandon()


def test_a_segment_that_vanishes_after_the_start_is_an_error_for_each_message(disk: Disk) -> None:
    store = disk.open()
    store.log.close()
    Path(disk.path(1)).unlink()
    queue = queue_named(store, "q")
    found = [store.take(queue, 1) for _ in range(queue.ready_count)]
    assert all(isinstance(one, MessageDamagedError) for one in found)
    assert len(found) == 5
    store.abandon()


def test_damage_of_one_queue_is_not_another_queues_loss(tmp_path: Path) -> None:
    disk = Disk(str(tmp_path / "store"))
    store = disk.open()
    one, two = store.create_queue("one"), store.create_queue("two")
    store.publish([one], messages(b"a"))
    store.publish([one, two], messages(b"b"))
    store.publish([two], messages(b"c"))
    store.sync()
    store.abandon()
    disk.note_end()
    disk.flip(1, records(disk, Kind.MESSAGE)[1].end - 1)
    store = disk.open()
    assert store.recovery_report.lost == [(one.id, 2, 2), (two.id, 1, 2)]
    assert drain(store, queue_named(store, "one")) == [b"a"]
    assert drain(store, queue_named(store, "two")) == [b"c"]
    store.abandon()


def test_a_gap_says_where_it_is() -> None:
    (gap,) = scan(b"junk", 1, 0)
    assert gap == Gap(0, 4, "shorter than a record's header")


def three_segments(tmp_path: Path) -> Disk:
    """A store of three segments with one message each, all in its log, its end noted."""
    disk = Disk(str(tmp_path / "three"), segment_bytes=1)
    store = disk.open()
    batches = [[b"segment %d" % number] for number in (1, 2, 3)]
    publish_batches(store, store.create_queue("q"), batches)
    store.abandon()
    disk.note_end()
    return disk


@pytest.mark.parametrize("part", ["header", "payload"])
def test_a_damaged_segment_is_scanned_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """No message behind the damage, and none within it, has the segment scanned again."""
    disk = Disk(str(tmp_path / "store"))
    store = disk.open()
    written = [b"%d" % number for number in range(100)]
    publish_batches(store, store.create_queue("q"), [written])
    store.close()
    bad = records(disk, Kind.MESSAGE)[10:60:10]
    for record in bad:
        disk.flip(1, record.offset + 10 if part == "header" else record.end - 1)
    scans: list[int] = []

    def noted(content: bytes, *arguments: Any, **named: Any) -> Iterator[Record | Gap]:
        scans.append(len(content))
        return scan(content, *arguments, **named)

    monkeypatch.setattr("amqpstore.log.segments.scan", noted)
    store = disk.open()
    queue = queue_named(store, "q")
    bodies, lost = [], []
    while queue.ready_count:
        run = store.take(queue, 1)
        if isinstance(run, Run):
            bodies += [message.body for message in run.messages or ()]
        else:
            assert isinstance(run, MessageDamagedError)
            lost.append(run.message_id)
    assert lost == [record.number for record in bad]
    assert bodies == [body for body in written if int(body) + 1 not in lost]
    assert len(scans) == 1
    store.abandon()


def test_damage_that_comes_later_is_found_as_well(disk: Disk) -> None:
    first, _, third, *_ = records(disk, Kind.MESSAGE)
    store = disk.open()
    queue = queue_named(store, "q")
    disk.flip(1, first.end - 1)
    assert isinstance(store.take(queue, 1), MessageDamagedError)
    disk.flip(1, third.offset + 3)
    assert drain(store, queue) == [b"two", b"four", b"five"]
    store.abandon()
