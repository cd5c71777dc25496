"""The tick of all connections: a few in one go, as thousands may be at the end of their time.

A broker that stood still, as its machine was paused or moved, has read nothing meanwhile: what its
clients sent lies in its sockets. So that time does not count against them (`Standstill`, and
`in_time` for what has a deadline of its own).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypeVar

import trio

T = TypeVar("T")

LATE_S = 1.0
"""How late this thread has to be for something to have stood still. No heartbeat is missed in less:
clients have two intervals of at least a second. A busy broker is less late than that.
"""

AT_ONCE = 64
"""Connections after whose ticks others have their turn. To end one takes up to 0.2 ms."""


class TimedConnection(Protocol):
    """A connection with heartbeats and timeouts."""

    def tick(self, now: float) -> None:
        """Check heartbeats and timeouts."""


class Standstill:
    """Notices that this thread did nothing for a while, by a tick that comes late.

    Args: every_s, the time between two ticks; now, on trio's clock.
    """

    def __init__(self, every_s: float, now: float) -> None:
        self._every_s = every_s
        self._ticked_at = now

    def tick(self, now: float) -> float:
        """Return how many seconds it stood still before this tick, 0 if it did not."""
        late_s = now - self._ticked_at - self._every_s
        self._ticked_at = now
        return late_s if late_s > LATE_S else 0.0


def is_late(deadline: float) -> bool:
    """Tell whether the thread only gets to a deadline long after it: it stood still, and who had
    until then may not have had all of the time.
    """
    return trio.current_time() - deadline > LATE_S


async def in_time(seconds: float, work: Callable[[], Awaitable[T]], deadline: float = 0.0) -> T:
    """Do some work with a client, if that takes no longer.

    If this thread stood still when the time was over, the work has its time again. Once: a broker
    that is always late would never end it otherwise.
    Args: deadline, of the first time, on trio's clock, if it does not begin now.
    Raises: trio.TooSlowError; what the work raises.
    """
    done: list[T] = []
    failed: list[Exception] = []
    async with trio.open_nursery() as nursery:
        until = deadline or trio.current_time() + seconds
        nursery.start_soon(_cancel_at, nursery.cancel_scope, until, seconds)
        try:
            done.append(await work())
        except Exception as error:  # noqa: BLE001 - a nursery would raise it in a group
            failed.append(error)
        nursery.cancel_scope.cancel()
    if failed:
        raise failed[0]
    if not done:
        raise trio.TooSlowError
    return done[0]


async def _cancel_at(scope: trio.CancelScope, deadline: float, again_s: float) -> None:
    await trio.sleep_until(deadline)
    if is_late(deadline):
        await trio.sleep(again_s)
    scope.cancel()


async def tick_all(connections: Iterable[TimedConnection]) -> None:
    """Have each connection check its heartbeats and timeouts."""
    left = list(connections)
    while left:
        _tick_some(left)
        await trio.lowlevel.checkpoint()


def _tick_some(left: list[TimedConnection]) -> None:
    # A function of its own: no local variable keeps a connection that has ended while others have
    # their turn.
    now = trio.current_time()
    for _ in range(min(len(left), AT_ONCE)):
        left.pop().tick(now)
