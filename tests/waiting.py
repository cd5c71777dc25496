"""Waiting for what another thread or process does: by looking again, for a limited time."""

import time
from collections.abc import Callable

WAIT_S = 60.0


def wait_until(
    condition: Callable[[], bool],
    what: str | Callable[[], object] = "what was waited for",
    timeout_s: float = WAIT_S,
    *,
    pause_s: float = 0.01,
) -> None:
    """Return once it holds. Args: what, or how it is then, for who reads that it did not.

    Raises: AssertionError, if it does not within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(
                f"{what() if callable(what) else what}: still not after {timeout_s} s"
            )
        time.sleep(pause_s)
