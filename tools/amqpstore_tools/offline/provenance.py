"""The provenance of a message of a store that no broker runs on, or of a snapshot."""

from __future__ import annotations

from typing import Any

from amqpstore.provenance import ProvenanceReader, QueuePlace
from amqpstore_server.message_trail import (
    UNKNOWN,
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
    queues = {queue.id: TrailQueue(queue.vhost, queue.name) for queue in image.queues}

    def name_of(queue_id: int) -> TrailQueue:
        return queues.get(queue_id, UNKNOWN)

    places = [QueuePlace(queue.id, entry.sequence) for queue, entry in image.holders(message_id)]
    reader = ProvenanceReader(
        image.files, image.directory, image.seed, image.decoder, is_copy_in(name_of)
    )
    return trail_answer(reader.of_message(message_id, places), name_of, properties_of)
