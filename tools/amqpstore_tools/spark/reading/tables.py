"""Views that the driver computes itself: queues and segments."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from amqpstore.identity.identity import SegmentHeader
from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.offline.segments import SegmentState

Rows = Iterator[tuple[Any, ...]]


def queue_rows(image: StoreImage) -> Rows:
    """Return the rows of view `queues`. Raises: OSError."""
    for queue in image.queues:
        totals = queue.totals()
        delivered = totals.delivered
        yield (
            queue.vhost,
            queue.name,
            queue.id,
            queue.level or 0,
            max(queue.live_count - delivered - len(queue.lost) - totals.unreadable, 0),
            delivered,
            totals.locked,
            len(queue.lost) + totals.unreadable,
            totals.bytes,
            queue.next_sequence,
            queue.is_hidden,
        )


def segment_rows(image: StoreImage) -> Rows:
    """Return the rows of view `segments`, including those in `quarantine/`. Raises: OSError."""
    for one in [*image.segments, *image.quarantined]:
        header = one.header() if one.state is not SegmentState.MISSING else None
        created = header.created_ms * 1000 if isinstance(header, SegmentHeader) else None
        known = bool(one.end_id)
        yield (
            one.number,
            os.path.relpath(one.path, image.directory),
            one.state.value,
            one.size,
            one.sound_size,
            one.live_bytes,
            one.garbage_bytes,
            one.first_id if known else None,
            one.end_id if known else None,
            created,
        )
