"""A log that ends before it was durable: what the notes beside it know of that, and no more."""

import errno
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from amqpstore import Store
from amqpstore.catalog.tables import Position
from amqpstore.evidence import DurablePosition, MissingMessages, ReadLog, Shortfall, read_positions
from amqpstore.evidence.durable_positions import NOTE
from amqpstore.evidence.present_numbers import PresentNumbers
from amqpstore.evidence.shortfall import shortfall
from amqpstore.format.records import Operation, OperationKind
from amqpstore.format.runs import Run
from amqpstore.identity import marker
from amqpstore.provenance.client_trails import Note, NotedClient, What
from amqpstore.system.filenames import SEGMENTS, TRAILS, segment_name
from amqpstore.system.files import OsFiles
from amqpstore.upkeep.worker import InlineWorker
from tests.unit.evidence.stores import OPTIONS, ManualClock, killed_store, opened, publish, zeros

ANN = NotedClient("connection", 1, "ann")
CLIENT = ("connection", 1, "ann")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return killed_store(tmp_path / "store")


def cut_at_a_record(path: Path) -> None:
    """Cut off all but the SEGMENT record."""
    os.truncate(path, 60)


def flipped_near_its_end(path: Path) -> None:
    content = bytearray(path.read_bytes().rstrip(b"\0"))
    content[-30] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, len(path.read_bytes().rstrip(b"\0")) - 1000)


@pytest.mark.parametrize("damage", [zeros, Path.unlink, cut_at_a_record, flipped_near_its_end, cut])
@pytest.mark.parametrize(("segments", "lost"), [(1, 5), (2, 10), (3, 15)])
def test_a_lost_end_of_the_log_is_no_torn_tail(
    directory: Path, damage: Callable[[Path], None], segments: int, lost: int
) -> None:
    if segments > 1:
        names = [segment_name(number) for number in (3, 4)[-segments + 1 :]]
        for name in names:
            (directory / SEGMENTS / name).unlink()
    damage(directory / SEGMENTS / segment_name(5 - segments))
    with opened(directory) as store:
        report = store.recovery_report
        assert not report.is_clean
        assert (report.lost_count, report.shortfall.batches) == (lost, segments)
        assert f"at least {lost} messages that were durable are missing" in report.shortfall.text
        assert sum(report.kept.values()) == 20 - lost


def test_a_store_that_was_killed_has_no_shortfall(directory: Path) -> None:
    with opened(directory) as store:
        assert store.recovery_report.is_clean
        assert not store.recovery_report.shortfall
        assert store.recovery_report.lost_count == 0


def test_a_batch_that_was_torn_was_not_durable(directory: Path, tmp_path: Path) -> None:
    store = opened(directory)
    publish(store, 1)  # less than a second behind the note before it, or it is the first
    store.abandon()
    shutil.rmtree(directory / TRAILS)
    cut(directory / SEGMENTS / segment_name(5))
    with opened(directory) as store:
        assert not store.recovery_report.shortfall
        assert store.recovery_report.rolled_back or store.recovery_report.torn_bytes


def test_missing_numbers_are_not_given_again_and_counted_until_a_checkpoint(
    directory: Path,
) -> None:
    before = read_positions_of(directory)[-1]
    (directory / SEGMENTS / segment_name(4)).unlink()
    clock = ManualClock()
    store = opened(directory, clock)
    assert store.recovery_report.lost_count == 5
    publish(store, 1)
    store.abandon()
    store = opened(directory, clock)
    assert store.recovery_report.lost_count == 5  # until a checkpoint has moved past it
    orders = next(iter(store.queues.values()))
    ids = [run.id_at(place) for run in orders.ready for place in range(run.count)]
    assert ids[-1] >= before.message_id
    assert len(ids) == len(set(ids)) == 11  # the first five are in an index file
    publish(store, 1)  # without anything behind what is missing there is no checkpoint
    store.close()
    with opened(directory) as store:
        assert store.recovery_report.lost_count == 0
        # But it is said until a repair.
        assert "passed over" in store.recovery_report.passed_over


def test_nothing_is_noted_of_what_only_recovery_skipped(directory: Path) -> None:
    """A start that skips numbers for damage, and is killed, claims nothing about them."""
    path = directory / SEGMENTS / segment_name(3)
    content = path.read_bytes()
    zeros(path)
    opened(directory).abandon()
    path.write_bytes(content)
    with opened(directory) as store:
        assert not store.recovery_report.shortfall
        assert sum(store.recovery_report.kept.values()) == 20


def test_a_hole_in_the_log_is_counted(directory: Path) -> None:
    (directory / SEGMENTS / segment_name(3)).unlink()
    with opened(directory) as store:
        report = store.recovery_report
        assert report.lost == []
        assert (report.lost_count, report.shortfall.batches) == (5, 1)


def test_a_hole_whose_messages_were_acked_behind_it_has_lost_none(tmp_path: Path) -> None:
    store = opened(tmp_path, clock := ManualClock())
    orders = store.create_queue({"name": "orders"})
    for _ in range(3):
        publish(store, 5)
        clock.advance(2000)
    run = store.take(orders, 10)
    assert isinstance(run, Run)
    store.ack(orders, run)
    publish(store, 1)
    clock.advance(2000)
    publish(store, 1)
    store.abandon()
    (tmp_path / SEGMENTS / segment_name(2)).unlink()
    with opened(tmp_path) as store:
        report = store.recovery_report
        assert (report.shortfall.batches, report.shortfall.messages) == (1, 5)
        assert (report.lost_count, sum(report.kept.values())) == (0, 7)


def test_a_damaged_message_that_was_acked_is_not_lost(tmp_path: Path) -> None:
    store = opened(tmp_path, clock := ManualClock())
    orders = store.create_queue({"name": "orders"})
    publish(store, 2)
    run = store.take(orders, 1)
    assert isinstance(run, Run)
    store.ack(orders, run)
    for _ in range(2):
        clock.advance(2000)
        publish(store, 2)
    store.abandon()
    path = tmp_path / SEGMENTS / segment_name(1)
    content = bytearray(path.read_bytes())
    content[500] ^= 1  # in the first message
    path.write_bytes(content)
    with opened(tmp_path) as store:
        report = store.recovery_report
        assert len(report.damage) == 1
        assert report.lost_count == 0
        assert not report.shortfall


def test_files_without_a_row_stay_while_the_log_is_short(directory: Path) -> None:
    (directory / SEGMENTS / segment_name(4)).unlink()
    left = directory / "index" / f"{1:020}-0000000099.index"
    left.write_bytes(b"?")
    with opened(directory):
        assert left.exists()


def test_what_trails_know_of_a_queue_counts_too(tmp_path: Path) -> None:
    clock = ManualClock()
    store = opened(tmp_path, clock)
    orders = store.create_queue({"name": "orders"})
    publish(store, 5)
    store.upkeep.checkpoint()
    trails = store.provenance.client_trails(max_files=2)
    publish(store, 6)
    trails.published(CLIENT, orders, 6, 6, persistent=True)
    store.take(orders, 5)
    run = store.take(orders, 2)
    assert isinstance(run, Run)
    store.ack(orders, run)
    trails.note(What.ACKED, CLIENT, "", orders.id, run)
    trails.flush()
    store.sync()
    store.abandon()
    for path in (tmp_path / TRAILS).glob("*.position"):
        path.unlink()
    for number in (2, 3):
        (tmp_path / SEGMENTS / segment_name(number)).unlink()
    with opened(tmp_path) as store:
        shortfall = store.recovery_report.shortfall
        assert shortfall.queues == {orders.id: MissingMessages(6, 2, 12)}
        assert (shortfall.batches, shortfall.lost) == (0, 4)
        assert store.recovery_report.lost_count == 4
        again = next(iter(store.queues.values()))
        assert again.next_sequence >= 12


def test_a_damaged_note_says_nothing(directory: Path) -> None:
    [path] = (directory / TRAILS).glob("*.position")
    assert path.stat().st_size == 4 * NOTE.size
    content = bytearray(path.read_bytes())
    content[-NOTE.size + 20] ^= 1
    path.write_bytes(content)
    assert read_positions_of(directory)[-1].message_id == 16
    path.write_bytes(content[: NOTE.size + 10])
    assert read_positions_of(directory)[-1].message_id == 6
    path.write_bytes(b"")
    (directory / SEGMENTS / segment_name(4)).unlink()
    with opened(directory) as store:
        assert not store.recovery_report.shortfall


def read_positions_of(directory: Path) -> list[DurablePosition]:
    found = marker.read(OsFiles(), str(directory))
    assert found is not None
    return read_positions(OsFiles(), str(directory), found.seed)


def test_at_most_one_note_a_second_and_a_few_small_files(tmp_path: Path) -> None:
    for _ in range(5):
        clock = ManualClock()
        with opened(tmp_path, clock) as store:
            if not store.queues:
                store.create_queue({"name": "orders"})
            for _ in range(20):
                publish(store, 1)
                clock.advance(100)
    paths = sorted((tmp_path / TRAILS).glob("*.position"))
    assert [path.name for path in paths] == [f"{number:010}.position" for number in (3, 4, 5)]
    # Of 20 messages in 2 s, and in three more segments.
    assert [path.stat().st_size // NOTE.size for path in paths] == [5, 5, 5]


def noted(first: int, lsn: int) -> DurablePosition:
    """Each batch has ten messages."""
    return DurablePosition(1, 0, lsn, lsn * 10, first, first * 10, 1000 + lsn)


def log_of(
    *ranges: tuple[int, int],
    sequences: dict[int, int] | None = None,
    heads: dict[int, int] | None = None,
    operations: Iterable[Operation] = (),
) -> ReadLog:
    """A log behind batch 5 of ten messages each."""
    lsns, ids = PresentNumbers(), PresentNumbers()
    for first, end in ranges:
        lsns.add_range(first, end)
        ids.add_range(first * 10, end * 10)
    start = Position(1, 0, 5, 50)
    return ReadLog(start, lsns, ids, sequences or {}, heads or {}, operations)


@pytest.mark.parametrize(
    ("positions", "ranges", "expected"),
    [
        ([], [], (0, 0)),
        ([noted(1, 5)], [], (0, 0)),
        ([noted(1, 9)], [(5, 9)], (0, 0)),
        ([noted(1, 9)], [(5, 11)], (0, 0)),
        ([noted(1, 7)], [], (2, 20)),
        ([noted(1, 9)], [(5, 7)], (2, 20)),
        # A hole: a segment in the middle is missing.
        ([noted(1, 9)], [(5, 6), (8, 10)], (2, 20)),
        # What lies between two processes was skipped, and never durable.
        ([noted(1, 7), noted(1000, 1003)], [], (5, 50)),
        ([noted(1, 7), noted(1000, 1003)], [(5, 7), (1000, 1001)], (2, 20)),
        ([noted(1000, 1003)], [], (3, 30)),
    ],
)
def test_what_positions_know(
    positions: list[DurablePosition], ranges: list[tuple[int, int]], expected: tuple[int, int]
) -> None:
    found = shortfall(positions, [], log_of(*ranges))
    assert (found.batches, found.messages) == expected
    assert bool(found) == bool(expected[0])
    assert found.lsn == max([0, *(one.lsn for one in positions)])


def test_what_batches_behind_a_hole_took_from_queues_is_not_lost() -> None:
    """Batch 6 is missing: it put 41 to 50 in queue 1. Of these, 44 to 48 left it in later ones."""
    enqueue, ack = OperationKind.ENQUEUE, OperationKind.ACK
    operations = [
        Operation(enqueue, 10, 1, 31, 50),
        Operation(ack, 3, 1, 44),
        Operation(ack, 1, 1, 10),  # before the checkpoint
        Operation(ack, 2, 1, 35),
        Operation(OperationKind.PURGE, 2, 1, 47),
        Operation(OperationKind.DELIVERED, 9, 1, 41, 0, 1),
        Operation(enqueue, 10, 1, 51, 70),
        Operation(ack, 5, 1, 51),
        Operation(ack, 5, 2, 51),  # a queue that is gone
    ]
    log = log_of((5, 6), (7, 8), sequences={1: 61}, heads={1: 31}, operations=operations)
    found = shortfall([noted(1, 8)], [], log)
    assert (found.batches, found.messages, found.settled, found.lost) == (1, 10, 5, 5)
    assert "5 of them had left their queues" in found.text


def note(what: What, first: int, count: int, queue_id: int = 1) -> Note:
    return Note(what, 0, ANN, "", queue_id, first, count)


def test_what_trails_know() -> None:
    notes = [
        note(What.PUBLISHED, 1, 10),
        note(What.PUBLISHED, 11, 10),
        note(What.DELIVERED, 11, 10),
        note(What.ACKED, 11, 4),
        note(What.ACKED, 13, 4),
        note(What.REJECTED, 20, 1),
        note(What.REQUEUED, 19, 1),
        note(What.PUBLISHED, 1, 100, queue_id=2),
        note(What.PUBLISHED, 1, 100, queue_id=3),
        note(What.PUBLISHED, 31, 5),
    ]
    found = shortfall([], notes, log_of(sequences={1: 6, 2: 101}))
    # Of the first ten, five are there. Sequences 21 to 30 may be of transient messages.
    assert found == Shortfall(0, 0, 7, {1: MissingMessages(20, 7, 36)})
    assert found.lost == 13


def test_lost_acks_are_named() -> None:
    assert "messages that were acked in them are ready again" in Shortfall(batches=3).text


def test_a_start_goes_on_where_notes_cannot_be_synced(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class UnsyncedNotes(OsFiles):
        def sync_directory(self, path: str) -> None:
            if path.endswith(TRAILS):
                raise OSError(errno.EIO, "it is broken")
            super().sync_directory(path)

    (directory / SEGMENTS / segment_name(4)).unlink()
    store = Store.open(directory, files=UnsyncedNotes(), options=OPTIONS, worker=InlineWorker())
    assert store.recovery_report.shortfall
    store.abandon()
    (record,) = caplog.records
    assert "cannot be synced" in record.message
    assert "it is broken" in record.message
