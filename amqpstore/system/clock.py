"""Clocks: the wall clock, for dates, and the monotonic clock, for durations.

The wall clock is set by people and by time servers, and jumps in either direction by seconds or by
years. So it is read only for dates that are stored. Durations and waits are measured by the
monotonic clock, which cannot be set: a wall clock that is set back by an hour must not delay by an
hour what is due in a second.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The two clocks that a store uses."""

    def wall_ms(self) -> int:
        """Return ms since 1970-01-01 00:00 UTC. A later call may return less."""

    def monotonic_ms(self) -> int:
        """Return ms since some moment before this process; more than 0, and never less than before.

        It means nothing to another process or after a restart, so it is never stored.
        """


class SystemClock:
    """The operating system's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


SYSTEM_CLOCK = SystemClock()


class SimulatedClock:
    """Clocks that stand still until they are told to move. Args: wall_ms, the first reading of the
    wall clock.
    """

    def __init__(self, wall_ms: int) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = 1

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, ms: int) -> None:
        """Let time pass, on both clocks. Raises: ValueError, when it is negative."""
        if ms < 0:
            raise ValueError(f"time passes by 0 ms or more, not by {ms}")
        self._wall_ms += ms
        self._monotonic_ms += ms

    def set_wall(self, wall_ms: int) -> None:
        """Set the wall clock, forwards or back. No time passes."""
        self._wall_ms = wall_ms
