"""The interval for which other threads of this process keep the interpreter from the event loop.

A checkpoint is computed in a thread. Each time the event loop comes back from a system call
meanwhile, it gets the interpreter only when the interpreter's switch interval is over, several
times for each message that arrives alone. So the interval is short. While clients send more than a
round can read, what counts is how much is done in all: then it is long, as each switch costs both
threads what is in the processor's cache.
"""

from __future__ import annotations

import sys

from amqpstore_server.loop.loop_limits import LoopLimits


class SwitchInterval:
    """Sets the interpreter's switch interval by how busy the broker is."""

    def __init__(self, limits: LoopLimits) -> None:
        self._limits = limits
        self._long_until = 0.0
        self.is_long = False
        sys.setswitchinterval(limits.switch_s)

    def after_round(self, now: float, *, is_busy: bool) -> None:
        """Note whether a round of reads left clients with more to read."""
        if is_busy:
            self._long_until = now + self._limits.busy_s
        is_long = now < self._long_until
        if is_long != self.is_long:
            self.is_long = is_long
            limits = self._limits
            sys.setswitchinterval(limits.busy_switch_s if is_long else limits.switch_s)
