"""Recovery in memory: from the readable parts of a store to the result of the next start."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from typing import Any

from amqpstore.catalog import tables
from amqpstore.catalog.backing import Backing
from amqpstore.errors import DamageError
from amqpstore.queues.queue import Queue
from amqpstore.recovery.recovered import Recovered
from amqpstore.recovery.recovery import recover
from amqpstore_tools.offline.catalog import CatalogImage

_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
"""Errors of recovery if rows of the catalog are not as FORMAT.md says."""

_TABLES = ("store", "heads", "index", "segments", "marks", "ends", "quarantine")
"""A missing row in one of these changes which messages are live, or where they are."""

Definitions = Mapping[int, Any]


def recover_image(backing: Backing, catalog: CatalogImage) -> Recovered:
    """Run recovery on a store, with its checkpoint state up to the end of the log.

    Args: backing, whose files are not changed.
    Raises: DamageError, if the catalog cannot be used; OSError.
    """
    if catalog.reason is not None:
        raise DamageError(catalog.path, 0, catalog.reason)
    try:
        recovered = _recovered(backing, _definitions(catalog))
    except _MALFORMED as error:
        raise DamageError(catalog.path, 0, f"a row is malformed: {error!r}") from error
    for bad in catalog.uncorrected:
        if bad.table in _TABLES:
            reason = f"table {bad.table}, row {bad.key!r}: {bad.reason}"
            raise DamageError(catalog.path, 0, reason)
    return recovered


def _definitions(catalog: CatalogImage) -> Definitions:
    """Return the definitions of queues in the catalog, by id; None for one that cannot be read.

    Raises: DamageError.
    """
    found = tables.QUEUES.read(catalog.rows)
    for bad in catalog.uncorrected:
        if bad.table == "queues":
            with contextlib.suppress(ValueError):
                found.setdefault(tables.QUEUES.parse_key(bad.key.decode()), None)
    return found


def _recovered(backing: Backing, definitions: Definitions) -> Recovered:
    queues = {key: Queue(key, row, durable=True) for key, row in definitions.items()}
    recovered = recover(backing, queues)
    checkpoint_state = recovered.checkpoint_state
    for batch in recovered.batches:
        checkpoint_state.apply(batch)
    checkpoint_state.catch_up()
    for queue_id in recovered.deleted:
        for _ in checkpoint_state.delete(queue_id, max_files=sys.maxsize):
            pass  # its index files stay where they are
        checkpoint_state.queues.pop(queue_id, None)
    for segment in recovered.segments:
        segment.close()
    return recovered
