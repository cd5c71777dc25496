"""The interval for which other threads of this process keep the interpreter from the event loop.

A checkpoint is computed in a thread. Each time the event loop comes back from a system call
meanwhile, it gets the interpreter only when the interpreter's switch interval is over, several
times for each message that arrives alone. So the interval is short. While clients send more than a
round can read, what counts is how much is done in all: then it is long, as each switch costs both
threads what is in the processor's cache.
"""

from __future__ import annotations

import sys

SHORT_S = 0.00002
LONG_S = 0.0005
_BUSY_FOR_S = 1.0
"""How long a broker counts as busy: traffic of many messages comes in bursts."""


class SwitchInterval:
    """Sets the interpreter's switch interval by how busy the broker is."""

    def __init__(self) -> None:
        self._long_until = 0.0
        self.is_long = False
        sys.setswitchinterval(SHORT_S)

    def after_round(self, now: float, *, is_busy: bool) -> None:
        """Note whether a round of reads left clients with more to read."""
        if is_busy:
            self._long_until = now + _BUSY_FOR_S
        is_long = now < self._long_until
        if is_long != self.is_long:
            self.is_long = is_long
            sys.setswitchinterval(LONG_S if is_long else SHORT_S)
