"""The provenance of messages of a running broker, read by a worker thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from amqpstore import ReadLaterError
from amqpstore.provenance.provenance import ProvenanceReader
from amqpstore.provenance.trails import Provenance, QueuePosition
from amqpstore.queues.browsing import Browser
from amqpstore_server.administration.changes import AdministrationError, MissingError
from amqpstore_server.administration.operations import Administration
from amqpstore_server.administration.tables import shown_properties
from amqpstore_server.administration.work import Work
from amqpstore_server.broker.broker import Broker
from amqpstore_server.broker.errors import BrokerError
from amqpstore_server.broker.queues.browsing import MessagePosition
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.routing.explaining import explain
from amqpstore_server.protocol.content import decode_properties
from amqpstore_server.reports.message_trail import (
    UNKNOWN,
    Names,
    TrailQueue,
    is_copy_in,
    trail_answer,
)

MAX_READS = 2
"""How many requests may have the log read at a time."""

MAX_READ_S = 20.0
"""How long the log is read for one answer."""

_WORK_S = 0.004
_PAUSE_S = 0.002
"""A reader takes the interpreter from the event loop: it works that long, and pauses that long."""

_MAX_NUMBER = 1 << 62


class ReadingPace:
    """Says whether a reader goes on, and makes it pause.

    Args: max_s, from the first question on.
    """

    def __init__(self, max_s: float = MAX_READ_S) -> None:
        self._max_s = max_s
        self._ends_at = self._pauses_at = 0.0

    def __call__(self) -> bool:
        """Return whether there is time left."""
        now = time.perf_counter()
        if not self._ends_at:
            self._ends_at, self._pauses_at = now + self._max_s, now + _WORK_S
        if now >= self._pauses_at:
            time.sleep(_PAUSE_S)
            self._pauses_at = time.perf_counter() + _WORK_S
        return now < self._ends_at


def of_message(administration: Administration, message_id: int) -> Work[dict[str, Any]]:
    """Return the provenance of the message of an id. Raises: AdministrationError."""
    if not 0 < message_id <= _MAX_NUMBER:
        raise AdministrationError(f"{message_id} is not the id of a message")
    broker = administration.broker
    names = _names(broker)
    reader = _reader(broker, names)
    found = yield from _reading(administration, lambda: reader.of_message(message_id))
    return (yield from _answer(broker, found, names))


def of_position(
    administration: Administration, queue: Queue, position: str
) -> Work[dict[str, Any]]:
    """Return the provenance of a message of a queue, whether it is still there or not.

    Raises: MissingError, AdministrationError.
    """
    try:
        at = MessagePosition.of(position)
    except BrokerError as error:
        raise AdministrationError(str(error)) from None
    store_queue = dict(queue.priorities.levels()).get(at.priority)
    if store_queue is None:
        raise MissingError(f"queue '{queue.name}' has no messages of priority {at.priority}")
    if not 0 < at.sequence < store_queue.next_sequence:
        raise MissingError(f"queue '{queue.name}' never had a message at position {position}")
    broker = administration.broker
    store = broker.services.store
    queue_position = QueuePosition(store_queue.id, at.sequence)
    try:
        message_id = Browser(store.stored, store_queue).message_id(at.sequence)
    except ReadLaterError as error:
        raise AdministrationError(str(error)) from None
    names = _names(broker)
    reader = _reader(broker, names)
    if message_id:
        read = partial(reader.of_message, message_id, [queue_position])
    else:
        read = partial(reader.of_position, queue_position)
    provenance = yield from _reading(administration, read)
    return (yield from _answer(broker, provenance, names))


def _reading(administration: Administration, read: Callable[[], Provenance]) -> Work[Provenance]:
    """Have a worker thread read. Raises: AdministrationError, if enough of them do."""
    if administration.provenance_reads >= MAX_READS:
        raise AdministrationError(
            f"the log is read for {MAX_READS} other requests now: try again in a moment"
        )
    administration.provenance_reads += 1
    try:
        found: Provenance = yield read
    finally:
        administration.provenance_reads -= 1
    return found


def _reader(broker: Broker, names: Names) -> ProvenanceReader:
    broker.services.flush_trails()
    return broker.services.store.provenance.reader(is_copy_in(names), ReadingPace())


def _names(broker: Broker) -> Names:
    """Return what finds the names of queues, also in another thread."""
    queues = broker.services.store.queues

    def name_of(queue_id: int) -> TrailQueue:
        queue = queues.get(queue_id)
        definition: Any = queue.definition if queue is not None else None
        if not isinstance(definition, dict):
            return UNKNOWN
        return TrailQueue(definition.get("vhost"), definition.get("name"))

    return name_of


def _answer(broker: Broker, found: Provenance, names: Names) -> Work[dict[str, Any]]:
    answer = trail_answer(found, names, shown_properties)
    for trail, row in zip(found.trails, answer["trail"], strict=True):
        for queue_position in row["now_in"]:
            queue_position["held_by"] = yield from _holder(broker, queue_position)
        if trail.message is None:
            continue
        envelope = trail.message.envelope
        vhosts = {step["vhost"] for step in (*row["steps"], *row["now_in"])} - {None}
        if len(vhosts) == 1 and (vhost := broker.vhosts.get(vhosts.pop())):
            # Where the bindings of today lead it; those of its time are not kept.
            properties = decode_properties(envelope.properties)
            row["route_now"] = explain(
                vhost.router, envelope.exchange, envelope.routing_key, properties
            )
    return answer


def _holder(broker: Broker, queue_position: Mapping[str, Any]) -> Work[dict[str, Any] | None]:
    """Return the client that has got a message and has not acked it; None if there is none."""
    vhost = broker.vhosts.get(queue_position["vhost"])
    queue = vhost.queues.get(queue_position["queue"]) if vhost is not None else None
    if queue is None or not queue.unacked_count:
        return None
    queue_id, sequence = queue_position["queue_id"], queue_position["sequence"]
    for channel in list(broker.services.ack_timeouts.channels):
        for delivery in channel.unacked_in(queue):
            run = delivery.run
            if run.first_sequence <= sequence < run.end and delivery.store_queue.id == queue_id:
                connection, number, user = channel.origin
                return {
                    "connection": connection,
                    "channel": number,
                    "user": user,
                    "consumer_tag": delivery.consumer_tag,
                }
        yield None
    return None
