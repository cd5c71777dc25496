"""Applies the log: what was enqueued behind the last checkpoint, and what left its queue."""

from __future__ import annotations

from amqpstore.checkpoints.checkpoint_state import enqueued
from amqpstore.format.records import Operation, OperationKind
from amqpstore_tools.repair.facts import LogBatch
from amqpstore_tools.repair.ranges import Ranges
from amqpstore_tools.repair.truth.trust import Trust
from amqpstore_tools.repair.truth.values import Placements, QueueTruth, run_slice


def read_log(trust: Trust, placements: Placements) -> dict[int, Ranges]:
    """Apply all operations of the log.

    Returns, by queue, the sequences that were enqueued behind the last place where the log may
    have lost acks.
    """
    acks = acked_in(trust)
    delivered: dict[int, list[Operation]] = {}
    behind: dict[int, Ranges] = {}
    for batch in trust.log:
        for operation in batch.batch.possible_operations:
            queue_id, first = operation.queue_id, operation.first_sequence
            end = first + operation.message_count
            if queue := placements.queues.get(queue_id):
                queue.next_sequence = max(queue.next_sequence, end)
            if operation.kind == OperationKind.ENQUEUE:
                stop = operation.first_id + operation.message_count
                placements.explained.add(operation.first_id, stop)
                if queue:
                    _enqueue(trust, placements, queue, operation, batch)
                    at = batch.segment.number, batch.batch.start
                    if trust.lost_at and at >= trust.lost_at:
                        behind.setdefault(queue_id, Ranges()).add(first, end)
            elif operation.kind == OperationKind.DELIVERED:
                delivered.setdefault(queue_id, []).append(operation)
    for queue_id, queue in placements.queues.items():
        for first, end in acks.get(queue_id, ()):
            queue.ready.remove(first, end - first)
        for delivery in delivered.get(queue_id, ()):
            queue.deliver(delivery.first_sequence, delivery.message_count, delivery.detail)
    return behind


def acked_in(trust: Trust) -> dict[int, Ranges]:
    """Return, by queue, the sequences that left it by an operation of the log."""
    acks: dict[int, Ranges] = {}
    for batch in trust.log:
        for operation in batch.batch.possible_operations:
            if operation.kind not in (OperationKind.ENQUEUE, OperationKind.DELIVERED):
                first = operation.first_sequence
                found = acks.setdefault(operation.queue_id, Ranges())
                found.add(first, first + operation.message_count)
    return acks


def _enqueue(
    trust: Trust, placements: Placements, queue: QueueTruth, operation: Operation, one: LogBatch
) -> None:
    """Add messages that were enqueued after the checkpoint, or may have been."""
    run = enqueued(operation)
    boundary = trust.boundary(operation.queue_id, run, one)
    if boundary is None:
        is_sure = one.segment.number >= trust.complete_from
        placements.consider(queue, run, is_sure=is_sure)
    elif boundary < run.end:
        queue.put(run_slice(run, boundary, run.end))
