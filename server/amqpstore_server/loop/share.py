"""Divides the time between work that only some clients cause and the other clients."""

from __future__ import annotations

import math

from amqpstore_server.loop.loop_limits import LoopLimits


class Share:
    """A part of the time while others are at work, and all of it otherwise.

    Args: pause_ratio, the pause after work divided by the time that the work took, while others
    are at work; limits, which say when they are, and how long a pause may be.
    """

    __slots__ = ("_limits", "_pause_ratio", "_paused_until")

    def __init__(self, pause_ratio: float, limits: LoopLimits) -> None:
        self._limits = limits
        self._pause_ratio = pause_ratio
        self._paused_until = -math.inf

    def took(self, now: float, seconds: float) -> None:
        """Note that the work took `seconds`, until now. What follows without a break adds up."""
        pause_s = seconds * self._pause_ratio
        most = max(self._paused_until, now + max(pause_s, self._limits.max_added_pause_s))
        self._paused_until = min(max(self._paused_until, now) + pause_s, most)

    def wait_s(self, now: float, others_at: float) -> float:
        """Return how long the work has to wait, unless others go on: 0 if it may be done now.

        Args: others_at, when others were last at work.
        """
        return max(0.0, min(self._paused_until, others_at + self._limits.others_s) - now)
