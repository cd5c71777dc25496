"""The power is cut at every operation of a recorded random workload, on a simulated disk.

The first of three rounds moves messages between queues in transactions; the others publish, take,
ack, purge and restart, each in another history. The images that a cut may leave at each operation
are recovered, recovery is itself cut, and the recovered store is used; see `explorer`. If the
length of the history is given there is only one, and each round checks more images of it: in
shares, each of which remembers only what it has seen itself, so that they can be explored on other
machines.
"""

from __future__ import annotations

import random

from amqpstore_tools.drill import explorer, moves
from amqpstore_tools.drill.manual import FOLLOWED
from amqpstore_tools.drill.prover import REMEMBERED
from amqpstore_tools.drill.random_history import play
from amqpstore_tools.drill.run import DrillRun
from amqpstore_tools.drill.scenarios.simulated import (
    Base,
    base_of,
    before_harm,
    keep_unknown_files,
    manual_faults,
    open_store,
)
from amqpstore_tools.drill.trace import Trace
from amqpstore_tools.drill.verdict import INVARIANTS, Step

ABOUT = "cut the power at every write of a random workload, and recover what is left"

SHARES = 16
"""The number of shares of the one history, which run at the same time."""

_STEPS = 60
_IMAGES_AN_OPERATION = 24
_IMAGES_IN_RECOVERY = 1
_CUTS_IN_RECOVERY = 1
_MOVES = 6
_IMAGES_OF_MOVES = 12
_MANUAL_OPERATIONS = 100
"""The steps of the manual are taken with an image after one operation out of this many."""

_MANUAL_OPERATION = 50
"""The number of that operation: early enough for a short run, and late enough for a store that
holds something.
"""
_CHECKED_OF_HISTORIES = ("I1", "I2", "I3", "I5", "I6", "I8", "I9", "I10", "I11", "I12")
_CHECKED_OF_MOVES = ("I4", "I5", "I7", "I9")
CHECKED = tuple(
    sorted({*_CHECKED_OF_HISTORIES, *_CHECKED_OF_MOVES, *FOLLOWED}, key=[*INVARIANTS].index)
)


def run(run: DrillRun) -> None:
    """Explore one history per round, or in each round the one of the given length."""
    base = base_of(run)
    length = run.settings.operations
    if length is not None:
        _explore_one(run, base, length)
        return
    for rng in run.rounds():
        if run.round % 3 == 1:
            _explore_moves(run, rng, base)
        else:
            _Exploration(run, _history(run, base, rng, _STEPS)).explore()


def _explore_one(run: DrillRun, base: Base, length: int) -> None:
    trace = _history(run, base, run.rng_of_all("history"), length)
    chosen = [run.settings.share] if run.settings.share else [*range(1, SHARES + 1)]
    shares = [_Exploration(run, trace, share) for share in chosen]
    is_first = 1 in chosen
    for rng in run.rounds():
        if is_first:
            _explore_moves(run, rng, base)
            is_first = False
        for share in shares:
            if not run.is_over:
                share.explore()


def _history(run: DrillRun, base: Base, rng: random.Random, steps: int) -> Trace:
    outside = base.outside(open_store)
    with before_harm(run):
        keep_unknown_files(outside)
        play(outside, rng, steps)
    return outside.trace


class _Exploration:
    """One history, or a part of it, from 1. Each exploration makes other random choices."""

    def __init__(self, run: DrillRun, trace: Trace, share: int | None = None) -> None:
        self._run = run
        self._trace = trace
        self._numbers = trace.numbers
        if share is not None:
            count = len(self._numbers)
            self._numbers = self._numbers[count * (share - 1) // SHARES : count * share // SHARES]
        self._explorer = explorer.Explorer(
            open_store,
            "",
            images_an_operation=_IMAGES_AN_OPERATION,
            images_in_recovery=_IMAGES_IN_RECOVERY,
            cuts_in_recovery=_CUTS_IN_RECOVERY,
            go_on=self._go_on,
            remembered=REMEMBERED if share is None else REMEMBERED // SHARES,
        )
        self._counted = explorer.Result()

    def explore(self) -> None:
        """Note what is found at each of its operations."""
        run = self._run
        seed = f"{run.settings.seed} {run.round}"
        result = self._explorer.explore(self._trace, seed, self._numbers)
        self._note(result.violations)

    def _go_on(self, cut: explorer.Cut) -> bool:
        run, result, counted = self._run, self._explorer.result, self._counted
        images = result.images + result.kills - counted.images - counted.kills
        run.saw(_CHECKED_OF_HISTORIES, images)
        run.account.did["operations cut"] += 1
        run.account.did["distinct disks"] += result.distinct - counted.distinct
        used = result.distinct_used - counted.distinct_used
        run.account.did["of them used, and recovery crashed"] += used
        run.account.did["stores opened"] += result.opened - counted.opened
        is_violated = len(result.violations) > len(counted.violations)
        self._note(result.violations)
        if cut.left and cut.number % _MANUAL_OPERATIONS == _MANUAL_OPERATION:
            for invariant, text in manual_faults(run, cut.left):
                run.found(invariant, text, f"operation {cut.number} ({cut.operation})")
                is_violated = True
        counted.images, counted.kills = result.images, result.kills
        counted.distinct, counted.opened = result.distinct, result.opened
        counted.distinct_used = result.distinct_used
        did = f"power cut at: {cut.operation}"
        run.step(
            Step(run.round, cut.number, did, cut.promised, cut.least, cut.most, 0, is_violated)
        )
        return not run.is_over

    def _note(self, violations: list[explorer.Violation]) -> None:
        for violation in violations[len(self._counted.violations) :]:
            where = f"operation {violation.operation_number} ({violation.operation})"
            self._run.found(violation.invariant, violation.text, f"{where}; {violation.image}")
        self._counted.violations = list(violations)


def _explore_moves(run: DrillRun, rng: random.Random, base: Base) -> None:
    def go_on(cut: moves.MoveCut) -> bool:
        run.saw(_CHECKED_OF_MOVES, cut.images)
        run.account.did["operations cut"] += 1
        for image, (invariant, text) in cut.faults:
            run.found(invariant, text, f"operation {cut.number} ({cut.operation}); {image}")
        did = f"moves; power cut at: {cut.operation}"
        is_violated = bool(cut.faults)
        run.step(
            Step(run.round, cut.number, did, cut.promised, cut.least, cut.most, 0, is_violated)
        )
        return not run.is_over

    moves.explore_moves(
        open_store, base.disk.fork(), rng, moves=_MOVES, images=_IMAGES_OF_MOVES, go_on=go_on
    )
