"""Transient messages beyond the budget: aside on disk, in order, never in the log."""

from collections.abc import Callable
from pathlib import Path

import pytest

from amqpstore import Options, Queue, Run, Store
from amqpstore.upkeep.worker import InlineWorker
from tests.unit.engine.stores import TRANSIENT, FailingFiles, empty, messages

OPTIONS = Options(segment_bytes=100_000, memory_bytes=100_000, reserve_bytes=0)
BODIES = [b"%04d" % number * 250 for number in range(2000)]


def open_store(directory: Path, files: FailingFiles | None = None) -> Store:
    return Store.open(str(directory), files=files, options=OPTIONS, worker=InlineWorker())


def publish(store: Store, queues: list[Queue], bodies: list[bytes] = BODIES) -> None:
    for start in range(0, len(bodies), 20):
        store.publish(queues, messages(*bodies[start : start + 20], envelope=TRANSIENT))
        store.upkeep.housekeep()


def aside(directory: Path) -> list[str]:
    path = directory / "transient"
    return sorted(one.name for one in path.iterdir()) if path.exists() else []


@pytest.mark.parametrize("durable", [True, False])
def test_memory_holds_the_budget_and_the_order_stays(tmp_path: Path, durable: bool) -> None:
    store = open_store(tmp_path)
    queue = store.create_queue("q", durable=durable)
    publish(store, [queue])
    assert queue.memory_bytes <= 2 * OPTIONS.memory_bytes
    assert queue.ready_count == len(BODIES)
    assert len(aside(tmp_path)) > 10
    assert empty(store, queue, 7) == BODIES
    assert aside(tmp_path) == []
    store.sync()
    assert list((tmp_path / "segments").iterdir()) == []
    store.close()


def test_a_run_that_was_read_back_can_be_requeued(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    queue = store.create_queue("q", durable=False)
    publish(store, [queue])
    for _ in range(3):
        runs = [store.take(queue, 500) for _ in range(5)]
        for run in reversed(runs):
            assert isinstance(run, Run)
            store.requeue(queue, run)
    assert empty(store, queue, 7) == BODIES
    store.close()


@pytest.mark.parametrize("remove", [Store.purge, Store.delete_queue])
def test_what_nobody_wants_any_more_is_removed(
    tmp_path: Path, remove: Callable[[Store, Queue], object]
) -> None:
    store = open_store(tmp_path)
    queue, other = (store.create_queue(name, durable=False) for name in ("q", "other"))
    publish(store, [queue, other])
    remove(store, queue)
    assert empty(store, other, 7) == BODIES
    assert aside(tmp_path) == []
    store.close()


def test_they_are_gone_with_the_process_and_so_are_their_files(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    publish(store, [store.create_queue("q")])
    (tmp_path / "transient" / "notes.txt").write_text("mine")
    store.abandon()
    assert len(aside(tmp_path)) > 10
    store = open_store(tmp_path)
    assert aside(tmp_path) == ["notes.txt"]
    assert [queue.ready_count for queue in store.queues.values()] == [0]
    store.close()


def test_they_share_a_queue_with_persistent_messages(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    queue = store.create_queue("q")
    for start in range(0, len(BODIES), 20):
        some = BODIES[start : start + 20]
        store.publish([queue], messages(*some[:10], envelope=TRANSIENT))
        store.publish([queue], messages(*some[10:]))
        store.sync()
    assert empty(store, queue, 7) == BODIES
    store.close()


def test_where_they_cannot_be_written_they_stay_in_memory(tmp_path: Path) -> None:
    files = FailingFiles()
    store = open_store(tmp_path, files)
    queue = store.create_queue("q", durable=False)
    files.fails = {"append"}
    publish(store, [queue], BODIES[:300])
    files.fails = set()
    publish(store, [queue], BODIES[300:])
    assert empty(store, queue, 7) == BODIES
    store.close()
