"""View `transactions`: the operations of the log, one per row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from amqpstore.format.records import OperationKind
from amqpstore_tools.offline.contents import operation_name
from amqpstore_tools.spark.reading.messages import QueueIdentity
from amqpstore_tools.spark.reading.scanning import BatchColumns
from amqpstore_tools.spark.reading.wanted import Wanted

_NOBODY = QueueIdentity(None, None)


def operation_rows(
    batch: BatchColumns, segment: int, names: Mapping[int, QueueIdentity], wanted: Wanted
) -> Iterator[tuple[Any, ...]]:
    """Yield the operations of a batch; one row without an operation if it has none."""
    if not batch.lsn or not wanted.has_time(batch.time_ms):
        return
    for operation in batch.operations:
        kind, count, queue_id, first_sequence, first_id, detail, priority = operation
        name = names.get(queue_id, _NOBODY)
        if not wanted.has_queue(name.vhost, name.queue):
            continue
        is_enqueue = kind == OperationKind.ENQUEUE
        yield (
            batch.lsn,
            batch.time_ms * 1000,
            segment,
            batch.offset,
            operation_name(kind),
            name.vhost,
            name.queue,
            queue_id,
            first_sequence,
            count,
            first_id if is_enqueue else None,
            priority if is_enqueue else None,
            detail * 1000 if is_enqueue and detail else None,
            detail if kind == OperationKind.DELIVERED else None,
            len(batch.ids),
        )
