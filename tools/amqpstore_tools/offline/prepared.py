"""Prepared transactions, from their rows in the catalog."""

from __future__ import annotations

from typing import Any, NamedTuple

from amqpstore.catalog.tables import PreparedRow


class Locked(NamedTuple):
    """A run that a prepared transaction will ack."""

    queue_id: int
    first_sequence: int
    message_count: int


class Waiting(NamedTuple):
    """Messages that wait in its own queue, and the ids of the queues that they go to."""

    first_sequence: int
    message_count: int
    priority: int
    queue_ids: tuple[int, ...]


class PreparedImage(NamedTuple):
    """A transaction whose messages wait in the stored queue `queue_id`, which no client sees.

    `label` is its owner's. If `is_undecided` is false, it is decided, and the next start removes
    what is left of it. One that `is_purge` is a purge that can be undone, of what is `locked`.
    """

    queue_id: int
    label: Any
    locked: list[Locked]
    publishes: list[Waiting]
    is_undecided: bool
    is_purge: bool


def prepared_of(queue_id: int, row: PreparedRow, *, is_undecided: bool) -> PreparedImage:
    """Parse a row."""
    locked = [Locked(*one) for one in row.locked]
    publishes = [
        Waiting(first, count, priority, tuple(of for of, _, _ in placements))
        for first, count, priority, placements in row.publishes
    ]
    return PreparedImage(queue_id, row.label, locked, publishes, is_undecided, row.purged)
