"""An fdatasync, a directory's fsync or a commit of the catalog fails, done or not done.

It is fatal: nothing more is promised, and nothing is retried on that file.
"""

from __future__ import annotations

from tools.drill.faulty_files import FaultKind
from tools.drill.run import Run
from tools.drill.scenarios.failing_calls import fail_one_call
from tools.drill.scenarios.simulated import base_of

ABOUT = "an fsync or a commit of the catalog fails, though it may have been done"

_SYNCS = ("datasync", "sync_directory", "commit")


def run(run: Run) -> None:
    """Fail one a round."""
    base = base_of(run)
    for rng in run.rounds():
        if rng.random() < 0.5:
            fail_one_call(run, rng, base, FaultKind.EIO, _SYNCS)
        else:
            fail_one_call(run, rng, base, FaultKind.DONE_ANYWAY, ("datasync", "commit"))
