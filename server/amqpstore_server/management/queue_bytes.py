"""Counts of a queue's messages and bytes, by RabbitMQ's names: see `MessageSums`.

`_ram` is what is in memory with its bodies, `_paged_out` what is on disk alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amqpstore_server.broker.queues.message_sums import Amount, MessageSums
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.management.listing import ABSENT

_COUNTS: dict[str, Callable[[MessageSums], Amount]] = {
    "messages_ram": lambda sums: sums.in_memory,
    "messages_ready_ram": lambda sums: sums.ready_in_memory,
    "messages_unacknowledged_ram": lambda sums: sums.unacked_in_memory,
    "messages_persistent": lambda sums: sums.persistent,
    "messages_paged_out": lambda sums: sums.on_disk,
}
_BYTES: dict[str, Callable[[MessageSums], Amount]] = {
    "message_bytes": lambda sums: sums.total,
    "message_bytes_ready": lambda sums: sums.ready,
    "message_bytes_unacknowledged": lambda sums: sums.unacked,
    "message_bytes_ram": lambda sums: sums.in_memory,
    "message_bytes_dlx": lambda sums: sums.letters,
    "message_bytes_persistent": lambda sums: sums.persistent,
    "message_bytes_paged_out": lambda sums: sums.on_disk,
}


def amounts(queue: Queue) -> dict[str, int]:
    """Return all of them; without bytes that are unknown."""
    sums = MessageSums.of(queue)
    sizes = {name: amount(sums).body_bytes for name, amount in _BYTES.items()}
    return {
        **{name: amount(sums).messages for name, amount in _COUNTS.items()},
        **{name: size for name, size in sizes.items() if size is not None},
    }


def amount_reader(name: str) -> Callable[[Queue], Any] | None:
    """Return what reads one of them; None if it is none of these."""
    if name in _COUNTS:
        count = _COUNTS[name]
        return lambda queue: count(MessageSums.of(queue)).messages
    if name not in _BYTES:
        return None
    amount = _BYTES[name]

    def size(queue: Queue) -> Any:
        body_bytes = amount(MessageSums.of(queue)).body_bytes
        return ABSENT if body_bytes is None else body_bytes

    return size
