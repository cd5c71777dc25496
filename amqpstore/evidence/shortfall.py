"""Durable batches and messages that the log does not have: a log with a hole, or one that ends too
early.

Recovery takes the last whole batch for the end of the log. If that is not the end that it had, the
notes beside it know: those of durable positions, and those in client trails about messages of
single queues. Both are written only once what they are about is durable, so no orderly crash leaves
a shortfall: the log was damaged, or the disk did not keep what it had synced.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from amqpstore.catalog.tables import Position
from amqpstore.evidence.durable_positions import DurablePosition, read_positions
from amqpstore.evidence.present_numbers import PresentNumbers
from amqpstore.format.records import Operation, OperationKind, SpreadEnqueue
from amqpstore.provenance.client_trails import Note, What, newest_notes
from amqpstore.system.durability import reason_of
from amqpstore.system.filenames import TRAILS, position_number, trail_number
from amqpstore.system.files import Files

_log = logging.getLogger(__name__)

_SETTLED = (What.ACKED, What.REJECTED)

Range = tuple[int, int]
"""The first number and the one after the last."""


class MissingMessages(NamedTuple):
    """Messages of a queue that trails name and the log does not have: `messages` of sequences
    before `end`, of which `settled` had been acked or rejected.
    """

    messages: int
    settled: int
    end: int


class ReadLog(NamedTuple):
    """The content of a log behind the position of the last checkpoint, `start`: the LSNs of its
    sound batches, the ids of its messages that are sound or that those batches put in queues, and
    the `operations` of those batches. `heads` are the next sequences of the durable queues by id as
    of that checkpoint, `next_sequences` those behind the log.
    """

    start: Position
    lsns: PresentNumbers
    ids: PresentNumbers
    next_sequences: Mapping[int, int]
    heads: Mapping[int, int]
    operations: Iterable[Operation | SpreadEnqueue]

    @property
    def next_id(self) -> int:
        """The first message that neither the last checkpoint nor the log knows."""
        return max([self.start.message_id, *(end for _, end in self.ids.ranges[-1:])])


@dataclass(frozen=True)
class Shortfall:
    """Batches that the log lacks, at least, and their messages, `settled` of which are known to
    have left their queues: trails say so, or batches behind a hole do. What the lacking part said
    of other messages is not known: some of those that are ready may have been acked.

    `queues` are by id, as far as trails name them. No LSN or message id before `lsn` and
    `message_id` may be given again, and no number of a segment up to `segment`. `durable_ms` is
    when it was durable, 0 if that is not known.
    """

    batches: int = 0
    messages: int = 0
    settled: int = 0
    queues: dict[int, MissingMessages] = field(default_factory=dict)
    lsn: int = 0
    message_id: int = 0
    segment: int = 0
    durable_ms: int = 0

    def __bool__(self) -> bool:
        return bool(self.batches or self.queues)

    @property
    def lost(self) -> int:
        """The number of messages that are lost, at least, unless they had left their queues
        unnoted.
        """
        of_queues = sum(one.messages - one.settled for one in self.queues.values())
        return max(self.messages - self.settled, of_queues, 0)

    @property
    def text(self) -> str:
        """The missing batches and messages, as text for people."""
        missing = max(self.messages, sum(one.messages for one in self.queues.values()))
        if not missing:
            return (
                f"{self.batches} batches of the log that were durable are missing: messages that "
                "were acked in them are ready again"
            )
        gone = f"; {self.settled} of them had left their queues" if self.settled else ""
        return (
            f"at least {missing} messages that were durable are missing in the log{gone}. Messages "
            "that were acked where it is missing are ready again"
        )


def find_shortfall(files: Files, directory: str, seed: int, log: ReadLog) -> Shortfall:
    """Find what a log lacks. Notes that cannot be read say nothing. Args: seed, of its records."""
    positions: list[DurablePosition] = []
    notes: list[Note] = []
    try:
        positions = read_positions(files, directory, seed)
        notes += newest_notes(files, directory, seed)
    # Notes are a witness and not a part of the store: without them it opens as well.
    except (OSError, MemoryError) as error:
        _log.warning("whether the log lacks anything is known in part only: %s", reason_of(error))
    return shortfall(positions, notes, log)


def make_notes_durable(files: Files, directory: str) -> None:
    """Sync the notes, of both kinds, because a start depends on them: it has found a shortfall, and
    leaves out the numbers of what is missing. Without them, a start after a power cut would give
    those numbers again, and a file that is put back would have them twice.
    """
    trails = f"{directory}/{TRAILS}"
    try:
        if files.exists(trails):
            for name in files.list_directory(trails):
                if position_number(name) or trail_number(name):
                    _sync(files, f"{trails}/{name}")
            files.sync_directory(trails)
            files.sync_directory(directory)
    except OSError as error:
        _log.warning(
            "the notes of what is missing in the log cannot be synced, and a power cut may take "
            "them: put nothing back into the store after one before `amqpstore repair`: %s",
            error,
        )


def _sync(files: Files, path: str) -> None:
    with contextlib.suppress(FileNotFoundError), contextlib.closing(files.open(path)) as file:
        file.datasync()


def shortfall(
    positions: Iterable[DurablePosition], notes: Iterable[Note], log: ReadLog
) -> Shortfall:
    """Find what a log lacks: see `find_shortfall`."""
    batches = messages = lsn = message_id = segment = durable_ms = 0
    for one in positions:
        # Numbers between two processes may have been left out.
        lacking = _lacking(log.lsns, max(one.first_lsn, log.start.lsn), one.lsn)
        batches += lacking
        ids = max(one.first_message_id, log.start.message_id), one.message_id
        messages += _lacking(log.ids, *ids)
        lsn, message_id = max(lsn, one.lsn), max(message_id, one.message_id)
        if lacking:
            durable_ms = one.at_ms
            segment = max(segment, one.segment)
    queues = _missing(notes, log.next_sequences)
    settled = sum(one.settled for one in queues.values())
    if messages:
        settled += _left_behind_holes(log)
    return Shortfall(batches, messages, settled, queues, lsn, message_id, segment, durable_ms)


def _lacking(there: PresentNumbers, first: int, end: int) -> int:
    return end - first - there.count(first, end) if first < end else 0


def _missing(
    notes: Iterable[Note], next_sequences: Mapping[int, int]
) -> dict[int, MissingMessages]:
    noted: dict[int, list[Range]] = {}
    settled: dict[int, list[Range]] = {}
    for note in notes:
        end = note.first_sequence + note.message_count
        known = next_sequences.get(note.queue_id, end)
        # A sequence behind the log's own end was noted as durable: so the log is shorter than it
        # was.
        if known < end:
            of = max(note.first_sequence, known), end
            noted.setdefault(note.queue_id, []).append(of)
            if note.what in _SETTLED:
                settled.setdefault(note.queue_id, []).append(of)
    return {
        queue_id: MissingMessages(
            _covered(ranges), _covered(settled.get(queue_id, ())), max(end for _, end in ranges)
        )
        for queue_id, ranges in noted.items()
    }


def _left_behind_holes(log: ReadLog) -> int:
    """Count the messages that sound batches take from queues, and that none has put there."""
    entered: dict[int, list[Range]] = {}
    left: dict[int, list[Range]] = {}
    for one in log.operations:
        if one.kind != OperationKind.DELIVERED:
            ranges = entered if one.kind == OperationKind.ENQUEUE else left
            end = one.first_sequence + one.message_count
            ranges.setdefault(one.queue_id, []).append((one.first_sequence, end))
    count = 0
    for queue_id, head in log.heads.items():
        known = [(0, head), *entered.get(queue_id, ())]
        # What left a queue in a sound batch must have entered it before: the difference was in the
        # hole.
        count += _covered([*known, *left.get(queue_id, ())]) - _covered(known)
    return count


def _covered(ranges: Iterable[Range]) -> int:
    """Count the numbers in ranges, each once."""
    count = reached = 0
    # Trails may tell of one message several times: published, delivered, acked.
    for first, end in sorted(ranges):
        count += max(end - max(first, reached), 0)
        reached = max(reached, end)
    return count
