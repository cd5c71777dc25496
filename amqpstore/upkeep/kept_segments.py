"""Segments that are moved to quarantine when the store needs them no more: a repair may."""

from __future__ import annotations

from collections.abc import Mapping

from amqpstore.checkpoints.checkpoint_state import CheckpointState
from amqpstore.queues.queue import Queue
from amqpstore.recovery.recovered import Recovered
from amqpstore.system.filenames import is_compacted


class SegmentsToKeep:
    """The damaged segments, and those that say where messages are whose index files cannot be
    read.
    """

    def __init__(self, recovered: Recovered, queues: Mapping[int, Queue]) -> None:
        self._state: CheckpointState = recovered.checkpoint_state
        self._queues = queues
        self._damaged = recovered.to_quarantine
        self._kept = recovered.kept_segments

    @property
    def damaged_count(self) -> int:
        """The number of damaged segments."""
        return len(self._damaged)

    def numbers(self) -> frozenset[int]:
        """Return their numbers. The checkpoint's state must be this thread's."""
        if any(queue.unread for queue in self._queues.values()):
            numbers = (account.number for account in self._state.accounts)
            self._kept |= {number for number in numbers if not is_compacted(number)}
        return frozenset(self._damaged | self._kept)
