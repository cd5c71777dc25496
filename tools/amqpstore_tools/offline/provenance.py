"""The provenance of a message of a store that no broker runs on, or of a snapshot."""

from __future__ import annotations

from typing import Any

from amqpstore.provenance.log_reading import LogReading
from amqpstore.provenance.provenance import ProvenanceReader
from amqpstore.provenance.trails import QueuePosition
from amqpstore_server.reports.message_trail import (
    UNKNOWN,
    Names,
    TrailQueue,
    is_copy_in,
    trail_answer,
)
from amqpstore_tools.offline.contents import properties_of
from amqpstore_tools.offline.image import StoreImage


def provenance(image: StoreImage, message_id: int) -> dict[str, Any]:
    """Return where a message came from, and what became of it: see `message_trail` of the server.

    Raises: OSError.
    """
    name_of = _names(image)
    places = [QueuePosition(queue.id, entry.sequence) for queue, entry in image.holders(message_id)]
    found = _reader(image, name_of).of_message(message_id, places)
    return trail_answer(found, name_of, properties_of)


def id_in_log(image: StoreImage, queue_id: int, sequence: int) -> int:
    """Return the id of the message that was at a place, if the log says that; else 0.

    Raises: OSError.
    """
    found = _reader(image, _names(image)).of_position(QueuePosition(queue_id, sequence))
    return found.trails[0].id if found.trails else 0


def _names(image: StoreImage) -> Names:
    queues = {queue.id: TrailQueue(queue.vhost, queue.name) for queue in image.queues}
    return lambda queue_id: queues.get(queue_id, UNKNOWN)


def _reader(image: StoreImage, names: Names) -> ProvenanceReader:
    reading = LogReading(image.files, image.directory, image.seed, image.decoder)
    return ProvenanceReader(reading, is_copy_in(names))
