"""The power is cut at every operation of a recorded random workload, on a simulated disk.

The first of three rounds moves messages between queues in transactions; the others publish, take,
ack, purge and restart. Of each operation the images that a cut may leave are recovered, recovery is
itself cut, and the recovered store is used; see `explorer`.
"""

from __future__ import annotations

import random

from tools.drill import explorer, moves
from tools.drill.random_history import play
from tools.drill.run import Run
from tools.drill.scenarios.simulated import keep_unknown_files, new_disk, open_store, outside_of
from tools.drill.verdict import Step

ABOUT = "cut the power at every write of a random workload, and recover what is left"

_STEPS = 60
_IMAGES_AN_OPERATION = 12
_IMAGES_IN_RECOVERY = 2
_CUTS_IN_RECOVERY = 1
_MOVES = 6
_CHECKED = ("I1", "I2", "I3", "I5", "I6", "I8", "I9", "I10", "I11", "I12")
_CHECKED_OF_MOVES = ("I4", "I5", "I7", "I9")


def run(run: Run) -> None:
    """Explore a history a round."""
    for rng in run.rounds():
        if run.round % 3 == 1:
            _explore_moves(run, rng)
        else:
            _explore_history(run, rng)


def _explore_history(run: Run, rng: random.Random) -> None:
    outside = outside_of(open_store)
    keep_unknown_files(outside)
    play(outside, rng, _STEPS)
    seen = reported = 0

    def go_on(cut: explorer.Cut) -> bool:
        nonlocal seen, reported
        result = explored.result
        run.saw(_CHECKED, result.images + result.kills - seen)
        seen = result.images + result.kills
        run.account.did["operations cut"] += 1
        new = result.violations[reported:]
        reported = len(result.violations)
        for violation in new:
            where = f"operation {violation.operation_number} ({violation.operation})"
            run.found(violation.invariant, violation.text, f"{where}; {violation.image}")
        did = f"power cut at {cut.operation}"
        run.step(Step(run.round, cut.number, did, cut.promised, cut.least, cut.most, 0, bool(new)))
        return not run.is_over

    explored = explorer.Explorer(
        open_store,
        f"{run.settings.seed} {run.round}",
        images_an_operation=_IMAGES_AN_OPERATION,
        images_in_recovery=_IMAGES_IN_RECOVERY,
        cuts_in_recovery=_CUTS_IN_RECOVERY,
        go_on=go_on,
    )
    result = explored.explore(outside.trace)
    for violation in result.violations[reported:]:
        run.found(violation.invariant, violation.text, violation.image)
    run.account.did["distinct disks"] += result.distinct
    run.account.did["stores opened"] += result.opened


def _explore_moves(run: Run, rng: random.Random) -> None:
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
        open_store, new_disk(), rng, moves=_MOVES, images=_IMAGES_AN_OPERATION, go_on=go_on
    )
