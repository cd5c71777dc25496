"""Heartbeats of one connection (AMQP 0-9-1 section 4.2.7): when to send, when a peer is gone."""

from __future__ import annotations


class Heartbeat:
    """Timing for an interval of `interval_s` seconds; 0 turns it off. Any traffic counts."""

    __slots__ = ("_interval_s", "_received", "_sent")

    def __init__(self, interval_s: int, now: float) -> None:
        self._interval_s = interval_s
        self._received = now
        self._sent = now

    def received(self, now: float) -> None:
        """Bytes came in."""
        self._received = now

    def sent(self, now: float) -> None:
        """Bytes went out."""
        self._sent = now

    def is_due(self, now: float) -> bool:
        """Whether nothing was sent for half an interval, so that a heartbeat should be."""
        return bool(self._interval_s) and now - self._sent >= self._interval_s / 2

    def is_peer_gone(self, now: float) -> bool:
        """Whether nothing came for two intervals."""
        return bool(self._interval_s) and now - self._received > 2 * self._interval_s
