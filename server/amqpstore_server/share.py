"""How work that only some clients cause shares the time with the others."""

from __future__ import annotations

_REST = 4.0
"""The work waits that many times as long as it last took, while others are at work: so it has a
fifth of the time.
"""

_OTHERS_S = 0.002
"""Others are at work if something was read from a client in that time."""


class Share:
    """A fifth of the time while others are at work, and all of it otherwise."""

    __slots__ = ("_rests_until",)

    def __init__(self) -> None:
        self._rests_until = 0.0

    def took(self, now: float, seconds: float) -> None:
        """Note that the work has taken so long, until now."""
        self._rests_until = now + seconds * _REST

    def is_over(self, now: float, others_at: float) -> bool:
        """Whether the work has had its time. Args: others_at, when others were last at work."""
        return now < self._rests_until and now - others_at < _OTHERS_S
