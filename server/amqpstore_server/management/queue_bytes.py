"""The bytes of bodies in a queue, as far as they are known without reading anything from disk.

They are known while its messages are in memory, in index files with their sizes, or under a limit
on bytes. They are not for messages whose sizes are in the catalog or in the log, nor for unacked
ones, which only their channels know. What is not known is left out of a row.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.management.listing import ABSENT

_MAX_RUNS = 1000
"""Runs of messages that are looked at: a row of a list must not take long."""


def message_bytes(queue: Queue) -> Any:
    """Return the bytes of all messages."""
    return message_bytes_ready(queue) if not queue.unacked_count else ABSENT


def message_bytes_unacknowledged(queue: Queue) -> Any:
    """Return the bytes of unacked messages."""
    return ABSENT if queue.unacked_count else 0


def message_bytes_ready(queue: Queue) -> Any:
    """Return the bytes of ready messages."""
    if queue.settings.max_length_bytes is not None:
        return queue.backlog.ready_bytes
    total = 0
    left = _MAX_RUNS
    for one in queue.priorities:
        for run in islice(one.ready, left):
            if run.messages is None and not run.body_bytes:
                return ABSENT
            total += run.body_bytes
            left -= 1
        for file in islice(one.paged, left):
            if file.body_bytes is None:
                return ABSENT
            total += file.body_bytes
            left -= 1
        if left <= 0:
            return ABSENT
    return total
