"""Compaction: neighbours that are mostly garbage become one segment, and nothing live is lost."""

import contextlib
import errno
import itertools
import os
from array import array
from pathlib import Path

import pytest

from amqpstore import Envelope, Message, MessageDamagedError, Options, Queue, Store
from amqpstore.catalog import tables
from amqpstore.catalog.tables import SegmentRow
from amqpstore.checkpoints.compaction import choose
from amqpstore.format.records import Kind, Record, scan
from amqpstore.log.segment_accounts import SegmentAccount, SegmentAccounts
from amqpstore.system.filenames import FIRST_COMPACTED, segment_numbers
from amqpstore.system.files import OsFiles
from amqpstore.upkeep.worker import InlineWorker
from tests.unit.engine.stores import (
    Disk,
    FailingFiles,
    RowsCatalog,
    drain,
    messages,
    publish_batches,
    queue_named,
    take,
)

EAGER = 1 << 60
"""Bytes a second: no compaction waits for the one before it."""


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    """A store with one batch a segment, which compacts each time it does maintenance."""
    disk = Disk(str(tmp_path / "store"), segment_bytes=1)
    disk.options = disk.options._replace(compaction_bytes_s=EAGER)
    return disk


def accounts(*shares: tuple[int, int]) -> SegmentAccounts:
    """Return accounts of segments 1, 2, ... from their bytes and live bytes."""
    found = []
    for number, (size, live) in enumerate(shares, 1):
        account = SegmentAccount(number, 100 * number)
        account.add(100 * number, array("I", [live, size - live]), array("I", [1, 0]))
        account.end_bytes = size
        found.append(account)
    return SegmentAccounts(found)


def chosen(found: SegmentAccounts, log_segment: int = 99, segment_bytes: int = 1000) -> list[int]:
    wanted = choose(found, log_segment=log_segment, segment_bytes=segment_bytes)
    return [account.number for account in wanted]


def test_nothing_is_compacted_while_there_is_less_garbage_than_live() -> None:
    assert chosen(accounts((1000, 500), (1000, 500), (1000, 500))) == []
    assert chosen(accounts((1000, 500), (1000, 500), (1000, 499))) != []


def test_nothing_is_compacted_while_there_are_few_segments() -> None:
    assert chosen(accounts((1000, 1), (1000, 1))) == []
    # The log's own counts as one, and is left alone.
    assert chosen(accounts((1000, 1), (1000, 1)), log_segment=2) == []
    assert chosen(accounts((1000, 1), (1000, 1), (1000, 1)), log_segment=3) == [1, 2]


def test_the_segment_that_the_log_is_in_is_left_alone() -> None:
    found = accounts((1000, 1), (1000, 1), (1000, 1), (1000, 1))
    assert chosen(found, log_segment=4) == [1, 2, 3]


def test_the_neighbours_that_fit_together_and_free_most_are_chosen() -> None:
    found = accounts((1000, 900), (1000, 200), (1000, 300), (1000, 900), (1000, 20), (1000, 20))
    # 5 and 6 free 1960 alone, and 4 with them 2060.
    assert chosen(found) == [4, 5, 6]
    assert chosen(accounts((1000, 100), (1000, 900), (1000, 10), (1000, 10))) == [2, 3, 4]


def test_one_segment_is_written_anew_only_if_most_of_it_is_garbage() -> None:
    found = accounts((1000, 900), (1000, 20), (1000, 1000), (4000, 100), (1000, 1000))
    assert chosen(found, segment_bytes=100) == [4]


def segment_files(disk: Disk) -> list[int]:
    return segment_numbers(os.listdir(os.path.join(disk.directory, "segments")))


def bodies_in(disk: Disk, number: int) -> list[tuple[int, bytes]]:
    """Id and body of each message in a segment in which nothing is damaged."""
    content = disk.read(number)
    found = []
    for record in scan(content, number, disk.seed):
        assert isinstance(record, Record)
        assert record.kind in (Kind.SEGMENT, Kind.MESSAGE)
        if record.kind == Kind.MESSAGE:
            assert record.batch == 0
            found.append((record.number, content[record.end - 1 : record.end]))
    return found


def compact(store: Store) -> None:
    """Begin what is due, take over what is done, and remove what is no longer in use."""
    for _ in range(4):
        store.upkeep.housekeep()


def ack_all_but(store: Store, queue: Queue, *kept: int) -> None:
    """Sequences that stay are taken and never acked."""
    for _ in range(queue.ready_count):
        run = take(store, queue, 1)
        if run.first_sequence not in kept:
            store.ack(queue, run)
    store.sync()
    store.upkeep.checkpoint()


def filled(disk: Disk) -> tuple[Store, Queue]:
    """Segments 1 to 6 with two messages each, and 2, 5, 9, 12 the ones that stay."""
    store = disk.open()
    queue = store.create_queue("q")
    publish_batches(store, queue, [[b"%x" % n, b"%x" % (n + 1)] for n in range(1, 13, 2)])
    ack_all_but(store, queue, 2, 5, 9, 12)
    return store, queue


def test_a_merged_segment_holds_exactly_the_live_messages(disk: Disk) -> None:
    disk.segment_bytes = 1000
    store = disk.open()
    queue = store.create_queue("q")
    padding = b"x" * 900
    publish_batches(store, queue, [[padding, b"%x" % number] for number in range(1, 9)])
    ack_all_but(store, queue, 4, 6, 10, 16)
    assert segment_files(disk) == [2, 3, 5, 8, 9]
    compact(store)
    assert segment_files(disk) == [9, FIRST_COMPACTED]
    assert bodies_in(disk, FIRST_COMPACTED) == [(4, b"2"), (6, b"3"), (10, b"5"), (16, b"8")]
    rows = disk.catalog.rows("segments")
    account = SegmentAccount.of_row(SegmentRow.of_row(rows[f"{FIRST_COMPACTED:010}"]))
    assert (account.count, account.live_count, account.garbage_bytes) == (4, 4, 0)
    assert account.end_bytes == disk.size(FIRST_COMPACTED)
    assert list(disk.catalog.rows("marks")) == list(rows) == ["0000000009", "2147483648"]
    store.abandon()
    for _ in range(2):
        store = disk.open()
        assert store.recovery_report.is_clean
        queue = queue_named(store, "q")
        store.stored.paging.read_index(queue)
        assert [run.first_sequence for run in queue.ready] == [4, 6, 10, 16]
        assert drain(store, queue) == [b"2", b"3", b"5", b"8"]
        store.abandon()


def merging(disk: Disk, files: OsFiles | None = None) -> tuple[Store, Queue]:
    """Segments of which each has one live message of two, checkpointed and ready to be merged."""
    disk.segment_bytes = 1000
    store = disk.open(files)
    queue = store.create_queue("q")
    publish_batches(store, queue, [[b"x" * 900, b"%x" % number] for number in range(1, 5)])
    ack_all_but(store, queue, 2, 4, 6, 8)
    return store, queue


def test_a_run_on_disk_is_read_before_and_after(disk: Disk) -> None:
    store, _ = merging(disk)
    store.abandon()
    store = disk.open()
    queue = queue_named(store, "q")
    assert take(store, queue, 1).first_sequence == 2
    compact(store)
    assert FIRST_COMPACTED in segment_files(disk)
    assert drain(store, queue) == [b"2", b"3", b"4"]
    store.abandon()


def test_messages_around_a_segment_that_was_torn_are_read_once_they_are_merged(disk: Disk) -> None:
    disk.segment_bytes = 1000
    store = disk.open()
    queue = store.create_queue("q")
    publish_batches(store, queue, [[b"x" * 900, b"%x" % number] for number in (1, 2, 3)])
    store.abandon()
    os.truncate(disk.path(3), disk.size(3) - 1)
    store = disk.open()
    queue = queue_named(store, "q")
    store.memory.set_lazy(queue, lazy=True)
    publish_batches(store, queue, [[b"x" * 900, b"%x" % number] for number in (3, 4, 5)])
    for run in [take(store, queue, 1) for _ in range(10)]:
        if run.first_sequence % 2:
            store.ack(queue, run)
        else:
            store.requeue(queue, run)
    store.sync()
    store.upkeep.checkpoint()
    compact(store)
    assert FIRST_COMPACTED in segment_files(disk)
    assert queue.memory_bytes == 0
    assert drain(store, queue) == [b"1", b"2", b"3", b"4", b"5"]
    store.abandon()


def test_a_reader_goes_on_in_the_old_files_until_the_new_one_is_taken_over(disk: Disk) -> None:
    store, _ = merging(disk)
    store.abandon()
    store = disk.open()
    queue = queue_named(store, "q")
    store.upkeep.housekeep()  # it is done and the catalog has it, but it is not taken over
    assert segment_files(disk) == [1, 2, 3, 4, 5, FIRST_COMPACTED]
    assert [take(store, queue, 1).first_sequence for _ in range(2)] == [2, 4]
    store.upkeep.housekeep()
    store.upkeep.housekeep()
    assert segment_files(disk) == [5, FIRST_COMPACTED]
    assert drain(store, queue) == [b"3", b"4"]
    store.abandon()


def test_a_crash_before_it_is_taken_over_leaves_what_the_next_start_removes(disk: Disk) -> None:
    store, _ = merging(disk)
    before = disk.catalog.clone()
    store.upkeep.housekeep()
    store.abandon()
    # As a crash after the commit leaves it.
    after = disk.catalog.clone()
    contents = {number: disk.read(number) for number in segment_files(disk)}
    assert sorted(contents) == [1, 2, 3, 4, 5, FIRST_COMPACTED]
    # And as one before the commit does.
    for catalog, left in ((after, [5, FIRST_COMPACTED]), (before, [1, 2, 3, 4, 5])):
        disk.catalog = catalog
        for number, content in contents.items():
            disk.write(number, content)
        store = disk.open()
        assert segment_files(disk) == left
        assert store.recovery_report.is_clean
        assert drain(store, queue_named(store, "q")) == [b"1", b"2", b"3", b"4"]
        store.abandon()


def test_what_is_acked_behind_a_compaction_is_garbage_in_the_new_segment(disk: Disk) -> None:
    store, _ = merging(disk)
    compact(store)
    store.abandon()
    store = disk.open()
    queue = queue_named(store, "q")
    store.ack(queue, take(store, queue, 1))
    store.sync()
    store.upkeep.checkpoint()
    account = SegmentAccount.of_row(tables.SEGMENTS.read(disk.catalog.rows)[FIRST_COMPACTED])
    assert (account.count, account.live_count) == (4, 3)
    while queue.ready_count:
        store.ack(queue, take(store, queue, 1))
    store.sync()
    store.upkeep.checkpoint()
    assert FIRST_COMPACTED not in segment_files(disk)
    store.abandon()
    store = disk.open()
    assert store.recovery_report.is_clean
    assert queue_named(store, "q").ready_count == 0
    store.abandon()


def test_references_of_several_queues_come_along(disk: Disk) -> None:
    disk.segment_bytes = 1000
    store = disk.open()
    one, two = store.create_queue("one"), store.create_queue("two")
    for number in range(1, 5):
        store.publish([one], messages(b"x" * 900))
        store.publish([one, two], messages(b"%x" % number))
        store.sync()
    ack_all_but(store, one, 2, 4, 6, 8)
    compact(store)
    assert segment_files(disk) == [5, FIRST_COMPACTED]
    store.abandon()
    store = disk.open()
    one, two = queue_named(store, "one"), queue_named(store, "two")
    ack_all_but(store, one)
    assert drain(store, two) == [b"1", b"2", b"3", b"4"]
    assert FIRST_COMPACTED in segment_files(disk)
    store.abandon()


def test_a_segment_with_damage_goes_to_quarantine_and_the_others_are_merged(disk: Disk) -> None:
    store, _ = merging(disk)
    store.abandon()
    disk.flip(2, [one for one in records(disk, 2) if one.kind == Kind.MESSAGE][1].end - 1)
    damaged = disk.read(2)
    store = disk.open()
    queue = queue_named(store, "q")
    compact(store)
    assert segment_files(disk) == [5, FIRST_COMPACTED]
    assert Path(disk.directory, "quarantine", "0000000002.segment").read_bytes() == damaged
    assert bodies_in(disk, FIRST_COMPACTED) == [(2, b"1"), (6, b"3"), (8, b"4")]
    taken = [store.take(queue, 1) for _ in range(4)]
    assert isinstance(taken[1], MessageDamagedError)
    assert taken[1].message_id == 4
    store.abandon()
    # It was not taken off its queue.
    store = disk.open()
    assert queue_named(store, "q").ready_count == 4
    assert drain(store, queue_named(store, "q")) == [b"1", b"3", b"4"]
    store.abandon()


@pytest.mark.parametrize("how", ["delete", "purge"])
def test_a_message_that_compaction_lost_can_be_removed(disk: Disk, how: str) -> None:
    store, _ = merging(disk)
    store.abandon()
    disk.flip(2, [one for one in records(disk, 2) if one.kind == Kind.MESSAGE][1].end - 1)
    store = disk.open()
    queue = queue_named(store, "q")
    compact(store)
    if how == "delete":
        store.delete_queue(queue)
    else:
        assert store.purge(queue) == 4
        store.sync()
    store.upkeep.checkpoint()
    assert FIRST_COMPACTED not in segment_files(disk)
    store.abandon()


def test_a_damaged_segment_goes_to_quarantine_after_a_crash_as_well(disk: Disk) -> None:
    store, _ = merging(disk)
    disk.flip(2, [one for one in records(disk, 2) if one.kind == Kind.MESSAGE][1].end - 1)
    damaged = disk.read(2)
    store.upkeep.housekeep()
    store.abandon()
    store = disk.open()
    assert Path(disk.directory, "quarantine", "0000000002.segment").read_bytes() == damaged
    store.abandon()


def test_a_segment_that_recovery_could_not_read_is_never_removed(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    publish_batches(store, queue, [[b"1"], [b"2"], [b"3"]])
    store.abandon()
    damaged = bytes(disk.size(2))
    disk.write(2, damaged)
    for _ in range(2):
        store = disk.open()
        store.upkeep.checkpoint()
        store.abandon()
    quarantined = Path(disk.directory, "quarantine", "0000000002.segment")
    path = Path(disk.path(2))
    assert (path if path.exists() else quarantined).read_bytes() == damaged


def test_a_segment_that_the_log_went_on_in_behind_the_checkpoint_is_left_alone(
    disk: Disk,
) -> None:
    store, queue = merging(disk)
    store.upkeep.checkpoint()
    # The log goes on in segment 5, in which the checkpoint's position is, and then in 6.
    for body in (b"5" * 1000, b"6"):
        store.publish([queue], messages(body))
        batch = store.log.seal(0)
        assert batch is not None
        store.log.write(batch)
        store.log.complete(batch)
    compact(store)
    store.abandon()
    store = disk.open()
    assert store.recovery_report.damage == []
    found = drain(store, queue_named(store, "q"))
    assert found == [b"1", b"2", b"3", b"4", b"5" * 1000, b"6"]
    store.abandon()


def records(disk: Disk, number: int) -> list[Record]:
    found = scan(disk.read(number), number, disk.seed)
    return [one for one in found if isinstance(one, Record)]


@pytest.mark.parametrize("restarts", [False, True])
def test_one_message_that_stays_does_not_hold_the_disk(disk: Disk, restarts: bool) -> None:
    disk.segment_bytes = 10_000
    disk.options = disk.options._replace(checkpoint_bytes=20_000)
    store = disk.open()
    slow, busy = store.create_queue("slow"), store.create_queue("busy")
    most = 0
    for number in range(150):
        if number % 10 == 0:
            store.publish([slow], messages(b"%d" % number))
        store.publish([busy], messages(b"x" * 2000))
        store.sync()
        store.ack(busy, take(store, busy, 1))
        store.sync()
        if restarts and number % 50 == 49:
            store.abandon()
            store = disk.open()
            slow, busy = queue_named(store, "slow"), queue_named(store, "busy")
        most = max(most, sum(disk.size(one) for one in segment_files(disk)))
    assert most < 120_000 < 150 * 2000
    store.abandon()
    store = disk.open()
    assert store.recovery_report.is_clean
    assert drain(store, queue_named(store, "slow")) == [b"%d" % one for one in range(0, 150, 10)]
    store.abandon()


def test_the_number_of_a_compacted_segment_that_is_gone_is_not_given_again(disk: Disk) -> None:
    """Neither its file nor any row is there any more when the next process compacts."""
    store, _ = merging(disk)
    compact(store)
    store.abandon()
    store = disk.open()
    ack_all_but(store, queue_named(store, "q"))
    assert FIRST_COMPACTED not in segment_files(disk)
    store.abandon()
    store = disk.open()
    queue = queue_named(store, "q")
    publish_batches(store, queue, [[b"x" * 900, b"%x" % number] for number in range(5, 9)])
    ack_all_but(store, queue, 10, 12, 14, 16)
    compact(store)
    assert [one for one in segment_files(disk) if one >= FIRST_COMPACTED] == [FIRST_COMPACTED + 1]
    store.abandon()


def test_compaction_of_compacted_segments(disk: Disk) -> None:
    store, _ = merging(disk)
    compact(store)
    store.abandon()
    store = disk.open()
    queue = queue_named(store, "q")
    publish_batches(store, queue, [[b"x" * 900, b"%x" % number] for number in range(6, 10)])
    ack_all_but(store, queue, 4, 10, 14)
    compact(store)
    (merged,) = [one for one in segment_files(disk) if one >= FIRST_COMPACTED]
    assert merged == FIRST_COMPACTED + 1
    assert [body for _, body in bodies_in(disk, merged)] == [b"2", b"6", b"8"]
    store.abandon()
    store = disk.open()
    assert drain(store, queue_named(store, "q")) == [b"2", b"6", b"8"]
    store.abandon()


def removed_files_that_are_open(disk: Disk) -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{name}")
            if path.startswith(disk.directory) and path.endswith("(deleted)"):
                found.append(path)
    return found


@pytest.mark.parametrize("call", ["append", "commit"])
def test_a_compaction_that_finds_no_room_leaves_none_taken(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    files = FailingFiles()
    files.error = OSError(errno.ENOSPC, "No space left on device")
    store, _ = merging(disk, files)
    before = segment_files(disk)
    with monkeypatch.context() as patch:
        files.fails = {call}
        if call == "commit":

            def refuse(*_: object) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

            patch.setattr(RowsCatalog, "commit", refuse)
        for _ in range(5):
            store._maintenance.compactions.is_checked = False
            compact(store)
    assert segment_files(disk) == before
    assert removed_files_that_are_open(disk) == []
    files.fails = set()
    store._maintenance.compactions.is_checked = False
    compact(store)
    assert segment_files(disk) != before
    store.abandon()
    store = disk.open()
    assert queue_named(store, "q").ready_count == 4
    store.abandon()


def test_compaction_ends_where_no_live_message_can_be_read(tmp_path: Path) -> None:
    directory = str(tmp_path / "store")
    options = Options(reserve_bytes=0)
    message = Message(Envelope("", "q", b"\x10\0\2"), b"y" * 1500)
    with Store.open(directory, options=options, worker=InlineWorker()) as store:
        queue = store.create_queue("q")
        store.publish([queue], [message, message])
        store.sync()
        store.take(queue, 1, acked=True)
    (path,) = (tmp_path / "store" / "segments").iterdir()
    content = bytearray(path.read_bytes())
    content[content.rindex(message.body) + 9] ^= 1
    path.write_bytes(content)
    store = Store.open(directory, options=options, worker=InlineWorker())
    store.publish([queue_named(store, "q")], [message])
    store.sync()
    assert len(list(itertools.islice(store.upkeep.compact(), 20))) == 1
    store.abandon()
