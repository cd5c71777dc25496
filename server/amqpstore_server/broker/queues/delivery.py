"""A delivery: what went out to a client, and was not acked or given back yet."""

from __future__ import annotations

import amqpstore
from amqpstore import Run
from amqpstore_server.broker.queues.consumer import Consumer
from amqpstore_server.broker.queues.queue import Queue, Taken


class Delivery:
    """A run that went out under contiguous delivery tags, from `first_sequence` on.

    `consumer` is None for what was fetched with get.
    """

    __slots__ = ("consumer", "first_sequence", "level", "queue", "run")

    def __init__(
        self,
        first_sequence: int,
        queue: Queue,
        consumer: Consumer | None,
        level: amqpstore.Queue,
        run: Run,
    ) -> None:
        self.first_sequence = first_sequence
        self.queue = queue
        self.consumer = consumer
        self.level = level
        self.run = run

    @property
    def count(self) -> int:
        """Messages in it."""
        return self.run.count

    @property
    def end(self) -> int:
        """The tag after its last."""
        return self.first_sequence + self.run.count

    @property
    def taken(self) -> Taken:
        """What was taken off the queue for it."""
        return Taken(self.level, self.run)

    def split(self, count: int) -> Delivery:
        """Take the first `count` messages (fewer than there are) off, as their own delivery."""
        run = self.run.split(count)
        head = Delivery(self.first_sequence, self.queue, self.consumer, self.level, run)
        self.first_sequence += count
        return head
