"""Checkpoints of many queues: few descriptors, whatever they write, and what they did is kept."""

import contextlib
import errno
import os
from pathlib import Path

import pytest

from amqpstore import Queue, Store
from amqpstore.format.index import ENTRIES_A_FILE
from amqpstore.format.limits import StoreLimits
from amqpstore.system.filenames import INDEX
from amqpstore.system.files import File, OsFiles
from tests.unit.engine.stores import Disk, drain, messages

MAX_OPEN = 8
QUEUES = 30


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(
        str(tmp_path / "store"),
        segment_bytes=16 << 20,
        limits=StoreLimits(max_open_index_files=MAX_OPEN),
    )


def open_index_files(directory: str) -> int:
    """Return how many descriptors are of index files of a store, removed ones among them. Other
    tests of this process may have left theirs.
    """
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):
        # The one that the directory was read with is gone.
        with contextlib.suppress(FileNotFoundError):
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            count += path.startswith(f"{directory}/{INDEX}/")
    return count


class WatchedFiles(OsFiles):
    """Counts index files that are created, and the most that are open at a time then.

    No more than `room` of them can be created, where that is set.
    """

    def __init__(self) -> None:
        self.created = 0
        self.most_open = 0
        self.room: int | None = None

    def create(self, path: str) -> File:
        if f"/{INDEX}/" in path:
            if self.room is not None and self.created >= self.room:
                raise OSError(errno.EMFILE, "Too many open files", path)
            self.created += 1
        file = super().create(path)
        directory = path.partition(f"/{INDEX}/")[0]
        self.most_open = max(self.most_open, open_index_files(directory))
        return file


def filled(store: Store, queues: list[Queue], count: int = 1) -> None:
    store.publish(queues, messages(*[b"x"] * count))
    store.sync()


def test_a_checkpoint_of_many_queues_has_few_files_open(disk: Disk) -> None:
    files = WatchedFiles()
    store = disk.open(files)
    queues = [store.create_queue(str(number)) for number in range(QUEUES)]
    for _ in range(3):
        filled(store, queues)
        store.upkeep.checkpoint()
        assert open_index_files(disk.directory) <= MAX_OPEN
    assert files.created >= QUEUES
    assert files.most_open <= MAX_OPEN
    store.abandon()
    assert open_index_files(disk.directory) == 0
    store = disk.open()
    assert [queue.ready_count for queue in store.queues.values()] == [3] * QUEUES
    assert [drain(store, queue) for queue in store.queues.values()] == [[b"x"] * 3] * QUEUES
    store.abandon()


def test_an_index_file_that_a_checkpoint_fills_is_closed(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    for count in (ENTRIES_A_FILE, 2 * ENTRIES_A_FILE, 1, ENTRIES_A_FILE - 1):
        filled(store, [queue], count)
        store.upkeep.checkpoint()
        assert open_index_files(disk.directory) == (count == 1)
    store.abandon()


def test_what_a_checkpoint_wrote_before_it_failed_is_not_written_again(disk: Disk) -> None:
    files = WatchedFiles()
    store = disk.open(files)
    queues = [store.create_queue(str(number)) for number in range(QUEUES)]
    filled(store, queues, 2)
    for room in range(MAX_OPEN + 3, QUEUES, MAX_OPEN + 3):
        files.room = room
        with pytest.raises(OSError, match="Too many open files"):
            store.upkeep.checkpoint()
        assert open_index_files(disk.directory) <= MAX_OPEN
        # A group that could not be written whole left nothing.
        assert len(os.listdir(Path(disk.directory, INDEX))) % MAX_OPEN == 0
        files.created = len(os.listdir(Path(disk.directory, INDEX)))
    files.room = None
    # The rest of it, and what came since.
    filled(store, queues)
    store.upkeep.checkpoint()
    store.abandon()
    store = disk.open()
    assert [queue.ready_count for queue in store.queues.values()] == [3] * QUEUES
    assert [drain(store, queue) for queue in store.queues.values()] == [[b"x"] * 3] * QUEUES
    store.abandon()
