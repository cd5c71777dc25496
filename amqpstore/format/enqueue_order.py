"""The messages that a batch of the log may enqueue, behind the batches before it.

The sequences of a queue and the ids of its messages ascend in the log, and a batch enqueues its own
messages. No store writes anything else, but somebody may have changed a segment with its checksums.
One message in two places, or two in one, would be served twice or counted wrongly, and what is not
in order could not be written to an index file. So such an ENQUEUE is damage: it is left out, and
whatever had the sequence first keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from amqpstore.format.records import Operation, OperationKind


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
        sound: list[Operation] = []
        reasons: list[str] = []
        next_sequences, next_ids = self._next_sequences, dict[int, int]()
        enqueue, is_damaged, has = OperationKind.ENQUEUE, batch.is_damaged, batch.has
        for operation in batch.operations:
            kind, count, queue_id, first, first_id, _, _ = operation
            if kind == enqueue:
                known = next_sequences.get(queue_id, 0)
                least_id = next_ids.get(queue_id, self._next_id)
                if first < known:
                    reasons.append(
                        f"sequence {first} of queue {queue_id} is assigned twice: {known} was next"
                    )
                    continue
                if first_id < least_id:
                    reasons.append(
                        f"message {first_id} of queue {queue_id} is behind message {least_id - 1}"
                    )
                    continue
                if not is_damaged and not has(first_id, count):
                    ids = f"{first_id} to {first_id + count - 1}"
                    reasons.append(f"messages {ids} of queue {queue_id} are not in their batch")
                    continue
                next_sequences[queue_id] = first + count
                next_ids[queue_id] = first_id + count
            sound.append(operation)
        self._next_id = max(self._next_id, batch.end_id)
        return sound, reasons


def not_enqueued(ids: Iterable[int], operations: Iterable[Operation]) -> list[int]:
    """Return those ids of messages that no operation puts in a queue."""
    left = set(ids)
    for one in operations:
        if one.kind == OperationKind.ENQUEUE:
            left.difference_update(range(one.first_id, one.first_id + one.message_count))
    return sorted(left)
