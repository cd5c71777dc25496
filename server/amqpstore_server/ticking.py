"""The tick of all connections: a few in one go, as thousands may be at the end of their time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import trio

AT_ONCE = 64
"""Connections after whose ticks others have their turn. To end one takes up to 0.2 ms."""


class TimedConnection(Protocol):
    """A connection with heartbeats and timeouts."""

    def tick(self, now: float) -> None:
        """Check heartbeats and timeouts."""


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
