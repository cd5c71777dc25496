"""Divides the time between work that only some clients cause and the other clients."""

from __future__ import annotations

import math

_OTHERS_S = 0.002
"""Others are at work if something was read from a client in that time."""

_MOST_ADDED_S = 0.1
"""Work in many pieces owes the others no a longer pause than this, or than one of the pieces asks
for: while they are at work it pauses after each round, and what it did when they were not took
nothing from them.
"""


class Share:
    """A part of the time while others are at work, and all of it otherwise.

    Args: pause_ratio, the pause after work divided by the time that the work took, while others
    are at work.
    """

    __slots__ = ("_pause_ratio", "_paused_until")

    def __init__(self, pause_ratio: float) -> None:
        self._pause_ratio = pause_ratio
        self._paused_until = -math.inf

    def took(self, now: float, seconds: float) -> None:
        """Note that the work took `seconds`, until now. What follows without a break adds up."""
        pause_s = seconds * self._pause_ratio
        most = max(self._paused_until, now + max(pause_s, _MOST_ADDED_S))
        self._paused_until = min(max(self._paused_until, now) + pause_s, most)

    def wait_s(self, now: float, others_at: float) -> float:
        """Return how long the work has to wait, unless others go on: 0 if it may be done now.

        Args: others_at, when others were last at work.
        """
        return max(0.0, min(self._paused_until, others_at + _OTHERS_S) - now)
