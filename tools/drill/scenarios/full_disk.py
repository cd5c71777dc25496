"""The disk is full: from one write on, once or for good, in the midst of it or at its start."""

from __future__ import annotations

from tools.drill.faulty_files import FaultKind
from tools.drill.run import Run
from tools.drill.scenarios.failing_calls import fail_one_call
from tools.drill.scenarios.simulated import base_of

ABOUT = "no space left at any write, once or from then on"

_WRITES = ("append", "create", "make_directory", "commit")


def run(run: Run) -> None:
    """Fill the disk once a round."""
    base = base_of(run)
    for rng in run.rounds():
        if rng.random() < 0.4:
            fail_one_call(run, rng, base, FaultKind.SHORT_WRITE, ("append",))
        else:
            for_good = rng.random() < 0.5
            fail_one_call(run, rng, base, FaultKind.ENOSPC, _WRITES, for_good=for_good)
