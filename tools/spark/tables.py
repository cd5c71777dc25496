"""Views that the driver makes by itself: queues, segments, and findings about the whole store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from tools.offline.image import StoreImage
from tools.offline.queues import QueueImage
from tools.offline.segments import SegmentHeader, SegmentState

Rows = Iterator[tuple[Any, ...]]


def queue_rows(image: StoreImage) -> Rows:
    """View `queues`. Raises: OSError."""
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
    """View `segments`, those in `quarantine/` among them. Raises: OSError."""
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


def findings_of(image: StoreImage) -> Rows:
    """What is wrong beside the records: marker, catalog, index files, segments that are missing.

    Raises: OSError.
    """
    if image.marker_reason:
        code = "marker-missing" if "missing" in image.marker_reason else "marker-damaged"
        yield _finding(code, "STORE", image.marker_reason)
    catalog = "catalog/data.mdb"
    if image.catalog_reason:
        yield _finding("catalog-damaged", catalog, image.catalog_reason)
    for bad in image.catalog.bad_rows:
        name = bad.key.decode("utf-8", "backslashreplace")
        yield _finding("row-damaged", catalog, f"table {bad.table}, row {name!r}: {bad.reason}")
    for segment in image.segments:
        if segment.state is SegmentState.MISSING:
            path = os.path.relpath(segment.path, image.directory)
            yield _finding("segment-missing", path, "the file is missing")
    for queue in image.queues:
        yield from _of_queue(image, queue)
    report = image.report
    if report.torn_bytes:
        position = image.recovered.position
        yield _finding(
            "batch-torn",
            f"segments/{position.segment:010}.segment",
            f"the last batch was not whole when the process ended: {report.torn_bytes} bytes do "
            "not count",
            position.offset,
            position.offset + report.torn_bytes,
        )


def _of_queue(image: StoreImage, queue: QueueImage) -> Rows:
    for _ in queue.columns():
        pass
    for one in queue.unreadable:
        path = os.path.relpath(one.path, image.directory)
        text = f"{one.reason}; {one.live} messages of {queue.label} are in it"
        code = "index-damaged" if image.files.exists(one.path) else "index-missing"
        yield _finding(code, path, text, queue_id=queue.id)


def _finding(
    code: str,
    file: str,
    text: str,
    offset: int | None = None,
    end: int | None = None,
    *,
    queue_id: int | None = None,
    message_id: int | None = None,
) -> tuple[Any, ...]:
    return code, file, offset, end, text, queue_id, message_id
