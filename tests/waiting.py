"""Waiting for what another thread or process does: by looking again, for a limited time."""

import select
import time
from collections.abc import Callable
from typing import Protocol

WAIT_S = 60.0


class HasDescriptor(Protocol):
    """A socket."""

    def fileno(self) -> int: ...


def wait_until(
    condition: Callable[[], bool],
    what: str | Callable[[], object] = "what was waited for",
    timeout_s: float = WAIT_S,
    *,
    pause_s: float = 0.01,
) -> None:
    """Return once a condition holds. Args: what, the text for the error if it does not, or a
    function that returns the state then.

    Raises: AssertionError, if the condition does not hold within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(
                f"{what() if callable(what) else what}: still not after {timeout_s} s"
            )
        time.sleep(pause_s)


def wait_readable(*socks: HasDescriptor, count: int = 1) -> None:
    """Wait until `count` of these sockets can be read. (`select.select` takes no descriptor above
    1,023, and the process of the tests may have more.)
    """
    poll = select.poll()
    for sock in socks:
        poll.register(sock.fileno(), select.POLLIN)
    until = time.monotonic() + WAIT_S
    while len(poll.poll(1000)) < count:
        assert time.monotonic() < until, f"not {count} of {len(socks)} sockets can be read"
