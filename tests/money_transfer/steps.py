"""The example's steps by name, so that a crash at each of them can be tried."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection

STEPS = {
    "connected": "the session is up, nothing is asked yet",
    "in-doubt-listed": "the broker has said which branches are in doubt",
    "in-doubt-decided": "one of them was committed or rolled back",
    "order-received": "an order is here, unacked, and no branch was started",
    "branch-started": "the branch is started",
    "account-changed": "the account is changed, in a transaction of SQLite that is open",
    "receipt-published": "the receipt is published, in the branch",
    "order-acked": "the order is acked, in the branch",
    "branch-ended": "the branch is ended",
    "branch-prepared": "the broker has prepared; nothing is decided: a crash means rollback",
    "decided": "the transaction of SQLite is committed: from here on a crash means commit",
    "branch-committed": "the broker has committed, the decision is still in the log",
    "decision-forgotten": "all is done",
}


class Steps:
    """Ends or pauses this process at given steps.

    At a step of `die_at` the process kills itself with SIGKILL. The first time that it reaches a
    step of `pause_at` it writes `at STEP` to stdout and waits for a line on stdin.
    """

    def __init__(self, die_at: Collection[str] = (), pause_at: Collection[str] = ()) -> None:
        self._die_at = set(die_at)
        self._pause_at = set(pause_at)

    def reached(self, step: str) -> None:
        if step not in STEPS:
            raise ValueError(f"there is no step {step!r}")
        if step in self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if step in self._pause_at:
            self._pause_at.remove(step)
            sys.stdout.write(f"at {step}\n")
            sys.stdout.flush()
            sys.stdin.readline()
