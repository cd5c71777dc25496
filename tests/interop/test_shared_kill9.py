"""A process whose threads use a `SharedStore`, killed with -9: committed is there, the rest not.

Every order is moved: received from `orders`, which keeps a history, and sent to `done`. The child
says what it has committed after it has, so what it said is a lower bound of what is there.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

from amqpstore import Options, SharedStore
from amqpstore.upkeep.worker import InlineWorker

OPTIONS = Options(
    segment_bytes=1 << 16,
    memory_bytes=1 << 16,
    checkpoint_messages=200,
    checkpoint_ms=20,
    least_free_bytes=0,
    reserve_bytes=0,
)

CHILD = """
import json, random, sys, threading
from amqpstore import Options, SharedStore
seed, directory = int(sys.argv[1]), sys.argv[2]
shared = SharedStore.open(directory, options=Options(*json.loads(sys.argv[3])))
shared.declare("orders", history_length=1 << 40)
shared.declare("done")
for prepared in shared.prepared():
    random.Random(seed).choice([prepared.commit, prepared.rollback])()
said = threading.Lock()
def say(*words):
    with said:
        print(*words, flush=True)
class Undone(Exception): pass
def produce(name):
    count = 0
    while True:
        bodies = [b"%d-%d-%d" % (seed, name, count + place) for place in range(5)]
        with shared.transaction() as transaction:
            transaction.send("orders", bodies)
        count += 5
        say("sent", *(body.decode() for body in bodies))
def move(name):
    rng = random.Random(seed * 100 + name)
    while True:
        try:
            with shared.transaction() as transaction:
                found = transaction.receive("orders", limit=rng.randint(1, 4))
                transaction.send("done", [one.body for one in found])
                what = rng.random()
                if what < 0.1:
                    raise Undone
                if what < 0.3:
                    prepared = transaction.prepare("t")
                    if what < 0.2:
                        prepared.rollback()
                        continue
                    prepared.commit()
        except Undone:
            continue
        say("moved", *(one.body.decode() for one in found))
say("ready")
threads = [threading.Thread(target=produce, args=(name,)) for name in range(2)]
threads += [threading.Thread(target=move, args=(name,)) for name in range(4)]
for thread in threads:
    thread.start()
"""


def run_and_kill(directory: Path, seed: int) -> list[list[str]]:
    """Return what the child said before it was killed, after some hundred commits at most."""
    arguments = [str(seed), str(directory), json.dumps(OPTIONS[:-1])]
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    said = []
    try:
        for _ in range(random.Random(seed).randint(1, 300)):
            line = child.stdout.readline()
            assert line, "the child ended by itself"
            said.append(line)
    finally:
        child.kill()
    said += child.stdout.readlines()
    child.stdout.close()
    child.wait()
    return [line.split() for line in said if line.endswith("\n")]


def contents(shared: SharedStore) -> dict[str, Counter[str]]:
    """Return what is in the queues, where it stays, and in the history."""
    found = {
        "history": Counter(one.message.body.decode() for one in shared.history("orders")),
    }
    for name in ("orders", "done"):
        state = shared.find(name)
        assert state is not None
        with shared.transaction() as transaction:
            bodies = []
            if state.ready_count:
                limit = state.ready_count
                bodies = [one.body for one in transaction.receive(name, limit=limit, timeout_s=0)]
            transaction.rollback()
        found[name] = Counter(body.decode() for body in bodies)
    return found


def test_kill9_undoes_what_was_not_committed_and_nothing_else(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    sent: set[str] = set()
    moved: set[str] = set()
    for seed in range(1, 6):
        for what, *bodies in run_and_kill(directory, seed):
            {"sent": sent, "moved": moved, "ready": set()}[what].update(bodies)
        with SharedStore.open(str(directory), options=OPTIONS, worker=InlineWorker()) as shared:
            assert shared.recovery_report.damage == []
            for prepared in shared.prepared():
                prepared.rollback()
            found = contents(shared)
        orders, done, history = found["orders"], found["done"], found["history"]
        everything = orders + history
        assert set(everything.values()) <= {1}, "an order is there twice"
        assert done == history, "a transaction is there in part"
        assert sent <= set(everything), "what was sent is not there"
        assert moved <= set(done), "what was moved is not there"
        sent, moved = set(everything), set(done)
    assert len(moved) > 50
