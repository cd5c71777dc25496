"""A write that fails: nothing is promised, nothing is retried, nothing more is accepted."""

from collections.abc import Sequence

import pytest

from amqpstore import DurabilityError, Store, StoreClosedError
from amqpstore.catalog.catalog import Change
from amqpstore.checkpoints.checkpoint_state import CheckpointState
from amqpstore.system.files import OsFile
from tests.unit.engine.stores import (
    Disk,
    FailingFiles,
    RowsCatalog,
    drain,
    messages,
    publish_batches,
    queue_named,
)

CALLS = ["append", "datasync", "sync_directory"]


@pytest.fixture
def files() -> FailingFiles:
    return FailingFiles()


def fail(disk: Disk, files: FailingFiles, call: str) -> tuple[Store, list[str]]:
    """A store whose sync failed in the given call, and what was told to who waited for it."""
    store = disk.open(files)
    queue = store.create_queue("q")
    if call != "sync_directory":
        publish_batches(store, queue, [[b"before"]])
    told: list[str] = []
    store.publish([queue], messages(b"one"))
    store.log.when_durable(lambda: told.append("durable"))
    files.fails = {call}
    with pytest.raises(DurabilityError):
        store.sync()
    files.fails = set()
    return store, told


@pytest.mark.parametrize("call", CALLS)
def test_a_failing_sync_confirms_nothing(disk: Disk, files: FailingFiles, call: str) -> None:
    store, told = fail(disk, files, call)
    assert told == []
    store.abandon()
    assert told == []


@pytest.mark.parametrize("call", CALLS)
def test_a_store_whose_sync_failed_refuses_further_promises(
    disk: Disk, files: FailingFiles, call: str
) -> None:
    store, _ = fail(disk, files, call)
    queue = queue_named(store, "q")
    calls = list(files.calls)
    with pytest.raises(StoreClosedError):
        store.sync()
    with pytest.raises(StoreClosedError):
        store.definitions.define([Change("users", "guest", {})])
    with pytest.raises(StoreClosedError):
        store.create_queue("new")
    with pytest.raises(StoreClosedError):
        store.delete_queue(queue)
    store.close()
    assert files.calls == calls
    assert disk.catalog.rows("segments") == {}
    store.abandon()


@pytest.mark.parametrize("call", CALLS)
def test_after_a_failing_sync_the_store_opens_with_whole_batches(
    disk: Disk, files: FailingFiles, call: str
) -> None:
    fail(disk, files, call)[0].abandon()
    store = disk.open()
    found = drain(store, queue_named(store, "q"))
    # An append that failed left half a batch; one that was not synced is here in the page cache.
    before = [] if call == "sync_directory" else [b"before"]
    assert found == (before if call == "append" else [*before, b"one"])
    assert store.recovery_report.damage == []
    store.abandon()


def test_close_after_a_failing_sync_unlocks_the_store(disk: Disk, files: FailingFiles) -> None:
    store, _ = fail(disk, files, "datasync")
    store.close()
    try:
        disk.open().abandon()
    finally:
        store.abandon()


def test_abandon_after_close_does_nothing(disk: Disk) -> None:
    store = disk.open()
    store.close()
    store.abandon()


def test_a_store_whose_sync_failed_refuses_messages(disk: Disk, files: FailingFiles) -> None:
    store, _ = fail(disk, files, "datasync")
    try:
        with pytest.raises(StoreClosedError):
            store.publish([queue_named(store, "q")], messages(b"never to be durable"))
    finally:
        store.abandon()


def test_a_log_whose_write_failed_is_not_written_to_again(disk: Disk, files: FailingFiles) -> None:
    store = disk.open(files)
    queue = store.create_queue("q")
    store.publish([queue], messages(b"one"))
    batch = store.log.seal(0)
    assert batch is not None
    files.fails = {"datasync"}
    with pytest.raises(DurabilityError):
        store.log.write(batch)
    files.fails = set()
    try:
        with pytest.raises(StoreClosedError):
            store.publish([queue], messages(b"two"))
        with pytest.raises(StoreClosedError):
            store.sync()
        with pytest.raises(DurabilityError):
            store.log.write(batch)
    finally:
        store.abandon()


def test_a_close_that_cannot_sync_says_so_and_lets_go_of_everything(
    disk: Disk, files: FailingFiles
) -> None:
    store = disk.open(files)
    store.publish([store.create_queue("q")], messages(b"one"))
    files.fails = {"datasync"}
    with pytest.raises(DurabilityError):
        store.close()
    disk.open().abandon()


class FailingCatalog(RowsCatalog):
    """A catalog whose commits fail."""

    def commit(self, changes: Sequence[Change]) -> None:
        raise DurabilityError("catalog/data.mdb", OSError(28, "No space left on device"))


def test_a_queue_whose_row_could_not_be_committed_is_not_there(disk: Disk) -> None:
    store = disk.open()
    store.definitions._catalog = FailingCatalog()
    with pytest.raises(DurabilityError):
        store.create_queue("q")
    assert store.queues == {}
    store.abandon()


def test_a_queue_that_could_not_be_deleted_is_still_there(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    store.publish([queue], messages(b"one"))
    store.definitions._catalog = FailingCatalog()
    with pytest.raises(DurabilityError):
        store.delete_queue(queue)
    assert store.queues == {queue.id: queue}
    assert not queue.deleted
    with pytest.raises(StoreClosedError):
        store.publish([queue], messages(b"two"))
    store.abandon()


def test_a_store_that_cannot_note_its_recovery_is_not_opened(disk: Disk) -> None:
    store = disk.open()
    publish_batches(store, store.create_queue("q"), [[b"one"]])
    store.abandon()
    catalog = disk.catalog
    failing = FailingCatalog()
    failing._tables = catalog.clone()._tables
    disk.catalog = failing
    with pytest.raises(DurabilityError):
        disk.open()
    disk.catalog = catalog
    disk.open().abandon()


@pytest.mark.parametrize("call", CALLS)
def test_whatever_a_write_raises_ends_the_store(disk: Disk, files: FailingFiles, call: str) -> None:
    files.error = MemoryError()
    store, told = fail(disk, files, call)
    assert store.failure is not None
    assert "MemoryError" in str(store.failure)
    with pytest.raises(StoreClosedError):
        store.sync()
    assert told == []
    store.abandon()


def test_an_interrupted_write_ends_the_store_and_is_the_callers(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = disk.open()
    store.publish([store.create_queue("q")], messages(b"one"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(OsFile, "datasync", interrupt)
        store.sync()
    with pytest.raises(StoreClosedError):
        store.sync()
    store.abandon()


def interrupt(_file: OsFile) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("work", ["checkpoint", "housekeep"])
def test_background_work_that_runs_out_of_memory_ends_the_store_and_loses_nothing(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    disk.options = disk.options._replace(checkpoint_messages=1)
    store = disk.open()
    queue = store.create_queue("q")
    store.publish([queue], messages(b"one"))

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointState, "apply", fail)
        with pytest.raises(DurabilityError, match="MemoryError"):
            for _ in range(2):
                store.sync()
                getattr(store.upkeep, work)()
    with pytest.raises(StoreClosedError):
        store.sync()
    store.close()
    store = disk.open()
    assert drain(store, queue_named(store, "q")) == [b"one"]
    store.abandon()
