"""The time that the oldest ready message of a queue says it was made."""

from __future__ import annotations

from amqpstore import Message, Store
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.protocol.content import decode_properties


def head_timestamp(store: Store, queue: Queue) -> int | None:
    """Return the timestamp of the message that is taken next; None if it has none, or if only an
    index file knows where it is: that is read once somebody takes messages.
    """
    message = _head(store, queue)
    found = decode_properties(message.envelope.properties).timestamp if message else None
    return None if found is None else int(found)


def _head(store: Store, queue: Queue) -> Message | None:
    for one in queue.priorities:
        if one.ready_count:
            if one.is_head_paged:
                return None
            run = one.ready.first
            return run.messages[0] if run.messages else store.stored.read_one(run, 0)
    return None
