"""The parts of a store that can be relied on: where the last checkpoint was, and what of catalog
and log is whole.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from amqpstore.catalog import tables
from amqpstore.catalog.tables import START, Position, StoreRows
from amqpstore.evidence.passed_over import PassedOver
from amqpstore.evidence.present_numbers import PresentNumbers
from amqpstore.format.runs import Run
from amqpstore_tools.repair.evidence import Accounted
from amqpstore_tools.repair.facts import Facts, LogBatch, SegmentFacts
from amqpstore_tools.repair.losses import SegmentOffset, last_loss

MOST = 1 << 64
"""More than any number."""

_INDEX_CODES = {"index-missing", "index-damaged", "index-order", "index-row-differs"}


class GivenUpRange(NamedTuple):
    """A run of messages that the last repair gave up."""

    queue_id: int
    first_sequence: int
    first_id: int
    message_count: int

    @property
    def end_id(self) -> int:
        """The id after the last."""
        return self.first_id + self.message_count

    def slice(self, first_id: int, end_id: int) -> GivenUpRange:
        """Return the messages with some of these ids."""
        sequence = self.first_sequence + first_id - self.first_id
        return GivenUpRange(self.queue_id, sequence, first_id, end_id - first_id)


class Trust:
    """The extent to which a store's catalog and log can be trusted.

    `log` has all batches with a TRANSACTION. `position` is the last checkpoint's, and `heads` the
    next sequences of queues by then, as far as they are known. What was `passed_over` by starts is
    before the position, and the checkpoint has not seen it. `complete_from` is the segment from
    which on no ack of the log is missing, `lost_at` the last place behind the position where one
    may be. What the last repair has `given_up` counts as passed over if any of it is there again;
    `given_up_ranges` are where those messages were.
    """

    def __init__(self, facts: Facts) -> None:
        rows = facts.rows
        self.log: list[LogBatch] = list(facts.log())
        self.accounted = Accounted(rows)
        rows_of = _no_rows if rows is None else rows.__getitem__
        self.given_up = PassedOver.given_up(rows_of)
        self.given_up_ranges = [
            GivenUpRange(*stored)
            for row in tables.GIVEN_UP.read(rows_of).values()
            for stored in row.places
        ]
        self.passed_over = PassedOver.read(rows_of)
        if any(_has_any(segment, self.given_up) for segment in facts.segments):
            self.passed_over = _joined(self.passed_over, self.given_up)
        self.position = _position(facts)
        heads = tables.NEXT_SEQUENCES.read(rows.__getitem__) if rows is not None else {}
        self.heads = {queue_id: row.next_sequence for queue_id, row in heads.items()}
        self._are_heads_whole = rows is not None and not facts.is_lost("heads")
        self.is_index_lost = facts.is_lost("index")
        self.is_index_whole = not self.is_index_lost and not facts.codes & _INDEX_CODES
        self.complete_from = _acks_are_complete_from(facts)
        start = self.position
        self.lost_at: SegmentOffset | None = None
        if start:
            self.lost_at = last_loss(facts, (start.segment, start.offset))

    @property
    def is_log_whole(self) -> bool:
        """Whether no ack behind the last checkpoint is missing."""
        is_behind_whole = self.position is not None and self.lost_at is None
        return self.complete_from <= 1 or (is_behind_whole and not self.passed_over)

    def has_seen(self, lsn: int) -> bool:
        """Tell whether the last checkpoint has seen a batch. Its position has to be known."""
        is_before = self.position is not None and lsn < self.position.lsn
        return is_before and lsn not in self.passed_over.lsns

    def head(self, queue_id: int) -> int | None:
        """Return the first sequence of a queue that the last checkpoint had not seen, if known."""
        return self.heads.get(queue_id, 1 if self._are_heads_whole else None)

    def boundary(self, queue_id: int, run: Run, one: LogBatch) -> int | None:
        """Return the first sequence of a run in the log that the last checkpoint had not seen, if
        known.
        """
        if self.position is not None:
            return run.end if self.has_seen(one.batch.lsn) else run.first_sequence
        head = self.heads.get(queue_id)
        return None if head is None else min(max(head, run.first_sequence), run.end)


def _joined(one: PassedOver, other: PassedOver) -> PassedOver:
    return PassedOver(
        *(
            PresentNumbers([*numbers.ranges, *others.ranges])
            for numbers, others in zip(one, other, strict=True)
        )
    )


def _has_any(segment: SegmentFacts, numbers: PassedOver) -> bool:
    return any(numbers.message_ids.count(run.first_id, run.end_id) for run in segment.runs) or any(
        batch.lsn in numbers.lsns for batch in segment.scanned.batches
    )


def _no_rows(_table: str) -> dict[str, Any]:
    return {}


def _position(facts: Facts) -> Position | None:
    if facts.rows is None or "position-wrong" in facts.codes:
        return None
    if position := StoreRows.read(facts.rows.__getitem__).position:
        return position
    # Checkpoints write the rows of `heads` and `index`, each together with a position: it is lost
    # where there are any, and where there are none, there was no checkpoint yet.
    is_lost = facts.is_lost("store")
    return None if is_lost or facts.rows["heads"] or facts.rows["index"] else START


def _acks_are_complete_from(facts: Facts) -> int:
    """Return the segment from which on no ack of the log is missing or damaged."""
    complete = MOST
    for number, files in reversed(list(facts.log_files())):
        if complete not in (MOST, number + 1) or not any(one.is_sound for one in files):
            break
        complete = number
    return complete
