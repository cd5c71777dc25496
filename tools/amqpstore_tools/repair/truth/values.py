"""The values that the stages of the search work on: queues with their messages, and what is known
of both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from amqpstore.catalog.tables import GivenUpRow, PreparedRow
from amqpstore.evidence import Shortfall
from amqpstore.format.index import Bits
from amqpstore.format.runs import ReadyList, Run
from amqpstore_tools.repair.evidence import Accounted
from amqpstore_tools.repair.homes import Homes
from amqpstore_tools.repair.ranges import Ranges
from amqpstore_tools.repair.truth.holders import Holders


class Lost(NamedTuple):
    """Messages that a queue held and whose records are missing or damaged."""

    first_sequence: int
    first_id: int
    message_count: int


@dataclass
class QueueTruth:
    """A queue, and its ready messages. `again` counts messages that may have been acked, `absent`
    lost ones of which only the number is known; `is_recovered`, whether its name is lost.
    """

    id: int
    definition: Any
    ready: ReadyList = field(default_factory=ReadyList)
    next_sequence: int = 1
    again: int = 0
    lost: list[Lost] = field(default_factory=list)
    absent: int = 0
    is_recovered: bool = False

    @property
    def lost_count(self) -> int:
        """The number of messages that are lost, at least."""
        return self.absent + sum(one.message_count for one in self.lost)

    def put(self, run: Run) -> list[tuple[int, int]]:
        """Add the part of a run that is missing. Returns the ranges of sequences that were
        added.
        """
        there = Ranges()
        for one in self.ready.between(run.first_sequence, run.end):
            there.add(one.first_sequence, one.end)
        added = there.missing(run.first_sequence, run.end)
        for first, end in added:
            part = run_slice(run, first, end)
            if len(self.ready) and self.ready.last.end <= first:
                self.ready.append_stored(part)
            else:
                self.ready.insert(part)
        self.next_sequence = max(self.next_sequence, run.end)
        return added

    def deliver(self, first: int, count: int, times: int) -> None:
        """Set a lower bound for how often messages have been delivered."""
        for run in self.ready.remove(first, count):
            run.delivery_count = max(run.delivery_count, times)
            self.ready.insert(run)


@dataclass
class Truth:
    """The result: queues and prepared transactions by id, and lower bounds for numbers.

    `orphans` are the ids of messages that are only in the queue of lost messages, `notes` concern
    the whole. `is_log_lost`: a part of the log is missing, with whatever was published in it;
    `shortfall` is what notes know of that, and `given_up` the numbers of all that was not found.
    """

    queues: dict[int, QueueTruth]
    prepared: dict[int, PreparedRow]
    vhosts: dict[str, Any]
    homes: Homes
    next_queue_id: int = 1
    next_lsn: int = 1
    next_message_id: int = 1
    shortfall: Shortfall = field(default_factory=Shortfall)
    orphans: Ranges = field(default_factory=Ranges)
    is_log_lost: bool = False
    given_up: GivenUpRow = field(default_factory=lambda: GivenUpRow([], [], []))
    notes: list[str] = field(default_factory=list)


class Placements:
    """The messages of all queues while they are gathered.

    `explained` are ids of messages whose queues are known, even if they left them; `unsure`, by
    queue, sequences that may have been acked.
    Args: queues, by id; accounted, what the last checkpoint's accounts say.
    """

    def __init__(self, queues: dict[int, QueueTruth], accounted: Accounted) -> None:
        self.queues = queues
        self.explained = Ranges()
        self.unsure: dict[int, Ranges] = {}
        self._accounted = accounted

    def explain(self, ids: Iterable[int]) -> None:
        """Note messages whose queue is known. Args: ids, ascending."""
        ids = list(ids)
        if ids[-1] - ids[0] == len(ids) - 1:
            self.explained.add(ids[0], ids[-1] + 1)
        else:
            for one in ids:
                self.explained.add(one, one + 1)

    def consider(
        self, queue: QueueTruth, run: Run, acked: Bits | None = None, *, is_sure: bool = False
    ) -> None:
        """Put messages in a queue, except those that are known to be acked.

        Args: acked, of each; is_sure, whether no ACK of them can be missing.
        """
        unsure = self.unsure.setdefault(queue.id, Ranges())
        queue.next_sequence = max(queue.next_sequence, run.end)
        are_dead = [
            bool(acked[index]) if acked is not None else self._is_dead(run.first_id + index)
            for index in range(run.count)
        ]
        sequence = run.first_sequence
        for is_dead, group in groupby(are_dead):
            end = sequence + len(list(group))
            if not is_dead:
                for first, stop in queue.put(run_slice(run, sequence, end)):
                    if is_dead is None and not is_sure:
                        unsure.add(first, stop)
            sequence = end

    def holders(self, elsewhere: Holders) -> Holders:
        """Return how many queues hold each message. Args: elsewhere, in deleted queues."""
        held = Holders()
        for queue in self.queues.values():
            held.add(queue.ready)
        return held.joined(elsewhere)

    def _is_dead(self, message_id: int) -> bool | None:
        """Tell whether no queue held a message; None if unknown."""
        references = self._accounted.references(message_id)
        return None if references is None else not references


def run_slice(run: Run, first: int, end: int) -> Run:
    """Return a run's messages from sequence `first` to before `end`."""
    return Run(
        first,
        end - first,
        first_id=run.first_id + first - run.first_sequence,
        delivery_count=run.delivery_count,
        expires_ms=run.expires_ms,
        priority=run.priority,
    )
