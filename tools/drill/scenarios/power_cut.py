"""The power is cut at every operation of a recorded random workload, on a simulated disk.

The first of three rounds moves messages between queues in transactions; the others publish, take,
ack, purge and restart, each another history. Of each operation the images that a cut may leave are
recovered, recovery is itself cut, and the recovered store is used; see `explorer`. Where the
length of the history is given there is one, and each round looks at more images of it.
"""

from __future__ import annotations

import random

from tools.drill import explorer, moves
from tools.drill.random_history import play
from tools.drill.run import Run
from tools.drill.scenarios.simulated import Base, base_of, keep_unknown_files, open_store
from tools.drill.trace import Trace
from tools.drill.verdict import Step

ABOUT = "cut the power at every write of a random workload, and recover what is left"

_STEPS = 60
_IMAGES_AN_OPERATION = 24
_IMAGES_IN_RECOVERY = 1
_CUTS_IN_RECOVERY = 1
_MOVES = 6
_IMAGES_OF_MOVES = 12
_CHECKED = ("I1", "I2", "I3", "I5", "I6", "I8", "I9", "I10", "I11", "I12")
_CHECKED_OF_MOVES = ("I4", "I5", "I7", "I9")


def run(run: Run) -> None:
    """Explore a history a round, or the one of the given length in each."""
    base = base_of(run)
    exploration: _Exploration | None = None
    length = run.settings.operations
    for rng in run.rounds():
        if length is None:
            if run.round % 3 == 1:
                _explore_moves(run, rng, base)
            else:
                _Exploration(run, rng, base, _STEPS).explore()
            continue
        if exploration is None:
            _explore_moves(run, rng, base)
            exploration = _Exploration(run, run.rng_of_all("history"), base, length)
        exploration.explore()


class _Exploration:
    """One history; each time that it is explored other images are drawn."""

    def __init__(self, run: Run, rng: random.Random, base: Base, steps: int) -> None:
        outside = base.outside(open_store)
        keep_unknown_files(outside)
        play(outside, rng, steps)
        self._run = run
        self._trace: Trace = outside.trace
        self._explorer = explorer.Explorer(
            open_store,
            "",
            images_an_operation=_IMAGES_AN_OPERATION,
            images_in_recovery=_IMAGES_IN_RECOVERY,
            cuts_in_recovery=_CUTS_IN_RECOVERY,
            go_on=self._go_on,
        )
        self._counted = explorer.Result()

    def explore(self) -> None:
        """Note what is found at each of its operations."""
        run = self._run
        result = self._explorer.explore(self._trace, f"{run.settings.seed} {run.round}")
        self._note(result.violations)

    def _go_on(self, cut: explorer.Cut) -> bool:
        run, result, counted = self._run, self._explorer.result, self._counted
        run.saw(_CHECKED, result.images + result.kills - counted.images - counted.kills)
        run.account.did["operations cut"] += 1
        run.account.did["distinct disks"] += result.distinct - counted.distinct
        used = result.distinct_used - counted.distinct_used
        run.account.did["of them used, and recovery crashed"] += used
        run.account.did["stores opened"] += result.opened - counted.opened
        is_violated = len(result.violations) > len(counted.violations)
        self._note(result.violations)
        counted.images, counted.kills = result.images, result.kills
        counted.distinct, counted.opened = result.distinct, result.opened
        counted.distinct_used = result.distinct_used
        did = f"power cut at {cut.operation}"
        run.step(
            Step(run.round, cut.number, did, cut.promised, cut.least, cut.most, 0, is_violated)
        )
        return not run.is_over

    def _note(self, violations: list[explorer.Violation]) -> None:
        for violation in violations[len(self._counted.violations) :]:
            where = f"operation {violation.operation_number} ({violation.operation})"
            self._run.found(violation.invariant, violation.text, f"{where}; {violation.image}")
        self._counted.violations = list(violations)


def _explore_moves(run: Run, rng: random.Random, base: Base) -> None:
    def go_on(cut: moves.Cut) -> bool:
        run.saw(_CHECKED_OF_MOVES, cut.images)
        run.account.did["operations cut"] += 1
        for image, (invariant, text) in cut.faults:
            run.found(invariant, text, f"operation {cut.number} ({cut.operation}); {image}")
        did = f"moves; power cut at {cut.operation}"
        is_violated = bool(cut.faults)
        run.step(
            Step(run.round, cut.number, did, cut.promised, cut.least, cut.most, 0, is_violated)
        )
        return not run.is_over

    moves.explore_moves(
        open_store, base.disk.fork(), rng, moves=_MOVES, images=_IMAGES_OF_MOVES, go_on=go_on
    )
