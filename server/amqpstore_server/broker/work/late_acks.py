"""Unacked messages of queues that were deleted: they are not needed any more, and their clients may
ack them late, or never.

A channel lists its deliveries by tag, not by queue: that would cost something for each delivery
and each ack. So all channels are looked at, a part in each round, soon after a queue was deleted of
which anything was unacked; those that are deleted within a second are looked for together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol

from amqpstore.system.clock import Clock
from amqpstore_server.broker.work.timers import Timers

_AT_ONCE = 256
"""Channels and deliveries that are looked at before others have their turn."""

_AFTER_MS = 1000
"""How long after a deletion all channels are looked at: they may have very many deliveries."""


class LateChannel(Protocol):
    """A channel with unacked messages."""

    def giving_up_deleted(self, at_once: int) -> Iterator[int]:
        """Free what its client has of deleted queues; only their delivery tags stay. Yields how
        many deliveries were looked at, `at_once` at most.
        """


class LateAcks:
    """Frees what clients have not acked of deleted queues.

    Args: channels, all that may have something unacked; background, takes the work, in steps.
    """

    def __init__(
        self,
        channels: Iterable[LateChannel],
        background: deque[Iterator[None]],
        timers: Timers,
        clock: Clock,
    ) -> None:
        self._channels = channels
        self._background = background
        self._clock = clock
        self._is_looking = False
        self._has_more = False
        self._soon = timers.timer(self._look)

    def queue_deleted(self) -> None:
        """Note that a queue was deleted of which something is unacked."""
        if self._is_looking:
            # Channels that were looked at already may have something of this queue.
            self._has_more = True
        else:
            self._soon.set_sooner(self._clock.monotonic_ms() + _AFTER_MS)

    def _look(self) -> None:
        self._is_looking = True
        self._background.append(self._looking())

    def _looking(self) -> Iterator[None]:
        looked_at = 0
        # A copy: channels come and go between the steps.
        for channel in [*self._channels]:
            looked_at += 1
            for count in channel.giving_up_deleted(_AT_ONCE):
                looked_at += count
                if looked_at >= _AT_ONCE:
                    looked_at = 0
                    yield
        self._is_looking = False
        if self._has_more:
            self._has_more = False
            self.queue_deleted()
