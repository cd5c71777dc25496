"""Recovery in memory: from the readable parts of a store to the result of the next start."""

from __future__ import annotations

import contextlib
import sys
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from amqpstore import tables
from amqpstore.backing import Backing
from amqpstore.errors import DamageError
from amqpstore.expected_segments import MISSING
from amqpstore.queue import Queue
from amqpstore.recovered import Recovered
from amqpstore.recovery import recover
from amqpstore_tools.offline.catalog import CatalogImage, RowsCatalog
from amqpstore_tools.offline.rebuilt import Tables, Uncounted

_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
"""Errors of recovery if rows of the catalog are not as FORMAT.md says."""

_TABLES = ("store", "heads", "index", "segments", "marks", "ends", "quarantine")
"""A missing row in one of these changes which messages are live, or where they are."""

Definitions = Mapping[int, Any]


def recover_image(
    backing: Backing, catalog: CatalogImage, rebuild: Callable[[], Tables]
) -> tuple[Recovered, str | None]:
    """Run recovery on a store, with its checkpoint state up to the end of the log.

    Also returns why the catalog could not be used; None if it was.
    Args: backing, whose files are not changed; rebuild, for tables that replace it.
    Raises: OSError.
    """
    reason = catalog.reason
    if reason is None:
        try:
            recovered = _recovered(backing, _definitions(catalog))
            bad = [row for row in catalog.uncorrected if row.table in _TABLES]
            if not bad:
                return recovered, None
            reason = f"table {bad[0].table}, row {bad[0].key!r}: {bad[0].reason}"
        except DamageError as error:
            reason = error.reason
        except _MALFORMED as error:
            reason = f"a row is malformed: {error!r}"
    rebuilt = rebuild()
    try:
        definitions = _definitions(catalog)
    except DamageError:
        definitions = dict.fromkeys(tables.NEXT_SEQUENCES.read_keys(rebuilt.__getitem__))
    backing = backing._replace(catalog=RowsCatalog(rebuilt))
    return _recovered(backing, definitions, is_rebuilt=True), reason


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


def _recovered(
    backing: Backing, definitions: Definitions, *, is_rebuilt: bool = False
) -> Recovered:
    queues = {key: Queue(key, row, durable=True) for key, row in definitions.items()}
    recovered = recover(backing, queues)
    if is_rebuilt:
        _leave_unknown(recovered)
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


def _leave_unknown(recovered: Recovered) -> None:
    """Remove what recovery reports only because the rows are not the catalog's."""
    report = recovered.report
    # Dropped segments are missing too, and nothing tells which those are.
    report.damage = [one for one in report.damage if not one[3].startswith(MISSING)]
    # Messages that compaction moved are not in the log, where recovery looks for all of them.
    moved = [one.ids for one in recovered.checkpoint_state.accounts if one.ids]
    report.lost = [one for one in report.lost if not any(_is_among(ids, one[2]) for ids in moved)]
    recovered.checkpoint_state.accounts = Uncounted(())


def _is_among(ids: Sequence[int], message_id: int) -> bool:
    place = bisect_left(ids, message_id)
    return place < len(ids) and ids[place] == message_id
