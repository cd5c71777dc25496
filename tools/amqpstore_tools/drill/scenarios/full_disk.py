"""The disk is full from one write on, once or for good, in the middle of the write or at its start.

Or another program fills it, at any moment, and takes the space that the store frees as well. Then
publishers are refused; restarts, deliveries, acks, purges and deletes continue, as the store has
kept a reserve for them; and once there is space again, everything is there.
"""

from __future__ import annotations

import functools
import random

from amqpstore import DiskFullError
from amqpstore_tools.drill.invariants import Fault, faults_at_openings, touched_files
from amqpstore_tools.drill.outside import Outside
from amqpstore_tools.drill.promises import Promises
from amqpstore_tools.drill.random_history import play
from amqpstore_tools.drill.run import DrillRun
from amqpstore_tools.drill.scenarios.failing_calls import fail_one_call
from amqpstore_tools.drill.scenarios.simulated import (
    OPTIONS,
    Base,
    base_of,
    before_harm,
    keep_unknown_files,
    manual_faults,
    open_store,
)
from amqpstore_tools.drill.verdict import Step
from amqpstore_tools.simulation.faulty_files import FaultKind
from amqpstore_tools.simulation.memory_files import MemoryFiles

ABOUT = "let the disk be full at any write, once or from then on, and restart while it is full"

_WRITES = ("append", "create", "make_directory", "commit")
_CHECKED_OF_OTHERS = ("I1", "I2", "I3", "I5", "I6", "I9", "I10", "I11", "I12")
_STEPS = 60
_ROOM_BYTES = 8 << 20
_OTHER = "/other"
_OPTIONS = OPTIONS._replace(least_free_bytes=32 << 10, reserve_bytes=256 << 10)


def run(run: DrillRun) -> None:
    """Fill the disk once per round."""
    base = base_of(run)
    for rng in run.rounds():
        draw = rng.random()
        if draw < 0.2:
            _fill_by_others(run, rng, base)
        elif draw < 0.5:
            fail_one_call(run, rng, base, FaultKind.SHORT_WRITE, ("append",))
        else:
            for_good = rng.random() < 0.5
            fail_one_call(run, rng, base, FaultKind.ENOSPC, _WRITES, for_good=for_good)


def _fill_by_others(run: DrillRun, rng: random.Random, base: Base) -> None:
    outside = base.outside(functools.partial(open_store, options=_OPTIONS))
    files = outside.files
    with before_harm(run):
        keep_unknown_files(outside)
        play(outside, rng, rng.randint(1, _STEPS))
        files.capacity_bytes = sum(map(len, files.contents())) + _ROOM_BYTES
        outside.kill()
        outside.open()
        # Its owner lets it check the disk now and then: here it creates its reserve, if it has
        # none.
        outside.housekeep()
    if not outside.is_open:
        return
    faults: list[Fault] = []
    did = "another program filled the disk"
    try:
        if rng.random() < 0.5:
            # After its last check of the disk: the store is in the middle of its work.
            outside.publish([rng.choice(outside.queue_names)], [rng.randbytes(2000)])
            outside.begin_sync()
            _fill(files)
            outside.finish_sync()
            did = f"{did} while a batch was written"
        else:
            _fill(files)
        outside.housekeep()
        names = outside.queue_names
        for _ in range(_STEPS):
            outside.publish([rng.choice(names)], [rng.randbytes(rng.randint(0, 2000))])
            outside.sync()
        faults.append(("I9", "the disk is full, but publishers are not refused"))
    except DiskFullError:
        did = f"{did}, publishers were refused"
    except Exception as error:  # noqa: BLE001 (whatever it is, it is the finding)
        faults.append(("I9", f"on a full disk, with a reserve: {error!r}"))
    outside.kill()
    try:
        for _ in range(rng.randint(1, 3)):
            outside.open()
            _serve(outside)
            outside.kill()
        outside.open()
        _empty(outside, rng)
        did = f"{did}, restarted, messages were taken and acked, queues purged and deleted"
    except Exception as error:  # noqa: BLE001 (whatever it is, it is the finding)
        faults.append(("I9", f"on a full disk, with a reserve: {error!r}"))
    outside.kill()
    files.capacity_bytes = None
    files.remove(_OTHER)
    try:
        outside.open()
        outside.kill()
    except Exception as error:  # noqa: BLE001 (whatever it is, it is the finding)
        faults.append(("I9", f"after space was freed: {error!r}"))
    promises = Promises.before(outside.trace)
    faults += faults_at_openings(promises, outside.trace)
    faults += touched_files(promises, files)
    if run.follows_manual:
        faults += manual_faults(run, files)
    run.saw(_CHECKED_OF_OTHERS)
    run.account.did["disks filled by another program"] += 1
    for invariant, text in faults:
        run.found(invariant, text, did)
    promised = promises.promised_count
    run.step(Step(run.round, 1, did, promised, promised, promised, 0, bool(faults)))


def _fill(files: MemoryFiles) -> None:
    """Write files of another program until no space is left."""
    other = files.create(_OTHER)
    other.append([bytes(files.free_bytes("/"))])
    other.close()


def _empty(outside: Outside, rng: random.Random) -> None:
    """Purge or delete each queue."""
    for name in outside.queue_names:
        if rng.random() < 0.5:
            outside.purge(name)
            outside.sync()
        else:
            outside.delete_queue(name)
    outside.checkpoint()
    outside.housekeep(2)


def _serve(outside: Outside) -> None:
    """Take and ack some messages of each queue, and let the store do its own work."""
    for name in outside.queue_names:
        outside.take(name, 3)
        outside.sync()
        outside.ack(name)
        outside.sync()
    outside.checkpoint()
    outside.housekeep(2)
