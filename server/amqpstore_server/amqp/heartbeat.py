"""Heartbeats of one connection (AMQP 0-9-1 section 4.2.7): when to send one, and when the peer is
gone.
"""

from __future__ import annotations


class Heartbeat:
    """Timing for an interval of `interval_s` seconds; 0 disables heartbeats. Any traffic counts."""

    __slots__ = ("_received", "_sent", "interval_s")

    def __init__(self, interval_s: int, now: float) -> None:
        self.interval_s = interval_s
        self._received = now
        self._sent = now

    def received(self, now: float) -> None:
        """Note that bytes were received."""
        self._received = now

    def sent(self, now: float) -> None:
        """Note that bytes were sent."""
        self._sent = now

    def is_due(self, now: float) -> bool:
        """Tell whether a heartbeat should be sent: nothing was sent for half an interval."""
        return bool(self.interval_s) and now - self._sent >= self.interval_s / 2

    def is_peer_gone(self, now: float) -> bool:
        """Tell whether the peer is gone: nothing was received for two intervals."""
        return bool(self.interval_s) and now - self._received > 2 * self.interval_s
