"""Rows of the catalog that contradict each other: a store with such rows is not opened."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from operator import attrgetter

from amqpstore.catalog import tables
from amqpstore.catalog.keys import IndexKey
from amqpstore.errors import CatalogDamageError
from amqpstore.format.index import IndexState


def check_apart(path: str, queue_id: int, states: Sequence[IndexState]) -> None:
    """Make sure that no sequence is in two index files of a queue. Raises: DamageError."""
    in_order = sorted(states, key=attrgetter("first"))
    for before, after in pairwise(in_order):
        # Served, such a message would be delivered twice, and acked once.
        if after.first < before.end:
            key = tables.INDEX.key(IndexKey(queue_id, after.number))
            reason = f"its first sequence, {after.first}, is also in index file {before.number}"
            raise CatalogDamageError(path, 0, "index", key, reason)


def check_prepared(path: str, prepared: Iterable[int], queues: Collection[int]) -> None:
    """Make sure that each transaction has the queue it was created with. Raises: DamageError."""
    for queue_id in sorted(prepared):
        if queue_id not in queues:
            reason = f"its queue, number {queue_id}, does not exist"
            raise CatalogDamageError(path, 0, "prepared", tables.PREPARED.key(queue_id), reason)
