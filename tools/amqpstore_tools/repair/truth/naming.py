"""Which queues exist: those of the catalog, of the copy of the definitions, and those without a
name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from amqpstore import tables
from amqpstore.tables import PreparedRow, StoreRows
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
    evident = _evident_ids(facts, trust)
    definitions = tables.QUEUES.read(facts.table)
    prepared = tables.PREPARED.read(facts.table)
    vhosts = facts.table("vhosts")
    nameless: set[int] = set()
    copy = facts.copy
    counted = copy.next_queue_id if copy else 1
    if facts.rows is None:
        nameless = {one for one in evident if not copy or one >= counted}
    elif facts.is_lost("queues"):
        keys = {key for table, key in facts.checked.damaged_rows if table == "queues"}
        known = set(_queue_ids(keys))
        nameless = known if len(known) == len(keys) else known | set(trust.heads)
    for queue_id in nameless - definitions.keys():
        definitions[queue_id] = None
    has_names = facts.is_lost("queues") or facts.is_lost("prepared")
    is_whole = not (has_names or facts.is_lost("vhosts"))
    recovered = set()
    if not is_whole:
        recovered = mend_definitions(definitions, set(prepared), vhosts)
    queues = {}
    for queue_id in sorted(definitions):
        queue = queues[queue_id] = QueueTruth(queue_id, definitions[queue_id])
        queue.next_sequence = trust.heads.get(queue_id, 1)
        queue.is_recovered = queue_id in recovered
    for queue_id in prepared.keys() - definitions.keys():
        del prepared[queue_id]
    if facts.rows is not None:
        counted = max(counted, StoreRows.read(facts.rows.__getitem__).next_queue_id or 1)
    highest = max([0, *evident, *definitions, *trust.heads])
    return Named(queues, prepared, vhosts, max(counted, highest + 1))


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
