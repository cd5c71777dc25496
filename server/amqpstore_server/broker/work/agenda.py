"""The agenda of a broker: its work in this round and later ones, and the budget of this round.

A queue or channel with something to do adds itself; `Pumping.pump` works it off at the end of each
round.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Protocol


class Pumped(Protocol):
    """An object that gets turns: a queue."""

    def pump(self, *, yields: bool = False) -> None:
        """Hand out ready messages while consumers can take them."""

    def drop_late(self) -> None:
        """Drop what is too much since a publish to many queues."""


class Freed(Protocol):
    """A channel whose consumers share a limit, of which a part has become free."""

    def touch_queues(self) -> None:
        """Have the queues of its consumers pump."""


class Agenda:
    """The work that waits for its turn, and the round that is under way."""

    def __init__(self) -> None:
        self.touched: dict[Pumped, None] = {}
        """Queues with something to hand out, in the order of their turns."""
        self.freed: dict[Freed, None] = {}
        """Channels whose consumers share a limit and may have room again: see `touch_freed`."""
        self.arrivals: dict[Pumped, None] = {}
        """Queues that got messages, and may wait for more of them before their turn."""
        self.unfinished: OrderedDict[Pumped, None] = OrderedDict()
        """Queues with more messages to move or to drop than the budget of a round allowed."""
        self.late_drops: OrderedDict[Pumped, int] = OrderedDict()
        """Queues that are over their limits since a publish to many queues, with the number of
        messages that each got.
        """
        self.background: deque[Iterator[None]] = deque()
        """Work in steps that no client waits for; a round does one of them."""
        self.lines = (
            *(self.touched, self.freed, self.arrivals),
            *(self.unfinished, self.late_drops, self.background),
        )
        """All that waits, which is never replaced: there is work if any of them is not empty."""
        self.read_s = 0.0
        """The time at which the round's reads began, by `time.perf_counter`."""
        self.joins_reads = False
        """Whether a round of reads is under way: what clients define is committed at its end."""
        self.has_definitions = False
        """Whether clients have defined anything in it."""
        self.spent = 0.0
        """The part of the budget of this round that was spent: see `BrokerLimits`."""
        self.handed_out = 0
        """Messages that consumers were given in this round."""

    def touch_freed(self) -> None:
        """Touch the queues of channels with room. To be called before the queues' turns, and before
        anything that depends on what consumers can take.
        """
        freed = list(self.freed)
        self.freed.clear()
        for channel in freed:
            channel.touch_queues()
