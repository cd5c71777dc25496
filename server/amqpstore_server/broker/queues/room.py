"""The room in a queue that refuses messages when it is full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from amqpstore import Message

if TYPE_CHECKING:
    from amqpstore_server.broker.queues.queue import Queue


def fitting(queue: Queue, messages: Sequence[Message], able: int) -> int:
    """Return how many messages fit before a queue is full; `able` of them go to consumers at once.

    Ready messages take room, dead letters that wait, and what will arrive.
    """
    settings, letters = queue.settings, queue.letters
    count = len(messages)
    if settings.max_length is not None:
        # What transactions will bring counts as well: two of them could otherwise fill the queue
        # twice.
        room = settings.max_length - queue.ready_count - queue.coming
        if letters is not None:
            room -= letters.held_count
        count = min(count, max(room, 0) + able)
    if settings.max_length_bytes is not None:
        room = settings.max_length_bytes - queue.backlog.ready_bytes - queue.coming_bytes
        if letters is not None:
            room -= letters.held_bytes
        for index in range(able, count):
            room -= len(messages[index].body)
            if room < 0:
                return index
    return count
