"""The engine in a process of its own, with its real files, catalog and threads, killed with -9.

Checkpoints, paging and compaction are made to happen all the time, so that the kill meets them.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from amqpstore import MessageDamagedError, Options, Queue, Run, Store
from amqpstore.system.filenames import FIRST_COMPACTED
from amqpstore.upkeep.worker import InlineWorker

OPTIONS = Options(
    segment_bytes=1 << 16,
    memory_bytes=1 << 16,
    checkpoint_messages=200,
    checkpoint_ms=20,
    compaction_bytes_s=1 << 40,
    reserve_bytes=0,
    compress_from_bytes=400,
)

CHILD = """
import json, random, sys
from amqpstore import Envelope, Message, Options, Store
seed, next_number, directory = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
rng = random.Random(seed)
options = Options(*json.loads(sys.argv[4]))
store = Store.open(directory, options=options)
queues = {queue.definition: queue for queue in store.queues.values()}
for name in ("kept", "passing"):
    if name not in queues:
        queues[name] = store.create_queue(name)
envelope = Envelope("", "q", b"\\x10\\x00\\x02")
print("ready", flush=True)
while True:
    count = rng.randint(1, 60)
    bodies = [b"%d " % number + rng.choice([bytes, rng.randbytes])(rng.choice([0, 30, 500, 3000]))
              for number in range(next_number, next_number + count)]
    with store.transaction() as transaction:
        transaction.publish(list(queues.values()), [Message(envelope, body) for body in bodies])
    acked = []
    passing = queues["passing"]
    while passing.ready_count > 100:
        run = store.take(passing, rng.randint(1, 50))
        if rng.random() < 0.2:
            store.requeue(passing, run)
            continue
        store.ack(passing, run)
        acked += [int(message.body.split()[0]) for message in run.messages]
    kept = queues["kept"]
    if rng.random() < 0.3 and kept.ready_count > 600:
        held = []
        while kept.ready_count > 100:
            run = store.take(kept, rng.randint(1, 20))
            if rng.random() < 0.1:
                held.append(run)
                continue
            store.ack(kept, run)
            acked += [-int(message.body.split()[0]) for message in run.messages]
        for run in held:
            store.requeue(kept, run)
    next_number += count
    print("try", next_number, *acked, flush=True)
    store.sync()
    print("done", flush=True)
"""


def numbers(store: Store, queue: Queue) -> list[int]:
    """Take everything out of a queue, and return it."""
    found: list[int] = []
    while queue.ready_count:
        run = store.take(queue, 1000)
        assert not isinstance(run, MessageDamagedError), run
        assert isinstance(run, Run)
        found += [int(message.body.split()[0]) for message in run.messages or ()]
    return found


def run_and_kill(directory: Path, seed: int, next_number: int) -> list[str]:
    """Return what the child said before it was killed, after some hundred batches at most."""
    arguments = [str(seed), str(next_number), str(directory), json.dumps(OPTIONS[:-1])]
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    said = []
    try:
        for _ in range(random.Random(seed).randint(1, 250)):
            line = child.stdout.readline()
            assert line, "the child ended by itself"
            said.append(line)
    finally:
        child.kill()
    said += child.stdout.readlines()
    child.stdout.close()
    child.wait()
    return [line for line in said if line.endswith("\n")][1:]


class Expected:
    """The expected numbers in the queues `kept` and `passing`, each ascending."""

    def __init__(self) -> None:
        self.next_number = 1
        self.kept: list[int] = []
        self.passing: list[int] = []

    def after(self, line: str) -> Expected:
        """Return what the queues have if the batch that `line` tells of is on disk."""
        _, end, *acked = line.split()
        gone = set(map(int, acked))
        new = range(self.next_number, int(end))
        other = Expected()
        other.next_number = int(end)
        other.kept = [number for number in [*self.kept, *new] if -number not in gone]
        other.passing = [number for number in [*self.passing, *new] if number not in gone]
        return other


def prove(directory: Path, seeds: range) -> None:
    """Check that everything before a batch is there, and all or nothing of the batch under way."""
    expected = Expected()
    met: set[object] = set()
    for seed in seeds:
        under_way = expected
        for line in run_and_kill(directory, seed, expected.next_number):
            if line.startswith("try"):
                under_way = expected.after(line)
            else:
                expected = under_way
        store = Store.open(str(directory), options=OPTIONS, worker=InlineWorker())
        assert store.recovery_report.damage == []
        queues = list(store.queues.values())
        met.update(name for name in ("index", "paged") if any(getattr(q, name) for q in queues))
        contents = {str(queue.definition): numbers(store, queue) for queue in queues}
        met.update(segment.number >= FIRST_COMPACTED for segment in store.log.segments)
        store.abandon()
        both = contents.get("kept", []), contents.get("passing", [])
        assert both in ((one.kept, one.passing) for one in (expected, under_way)), seed
        if both != (expected.kept, expected.passing):
            expected = under_way
    assert met == {True, False, "index", "paged"}, "no checkpoint or no compaction was met"


def test_kill9_of_the_engine_loses_nothing_and_undoes_no_ack(tmp_path: Path) -> None:
    prove(tmp_path / "store", range(1, 9))


@pytest.mark.long
@pytest.mark.rounds(10)
def test_kill9_of_the_engine_many_times(tmp_path: Path, seed: int) -> None:
    prove(tmp_path / "store", range(seed, seed + 25))
