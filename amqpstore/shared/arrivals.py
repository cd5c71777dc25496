"""The receivers that wait for a message of one queue, and which of them is woken.

One is woken for each message that arrives, in order of arrival. A woken receiver checks again,
under the same lock under which messages arrive, and continues to wait, as the first, if another one
was faster; one that leaves without a message wakes another one if there is a message left. So at
any time as many are awake as there are messages for them, and no wake-up is lost.
"""

from __future__ import annotations

import threading
from collections import deque

_MAX_S = threading.TIMEOUT_MAX


class Arrivals:
    """The waiting receivers of one queue. Every method is called under `lock`."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._waiting: deque[threading.Condition] = deque()

    def __len__(self) -> int:
        """Return how many wait and were not woken yet."""
        return len(self._waiting)

    def arrived(self, count: int) -> None:
        """Wake receivers for this many ready messages."""
        for _ in range(min(count, len(self._waiting))):
            # The waiter is taken off here, not by the woken thread: two messages that arrive at
            # once must wake two.
            self._waiting.popleft().notify()

    def wake_all(self) -> None:
        """Wake all: there is nothing to wait for any more."""
        self.arrived(len(self._waiting))

    def wait(self, timeout_s: float | None, *, is_first: bool) -> bool:
        """Wait to be woken: see `arrived`. Returns whether that was so.

        Args: timeout_s, None for ever; is_first, ahead of those who wait already.
        """
        waiter = threading.Condition(self._lock)
        if is_first:
            self._waiting.appendleft(waiter)
        else:
            self._waiting.append(waiter)
        try:
            # `Condition.wait` raises OverflowError for more than this.
            waiter.wait(None if timeout_s is None else min(timeout_s, _MAX_S))
        except BaseException:
            # It was woken for a message that it does not take now.
            if not self._left(waiter):
                self.arrived(1)
            raise
        # Whatever `Condition.wait` returned: it may be woken when its time is over, before it has
        # the lock.
        return not self._left(waiter)

    def _left(self, waiter: threading.Condition) -> bool:
        """Stop waiting. Returns whether it was not woken."""
        if waiter not in self._waiting:
            return False
        self._waiting.remove(waiter)
        return True
