"""Prepared transactions: rows of the catalog, read as far as they are what FORMAT.md says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Locked(NamedTuple):
    """A run that a prepared transaction is to ack."""

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

    `label` is its owner's. It is undecided; where `is_undecided` is not so, the next start removes
    what is left of it. `reason` says what of the row cannot be read.
    """

    queue_id: int
    label: Any
    locked: list[Locked]
    publishes: list[Waiting]
    is_undecided: bool
    reason: str | None


def prepared_of(queue_id: int, row: Any, *, is_undecided: bool) -> PreparedImage:
    """What a row says; with `reason` where it is not what it should be."""
    locked: list[Locked] = []
    publishes: list[Waiting] = []
    reason = None
    label = row.get("label") if isinstance(row, Mapping) else None
    try:
        locked += [Locked(*map(int, one)) for one in row["locked"]]
        for first, count, priority, placements in row["publishes"]:
            ids = tuple(int(queue_id) for queue_id, _, _ in placements)
            publishes.append(Waiting(int(first), int(count), int(priority), ids))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        reason = f"its row is not what it should be: {error!r}"
    return PreparedImage(queue_id, label, locked, publishes, is_undecided, reason)
