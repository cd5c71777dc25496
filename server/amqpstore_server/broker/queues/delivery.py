"""A delivery: messages that were sent to a client, and are neither acked nor requeued yet."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter

import amqpstore
from amqpstore import Envelope, Message, Run
from amqpstore_server.broker.queues.backlog import Taken
from amqpstore_server.broker.queues.consumer import Consumer
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.rules.settings import is_quorum
from amqpstore_server.protocol.content import edit_properties
from amqpstore_server.protocol.field_table import FieldValue, Int64

_COUNT_HEADER = "x-delivery-count"


class Delivery:
    """A run that was delivered under contiguous delivery tags, from `first_tag` on.

    `consumer` is None for a message that was fetched with basic.get.
    """

    __slots__ = ("consumer", "first_tag", "queue", "run", "store_queue")

    first_sequence: int
    """Another name of `first_tag`, for `RunList`, which counts the tags of deliveries."""

    def __init__(
        self,
        first_tag: int,
        queue: Queue,
        consumer: Consumer | None,
        store_queue: amqpstore.Queue,
        run: Run,
    ) -> None:
        self.first_tag = first_tag
        self.queue = queue
        self.consumer = consumer
        self.store_queue = store_queue
        self.run = run

    @property
    def consumer_tag(self) -> str | None:
        """The consumer's tag."""
        return None if self.consumer is None else self.consumer.tag

    @property
    def count(self) -> int:
        """The number of messages."""
        return self.run.count

    @property
    def end(self) -> int:
        """The tag after the last one."""
        return self.first_tag + self.run.count

    @property
    def taken(self) -> Taken:
        """The run with the queue of the store that it was taken from."""
        return Taken(self.store_queue, self.run)

    @property
    def is_empty(self) -> bool:
        """Whether it has no messages, only their number and sizes: see `empty`."""
        return self.run.messages is None and not self.run.first_id

    def empty(self) -> None:
        """Drop what the run has of its messages, which the store has forgotten: the client may
        still settle it, and then it stops counting as unacked.
        """
        run = self.run
        if run.messages is not None:
            run.unload()
        # An id of the store may be released by now: it must not be read or acked once more.
        run.first_id, run.ids, run.returned_by = 0, None, None

    def split(self, count: int) -> Delivery:
        """Split off the first `count` messages (fewer than all) as a delivery of their own."""
        run = self.run.split(count)
        head = Delivery(self.first_tag, self.queue, self.consumer, self.store_queue, run)
        self.first_tag += count
        return head


# Another name of the slot, not a property: a `RunList` asks for it often, and so it costs no call.
Delivery.first_sequence = vars(Delivery)["first_tag"]


def shown(queue: Queue, run: Run) -> Run:
    """Return a run as consumers see it: with the delivery count, if the queue limits deliveries, or
    is a quorum queue.
    """
    if not run.delivery_count or not (
        queue.settings.delivery_limit is not None or is_quorum(queue.arguments)
    ):
        return run
    messages = []
    for envelope, group in groupby(run.messages or (), attrgetter("envelope")):
        headers: dict[str, FieldValue] = {_COUNT_HEADER: Int64(run.delivery_count)}
        counted = Envelope(
            envelope.exchange,
            envelope.routing_key,
            edit_properties(envelope.properties, headers=headers),
            persistent=envelope.persistent,
        )
        messages += [Message(counted, message.body) for message in group]
    return Run(run.first_sequence, run.count, messages=messages, delivery_count=run.delivery_count)
