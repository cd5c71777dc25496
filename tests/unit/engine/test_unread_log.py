"""Batches that one start cannot read and the next one can are all there in the end.

A read error passes: a cable was loose. Until then no number is given twice, the error is not taken
for a torn tail, and no checkpoint leaves the unread batches behind at once.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from amqpstore import Options, Store, UnreadableLogError
from amqpstore.format.limits import StoreLimits
from amqpstore.format.records import Gap, Kind, scan
from amqpstore.system.clock import SimulatedClock
from amqpstore.system.filenames import index_path
from amqpstore.system.files import Files, OsFiles
from amqpstore_tools.simulation.faulty_files import UnreadableFiles
from amqpstore_tools.simulation.wrapped_files import WrappedFile
from tests.unit.engine.stores import (
    NO_CHECKPOINTS,
    Disk,
    bodies,
    drain,
    messages,
    queue_named,
    spans,
    take,
)

PAGE = 4096
LONG = b"b" * 2 * PAGE


class Written(NamedTuple):
    """A store in whose log a batch lies over pages of its own, its TRANSACTION too."""

    disk: Disk
    start: int
    end: int


@pytest.fixture(params=["last", "middle", "earlier segment"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Written:
    """Queue q has a and LONG; where that is not the last batch, another queue has one behind it."""
    disk = Disk(str(tmp_path / "store"))
    store = disk.open()
    queue, other = store.create_queue("q"), store.create_queue("other")
    write(store, queue_name="q", body=b"a")
    assert store.log.current
    # So that its first page has nothing of a.
    write(store, queue_name="other", body=bytes(PAGE - store.log.current.size - 10))
    start = store.log.current.size
    write(store, queue_name="q", body=LONG)
    end = store.log.current.size
    if request.param == "earlier segment":
        store.abandon()
        store = disk.open()
    if request.param != "last":
        write(store, queue_name="other", body=b"behind it")
    assert queue.id != other.id
    store.abandon()
    disk.note_end()
    return Written(disk, start, end)


def write(store: Store, *, queue_name: str, body: bytes) -> int:
    """Publish a message durably, and return its sequence."""
    queue = queue_named(store, queue_name)
    sequence = queue.next_sequence
    store.publish([queue], messages(body))
    store.sync()
    return sequence


def unreadable(written: Written) -> Files:
    """Return files in which the batch's pages cannot be read, but for those that others share."""
    first = (written.start + PAGE - 1) // PAGE * PAGE
    return UnreadableFiles(OsFiles(), (written.disk.path(1), first, written.end))


def rotten(written: Written) -> OsFiles:
    """Return files in which the batch's bytes are read as zeros."""
    return ZeroFiles(written.disk.path(1), written.start, written.end)


class ZeroFiles(OsFiles):
    """Files of which one is read with zeros in it."""

    def __init__(self, path: str, start: int, end: int) -> None:
        self._path = path
        self._start = start
        self._end = end

    def open(self, path: str) -> "ZeroFile":
        return ZeroFile(self, path, self._path == path)

    def blank(self, content: bytes, offset: int) -> bytes:
        start = max(self._start - offset, 0)
        end = min(max(self._end - offset, 0), len(content))
        return content[:start] + bytes(max(end - start, 0)) + content[max(start, end) :]


class ZeroFile(WrappedFile):
    """A file of `ZeroFiles`."""

    def __init__(self, files: ZeroFiles, path: str, is_blanked: bool) -> None:
        super().__init__(OsFiles().open(path))
        self._files = files
        self._is_blanked = is_blanked

    def read(self, offset: int, size: int) -> bytes:
        content = self._file.read(offset, size)
        return self._files.blank(content, offset) if self._is_blanked else content


def missing(written: Written) -> OsFiles:
    """Return files in which the segment is missing, for one start."""
    path = written.disk.path(1)

    class WithoutIt(OsFiles):
        def list_directory(self, directory: str) -> list[str]:
            found = super().list_directory(directory)
            return [name for name in found if not path.endswith(f"/{name}")]

    return WithoutIt()


@pytest.mark.parametrize("hide", [unreadable, rotten, missing])
def test_what_was_confirmed_meanwhile_and_what_can_be_read_again_are_both_there(
    written: Written, hide: Callable[[Written], OsFiles]
) -> None:
    disk = written.disk
    sound = disk.open()
    had = queue_named(sound, "q").next_sequence
    sound.abandon()
    for body in (b"meanwhile", b"and again"):
        store = disk.open(hide(written))
        assert store.recovery_report.damage
        assert write(store, queue_name="q", body=body) >= had
        # A queue made now has sequences of its own.
        store.abandon()
    store = disk.open()
    assert store.recovery_report.damage == []
    assert drain(store, queue_named(store, "q")) == [b"a", LONG, b"meanwhile", b"and again"]
    store.abandon()


@pytest.mark.parametrize("hide", [unreadable, rotten, missing])
def test_an_ack_is_of_one_message_only(
    written: Written, hide: Callable[[Written], OsFiles]
) -> None:
    disk = written.disk
    store = disk.open(hide(written))
    write(store, queue_name="q", body=b"meanwhile")
    queue = queue_named(store, "q")
    while queue.ready_count:
        store.ack(queue, take(store, queue))
    store.sync()
    store.abandon()
    store = disk.open()
    left = drain(store, queue_named(store, "q"))
    assert left == ([b"a", LONG] if hide is missing else [LONG])
    store.abandon()


def test_damage_is_reported_at_each_start(written: Written) -> None:
    for _ in range(3):
        store = written.disk.open(unreadable(written))
        assert store.recovery_report.damage
        write(store, queue_name="q", body=b"meanwhile")
        store.abandon()


def test_numbers_ascend_from_segment_to_segment(written: Written) -> None:
    disk = written.disk
    for _ in range(2):
        store = disk.open(unreadable(written))
        write(store, queue_name="q", body=b"meanwhile")
        store.abandon()
    last = {Kind.MESSAGE: 0, Kind.TRANSACTION: 0}
    for number in range(1, 10):
        if not Path(disk.path(number)).exists():
            break
        for record in scan(disk.read(number), number, disk.seed):
            assert not isinstance(record, Gap)
            kind = Kind(record.kind)
            if kind != Kind.SEGMENT:
                assert record.number > last[kind]
                last[kind] = record.number
    assert number > 3


@pytest.mark.parametrize("page", range(3))
def test_a_read_error_is_no_torn_tail(tmp_path: Path, page: int) -> None:
    """A batch that was confirmed lies over three pages, and the process died."""
    disk = Disk(str(tmp_path / "store"))
    store = disk.open()
    store.create_queue("q")
    write(store, queue_name="q", body=b"a")
    write(store, queue_name="q", body=LONG)
    store.abandon()
    catalog = disk.catalog.clone()
    size = disk.size(1)
    bad = UnreadableFiles(
        OsFiles(), (disk.path(1), max(page * PAGE, 300), min((page + 1) * PAGE, size))
    )
    with pytest.raises(UnreadableLogError, match=f"at offset {page * PAGE}: .*Confirmed messages"):
        disk.open(bad)
    assert disk.catalog.rows("ends") == catalog.rows("ends") == {}
    store = disk.open()
    assert store.recovery_report.is_clean
    assert drain(store, queue_named(store, "q")) == [b"a", LONG]
    store.abandon()


def test_a_sound_batch_behind_a_read_error_says_that_it_is_no_torn_tail(tmp_path: Path) -> None:
    disk = Disk(str(tmp_path / "store"))
    store = disk.open()
    store.create_queue("q")
    write(store, queue_name="q", body=LONG)
    write(store, queue_name="q", body=b"behind it")
    store.abandon()
    store = disk.open(UnreadableFiles(OsFiles(), (disk.path(1), PAGE, PAGE + 1)))
    assert store.recovery_report.lost == [(1, 1, 1)]
    assert drain(store, queue_named(store, "q")) == [b"behind it"]
    store.abandon()
    store = disk.open()
    assert drain(store, queue_named(store, "q")) == [LONG, b"behind it"]
    store.abandon()


OFTEN = Options(checkpoint_messages=1, checkpoint_ms=0, reserve_bytes=0)


@pytest.mark.parametrize("ended", ["closed", "abandoned"])
def test_no_checkpoint_leaves_behind_what_the_next_start_may_read(
    written: Written, ended: str
) -> None:
    disk = written.disk
    disk.options = OFTEN
    store = disk.open(unreadable(written))
    write(store, queue_name="q", body=b"meanwhile")
    store.upkeep.checkpoint()
    store.upkeep.housekeep()
    getattr(store, "close" if ended == "closed" else "abandon")()
    store = disk.open()
    assert drain(store, queue_named(store, "q")) == [b"a", LONG, b"meanwhile"]
    assert not store.recovery_report.passed_over
    store.close()
    # Now there is one, and nothing was passed over.
    assert disk.catalog.rows("store")["position"]["segment"] > 1
    assert disk.catalog.rows("passed_over") == {}


def test_the_log_does_not_grow_for_ever_because_of_it(
    written: Written, caplog: pytest.LogCaptureFixture
) -> None:
    disk = written.disk
    disk.limits = StoreLimits(unread_factor=3)
    disk.options = OFTEN
    store = disk.open(unreadable(written))
    damage = store.recovery_report.damage
    for _ in range(3):
        assert "position" not in disk.catalog.rows("store")
        write(store, queue_name="q", body=b"meanwhile")
    store.close()
    assert "without the part of the log that the disk cannot read" in caplog.text
    assert disk.catalog.rows("store")["position"]["segment"] > 1
    # What is known of the segment is kept with it: a repair has it whole, and the acks behind it.
    assert "0000000001" in disk.catalog.rows("quarantine")
    assert damage
    store = disk.open()
    queue = queue_named(store, "q")
    sequence = write(store, queue_name="q", body=b"later")
    assert spans(queue)[-1][0] + spans(queue)[-1][1] == sequence + 1
    assert sequence > written.end - written.start
    store.abandon()


def test_a_checkpoint_behind_damage_says_which_sequences_may_be_in_it(written: Written) -> None:
    """A queue to which nothing is published any longer is among them."""
    disk = written.disk
    store = disk.open(rotten(written))
    write(store, queue_name="other", body=b"meanwhile")
    skipped = queue_named(store, "q").next_sequence
    store.upkeep.checkpoint()
    store.abandon()
    store = disk.open()
    assert queue_named(store, "q").next_sequence == skipped
    store.abandon()


def test_a_transaction_that_may_be_prepared_is_left_to_the_next_start(tmp_path: Path) -> None:
    disk = Disk(str(tmp_path / "store"), options=NO_CHECKPOINTS)
    store = disk.open()
    queue = store.create_queue("q")
    write(store, queue_name="q", body=b"to be acked")
    transaction = store.transaction()
    transaction.publish([queue], messages(LONG))
    transaction.ack(queue, take(store, queue))
    transaction.prepare("label")
    store.sync()
    store.abandon()
    disk.note_end()
    size = disk.size(1)
    store = disk.open(UnreadableFiles(OsFiles(), (disk.path(1), size // PAGE * PAGE, size)))
    assert store.prepared == {}
    assert queue_named(store, "q").ready_count == 0
    store.abandon()
    store = disk.open()
    (prepared,) = store.prepared.values()
    assert prepared.label == "label"
    prepared.commit(prepared.publishes())
    store.sync()
    assert bodies(take(store, queue_named(store, "q"))) == [LONG]
    store.abandon()


def test_a_purge_of_sequences_far_apart(tmp_path: Path) -> None:
    """One operation names fewer than 2**32 sequences; skipped ones make several operations."""
    disk = Disk(str(tmp_path / "store"), options=OFTEN._replace(memory_bytes=0))
    store = disk.open()
    queue = store.create_queue("q")
    store.memory.set_lazy(queue, lazy=True)
    for _ in range(2):
        write(store, queue_name="q", body=b"a")
        queue.next_sequence += 3 << 32
    store.upkeep.checkpoint()
    assert queue.paged
    assert store.purge(queue) == 2
    store.sync()
    store.abandon()
    store = disk.open()
    assert queue_named(store, "q").ready_count == 0
    store.abandon()


def test_a_file_that_was_put_back_has_no_number_that_was_given_again(tmp_path: Path) -> None:
    """The last segment of the log is lost, and restored from a copy."""
    disk = Disk(str(tmp_path / "store"), segment_bytes=1)
    store = disk.open()
    store.create_queue("q")
    write(store, queue_name="q", body=b"a")
    write(store, queue_name="q", body=b"b")
    store.abandon()
    disk.note_end()
    shutil.move(disk.path(2), str(tmp_path / "copy"))
    store = disk.open()
    write(store, queue_name="q", body=b"c")
    store.abandon()
    shutil.move(str(tmp_path / "copy"), disk.path(2))
    store = disk.open()
    assert store.recovery_report.damage == []
    assert drain(store, queue_named(store, "q")) == [b"a", b"b", b"c"]
    store.abandon()


def test_what_an_unread_transaction_locks_in_an_unread_index_file_waits_for_a_start(
    tmp_path: Path,
) -> None:
    """The index file is readable before it is known whether the transaction was prepared."""
    clock = SimulatedClock(1_700_000_000_000)
    disk = Disk(str(tmp_path / "store"), clock=clock)
    store = disk.open()
    queue = store.create_queue("q")
    store.create_queue("other")
    write(store, queue_name="q", body=b"locked")
    write(store, queue_name="q", body=b"ready")
    store.upkeep.checkpoint()
    assert store.log.current
    write(store, queue_name="other", body=bytes(PAGE - store.log.current.size - 10))
    start = store.log.current.size
    transaction = store.transaction()
    transaction.ack(queue, take(store, queue, 1))
    transaction.publish([queue], messages(LONG))
    transaction.prepare("it")
    store.sync()
    end = store.log.current.size
    write(store, queue_name="other", body=b"behind it")
    store.abandon()
    disk.note_end()
    files = UnreadableFiles(
        OsFiles(),
        (disk.path(1), (start + PAGE - 1) // PAGE * PAGE, end),
        (index_path(disk.directory, queue.id, 1), 0, 1),
    )
    store = disk.open(files)
    queue = queue_named(store, "q")
    assert (store.prepared, queue.unreadable_count) == ({}, 2)
    files.bad = []
    clock.advance(10_000)
    assert (store.read_again(), queue.ready_count) == ({}, 0)
    store.abandon()
    store = disk.open()
    assert [prepared.label for prepared in store.prepared.values()] == ["it"]
    assert drain(store, queue_named(store, "q")) == [b"ready"]
    store.abandon()
