"""What a batch of the log may enqueue, behind the batches before it.

The sequences of a queue and the ids of its messages ascend in the log, and a batch enqueues its own
messages. No store writes anything else, but somebody may have changed a segment with its checksums.
One message in two places, or two in one, would be served twice or counted wrongly, and what is not
in order could not be written to an index file. So such an ENQUEUE is damage: it is left out, and
whatever had the sequence first keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from amqpstore.records import Operation, OperationKind


class ReadBatch(Protocol):
    """A batch that was read: `end_id` is the id after its last sound message."""

    @property
    def operations(self) -> Sequence[Operation]: ...

    @property
    def end_id(self) -> int: ...

    @property
    def is_damaged(self) -> bool:
        """Whether any of its messages may be missing."""

    def has(self, first_id: int, count: int) -> bool:
        """Tell whether it has sound MESSAGE records of contiguous ids."""


class EnqueueOrder:
    """Checks batches in the order of the log.

    Args: next_sequences, of queues by id, and next_id, where the log is read from.
    """

    def __init__(self, next_sequences: Mapping[int, int], next_id: int) -> None:
        self._next_sequences = dict(next_sequences)
        self._next_id = next_id

    def split(self, batch: ReadBatch) -> tuple[list[Operation], list[str]]:
        """Return the operations that a store can have written, and why it did not write the
        others.
        """
        sound = []
        reasons = []
        next_ids: dict[int, int] = {}
        for operation in batch.operations:
            if operation.kind == OperationKind.ENQUEUE:
                queue_id = operation.queue_id
                least_id = next_ids.get(queue_id, self._next_id)
                if reason := self._why_not(batch, operation, least_id):
                    reasons.append(reason)
                    continue
                count = operation.message_count
                self._next_sequences[queue_id] = operation.first_sequence + count
                next_ids[queue_id] = operation.first_id + count
            sound.append(operation)
        self._next_id = max(self._next_id, batch.end_id)
        return sound, reasons

    def _why_not(self, batch: ReadBatch, enqueue: Operation, least_id: int) -> str:
        queue_id, first = enqueue.queue_id, enqueue.first_sequence
        known = self._next_sequences.get(queue_id, 0)
        if first < known:
            return f"sequence {first} of queue {queue_id} is assigned twice: {known} was next"
        first_id, count = enqueue.first_id, enqueue.message_count
        if first_id < least_id:
            return f"message {first_id} of queue {queue_id} is behind message {least_id - 1}"
        if not batch.is_damaged and not batch.has(first_id, count):
            last_id = first_id + count - 1
            return f"messages {first_id} to {last_id} of queue {queue_id} are not in their batch"
        return ""


def not_enqueued(ids: Iterable[int], operations: Iterable[Operation]) -> list[int]:
    """Return those ids of messages that no operation puts in a queue."""
    left = set(ids)
    for one in operations:
        if one.kind == OperationKind.ENQUEUE:
            left.difference_update(range(one.first_id, one.first_id + one.message_count))
    return sorted(left)
