"""The time by which a client has to have answered."""

from __future__ import annotations


class Deadline:
    """Ends a handshake, or the close of a connection, that a client does not complete.

    Args: seconds, from now on.
    """

    __slots__ = ("_at", "_was_put_off")

    def __init__(self, seconds: float, now: float) -> None:
        self.restart(seconds, now)

    def restart(self, seconds: float, now: float) -> None:
        """Set it anew."""
        self._at = now + seconds
        self._was_put_off = False

    def extend(self, seconds: float, now: float) -> None:
        """Make it no earlier than some seconds from now."""
        self._at = max(self._at, now + seconds)

    def put_off(self, seconds: float) -> None:
        """Do not count a time in which nothing could be read from the client. Once: a broker that
        is always late would hardly ever end a handshake otherwise.
        """
        if not self._was_put_off:
            self._was_put_off = True
            self._at += seconds

    def is_over(self, now: float, *, more_s: float = 0.0) -> bool:
        """Tell whether it has passed. Args: more_s, seconds that the client is given besides."""
        return now >= self._at + more_s
