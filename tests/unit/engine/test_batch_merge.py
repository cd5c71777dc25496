"""Batches that a checkpoint merges: they lead to the same state as one by one."""

from array import array

from amqpstore.checkpoints.batch_merge import merged
from amqpstore.format.records import Operation, OperationKind
from amqpstore.log.batch import BatchSummary

ENQUEUE, ACK, DELIVERED = OperationKind.ENQUEUE, OperationKind.ACK, OperationKind.DELIVERED


def batch(
    first_id: int, count: int, *operations: Operation, segment: int = 1, end_bytes: int = 0
) -> BatchSummary:
    sizes = array("I", range(first_id, first_id + count))
    return BatchSummary(list(operations), first_id, sizes, sizes[:], segment, end_bytes)


def operation(
    kind: OperationKind, queue: int, first: int, count: int, first_id: int = 0
) -> Operation:
    return Operation(kind, count, queue, first, first_id, 0, 0)


def test_what_continues_becomes_one_run() -> None:
    batches = [
        batch(11, 1, operation(ENQUEUE, 7, 1, 1, 11), end_bytes=100),
        batch(12, 2, operation(ENQUEUE, 7, 2, 2, 12), operation(ACK, 7, 1, 1), end_bytes=200),
        batch(14, 0, operation(ACK, 7, 2, 2), end_bytes=300),
    ]
    assert merged(batches) == [
        batch(11, 3, operation(ENQUEUE, 7, 1, 3, 11), operation(ACK, 7, 1, 3), end_bytes=300)
    ]
    # They may be needed again.
    assert [len(one.sizes) for one in batches] == [1, 2, 0]


def test_what_does_not_continue_stays_apart_and_in_order() -> None:
    batches = [
        batch(1, 1, operation(ENQUEUE, 7, 1, 1, 1)),
        batch(2, 1, operation(ENQUEUE, 5, 9, 1, 2), operation(DELIVERED, 7, 1, 1)),
        batch(3, 1, operation(ENQUEUE, 7, 2, 1, 3), operation(ACK, 7, 2, 1)),
        batch(4, 0, operation(ACK, 7, 1, 1)),
    ]
    assert merged(batches)[0].operations == [
        operation(ENQUEUE, 5, 9, 1, 2),
        operation(ENQUEUE, 7, 1, 1, 1),
        operation(ENQUEUE, 7, 2, 1, 3),
        operation(ACK, 7, 2, 1),
        operation(ACK, 7, 1, 1),
        operation(DELIVERED, 7, 1, 1),
    ]


def test_segments_gaps_between_ids_and_many_messages_are_not_merged() -> None:
    batches = [
        batch(1, 1, operation(ENQUEUE, 7, 1, 1, 1)),
        batch(2, 1, operation(ENQUEUE, 7, 2, 1, 2), segment=2),
        batch(9, 1, operation(ENQUEUE, 7, 3, 1, 9), segment=2),
        batch(10, 20_000, operation(ENQUEUE, 7, 4, 20_000, 10), segment=2),
    ]
    assert merged(batches) == batches
    assert merged([]) == []
