"""A random workload in which a call fails, shared by the scenarios of failing calls.

The store must stop, or report that it postpones something. What was promised until then must be
there when it is opened again: after the process ended, and also after a power cut.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable, Sequence

from amqpstore import StoreError
from amqpstore.system.filenames import SEGMENTS, is_compacted, segment_number
from amqpstore_tools.drill.invariants import Fault, broken_promises, reported_damage, touched_files
from amqpstore_tools.drill.manual import FOLLOWED
from amqpstore_tools.drill.observation import observe
from amqpstore_tools.drill.outside import Outside
from amqpstore_tools.drill.promises import Promises
from amqpstore_tools.drill.prover import Prover
from amqpstore_tools.drill.random_history import play
from amqpstore_tools.drill.run import DrillRun
from amqpstore_tools.drill.scenarios.simulated import (
    DIRECTORY,
    Base,
    before_harm,
    keep_unknown_files,
    manual_faults,
    open_faulty_store,
    open_store,
)
from amqpstore_tools.drill.trace import Asked, Promised, StoreOpened, Trace
from amqpstore_tools.drill.verdict import Step
from amqpstore_tools.simulation.crash_images import crash_images
from amqpstore_tools.simulation.faulty_files import NO_SPACE, FaultKind, Faults
from amqpstore_tools.simulation.memory_files import MemoryFiles

_CHECKED_EACH_ROUND = ("I1", "I2", "I3", "I5", "I6", "I8", "I9", "I10", "I11", "I12")
CHECKED = (*_CHECKED_EACH_ROUND, *FOLLOWED)
_STEPS = 60
_IMAGES = 5

_Told = Callable[[Outside], None]


def fail_one_call(
    run: DrillRun,
    rng: random.Random,
    base: Base,
    kind: FaultKind,
    verbs: Sequence[str],
    *,
    for_good: bool = False,
) -> None:
    """Play a history in which one call, drawn from those that begin with `verbs`, fails.

    Args: for_good, all such calls fail from there on.
    """
    seed = rng.random()

    def told(outside: Outside) -> None:
        keep_unknown_files(outside)
        play(outside, random.Random(seed), _STEPS)  # noqa: S311 (no secret)

    numbers = _call_numbers(run, base, told, verbs)
    if not numbers:
        return
    nth = rng.choice(numbers)
    faults = LastingFaults(nth, kind, verbs) if for_good else Faults(nth, kind)
    outside = base.outside(functools.partial(open_faulty_store, faults=faults))
    error: Exception | None = None
    try:
        told(outside)
    except (OSError, StoreError) as raised:
        error = raised
    call = faults.calls[nth] if faults.has_struck else "nothing"
    lasting = ", and all such calls after it" if for_good else ""
    did = f"call {nth}, {call}, failed with {kind.name}{lasting}"
    violations: list[Fault] = []
    # A full disk, once: what is missing was written with the space of the reserve.
    is_made_up_for = kind in NO_SPACE and not for_good
    if error is None and _is_of_the_log(call) and not is_made_up_for:
        violations.append(("I1", f"{call.split()[0]} of the log failed, but the store continued"))
    # While the fault lasts nothing may be promised.
    outside.kill()
    disk = outside.files.fork()
    if for_good and faults.has_struck:
        violations += _restart_faults(run, disk, outside.trace, LastingFaults(0, kind, verbs))
        did = f"{did}; restarted during the fault, and again after it"
    violations += _left_behind(run, rng, outside.trace, disk, did, bool(violations))
    for invariant, text in violations:
        run.found(invariant, text, did)
    run.account.did["calls failed"] += 1


class LastingFaults(Faults):
    """Makes all calls that begin with one of `verbs` fail, from the n-th on."""

    def __init__(self, nth: int, kind: FaultKind, verbs: Sequence[str]) -> None:
        super().__init__(nth, kind)
        self._verbs = tuple(verbs)

    def counts(self, call: str) -> bool:
        self.calls.append(call)
        return len(self.calls) - 1 >= self.nth and call.startswith(self._verbs)


def _is_of_the_log(call: str) -> bool:
    """Tell whether a call is a write or a sync of the log; background failures may be noticed
    later, or only by the next start.
    """
    verb, _, path = call.partition(" ")
    number = segment_number(path.rpartition("/")[2])
    if number is None or is_compacted(number):
        return False
    return path.startswith(f"{DIRECTORY}/{SEGMENTS}/") and verb in ("append", "datasync")


def _call_numbers(run: DrillRun, base: Base, told: _Told, verbs: Sequence[str]) -> list[int]:
    """Return which calls of a history may fail: those that begin with one of `verbs`, counted from
    0.
    """
    faults = Faults(-1)
    with before_harm(run):
        told(base.outside(functools.partial(open_faulty_store, faults=faults)))
    return [number for number, call in enumerate(faults.calls) if call.startswith(tuple(verbs))]


def _restart_faults(
    run: DrillRun, disk: MemoryFiles, trace: Trace, faults: LastingFaults
) -> list[Fault]:
    """Return the faults of a start while the calls fail: everything promised must be there, or the
    start must be refused with the operating system's reason.
    """
    try:
        store = open_faulty_store(disk, faults)
    except (OSError, StoreError) as error:
        run.account.did["starts refused while calls failed"] += 1
        reason = os.strerror(getattr(faults.error(""), "errno", 0))
        if reason not in str(error):
            return [("I9", f"a start is refused for another reason than {reason}: {error!r}")]
        return []
    run.account.did["starts while calls failed"] += 1
    try:
        observation = observe(store)
    finally:
        store.abandon()
    faulty = [*observation.faults, *reported_damage(observation.report)]
    return [*faulty, *broken_promises(_promises_of(trace), observation)]


def _promises_of(trace: Trace) -> Promises:
    promises = Promises.before(trace)
    for event in trace.events:
        if isinstance(event, Asked | Promised | StoreOpened):
            promises.note(event)
    return promises


def _left_behind(
    run: DrillRun, rng: random.Random, trace: Trace, left: MemoryFiles, did: str, is_violated: bool
) -> list[Fault]:
    """Return the faults after the process ended, and after the machine lost power as well: at once,
    or when the next process had used what it found.
    """
    promises = _promises_of(trace)
    prover = Prover(open_store, 2)
    disks = [image.files for image in crash_images(left, rng, _IMAGES)]
    violations: list[Fault] = []
    held: list[int] = []
    all_recovered = [prover.recover(left.fork()), prover.used(left.fork(), rng)]
    all_recovered += [prover.recover(disk) for disk in disks]
    for recovered in all_recovered:
        violations += [*recovered.faults, *touched_files(promises, recovered.after)]
        if recovered.observation is not None:
            violations += broken_promises(promises, recovered.observation)
            held.append(sum(len(queue.ready) for queue in recovered.observation.queues.values()))
    if run.follows_manual:
        violations += manual_faults(run, run.rng("manual").choice([left, *disks]))
    run.saw(_CHECKED_EACH_ROUND, len(all_recovered))
    least, most = min(held, default=0), max(held, default=0)
    promised = promises.promised_count
    run.step(Step(run.round, 1, did, promised, least, most, 0, is_violated or bool(violations)))
    return violations
