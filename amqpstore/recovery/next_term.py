"""The position at which the log of a new leader begins."""

from __future__ import annotations

from amqpstore.catalog.tables import Position
from amqpstore.terms import MAX_TERM, lsn_of, number_of, term_of

_IDS_A_TERM = 1 << 32
_QUEUES_A_TERM = 1 << 16
"""More than one batch can use. So nothing that a discarded batch named is named again."""


def begin_term(end: Position, next_queue_id: int, term: int) -> tuple[Position, int]:
    """Return where the log of a new leader begins, and its next queue id.

    Args: end of the log, and the next queue id, of the store that it takes over.
    Raises: ValueError, if the log has this term, or a later one, already.
    """
    last = term_of(end.lsn - 1)
    if not last < term <= MAX_TERM:
        raise ValueError(f"the log is in term {last} already")
    begun = term - last
    position = end._replace(
        lsn=lsn_of(term, number_of(end.lsn - 1) + 1),
        message_id=end.message_id + begun * _IDS_A_TERM,
    )
    return position, next_queue_id + begun * _QUEUES_A_TERM
