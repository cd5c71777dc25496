"""An fdatasync, a directory's fsync or a commit of the catalog fails: done, not done, or lost.

Lost is how Linux treats pages that it could not write: it marks them as written, so the next
process reads them, no later sync writes them, and a power cut loses them.

The failure is fatal: nothing more is promised, and nothing is retried on that file.
"""

from __future__ import annotations

from amqpstore_tools.drill.run import DrillRun
from amqpstore_tools.drill.scenarios.failing_calls import fail_one_call
from amqpstore_tools.drill.scenarios.simulated import base_of
from amqpstore_tools.simulation.faulty_files import FaultKind

ABOUT = "let an fsync or a commit of the catalog fail, with or without effect"

_SYNCS = ("datasync", "sync_directory", "commit")


def run(run: DrillRun) -> None:
    """Fail one call per round."""
    base = base_of(run)
    for rng in run.rounds():
        kind = rng.choice((FaultKind.EIO, FaultKind.DONE_ANYWAY, FaultKind.LOST))
        verbs = _SYNCS if kind is FaultKind.EIO else ("datasync", "commit")
        fail_one_call(run, rng, base, kind, verbs)
