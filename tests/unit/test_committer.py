"""If anything fails in the committer's thread or after a batch, `watch` says so, and all end."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from amqpstore import DurabilityError, Queue, Store
from amqpstore.catalog.catalog import Change
from amqpstore.checkpoints.checkpoint import Checkpoint
from amqpstore.log.batch import MAX_STARTED_BYTES
from amqpstore_server.loop.committer import Committer, Ways
from tests.committers import LaterDatasyncs, committer_of
from tests.unit.engine.stores import Disk, FailingFiles, RowsCatalog, messages

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class FailingCatalog(RowsCatalog):
    """A catalog whose commits fail once it `is_broken`."""

    is_broken = False

    def commit(self, changes: Sequence[Change]) -> None:
        if self.is_broken:
            raise DurabilityError("catalog", OSError(5, "Input/output error"))
        super().commit(changes)


@pytest.fixture
def files() -> FailingFiles:
    return FailingFiles()


@pytest.fixture
def catalog() -> FailingCatalog:
    return FailingCatalog()


@pytest.fixture
def store(tmp_path: Path, files: FailingFiles, catalog: FailingCatalog) -> Iterator[Store]:
    opened = Disk(str(tmp_path / "store"), catalog=catalog).open(files)
    yield opened
    opened.abandon()


@pytest.fixture
def queue(store: Store) -> Queue:
    return store.create_queue("q")


class Waiting:
    """Publishers, and the names of those that were told that their message is durable."""

    def __init__(self, store: Store, queue: Queue) -> None:
        self.told: list[str] = []
        self._store = store
        self._queue = queue

    def publish(self, name: str) -> None:
        self._store.publish([self._queue], messages(name.encode()))
        self._store.log.when_durable(lambda: self.told.append(name))


def ended_by(
    store: Store,
    work: Callable[[Committer], None],
    *,
    watch_s: float = 1.0,
    datasyncs: LaterDatasyncs | None = None,
) -> DurabilityError:
    """Return the error that ends the broker after `work`; `stop` raises it, and ends the thread."""

    async def run() -> DurabilityError:
        committer = committer_of(store, watch_s=watch_s, datasyncs=datasyncs)
        work(committer)
        with pytest.raises(DurabilityError) as watched:
            await committer.watch()
        with pytest.raises(DurabilityError) as stopped:
            committer.stop()
        assert stopped.value is watched.value
        assert not committer._thread.is_alive()
        return watched.value

    # A thread that is gone is missed after a while.
    return trio.run(run, clock=trio.testing.MockClock(rate=1000))


def commit_after(waiting: Waiting, name: str) -> Callable[[Committer], None]:
    def work(committer: Committer) -> None:
        waiting.publish(name)
        committer.commit()

    return work


@pytest.mark.parametrize("call", ["append", "datasync", "sync_directory"])
@pytest.mark.parametrize("error", [MemoryError(), ValueError("a fault"), OSError(5, "EIO")])
def test_whatever_a_write_raises_ends_the_broker(
    store: Store,
    queue: Queue,
    files: FailingFiles,
    call: str,
    error: Exception,
) -> None:
    waiting = Waiting(store, queue)
    files.fails, files.error = {call}, error
    failure = ended_by(store, commit_after(waiting, "never"))
    assert failure.cause is error
    assert str(error) in str(failure)
    assert type(error).__name__ in str(failure) or str(error)
    assert waiting.told == []


@pytest.mark.parametrize("call", ["append", "datasync"])
@pytest.mark.parametrize("error", [MemoryError(), ValueError("a fault"), OSError(5, "EIO")])
def test_whatever_a_small_batch_raises_ends_the_broker(
    store: Store,
    queue: Queue,
    files: FailingFiles,
    call: str,
    error: Exception,
) -> None:
    waiting = Waiting(store, queue)
    waiting.publish("starts a segment")
    store.sync()
    files.fails, files.error = {call}, error
    datasyncs = LaterDatasyncs()
    failure = ended_by(store, commit_after(waiting, "never"), datasyncs=datasyncs)
    assert failure.cause is error
    assert datasyncs.started == (call == "datasync")
    assert waiting.told == ["starts a segment"]


def test_only_small_batches_are_synced_in_the_background(store: Store, queue: Queue) -> None:
    """The first one starts a segment; before the fourth the segment is filled ahead of use."""
    waiting = Waiting(store, queue)
    datasyncs = LaterDatasyncs()
    large = "x" * (MAX_STARTED_BYTES + 1)

    async def run() -> None:
        committer = committer_of(store, datasyncs=datasyncs)
        started = []
        for name in ("first", "small", large, "fourth", "again"):
            waiting.publish(name)
            committer.commit()
            committer.flush()
            started.append(datasyncs.started)
        assert started == [0, 1, 1, 1, 2]
        committer.stop()

    trio.run(run)
    assert waiting.told == ["first", "small", large, "fourth", "again"]


def test_the_way_that_was_faster_lately_is_used_and_the_other_one_tried() -> None:
    ways = Ways()
    seconds = {True: 1.0, False: 2.0}

    def chosen(count: int) -> list[bool]:
        found = []
        for _ in range(count):
            found.append(ways.next_in_kernel())
            ways.took(seconds[found[-1]], in_kernel=found[-1])
        return found

    assert chosen(63) == [True] * 63
    assert chosen(640).count(False) == 10
    seconds[True] = 5.0  # the machine is busy
    chosen(64)
    assert chosen(640).count(True) == 10
    seconds[True] = 0.1
    chosen(64 * 64)
    assert chosen(640).count(False) == 10


def test_a_batch_that_cannot_be_synced_in_the_background_is_written_once(
    store: Store, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = Waiting(store, queue)
    monkeypatch.setattr(LaterDatasyncs, "start", lambda _self, _file: False)

    async def run() -> None:
        committer = committer_of(store, datasyncs=LaterDatasyncs())
        for name in ("first", "second", "third"):
            waiting.publish(name)
            committer.flush()
        committer.stop()

    trio.run(run)
    assert waiting.told == ["first", "second", "third"]
    segment = store.log.current
    assert segment
    assert os.path.getsize(segment.path) == segment.size


def test_a_thread_that_is_gone_without_a_word_is_missed(
    store: Store, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Committer, "_write_batches", lambda _self: None)
    failure = ended_by(store, commit_after(Waiting(store, queue), "never"), watch_s=0.01)
    assert "thread has ended" in str(failure)


def test_who_flushes_does_not_wait_for_a_thread_that_is_gone(
    store: Store, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Committer, "_write_batches", lambda _self: None)

    def work(committer: Committer) -> None:
        Waiting(store, queue).publish("never")
        with pytest.raises(DurabilityError, match="thread has ended"):
            committer.flush()

    ended_by(store, work, watch_s=0.01)


def test_a_commit_of_the_catalog_that_fails_behind_a_batch_ends_the_broker(
    store: Store, queue: Queue, catalog: FailingCatalog
) -> None:
    """Publishes that others waited for are durable, and they are told."""
    transaction = store.transaction()
    transaction.publish([queue], messages(b"m"))
    prepared = transaction.prepare("label")
    store.sync()
    waiting = Waiting(store, queue)

    def work(committer: Committer) -> None:
        waiting.publish("before")
        prepared.commit(prepared.publishes())
        waiting.publish("behind")
        catalog.is_broken = True
        committer.commit()

    assert ended_by(store, work).path == "catalog"
    assert waiting.told == ["before", "behind"]


def test_a_fault_of_who_waited_is_its_own_affair(
    store: Store, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = Waiting(store, queue)

    def fail() -> None:
        raise ValueError("a fault of mine")

    async def run() -> None:
        committer = committer_of(store)
        waiting.publish("before")
        store.log.when_durable(fail)
        waiting.publish("behind")
        committer.stop()

    with caplog.at_level(logging.ERROR):
        trio.run(run)
    assert waiting.told == ["before", "behind"]
    assert "a fault of mine" in caplog.text
    assert store.failure is None


def test_background_work_that_fails_ends_the_broker_though_nobody_commits(
    store: Store, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_self: object) -> None:
        raise MemoryError

    def work(committer: Committer) -> None:
        # What the tick of the broker does, which has no batch.
        monkeypatch.setattr(store._maintenance.checkpoints, "is_due", lambda *_: True)
        committer.housekeep()
        committer.housekeep()

    monkeypatch.setattr(Checkpoint, "run", fail)
    Waiting(store, queue).publish("a")
    store.sync()
    assert isinstance(ended_by(store, work).cause, MemoryError)


def test_the_process_says_why_and_exits_as_for_a_failed_disk(tmp_path: Path) -> None:
    broken = (
        "import sys\n"
        "from amqpstore.log.log import Log\n"
        "from amqpstore_tools.__main__ import main\n"
        "def write(self, batch): raise MemoryError\n"
        "Log.write = write\n"
        "import amqpstore_server.app\n"
        "run_timers = amqpstore_server.app.App._run_timers\n"
        "async def publish(app):\n"
        "    from tests.unit.engine.stores import messages\n"
        "    store = app.services.store\n"
        "    store.publish([store.create_queue({'library': 0})], messages(b'a'))\n"
        "    await run_timers(app)\n"
        "amqpstore_server.app.App._run_timers = publish\n"
        "sys.argv[1:] = ['serve', '--data', sys.argv[1], '--listen', '127.0.0.1:0']\n"
        "sys.exit(main())\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", broken, str(tmp_path / "data")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 70, finished.stderr
    assert "MemoryError. Nothing after the last confirm is promised" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_what_a_closed_committer_has_not_written_is_not_waited_for(
    store: Store, queue: Queue
) -> None:
    async def run() -> None:
        committer = committer_of(store)
        committer.close()
        waiting = Waiting(store, queue)
        waiting.publish("a")
        with pytest.raises(DurabilityError, match="the committer was closed"):
            committer.stop()
        assert waiting.told == []

    trio.run(run)
