"""The operator's own disk: is a sync of it one? And real file systems on it that lose power.

Syncs are measured where the store is. Then a program publishes to a store on ext4 and xfs, by
turns, each on a loop device in the work directory, whose file system is stopped as a power cut
would: what the program was told is durable has to be there after it is mounted again, and what the
manual says is done with it. The disk below the loop device does not lose power.
"""

from __future__ import annotations

import contextlib
import os
import random
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from amqpstore import Store, StoreError
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.drill import own_disk
from amqpstore_tools.drill.invariants import Fault, reported_damage
from amqpstore_tools.drill.loop_disk import KINDS, LoopDisk, NoDiskError, loop_disk
from amqpstore_tools.drill.manual import DOING, FOLLOWED, after_crash
from amqpstore_tools.drill.observation import Observation, observe
from amqpstore_tools.drill.run import DrillRun
from amqpstore_tools.drill.syncing import ACKED, MESSAGES, QUEUES, body_of, indexes_of
from amqpstore_tools.drill.verdict import Step

ABOUT = "see whether a sync of your disk is one, and cut the power of ext4 and xfs on it"

CHECKED = ("I1", "I2", "I3", "I5", "I6", "I9", "I10", "I12", *FOLLOWED, "I15")
_PROGRAM = (sys.executable, "-P", "-m", "amqpstore_tools.drill.syncing")
_TIMEOUT_S = 30.0
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(__file__))))
_OF_DEVICES = "whether a device keeps what it says it has flushed: only cutting its power shows it"


@dataclass
class _Told:
    """The batches that the program was told are durable, and those of which it was told that the
    acks are.
    """

    published: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)


def run(run: DrillRun) -> None:
    """Look at the disk, then cut the power once per round."""
    _look_at_syncs(run)
    run.account.unknown.append(_OF_DEVICES)
    kinds = list(KINDS)
    for rng in run.rounds():
        while kinds:
            kind = kinds[run.round % len(kinds)]
            try:
                _cut(run, kind, rng)
            except NoDiskError as error:
                # With the other kind the round may do.
                kinds.remove(kind)
                run.account.unknown.append(f"a power cut of {kind}: {error}")
            else:
                break
        if not kinds:
            return


def _look_at_syncs(run: DrillRun) -> None:
    """Measure syncs where the store is."""
    of_store = run.settings.data or run.settings.work
    mount = own_disk.mounted(of_store)
    run.round = run.settings.round or 1
    if mount.kind in own_disk.IN_MEMORY:
        text = f"{mount.at} is {mount.kind}, which is memory: nothing on it survives a power cut"
        if run.settings.data:
            run.account.checked(["I15"])
            run.found("I15", text, of_store)
        else:
            run.account.unknown.append(f"your disk, as {text}; name your store with --data")
        return
    if reason := own_disk.unseen(mount):
        run.account.unknown.append(reason)
        return
    index = _directory_beside(of_store, run.settings.work)
    if index is None:
        hint = "name a directory on its file system with --work"
        run.account.unknown.append(f"the syncs of {of_store}: {hint}")
        return
    syncs = own_disk.measure(index)
    run.account.checked(["I15"])
    run.account.did["syncs measured"] += syncs.number
    run.account.did["microseconds a sync"] = round(1e6 * syncs.sync_s)
    for text in own_disk.doubts(syncs):
        run.found("I15", text, f"{mount.kind} at {mount.at}")


def _directory_beside(of_store: str, work: str) -> str | None:
    """Return a directory on the file system of a store, that is not in it; None if there is no
    such directory that may be written to.
    """
    device = os.stat(of_store).st_dev
    for path in (work, os.path.dirname(os.path.realpath(of_store))):
        if os.stat(path).st_dev == device and os.access(path, os.W_OK):
            return path
    return None


def _cut(run: DrillRun, kind: str, rng: random.Random) -> None:
    """Cut the power of one file system, and note what is wrong with the store on it.

    Raises: NoDiskError.
    """
    with (
        tempfile.TemporaryDirectory(dir=run.settings.work) as work,
        loop_disk(work, kind) as disk,
    ):
        seed = f"{run.settings.seed} {run.round}"
        promised_batches = _work_and_cut(disk, seed, rng.randint(1, 400))
        disk.restart()
        copy = os.path.join(work, "copy")
        _copy_from(disk, copy)
        faults = [*_faults(copy, promised_batches, seed)]
        run.saw(CHECKED)
        run.account.did["power cuts"] += 1
        run.account.did["batches promised"] += len(promised_batches.published)
        _copy_from(disk, copy)
        if os.path.isdir(copy):
            run.show(DOING)
            faults += after_crash(copy, work)
    did = f"the power of {kind} was cut"
    where = f"{did} after {len(promised_batches.published)} batches"
    for invariant, text in faults:
        run.found(invariant, text, where)
        if invariant in ("I1", "I5"):
            run.found("I15", f"what a sync of {kind} has promised did not survive", where)
    promised = 2 * MESSAGES * len(promised_batches.published) - MESSAGES * len(
        promised_batches.acked
    )
    run.step(Step(run.round, 1, did, promised, promised, promised, 0, bool(faults)))


def _copy_from(disk: LoopDisk, copy: str) -> None:
    """Copy what is left of the store on a disk: nothing, if its directory did not survive."""
    shutil.rmtree(copy, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        shutil.copytree(os.path.join(disk.path, "store"), copy)


def _work_and_cut(disk: LoopDisk, seed: str, lines: int) -> _Told:
    """Let the program work until it has told that much, and cut the power. Raises: NoDiskError."""
    directory = os.path.join(disk.path, "store")
    with subprocess.Popen(  # noqa: S603 (our own command)
        [*_PROGRAM, directory, seed], cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            if process.stdout is None:
                raise RuntimeError("stdout is not a pipe")
            heard = _read(process.stdout.fileno(), lines)
            disk.cut_power()
            # What it had said by then was durable by then.
            heard += _read(process.stdout.fileno(), sys.maxsize)
        finally:
            process.kill()
            process.wait(_TIMEOUT_S)
    promised = _Told()
    for line in heard.decode().splitlines(keepends=True):
        what, _, number = line.partition(" ")
        if line.endswith("\n"):
            (promised.published if what == "published" else promised.acked).add(int(number))
    return promised


def _read(descriptor: int, lines: int) -> bytes:
    """Read that many lines, or all until the end."""
    heard = b""
    deadline = time.monotonic() + _TIMEOUT_S
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while heard.count(b"\n") < lines:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                break
            if not (piece := os.read(descriptor, 4096)):
                break
            heard += piece
    return heard


def _faults(directory: str, promised: _Told, seed: str) -> Iterator[Fault]:
    try:
        store = Store.open(directory, worker=InlineWorker())
    except StoreError as error:
        if promised.published:
            yield "I9", f"opening failed: {error}"
            yield "I1", f"{len(promised.published)} batches that were durable are lost"
        return
    try:
        observation = observe(store)
    finally:
        store.abandon()
    yield from observation.faults
    yield from reported_damage(observation.report)
    indexes_of_queue = {name: _batches(name, observation) for name in QUEUES}
    for name, indexes in indexes_of_queue.items():
        yield from _queue_faults(name, indexes, observation, promised, seed)
    left, right = ({batch for batch, _ in indexes_of_queue[name]} for name in QUEUES)
    for batch in left ^ right:
        # One that was acked is no longer in the first queue, told or not.
        if batch in left or batch % ACKED:
            yield "I3", f"batch {batch} is in one of its two queues"


def _batches(name: str, observation: Observation) -> list[tuple[int, int]]:
    queue = observation.queues.get(name)
    return [indexes_of(seen.payload.body) or (-1, 0) for seen in queue.ready] if queue else []


def _queue_faults(
    name: str, indexes: list[tuple[int, int]], observation: Observation, told: _Told, seed: str
) -> Iterator[Fault]:
    queue = observation.queues.get(name)
    bodies = [seen.payload.body for seen in queue.ready] if queue else []
    acked = told.acked if name == QUEUES[0] else set()
    for index, body in zip(indexes, bodies, strict=True):
        if body != body_of(seed, *index):
            yield "I2", f"{name} has a message that was never sent like that ({index})"
        if index[0] in acked:
            yield "I5", f"{index} was acked in {name}, and is back"
    if indexes != sorted(set(indexes)):
        yield "I6", f"{name} is out of order, or has messages twice"
    # Acks of the last batch may be durable before it is told.
    promised = told.published - acked
    if name == QUEUES[0]:
        promised -= {max(told.published, default=-1)}
    missing = {(batch, index) for batch in promised for index in range(MESSAGES)} - {*indexes}
    if missing:
        yield "I1", f"{name}: {len(missing)} messages that were durable are lost"
