"""Background work is done later than it was begun, whenever a seed says: as a thread may do it.

What the store does meanwhile is the next checkpoint's; and whatever the order was, a power cut
leaves each message once.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import pytest

from amqpstore import Options, Run, Store
from amqpstore.checkpoint import Checkpoint, Written
from amqpstore.worker import Outcome
from tests.crash.histories import DIRECTORY
from tests.unit.engine.stores import bodies, messages
from tools.drill.memory_catalog import MemoryCatalog
from tools.drill.memory_files import MemoryFiles

OPTIONS = Options(
    segment_bytes=2000,
    checkpoint_messages=4,
    compaction_bytes_s=1 << 60,
    reserve_bytes=0,
    least_free_bytes=0,
)


class LaterWorker:
    """A worker whose thread has its turn when the seed says, and between any two calls."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._work: Callable[[], object] | None = None

    def start(self, work: Callable[[], object]) -> None:
        self._work = work

    def poll(self, *, wait: bool = False) -> Outcome[object] | None:
        if self._work is None or not (wait or self._rng.random() < 0.3):
            return None
        work, self._work = self._work, None
        return Outcome.of(work)

    def close(self) -> None:
        if self._work is not None:
            Outcome.of(self._work)


def open_store(files: MemoryFiles, rng: random.Random) -> Store:
    return Store.open(
        DIRECTORY,
        files=files,
        open_catalog=functools.partial(MemoryCatalog, files),
        options=OPTIONS,
        worker=LaterWorker(rng),
    )


def play(seed: int) -> None:
    """Publish, ack and cut the power, and hold what is there against what was promised."""
    rng = random.Random(seed)
    files = MemoryFiles()
    files.make_directory(DIRECTORY.rpartition("/")[0])
    store = open_store(files, rng)
    store.create_queue("q")
    expected: list[bytes] = []
    for number in range(120):
        (queue,) = store.queues.values()
        draw = rng.random()
        if draw < 0.6:
            body = b"%d " % number + bytes(rng.randint(0, 200))
            store.publish([queue], messages(body))
            expected.append(body)
        elif draw < 0.9 and expected:
            run = store.take(queue, 2, acked=True)
            assert isinstance(run, Run)
            assert bodies(run) == expected[: run.count]
            del expected[: run.count]
        store.sync()
        if draw > 0.95:
            files = files.power_cut({}, {})
            store = open_store(files, rng)
            (queue,) = store.queues.values()
            assert queue.ready_count == len(expected)
    store.close()
    store = open_store(files, rng)
    (queue,) = store.queues.values()
    found: list[bytes] = []
    while queue.ready_count:
        run = store.take(queue, 100)
        assert isinstance(run, Run)
        found += bodies(run)
    assert found == expected
    store.abandon()


@pytest.mark.parametrize("seed", range(15))
def test_whenever_background_work_is_done_each_message_is_there_once(seed: int) -> None:
    play(seed)


def test_a_checkpoint_that_takes_its_batches_when_it_runs_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its position is that of when it was begun: what came since is in it, and is applied again."""
    run = Checkpoint.run
    stores: list[Store] = []
    made = Store.__init__

    def noted(self: Store, *arguments: object) -> None:
        made(self, *arguments)  # type: ignore[arg-type]
        stores.append(self)

    def late(self: Checkpoint) -> Written:
        self._batches.extend(stores[-1].log.take_settled())
        return run(self)

    monkeypatch.setattr(Store, "__init__", noted)
    monkeypatch.setattr(Checkpoint, "run", late)
    caught = 0
    for seed in range(15):
        try:
            play(seed)
        except Exception:  # noqa: BLE001 (whatever is wrong with such a store)
            caught += 1
    assert caught
