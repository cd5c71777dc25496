"""A limit of lines in the log, for what anybody can cause as often as they like."""

from __future__ import annotations

_WINDOW_S = 10.0
_MAX_OF_HOST = 20
_MAX_OF_ALL = 200


class LogLimit:
    """Lets a limited number of lines pass in a window, of one host and of all hosts, and counts the
    others: no client can fill the disk, or hide among lines.
    """

    def __init__(self) -> None:
        self._window_ends = 0.0
        self._by_host: dict[str, int] = {}
        self._passed = 0
        self._suppressed = 0

    def passes(self, host: str, now: float) -> bool:
        """Tell whether one more line may be logged. Args: now, seconds, of a clock that may be set
        back.
        """
        # The lower bound matters after the clock was set back: the window would last until it has
        # caught up.
        if not 0 <= self._window_ends - now <= _WINDOW_S:
            self._window_ends = now + _WINDOW_S
            self._by_host.clear()
            self._passed = 0
        of_host = self._by_host.get(host, 0)
        if of_host >= _MAX_OF_HOST or self._passed >= _MAX_OF_ALL:
            self._suppressed += 1
            return False
        self._by_host[host] = of_host + 1
        self._passed += 1
        return True

    def give_back(self, host: str) -> None:
        """Let one more line of a host pass: the last one was none of those that are limited."""
        if of_host := self._by_host.get(host):
            self._by_host[host] = of_host - 1
            self._passed -= 1

    def suppressed(self) -> dict[str, int]:
        """Return the field that says how many lines did not pass since it was last asked for; no
        field if all did.
        """
        count, self._suppressed = self._suppressed, 0
        return {"suppressed": count} if count else {}
