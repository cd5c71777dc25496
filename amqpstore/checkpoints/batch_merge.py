"""Merges batches for a checkpoint: they say the same, and cost per run instead of per batch.

When traffic is sparse each message is a batch of its own, and a checkpoint has thousands of them,
whose operations mostly continue each other. All are applied by kind, each kind in the order in
which it happened: first the messages are put into their queues, then they leave them. So it does
not matter that an ack is applied after the enqueues of later batches; a delivery of a message that
is acked by then does nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from amqpstore.format.records import Operation, SpreadEnqueue
from amqpstore.log.batch import BatchSummary, joined

_MAX_MERGED = 16_384
"""Messages of merged batches: they are applied in one go."""


def merged(batches: Iterable[BatchSummary]) -> list[BatchSummary]:
    """Merge neighbouring batches of one segment whose ids are contiguous."""
    summaries: list[BatchSummary] = []
    group: list[BatchSummary] = []
    segment = next_id = count = 0
    for batch in batches:
        if group and (
            batch.segment != segment
            or batch.first_id != next_id
            or count + len(batch.sizes) > _MAX_MERGED
        ):
            summaries.append(_merged(group))
            group = []
            count = 0
        group.append(batch)
        segment = batch.segment
        count += len(batch.sizes)
        next_id = batch.first_id + len(batch.sizes)
    if group:
        summaries.append(_merged(group))
    return summaries


def _merged(batches: list[BatchSummary]) -> BatchSummary:
    first, last = batches[0], batches[-1]
    if first is last:
        return first
    runs: dict[tuple[int, int], list[Operation | SpreadEnqueue]] = {}
    sizes, body_sizes = array("I"), array("I")
    for batch in batches:
        sizes += batch.sizes
        body_sizes += batch.body_sizes
        for operation in batch.operations:
            key = operation.kind, operation.queue_id
            of_queue = runs.get(key)
            if of_queue is None:
                runs[key] = [operation]
            elif one := joined(of_queue[-1], operation):
                of_queue[-1] = one
            else:
                of_queue.append(operation)
    operations = [operation for key in sorted(runs) for operation in runs[key]]
    return BatchSummary(operations, first.first_id, sizes, body_sizes, last.segment, last.end_bytes)
