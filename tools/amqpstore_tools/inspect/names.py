"""Names of queues by id, for operations."""

from __future__ import annotations

from typing import Any, NamedTuple

from amqpstore.format.records import Operation, OperationKind
from amqpstore_tools.offline.contents import operation_name
from amqpstore_tools.offline.queues import QueueImage

Facts = dict[str, Any]


class StoredName(NamedTuple):
    """The name of a queue; None if the catalog does not have it."""

    vhost: str | None
    name: str | None


UNKNOWN = StoredName(None, None)

Names = dict[int, StoredName]


def names_of(queues: list[QueueImage]) -> Names:
    """Return the names of queues, by id."""
    return {queue.id: StoredName(queue.vhost, queue.name) for queue in queues}


def operation_facts(operation: Operation, names: Names) -> Facts:
    """Return the facts of one operation."""
    vhost, name = names.get(operation.queue_id, UNKNOWN)
    facts = {
        "operation": operation_name(operation.kind),
        "queue_id": operation.queue_id,
        "vhost": vhost,
        "queue": name,
        "first_sequence": operation.first_sequence,
        "message_count": operation.message_count,
    }
    if operation.kind == OperationKind.ENQUEUE:
        facts |= {
            "first_id": operation.first_id,
            "priority": operation.priority,
            "expires_ms": operation.detail,
        }
    elif operation.kind == OperationKind.DELIVERED:
        facts["delivery_count"] = operation.detail
    elif operation.first_id or operation.detail or operation.priority:
        facts |= {
            "first_id": operation.first_id,
            "detail": operation.detail,
            "priority": operation.priority,
        }
    return facts
