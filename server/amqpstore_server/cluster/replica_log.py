"""A replica's log, as its member sees it."""

from __future__ import annotations

from typing import Protocol

from amqpstore_server.cluster.frames import HeldBatch, ReplicaPosition


class ReplicaLog(Protocol):
    """The log that a member has on disk."""

    def tail(self) -> tuple[HeldBatch, ...]:
        """Return durable batches, newest first: enough of them for another member to find a common
        one.
        """

    def has(self, held: HeldBatch) -> bool:
        """Tell whether a batch is there, with the same checksum."""

    def last(self) -> ReplicaPosition:
        """Return the position of the last durable batch; of an empty log, `START`."""

    def keeps_behind(self, position: ReplicaPosition) -> bool:
        """Tell whether all batches behind a position are there still, as they were sealed."""

    def checkpoint(self) -> int:
        """Return the number of the last batch that a checkpoint covers; 0 if there is none."""

    def confirmed(self) -> ReplicaPosition:
        """Return up to where the log is known to be confirmed, since it was opened."""
