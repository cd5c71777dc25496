"""Tells whether a store is sound, as far as that is known before its messages are read."""

from __future__ import annotations

from amqpstore.evidence import find_misplaced
from amqpstore_tools.offline.image import StoreImage


def is_damaged(image: StoreImage) -> bool:
    """Tell whether a store lacks something, as far as is known before its messages are read.

    Reads all index files. Raises: OSError.
    """
    for queue in image.queues:
        for _ in queue.columns():
            pass
    return is_known_damaged(image)


def is_known_damaged(image: StoreImage) -> bool:
    """Tell the same of a store whose index files were read."""
    report = image.report
    if image.catalog_reason or image.marker_reason:
        return True
    if report.damage or report.lost or report.passed_over:
        return True
    if any(queue.unreadable for queue in image.queues):
        return True
    store_id = image.store_id.bytes if image.store_id else b""
    rows = {table: dict(image.rows(table)) for table in ("store", "segments", "index")}
    try:
        return any(True for _ in find_misplaced(image.files, image.directory, store_id, rows))
    except OSError:
        return True  # a directory of the store cannot be listed, or something else has its name
