"""The disk of a simulated machine: a log of batches, definitions, a term and a checkpoint."""

from __future__ import annotations

from copy import copy
from random import Random
from typing import NamedTuple
from zlib import crc32

from amqpstore_server.cluster.frames import START, HeldBatch, ReplicaPosition
from amqpstore_server.cluster.notes import Notes

TAIL = 40
"""How many batches a follower names."""


class LogEntry(NamedTuple):
    """A batch in a machine's log. Its content ends with the definition it needs, behind `|`."""

    position: ReplicaPosition
    content: bytes

    @property
    def needs(self) -> bytes:
        return self.content.partition(b"|")[2]

    @property
    def held(self) -> HeldBatch:
        return HeldBatch(self.position, crc32(self.content))


class ReplicaDisk:
    """A replica as its member sees it; `ReplicaLog` is a part of it."""

    def __init__(self) -> None:
        self.log: list[LogEntry] = []
        self.durable = 0
        """How many entries of the log would survive a power cut."""
        self.definitions: list[bytes] = [b""]
        self.term = 0
        self.covered = 0
        """The last batch that a checkpoint covers."""
        self.known = 0
        """The last batch that is known to be confirmed since the log was opened."""
        self.notes = Notes()
        """The content of the file MEMBER."""
        self.compacted = 0
        """The last batch of the log that is not as it was sealed any longer."""

    def cut_power(self, random: Random) -> None:
        """Lose what was not synced, or a part of it."""
        del self.log[random.randint(self.durable, len(self.log)) :]

    def lose_last(self, count: int) -> None:
        """Lose batches that were synced, as a disk does that lies; also such as a checkpoint has,
        which is kept.
        """
        del self.log[-count:]
        self.durable = len(self.log)

    def backed_up(self) -> ReplicaDisk:
        """Return a copy of what would survive a power cut, MEMBER included."""
        made = copy(self)
        made.log, made.definitions = self.log[: self.durable], self.definitions.copy()
        return made

    def recover(self) -> None:
        """Sync what a start has found."""
        self.durable = len(self.log)
        self.known = 0

    def is_durable(self, entry: LogEntry) -> bool:
        """Tell whether a batch would survive a power cut."""
        number = entry.position.number
        return number <= self.durable and self.log[number - 1] == entry

    # What a member asks.

    def tail(self) -> tuple[HeldBatch, ...]:
        return tuple(one.held for one in self.log[: self.durable][: -TAIL - 1 : -1])

    def has(self, held: HeldBatch) -> bool:
        number = held.position.number
        return 0 < number <= len(self.log) and self.log[number - 1].held == held

    def last(self) -> ReplicaPosition:
        return self.log[self.durable - 1].position if self.durable else START

    def keeps_behind(self, position: ReplicaPosition) -> bool:
        return position.number >= self.compacted

    def checkpoint(self) -> int:
        return self.covered

    def confirmed(self) -> ReplicaPosition:
        number = min(self.known, self.durable)
        return self.log[number - 1].position if number else START
