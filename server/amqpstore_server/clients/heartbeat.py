"""Heartbeats of one connection (AMQP 0-9-1 section 4.2.7): when to send one, and when the peer is
gone.
"""

from __future__ import annotations


class Heartbeat:
    """Timing for an interval of `interval_s` seconds; 0 disables heartbeats. Any traffic counts."""

    __slots__ = ("interval_s", "received_at", "sent_at")

    def __init__(self, interval_s: int, now: float) -> None:
        self.interval_s = interval_s
        self.received_at = now
        """The time at which bytes were received last."""
        self.sent_at = now
        """The time at which bytes were sent last."""

    def is_due(self, now: float) -> bool:
        """Tell whether a heartbeat should be sent: nothing was sent for half an interval."""
        return bool(self.interval_s) and now - self.sent_at >= self.interval_s / 2

    def is_peer_gone(self, now: float) -> bool:
        """Tell whether the peer is gone: nothing was received for two intervals."""
        return bool(self.interval_s) and now - self.received_at > 2 * self.interval_s
