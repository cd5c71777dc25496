"""The last segment is filled with zeros ahead of use and overwritten while a broker runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from amqpstore import Envelope, Message, Queue, Store
from amqpstore.identity import marker
from amqpstore.system.filenames import segment_path, spare_path
from amqpstore.system.files import OsFiles
from amqpstore_tools.check.engine import check
from amqpstore_tools.copying.copier import CopyOptions, copy_store
from amqpstore_tools.inspect.follow import _Log
from amqpstore_tools.offline.contents import TransactionImage
from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.offline.read_only_files import ReadOnlyFiles

ENVELOPE = Envelope("", "q", bytes.fromhex("100002"))
BODY = b"x" * 3000


class Running:
    """A store that another process has open, whose last segment is filled."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.store = Store.open(directory)
        self.queue: Queue = self.store.create_queue({"library": 1, "name": "q"})
        self.count = 0
        self.publish(7)

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.store.publish([self.queue], [Message(ENVELOPE, BODY)])
            self.store.sync()
        self.count += count

    @property
    def end(self) -> int:
        segment = self.store.log.current
        assert segment is not None
        return segment.size

    @property
    def file_bytes(self) -> int:
        return os.path.getsize(segment_path(self.directory, 1))


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    found = Running(str(tmp_path / "store"))
    assert found.end + 1000 < found.file_bytes
    yield found
    found.store.abandon()


def test_a_snapshot_has_what_was_written_when_it_was_taken(running: Running) -> None:
    with StoreImage.open(running.directory, live=True) as image:
        assert image.is_live
        end = running.end
        before = running.file_bytes
        running.publish(3)
        assert running.file_bytes == before
        assert image.recovered.report.is_clean
        (segment,) = image.log_segments()
        assert segment.sound_size == end
        assert end <= segment.size <= end + 32
        assert len(list(image.transactions(segment))) == 7


def test_spare_segments_are_left_to_the_broker(running: Running) -> None:
    spare = spare_path(running.directory, 9)
    Path(spare).write_bytes(bytes(100))
    with StoreImage.open(running.directory, live=True) as image:
        assert os.path.basename(spare) not in image.recovered.report.unknown_files
        OsFiles().recycle(spare, segment_path(running.directory, 2)).close()


def test_a_check_finds_nothing(running: Running) -> None:
    assert list(check(running.directory, live=True).findings) == []
    running.store.abandon()
    assert list(check(running.directory).findings) == []


def test_a_copy_ends_with_the_last_batch(running: Running, tmp_path: Path) -> None:
    target = str(tmp_path / "copy")
    copy_store(running.directory, target, CopyOptions())
    assert os.path.getsize(segment_path(target, 1)) == running.end
    with Store.open(target) as store:
        assert store.recovery_report.is_clean
        assert [queue.ready_count for queue in store.queues.values()] == [7]


def followed(directory: str) -> _Log:
    return _Log(directory, marker.require(ReadOnlyFiles(), directory).seed)


def test_new_transactions_are_followed_in_a_file_that_does_not_grow(running: Running) -> None:
    log = followed(running.directory)
    assert len(log.new()) == 7
    before = running.file_bytes
    for count in (1, 2):
        assert log.new() == []
        running.publish(count)
        found = log.new()
        assert [type(one) for one in found] == [TransactionImage] * count
    assert running.file_bytes == before
    log.close()


def test_a_segment_that_a_crash_left_filled_is_followed_by_the_next_one(running: Running) -> None:
    log = followed(running.directory)
    assert len(log.new()) == 7
    running.store.abandon()
    running.store = Store.open(running.directory)
    (running.queue,) = running.store.queues.values()
    running.publish(1)
    assert [type(one) for one in [*log.new(), *log.new()]] == [TransactionImage]
    log.close()


def test_an_orderly_close_cuts_off_what_was_not_used(running: Running) -> None:
    end = running.end
    running.store.close()
    assert running.file_bytes == end
