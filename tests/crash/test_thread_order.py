"""The committer's thread or the kernel's syncs, the worker's thread and the loop's, in an order
that a seed says.

They take turns at every call to the disk and to the catalog: a batch is written while others are
placed, a checkpoint is made while a batch is synced, a segment is replaced while it is read. Then
the power is cut at every operation, and what was promised has to be there.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import pytest
import trio
import trio.testing

import amqpstore.checkpoints.compaction
import amqpstore.upkeep.worker
import amqpstore_server.loop.committer
from amqpstore import Store
from amqpstore.catalog.catalog import Catalog
from amqpstore.catalog.tables import Position
from amqpstore.checkpoints.checkpoint import Checkpoint, Written
from amqpstore.errors import DurabilityError
from amqpstore.log.batch import Batch
from amqpstore.log.log import Log
from amqpstore.log.segments import Segment
from amqpstore.system.clock import SimulatedClock
from amqpstore.upkeep.checkpointing import Checkpoints
from amqpstore.upkeep.worker import ThreadWorker
from amqpstore_server.loop.committer import Committer, _Written
from amqpstore_tools.drill.explorer import Explorer
from amqpstore_tools.drill.outside import NOW_MS, Outside
from amqpstore_tools.drill.trace import Trace
from amqpstore_tools.simulation.faulty_files import Faults, FaultyCatalog, FaultyFiles
from amqpstore_tools.simulation.memory_catalog import MemoryCatalog
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.operations import CatalogCommit, Operation
from tests.committers import LaterDatasyncs, committer_of
from tests.crash.histories import DIRECTORY, OPTIONS, open_store
from tests.crash.violated import first_of_each
from tests.schedule import LoopTurns, Schedule

Patch = pytest.MonkeyPatch

STEPS = 60
QUEUES = ["orders", "audit"]
_MAX_SEEDS = 20
_TOO_LONG_S = 120


class Turns(Faults):
    """Faults that do not fail: another thread may go on before each call."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(-1)
        self._schedule = schedule

    def counts(self, call: str) -> bool:
        self._schedule.pause()
        return False


THREADS = OPTIONS._replace(
    checkpoint_ms=100,
    checkpoint_messages=5,
    # Not each small batch fills its segment: those that do are not synced in the kernel.
    limits=OPTIONS.limits._replace(garbage_fraction=0.1, fill_from_bytes=500),
)


class Threads(Outside):
    """The threads that use a store whose batches a committer writes, as a broker's are written."""

    committer: Committer
    datasyncs: LaterDatasyncs | None = None

    def checkpoint(self) -> None:
        """Here, whatever batch is under way."""
        try:
            self.store.upkeep.checkpoint()
        except OSError as error:
            self.put_off.append(str(error))

    def start(self) -> None:
        """Open the store, and begin the committer's thread."""
        self.open()
        self.committer = committer_of(self.store, datasyncs=self.datasyncs, housekeep_s=0.0)

    async def end(self, *, in_order: bool) -> None:
        """Close the store, or abandon it as it is, and end the threads."""
        if in_order:
            self.committer.stop()
            self.close()
            return
        self.kill()
        with contextlib.suppress(DurabilityError):
            self.committer.stop()


_STEPS = {
    "publish": 10,
    "commit": 6,
    "take": 3,
    "take and ack": 5,
    "ack": 3,
    "requeue": 1,
    "housekeep": 2,
    "flush": 0.3,
    "checkpoint": 0.3,
    "purge": 0.3,
    "reopen": 0.3,
    "kill": 0.3,
}


async def live(outside: Threads, schedule: Schedule, rng: random.Random, steps: int) -> None:
    """Do what publishers and consumers do; the loop hears of what is durable now and then."""
    outside.start()
    for name in QUEUES:
        outside.create_queue(name)
    for step in rng.choices(list(_STEPS), list(_STEPS.values()), k=steps):
        if step in ("reopen", "kill"):
            await outside.end(in_order=step == "reopen")
            outside.start()
        else:
            do(outside, step, rng)
        schedule.pause()
        if rng.random() < 0.5:
            await trio.testing.wait_all_tasks_blocked()
    await outside.end(in_order=rng.random() < 0.5)


def do(outside: Threads, step: str, rng: random.Random) -> None:
    name = rng.choice(QUEUES)
    if step == "publish":
        queues = rng.choice([[name], [name], QUEUES])
        bodies = [rng.randbytes(rng.choice([10, 100, 400])) for _ in range(rng.randint(1, 3))]
        outside.publish(queues, bodies)
    elif step == "take":
        outside.take(name, rng.randint(1, 3))
    elif step == "take and ack":
        outside.take(name, rng.randint(1, 4), acked=True)
    elif step == "ack":
        outside.ack(name)
    elif step == "requeue":
        outside.requeue(name)
    elif step == "purge":
        outside.purge(name)
    elif step == "commit":
        outside.committer.commit(promised_only=True)
    elif step == "housekeep":
        outside.committer.housekeep()
    elif step == "checkpoint":
        outside.checkpoint()
    else:
        outside.committer.flush()


def history(seed: int, steps: int, patch: Patch, *, in_kernel: bool = False) -> Threads:
    """Return what a store sees, and who uses it, under real threads which take turns.

    Args: in_kernel, whether small batches are synced without the committer's thread.
    """
    rng = random.Random(seed)
    clock = SimulatedClock(NOW_MS)
    with Schedule(rng) as schedule:
        schedule.run_threads_of(amqpstore.upkeep.worker, patch)
        schedule.run_threads_of(amqpstore_server.loop.committer, patch)
        turns = Turns(schedule)

        def open_with_threads(files: MemoryFiles) -> Store:
            def open_catalog(path: str, create: bool, *, plain: bool = False) -> Catalog:
                return FaultyCatalog(MemoryCatalog(files, path, create, plain=plain), turns, path)

            return Store.open(
                DIRECTORY,
                files=FaultyFiles(files, turns),
                open_catalog=open_catalog,
                options=THREADS,
                worker=ThreadWorker(),
                clock=clock,
            )

        files = MemoryFiles()
        files.make_directory(DIRECTORY.rpartition("/")[0])
        outside = Threads(Trace(files.fork()), files, open_with_threads)
        if in_kernel:
            outside.datasyncs = LaterDatasyncs(lambda: rng.random() < 0.5)

        def note(operation: Operation) -> None:
            outside.trace.note(operation)
            clock.advance(1)
            if not isinstance(operation, CatalogCommit):  # LMDB has a lock around that
                schedule.pause()

        async def run() -> None:
            loop = LoopTurns(schedule, lambda: not outside.committer._written.empty())
            trio.lowlevel.add_instrument(loop)
            with trio.fail_after(_TOO_LONG_S):
                await live(outside, schedule, rng, steps)

        files.record = note
        trio.run(run)
    return outside


def violated(
    seed: int, patch: Patch, *, steps: int = STEPS, images: int = 2, in_kernel: bool = False
) -> list[str]:
    """Return what a store under threads does not keep: of its promises, or in its own history."""
    with patch.context() as meanwhile:
        outside = history(seed, steps, meanwhile, in_kernel=in_kernel)
    found = [f"not read: {name}" for name in outside.damaged + outside.put_off]
    explorer = Explorer(
        open_store,
        f"threads {seed}",
        images_an_operation=images,
        images_in_recovery=1,
        cuts_in_recovery=2,
    )
    return found + [str(one) for one in explorer.explore(outside.trace).violations]


@pytest.mark.parametrize(("seed", "in_kernel"), [(9, False), (10, False), (13, True), (1, True)])
def test_in_whatever_order_threads_go_on_every_promise_is_kept(
    seed: int, in_kernel: bool, monkeypatch: Patch
) -> None:
    assert violated(seed, monkeypatch, in_kernel=in_kernel) == []


@pytest.mark.long
@pytest.mark.rounds(30)
def test_in_many_orders_every_promise_is_kept(seed: int, monkeypatch: Patch) -> None:
    in_kernel = seed % 2 == 0
    assert violated(seed, monkeypatch, steps=3 * STEPS, images=10, in_kernel=in_kernel) == []


def test_small_batches_are_synced_in_the_kernel(monkeypatch: Patch) -> None:
    datasyncs = history(1, STEPS, monkeypatch, in_kernel=True).datasyncs
    assert datasyncs
    assert datasyncs.started > 2


def test_a_seed_decides_the_order_of_all_threads(monkeypatch: Patch) -> None:
    first, second = (history(1, STEPS, monkeypatch).trace.events for _ in range(2))
    assert list(map(str, first)) == list(map(str, second))


# What an order of threads may get wrong.


def a_batch_is_said_to_be_durable_before_its_sync(patch: Patch) -> None:
    def write_batches(self: Committer) -> None:
        while (batch := self._batches.get()) is not None:
            self._written.put(_Written(batch, None))
            self._on_written()
            with contextlib.suppress(DurabilityError):
                self._log.write(batch)

    patch.setattr(Committer, "_write_batches", write_batches)


def a_sync_in_the_kernel_counts_before_its_end(patch: Patch) -> None:
    def is_done(self: LaterDatasyncs, *, wait: bool = False) -> bool:
        if not wait:
            self._file = None
            return True
        return waited(self, wait=wait)

    waited = LaterDatasyncs.is_done
    patch.setattr(LaterDatasyncs, "is_done", is_done)


def what_is_appended_during_a_sync_counts_with_it(patch: Patch) -> None:
    """The next batch does not wait for a sync of its own, as its bytes were there in time."""
    commit, append, settle = Committer.commit, Log._append, Committer._complete_durable
    appended: list[Batch] = []
    company: list[Batch] = []

    def append_and_say(self: Log, segment: Segment, batch: Batch) -> None:
        append(self, segment, batch)
        appended[:] = [batch]

    def commit_at_once(self: Committer, *, promised_only: bool = False) -> None:
        log = self._log
        segment = log.current
        is_begun = log.under_way in appended and not log._is_closed
        if not is_begun or segment is None or segment.size >= OPTIONS.segment_bytes:
            commit(self, promised_only=promised_only)
        elif batch := log.seal(NOW_MS):
            append_and_say(log, segment, batch)
            company.append(batch)

    def settle_all(self: Committer, batch: Batch) -> None:
        *others, last = [batch, *company]
        company.clear()
        for one in others:
            self._log.complete(one)
        settle(self, last)

    patch.setattr(Log, "_append", append_and_say)
    patch.setattr(Committer, "commit", commit_at_once)
    patch.setattr(Committer, "_complete_durable", settle_all)


def a_checkpoint_takes_the_end_of_what_is_not_synced(patch: Patch) -> None:
    new_checkpoint = Checkpoints.next

    def new_at_the_end(self: Checkpoints) -> Checkpoint:
        log = self._log
        batch, before = log.under_way, log.position
        if batch is None or batch.summary is None:
            return new_checkpoint(self)
        next_id = batch.first_id + len(batch.messages)
        log.position = Position(
            batch.summary.segment, batch.summary.end_bytes, batch.lsn + 1, next_id
        )
        try:
            return new_checkpoint(self)
        finally:
            log.position = before

    patch.setattr(Checkpoints, "next", new_at_the_end)


def a_checkpoint_takes_its_batches_when_it_runs(patch: Patch) -> None:
    """Take the batches when the checkpoint runs: its position is older, so that batches sealed
    since it began are in it, and are applied again.
    """
    run, new_checkpoint = Checkpoint.run, Checkpoints.next
    logs: dict[int, Log] = {}

    def new_noted(self: Checkpoints) -> Checkpoint:
        made = new_checkpoint(self)
        logs[id(made)] = self._log
        return made

    def run_late(self: Checkpoint) -> Written:
        self._batches.extend(logs[id(self)].take_durable())
        return run(self)

    patch.setattr(Checkpoints, "next", new_noted)
    patch.setattr(Checkpoint, "run", run_late)


BUGS: dict[Callable[[Patch], None], tuple[str, int]] = {
    a_batch_is_said_to_be_durable_before_its_sync: ("I1", 0),
    a_sync_in_the_kernel_counts_before_its_end: ("I1", 0),
    what_is_appended_during_a_sync_counts_with_it: ("I1", 4),
    a_checkpoint_takes_the_end_of_what_is_not_synced: ("I1", 0),
    a_checkpoint_takes_its_batches_when_it_runs: ("I10", 2),
}
"""The invariant that each bug breaks, and the first seed that is tried: mostly that seed shows
it.
"""


@pytest.mark.parametrize(
    "bug",
    first_of_each({bug: invariant for bug, (invariant, _) in BUGS.items()}),
    ids=lambda bug: bug.__name__,
)
def test_a_bug_of_the_order_is_caught(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    invariant, first = BUGS[bug]
    in_kernel = bug is a_sync_in_the_kernel_counts_before_its_end
    found = (
        one
        for seed in range(first, first + _MAX_SEEDS)
        for one in violated(seed, monkeypatch, in_kernel=in_kernel)
    )
    assert any(one.startswith(invariant) for one in found)
