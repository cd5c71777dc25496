"""Reads of a segment are not much larger than what is wanted of it."""

from __future__ import annotations

from pathlib import Path

from amqpstore.format.limits import StoreLimits
from amqpstore.system.files import File, OsFiles
from amqpstore_tools.simulation.wrapped_files import WrappedFile
from tests.unit.engine.stores import Disk, drain, messages, queue_named

COUNT = 10_000
STEP_BYTES = StoreLimits().table_step_bytes


class MeasuredFiles(OsFiles):
    """Files that note how many bytes of segments were asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def open(self, path: str) -> File:
        file = super().open(path)
        return MeasuredFile(self, file) if path.endswith(".segment") else file


class MeasuredFile(WrappedFile):
    """A file of `MeasuredFiles`."""

    def __init__(self, files: MeasuredFiles, file: File) -> None:
        super().__init__(file)
        self._files = files

    def read(self, offset: int, size: int) -> bytes:
        self._files.asked.append(size)
        return self._file.read(offset, size)


def test_one_message_is_read_without_all_that_follows_it(tmp_path: Path) -> None:
    """Delayed and expiring messages are read so, in another order than that in which they came."""
    disk = Disk(str(tmp_path / "store"))
    store = disk.open()
    bodies = [b"%05d" % number * 40 for number in range(COUNT)]
    store.publish([store.create_queue("q")], messages(*bodies))
    store.close()
    files = MeasuredFiles()
    store = disk.open(files)
    queue = queue_named(store, "q")
    first = queue.next_sequence - COUNT
    files.asked.clear()
    for number in (7000, 2000, 9999, 4000):
        message = store.withdrawals.peek(queue, first + number)
        assert message is not None
        assert message.body == bodies[number]
    assert sum(files.asked) <= 4 * 2 * STEP_BYTES
    files.asked.clear()
    assert drain(store, queue) == bodies
    assert sum(files.asked) <= 2 * sum(len(message) + 64 for message in bodies)
    store.close()
