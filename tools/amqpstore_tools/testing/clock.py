"""Virtual time: one clock for trio and for the store, which moves when it is told to."""

from __future__ import annotations

import trio

_CREEP_S = 1e-6


class VirtualClock(trio.abc.Clock):
    """A clock that stands still between calls of `advance_to`. `now_ms` is since 1970.

    It is the store's `Clock` as well.

    Args: start_ms, its first reading.
    """

    def __init__(self, start_ms: int) -> None:
        self.start_ms = start_ms
        self.now_ms = start_ms
        self._steps = 0

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ms(self) -> int:
        # From 1 on: see `amqpstore.system.clock`.
        return self.now_ms - self.start_ms + 1

    @property
    def elapsed_s(self) -> float:
        """The time by which the clock has moved."""
        return (self.now_ms - self.start_ms) / 1000

    def advance_to(self, now_ms: int) -> None:
        """Move to a time. To be called in trio's thread, while trio runs.

        Raises: ValueError, for a time in the past.
        """
        if now_ms < self.now_ms:
            raise ValueError(f"time does not go back, by {self.now_ms - now_ms} ms")
        self.now_ms = now_ms
        self._steps += 1

    def start_clock(self) -> None:
        """Do nothing: the clock continues where another run of trio left it."""

    def current_time(self) -> float:
        # Deadlines are sums of floats, and can be late by an ulp: with each step this clock is
        # ahead by more than that, so that everything due at `now_ms` is due.
        return self.elapsed_s + self._steps * _CREEP_S

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return 0.0 if deadline <= self.current_time() else float("inf")
