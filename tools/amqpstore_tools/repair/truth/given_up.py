"""Numbers that a repair gives up: they were given to something that it has not found.

They are noted in the new catalog, and none of them is given again. If a file with any of them is
put back later, a start keeps it, and the next repair takes its messages in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from amqpstore.catalog.tables import GivenUpRow
from amqpstore.evidence.present_numbers import PresentNumbers
from amqpstore.format.runs import Run
from amqpstore_tools.repair.homes import Homes
from amqpstore_tools.repair.truth.trust import GivenUpRange, Trust
from amqpstore_tools.repair.truth.values import Placements, Truth

_UNKNOWN = 1 << 32
"""More numbers than a segment has that is missing: each takes more than one byte."""


def give_up(trust: Trust, truth: Truth) -> None:
    """Note what was not found, and have the numbers of the store go on behind it."""
    lsns = PresentNumbers()
    for logged in trust.log:
        lsns.add(logged.batch.lsn)
    log_end = lsns.ranges[-1][1] if lsns.ranges else 0
    is_short = truth.shortfall and truth.shortfall.lsn > log_end
    if is_short or _is_end_missing(trust):
        # How much there was, or follows what was noted, is not known.
        truth.next_lsn += _UNKNOWN
        truth.next_message_id += _UNKNOWN
        log_end = truth.next_lsn
    lost_lsns = [*_missing_of(trust.passed_over.lsns, lsns)]
    lost_ids = [*_missing_of(trust.passed_over.message_ids, truth.homes.known)]
    if trust.position is not None:
        first_lsn, first_id = trust.position.lsn, trust.position.message_id
    else:
        first_lsn = lsns.ranges[0][0] if lsns.ranges else log_end
        first_id = min((first for first, _ in truth.homes.known), default=truth.next_message_id)
    lost_lsns += lsns.missing(first_lsn, log_end)
    if lost_lsns:
        lost_ids += truth.homes.known.missing(first_id, truth.next_message_id)
        # What is missing may have put messages in any queue, and may still be put back: none of
        # their sequences is to be given to another message.
        for queue in truth.queues.values():
            queue.next_sequence += _UNKNOWN
    # What an earlier repair gave up may still be put back.
    lost_lsns += _missing_of(trust.given_up.lsns, lsns)
    lost_ids += _missing_of(trust.given_up.message_ids, truth.homes.known)
    pieces = [
        GivenUpRange(queue.id, *lost) for queue in truth.queues.values() for lost in queue.lost
    ]
    pieces += [
        one.slice(first, end)
        for one in trust.given_up_ranges
        if one.queue_id in truth.queues
        for first, end in truth.homes.known.missing(one.first_id, one.end_id)
    ]
    lost_ids += [(one.first_id, one.end_id) for one in pieces]
    truth.given_up = GivenUpRow(
        [list(one) for one in PresentNumbers(lost_lsns).ranges],
        [list(one) for one in PresentNumbers(lost_ids).ranges],
        [list(one) for one in sorted({*pieces})],
    )


def put_back(trust: Trust, placements: Placements, homes: Homes) -> None:
    """Put messages that the last repair gave up, and that are there again, where they were."""
    for one in trust.given_up_ranges:
        if queue := placements.queues.get(one.queue_id):
            for first, end in homes.known.within(one.first_id, one.end_id):
                piece = one.slice(first, end)
                placements.explained.add(first, end)
                queue.put(Run(piece.first_sequence, piece.message_count, first_id=first))


class _Known(Protocol):
    def missing(self, first: int, end: int) -> Iterable[tuple[int, int]]:
        """Return the ranges that are not in it."""


def _missing_of(wanted: PresentNumbers, known: _Known) -> Iterator[tuple[int, int]]:
    """Yield what is still missing of numbers."""
    for first, end in wanted.ranges:
        yield from known.missing(first, end)


def _is_end_missing(trust: Trust) -> bool:
    """Tell whether the log had gone on in a segment that is missing."""
    last = max((one.segment.number for one in trust.log), default=0)
    return trust.lost_at is not None and trust.lost_at[0] > last
