"""One transaction: its record, and the operations of its batch."""

from __future__ import annotations

import os
from typing import Any

from amqpstore_tools.inspect.names import Names, names_of, operation_facts
from amqpstore_tools.offline.contents import TransactionImage
from amqpstore_tools.offline.exits import NotFoundError
from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.offline.terminal import console, counted, heading, shown, table, when

Facts = dict[str, Any]


def facts(image: StoreImage, lsn: int) -> Facts:
    """Return the facts of a transaction. Raises: NotFoundError, OSError."""
    found = image.transaction(lsn)
    if found is None:
        if lsn >= image.tail.end.lsn:
            raise NotFoundError(f"there is no LSN {lsn} yet: the next one is {image.tail.end.lsn}")
        raise NotFoundError(
            f"the log has no LSN {lsn} any more: its segment was removed or compacted, or its "
            "record is damaged"
        )
    return {"directory": image.directory, **transaction_facts(found, names_of(image.queues))}


def transaction_facts(found: TransactionImage, names: Names) -> Facts:
    """Return one transaction for JSON."""
    return {
        "lsn": found.lsn,
        "time_ms": found.time_ms,
        "segment": found.segment.number,
        "path": found.segment.path,
        "batch_offset": found.batch_offset,
        "offset": found.record.offset,
        "end": found.record.end,
        "batch": found.record.batch,
        "messages": found.message_count,
        "operations": [operation_facts(one, names) for one in found.operations],
    }


def operation_text(operation: Facts) -> tuple[str, str, str, str]:
    """Return the operation, its queue, its sequences, and details, as text."""
    first, count = operation["first_sequence"], operation["message_count"]
    sequences = f"#{first}" if count == 1 else f"#{first}..{first + count - 1}"
    rest = []
    if first_id := operation.get("first_id"):
        last = first_id + count - 1
        rest.append(f"id {first_id}" if count == 1 else f"ids {first_id}..{last}")
    if operation.get("priority"):
        rest.append(f"priority {operation['priority']}")
    if operation.get("expires_ms"):
        rest.append(f"expires {when(operation['expires_ms'])[:19]}")
    if "delivery_count" in operation:
        rest.append(f"delivery count {operation['delivery_count']}")
    if operation.get("detail"):
        rest.append(f"detail {operation['detail']}")
    name = operation["queue"]
    queue = shown(name) if name is not None else f"queue id {operation['queue_id']}"
    return operation["operation"], queue, sequences, ", ".join(rest)


def show(found: Facts) -> None:
    """Print the facts."""
    from rich.text import Text

    out = console()
    out.print(Text(f"Transaction {found['lsn']}", "bold"))
    where = f"{os.path.relpath(found['path'], found['directory'])} at {found['offset']:,}"
    out.print(
        f"  {shown(where)} to {found['end']:,}; its batch starts at {found['batch_offset']:,}"
    )
    out.print(
        f"  sealed at {when(found['time_ms'])} UTC with {counted(found['messages'], 'message')}"
    )
    out.print(heading(f"Operations: {len(found['operations']):,}"))
    rows = table("operation", "queue", "messages", "sequences", "", right="messages", wrap="queue")
    for operation in found["operations"]:
        kind, queue, sequences, rest = operation_text(operation)
        rows.add_row(kind, queue, f"{operation['message_count']:,}", sequences, rest)
    out.print(rows)
