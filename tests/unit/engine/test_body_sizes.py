"""Counts of the bytes ready in a queue: from index files, and exact whatever was done."""

from __future__ import annotations

import os
import random
import shutil
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

import amqpstore.checkpoints.index_writer
from amqpstore import MessageDamagedError, Queue, Run, Store
from amqpstore.format.index import Entries, entries_of
from amqpstore.system.clock import SystemClock
from amqpstore.system.files import File, OsFiles
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.simulation.wrapped_files import WrappedFile
from tests.unit.engine.stores import (
    ENVELOPE,
    TRANSIENT,
    Disk,
    drain,
    messages,
    queue_named,
)

FIXTURES = Path(__file__).parents[3] / "fixtures"


class CountingFiles(OsFiles):
    """Files that note which of them were read."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def open(self, path: str) -> CountingFile:
        return CountingFile(self, super().open(path))


class CountingFile(WrappedFile):
    """A file of `CountingFiles`."""

    def __init__(self, files: CountingFiles, file: File) -> None:
        super().__init__(file)
        self._files = files

    def read(self, offset: int, size: int) -> bytes:
        self._files.read.append(os.path.relpath(self.path, os.path.dirname(self.path)))
        return self._file.read(offset, size)


def bodies_of(store: Store, queue: Queue) -> int:
    """Bytes in the bodies of what is ready, by reading all of it."""
    return sum(len(one.body) for part in store.stored.browse(queue) for one in part)


def deep_queue(disk: Disk) -> None:
    """A queue with three index files, of 20 messages of 10 bytes each."""
    store = disk.open()
    queue = store.create_queue("q")
    for _ in range(3):
        store.publish([queue], messages(*[b"x" * 10] * 20))
        store.close()
        store = disk.open()
        queue = queue_named(store, "q")
    store.close()


def test_a_start_reads_no_body_to_count_a_backlog(disk: Disk) -> None:
    deep_queue(disk)
    files = CountingFiles()
    store = disk.open(files)
    before = [name for name in files.read if name.endswith(".index")]
    files.read.clear()
    assert store.stored.sizes.ready_bytes(queue_named(store, "q")) == 600
    assert (before, files.read) == ([], [])
    store.abandon()


def test_a_start_reads_the_index_files_of_what_was_touched(disk: Disk) -> None:
    deep_queue(disk)
    store = disk.open()
    queue = queue_named(store, "q")
    run = store.take(queue, 1)
    assert isinstance(run, Run)
    store.ack(queue, run)
    store.sync()
    store.abandon()
    disk.note_end()
    files = CountingFiles()
    store = disk.open(files)
    touched = [name for name in files.read if name.endswith(".index")]
    assert set(touched) == {f"{queue.id:020}-0000000001.index"}
    files.read.clear()
    assert store.stored.sizes.ready_bytes(queue_named(store, "q")) == 590
    assert queue_named(store, "q").sized_bytes == 590
    assert files.read == []
    store.abandon()


def work(store: Store, queue: Queue, rng: random.Random, held: list[Run]) -> None:
    """Do something that changes what is ready."""
    way = rng.randrange(9)
    if way <= 2:
        bodies = [rng.randbytes(rng.randrange(50)) for _ in range(rng.randrange(1, 30))]
        expires_ms = rng.choice([0, 1, store.clock.wall_ms() + 3_600_000])
        store.publish([queue], messages(*bodies), expires_ms=expires_ms)
    elif way <= 4 and isinstance(run := store.take(queue, rng.randrange(1, 40)), Run):
        held.append(run)
    elif way == 5 and held:
        store.ack(queue, held.pop(rng.randrange(len(held))))
    elif way == 6 and held:
        store.requeue(queue, held.pop(rng.randrange(len(held))))
    elif way == 7 and rng.random() < 0.2:
        store.purge(queue)
    elif isinstance(
        run := store.withdrawals.withdraw_expired(queue, store.clock.wall_ms(), bodies=False), Run
    ):
        store.ack(queue, run)
    store.sync()
    if rng.random() < 0.4:
        store.upkeep.checkpoint()
    if rng.random() < 0.1:
        store.upkeep.compact()


@pytest.mark.parametrize(("lazy", "some_unknown"), [(False, False), (True, False), (True, True)])
def test_whatever_is_done_all_bytes_are_counted(
    disk: Disk, lazy: bool, some_unknown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(7)
    if some_unknown:
        # As in files of version 1, and in what they are merged into.
        def entries_of_some(run: Run, sizes: array[int], bodies: array[int]) -> Entries:
            return entries_of(run, sizes, bodies if rng.random() < 0.7 else None)

        monkeypatch.setattr(amqpstore.checkpoints.index_writer, "entries_of", entries_of_some)
    merged = 0
    disk.segment_bytes = 2000
    store = disk.open()
    store.create_queue("q")
    held: list[Run] = []
    measuring: Iterator[None] = iter(())
    for step in range(200):
        queue = queue_named(store, "q")
        store.memory.set_lazy(queue, lazy=lazy)
        # Sizes that were found are forgotten with what they were of, wherever it got to.
        if next(measuring, measuring) is measuring:
            measuring = store.stored.sizes.measuring(queue)
        numbers = {file.number for file in queue.paged}
        work(store, queue, rng, held)
        merged += bool(numbers) and len({file.number for file in queue.paged}) < len(numbers)
        assert store.stored.sizes.ready_bytes(queue) == bodies_of(store, queue)
        if step % 8 == 0:
            if rng.random() < 0.5:
                store.abandon()
                disk.note_end()
            else:
                store.close()
            held.clear()
            store = disk.open()
            measuring = iter(())
            queue = queue_named(store, "q")
            assert store.stored.sizes.ready_bytes(queue) == bodies_of(store, queue)
    assert merged
    store.abandon()


def test_what_was_written_aside_between_others_is_counted(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    store.memory.set_lazy(queue, lazy=True)
    for body, envelope in (b"first", ENVELOPE), (b"aside", TRANSIENT), (b"the last", ENVELOPE):
        store.publish([queue], messages(body, envelope=envelope))
    store.sync()
    store.upkeep.checkpoint()
    store.upkeep.housekeep()
    assert all(run.messages is None for run in queue.ready)
    assert store.stored.sizes.ready_bytes(queue) == bodies_of(store, queue) == 18
    store.abandon()


def test_a_store_of_version_1_is_counted_as_well(tmp_path: Path) -> None:
    for version in ("v1", "v2"):
        path = str(tmp_path / version)
        shutil.copytree(FIXTURES / version / "golden" / "store", path)
        for _ in range(2):
            store = Store.open(path, worker=InlineWorker(), clock=SystemClock())
            for queue in store.queues.values():
                assert store.stored.sizes.ready_bytes(queue) == bodies_of(store, queue)
            assert sum(map(store.stored.sizes.ready_bytes, store.queues.values()))
            store.close()


def test_what_an_index_file_had_is_said_when_it_cannot_be_read(disk: Disk) -> None:
    deep_queue(disk)
    path = min(Path(disk.directory, "index").iterdir())
    path.write_bytes(bytes(path.stat().st_size))
    store = disk.open()
    queue = queue_named(store, "q")
    assert store.stored.sizes.ready_bytes(queue) == 600
    error = store.take(queue, 1)
    assert isinstance(error, MessageDamagedError)
    assert error.body_bytes == 200
    assert store.stored.sizes.ready_bytes(queue) == 400
    assert len(drain(store, queue)) == 40
    store.abandon()
