"""The queues that exist: those of the catalog, of the copy of the definitions, and those without a
name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

from amqpstore.catalog import tables
from amqpstore.catalog.definitions import DefinitionsCopy
from amqpstore.catalog.tables import PreparedRow, StoreRows
from amqpstore.evidence.present_numbers import PresentNumbers
from amqpstore_tools.repair.facts import Facts
from amqpstore_tools.repair.names import mend_definitions
from amqpstore_tools.repair.truth.trust import Trust
from amqpstore_tools.repair.truth.values import QueueTruth


class Named(NamedTuple):
    """The queues, still empty, and the prepared transactions by id; virtual hosts by name."""

    queues: dict[int, QueueTruth]
    prepared: dict[int, PreparedRow]
    vhosts: dict[str, Any]
    next_queue_id: int


def name_queues(facts: Facts, trust: Trust) -> Named:
    """Find which queues there are."""
    definitions = tables.QUEUES.read(facts.table)
    prepared = tables.PREPARED.read(facts.table)
    vhosts = facts.table("vhosts")
    evident = _evident_ids(facts, trust)
    counted = _next_queue_id(facts, definitions.keys() | trust.heads.keys())
    if facts.copy:
        _add_newer(facts.copy, counted, trust.passed_over.queue_ids, definitions, prepared)
    nameless = _nameless(facts, trust, evident, counted) - definitions.keys()
    definitions |= dict.fromkeys(nameless)
    has_names = facts.is_lost("queues") or facts.is_lost("prepared")
    is_whole = not (has_names or facts.is_lost("vhosts"))
    doubtful = {key: definitions[key] for key in nameless} if is_whole else definitions
    recovered = mend_definitions(doubtful, set(prepared), vhosts)
    definitions |= doubtful
    queues = {}
    for queue_id in sorted(definitions):
        queue = queues[queue_id] = QueueTruth(queue_id, definitions[queue_id])
        queue.next_sequence = trust.heads.get(queue_id, 1)
        queue.is_recovered = queue_id in recovered
    for queue_id in prepared.keys() - definitions.keys():
        del prepared[queue_id]
    highest = max([0, *evident, *definitions, *trust.heads])
    of_copy = facts.copy.next_queue_id if facts.copy else 1
    return Named(queues, prepared, vhosts, max(counted, of_copy, highest + 1))


def _next_queue_id(facts: Facts, known: Collection[int]) -> int:
    """Return the first id that no queue had when the catalog was written.

    Args: known, ids that it mentions.
    """
    if facts.rows is None:
        return 1
    if counted := StoreRows.read(facts.rows.__getitem__).next_queue_id:
        return counted
    return max(known, default=0) + 1


def _add_newer(
    copy: DefinitionsCopy,
    counted: int,
    passed_over: PresentNumbers,
    definitions: dict[int, Any],
    prepared: dict[int, PreparedRow],
) -> None:
    """Add the queues of the copy of the definitions that are newer than the catalog."""

    def of_copy(table: str) -> dict[str, Any]:
        return copy.tables.get(table, {})

    for queue_id, row in tables.QUEUES.read(of_copy).items():
        if queue_id >= counted or queue_id in passed_over:
            definitions.setdefault(queue_id, row)
    for queue_id, transaction in tables.PREPARED.read(of_copy).items():
        if queue_id >= counted or queue_id in passed_over:
            prepared.setdefault(queue_id, transaction)


def _nameless(facts: Facts, trust: Trust, evident: set[int], counted: int) -> set[int]:
    """Return the ids of queues that exist, as far as anything tells, and whose names are lost.

    Ids are given once: what catalog or copy would have, and has not, was deleted. So was what only
    the log before the last checkpoint names, whatever the catalog has counted.
    Args: evident, ids that log and index files mention; counted, the first one after the catalog.
    """
    damaged = {key for table, key in facts.damaged_rows if table == "queues"}
    known = set(_queue_ids(damaged))
    tells = facts.rows is not None and len(known) == len(damaged)
    deleted_below = counted if tells else 1
    if facts.copy:
        deleted_below = max(deleted_below, facts.copy.next_queue_id)
    deleted = _named_before(trust) if tells else set()
    return known | {
        one
        for one in (evident | trust.heads.keys()) - deleted
        if one >= deleted_below or one in trust.passed_over.queue_ids
    }


def _named_before(trust: Trust) -> set[int]:
    """Return the ids that the log names before the last checkpoint."""
    if trust.position is None:
        return set()
    return {
        one.queue_id
        for _, batch in trust.log
        if trust.has_seen(batch.lsn)
        for one in batch.operations
    }


def _evident_ids(facts: Facts, trust: Trust) -> set[int]:
    """Return the ids of queues that the log and index files mention."""
    found = {image.queue_id for image in facts.index}
    for _, batch in trust.log:
        found |= {one.queue_id for one in batch.operations}
    return found


def _queue_ids(keys: Iterable[str]) -> Iterator[int]:
    """Yield the queues that keys of damaged rows name; keys of another form name none."""
    for key in keys:
        with contextlib.suppress(ValueError):
            yield tables.QUEUES.parse_key(key)
