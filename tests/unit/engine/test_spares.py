"""Files of dropped segments in which the log goes on."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from amqpstore import Store
from amqpstore.errors import DurabilityError
from amqpstore.log.space import Space
from amqpstore.log.spares import Spares
from amqpstore.queues.queue import Queue
from amqpstore.system.filenames import segment_path, spare_path
from amqpstore.system.files import OsFiles
from tests.unit.engine.stores import Disk, FailingFiles, Seconds, drain, messages, queue_named, take

SEGMENT_BYTES = 10_000
CONTENT = b"\x01" * (SEGMENT_BYTES + 500)


@pytest.fixture
def directory(tmp_path: Path) -> str:
    for number in (1, 2, 3):
        path = Path(segment_path(str(tmp_path), number))
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(CONTENT)
    return str(tmp_path)


@pytest.fixture
def space(directory: str) -> Space:
    return Space(OsFiles(), directory, least_free_bytes=0, reserve_bytes=0)


@pytest.fixture
def spares(directory: str, space: Space) -> Spares:
    return Spares(OsFiles(), directory, SEGMENT_BYTES, space, Seconds())


def names(directory: str) -> list[str]:
    return sorted(os.listdir(os.path.join(directory, "segments")))


def inode(path: str) -> int:
    return os.stat(path).st_ino


def test_a_dropped_segment_is_a_new_one_filled_with_zeros(spares: Spares, directory: str) -> None:
    before = inode(segment_path(directory, 1))
    spares.keep(1)
    assert names(directory)[0] == "0000000001.spare"
    path = segment_path(directory, 7)
    file = spares.take(path, 0)
    assert file is not None
    assert (file.path, file.end(), file.size()) == (path, 0, SEGMENT_BYTES)
    assert file.read(0, SEGMENT_BYTES + 1) == bytes(SEGMENT_BYTES)
    assert inode(path) == before
    assert names(directory) == ["0000000002.segment", "0000000003.segment", "0000000007.segment"]
    assert spares.take(segment_path(directory, 8), 0) is None
    file.close()


def test_two_are_kept_and_the_others_removed(spares: Spares, directory: str) -> None:
    for number in (1, 2, 3):
        spares.keep(number)
    assert names(directory) == ["0000000001.spare", "0000000002.spare"]
    spares.close()
    assert names(directory) == []


def test_none_is_made_after_the_end_nor_on_a_disk_that_is_nearly_full(
    spares: Spares, space: Space, directory: str
) -> None:
    space.is_low = True
    spares.keep(1)
    space.is_low = False
    spares.close()
    spares.keep(2)
    assert names(directory) == ["0000000003.segment"]


def test_a_log_that_needs_many_gets_one_a_second(directory: str, space: Space) -> None:
    class Still(Seconds):
        def monotonic_ms(self) -> int:
            return 5000

    spares = Spares(OsFiles(), directory, SEGMENT_BYTES, space, Still())
    spares.keep(1)
    spares.keep(2)
    assert names(directory) == ["0000000001.spare", "0000000003.segment"]


def test_a_log_that_writes_large_batches_has_no_use_for_them(
    spares: Spares, directory: str
) -> None:
    spares.keep(1)
    assert spares.take(segment_path(directory, 10), 300 << 10) is None
    spares.keep(2)
    # The one that was kept before is for quieter times.
    assert names(directory) == ["0000000001.spare", "0000000003.segment"]
    file = spares.take(segment_path(directory, 11), 100 << 10)
    assert file is not None
    file.close()
    spares.keep(3)
    assert names(directory) == ["0000000003.spare", "0000000011.segment"]


def opened(directory: str) -> Callable[[], bytes]:
    file = OsFiles().open(segment_path(directory, 1))

    def content() -> bytes:
        found = file.read(0, 1 << 20)
        file.close()
        return found

    return content


def linked(directory: str) -> Callable[[], bytes]:
    path = os.path.join(directory, "link")
    os.link(segment_path(directory, 1), path)
    return Path(path).read_bytes


@pytest.mark.parametrize("reader", [opened, linked])
def test_what_somebody_reads_is_never_overwritten(
    spares: Spares, directory: str, reader: Callable[[str], Callable[[], bytes]]
) -> None:
    """Another process may copy the store, or send a message of 64 MiB in parts."""
    content = reader(directory)
    spares.keep(1)
    assert names(directory) == ["0000000002.segment", "0000000003.segment"]
    assert content() == CONTENT


@pytest.mark.parametrize("call", ["recycle", "fill"])
def test_one_that_cannot_be_made_is_removed(directory: str, space: Space, call: str) -> None:
    """A spare segment is removed if a call fails before or after it has its new name."""
    files = FailingFiles()
    spares = Spares(files, directory, SEGMENT_BYTES, space, Seconds())
    files.fails = {call}
    spares.keep(1)
    assert names(directory) == ["0000000002.segment", "0000000003.segment"]
    assert spares.take(segment_path(directory, 7), 0) is None


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("call", ["datasync", "sync_directory"])
def test_a_sync_that_fails_is_fatal_as_any_other(
    directory: str, space: Space, call: str, error: int
) -> None:
    files = FailingFiles()
    spares = Spares(files, directory, SEGMENT_BYTES, space, Seconds())
    files.fails, files.error = {call}, OSError(error, os.strerror(error))
    with pytest.raises(DurabilityError):
        spares.keep(1)


def test_one_that_cannot_be_taken_is_removed(directory: str, space: Space) -> None:
    files = FailingFiles()
    spares = Spares(files, directory, SEGMENT_BYTES, space, Seconds())
    spares.keep(1)
    files.fails = {"recycle"}
    assert spares.take(segment_path(directory, 7), 0) is None
    assert names(directory) == ["0000000002.segment", "0000000003.segment"]


def test_one_that_somebody_reads_is_not_taken(spares: Spares, directory: str) -> None:
    spares.keep(1)
    reader = OsFiles().open(spare_path(directory, 1))
    assert spares.take(segment_path(directory, 7), 0) is None
    assert names(directory) == ["0000000002.segment", "0000000003.segment"]
    assert reader.read(0, 1 << 20) == bytes(SEGMENT_BYTES)
    reader.close()


def test_no_other_file_is_replaced_or_removed(spares: Spares, directory: str) -> None:
    """A segment may be there that the log does not know of, or a file that looks like a spare
    one.
    """
    spares.keep(1)
    assert spares.take(segment_path(directory, 2), 0) is None
    Path(spare_path(directory, 3)).write_bytes(b"of somebody")
    spares.keep(3)
    assert names(directory) == ["0000000002.segment", "0000000003.spare"]
    assert Path(segment_path(directory, 2)).read_bytes() == CONTENT
    assert Path(spare_path(directory, 3)).read_bytes() == b"of somebody"
    assert spares.take(segment_path(directory, 7), 0) is None


def flow(store: Store, queue: Queue, bodies: list[bytes]) -> None:
    """Publish messages, each a batch of its own, and ack all but the last one."""
    for body in bodies:
        store.publish([queue], messages(body))
        store.sync()
    store.ack(queue, take(store, queue, len(bodies) - 1))
    store.sync()


def test_a_store_goes_on_in_the_segments_it_dropped(tmp_path: Path) -> None:
    disk = Disk(str(tmp_path / "store"), segment_bytes=SEGMENT_BYTES)
    disk.clock = Seconds()
    store = disk.open()
    queue = store.create_queue("q")
    flow(store, queue, [b"a" * 1000] * 30)
    store.upkeep.checkpoint()
    spare = [name for name in names(disk.directory) if name.endswith(".spare")]
    assert len(spare) == 2
    inodes = {inode(f"{disk.directory}/segments/{name}") for name in spare}
    rest = [b"%02d" % number * 500 for number in range(30)]
    flow(store, queue, rest)
    segments = f"{disk.directory}/segments"
    assert inodes <= {inode(f"{segments}/{name}") for name in names(disk.directory)}
    # A crash leaves zeros behind the last batch, and spares, which the next start removes.
    path = spare_path(disk.directory, 1)
    store.abandon()
    Path(path).write_bytes(bytes(100))
    stranger = Path(disk.directory, "index", "0000000001.spare")
    stranger.touch()
    store = disk.open()
    report = store.recovery_report
    assert report.is_clean
    assert (report.torn_bytes, report.unknown_files) == (0, [stranger.name])
    assert not os.path.exists(path)
    assert stranger.exists()
    assert drain(store, queue_named(store, "q")) == rest[-2:]
    store.close()
    assert not [name for name in names(disk.directory) if name.endswith(".spare")]


@pytest.mark.parametrize(("batch_bytes", "is_kept"), [(100_000, True), (400_000, False)])
def test_a_store_makes_spares_by_the_mean_of_its_batches(
    tmp_path: Path, batch_bytes: int, is_kept: bool
) -> None:
    disk = Disk(str(tmp_path / "store"), segment_bytes=2 << 20)
    disk.clock = Seconds()
    store = disk.open()
    queue = store.create_queue("q")
    for size in [batch_bytes, 1000, batch_bytes, batch_bytes] * 10:
        store.publish([queue], messages(bytes(size)))
        store.sync()
        store.take(queue, 1, acked=True)
    store.sync()
    store.upkeep.checkpoint()
    assert any(name.endswith(".spare") for name in names(disk.directory)) == is_kept
    store.close()
