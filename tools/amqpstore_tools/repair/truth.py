"""Finds what every queue holds: from index files, the log, and the readable part of the catalog.

The last checkpoint says which entries of the index files are live, and the log what was added and
removed after it. If a part of that is lost, the other sources are used:

- entries of an index file that is damaged are looked for in the log, from its start;
- the row's bitmap says which of them were acked, if the places of the entries are known, otherwise
  the accounts, which count how many queues hold each message;
- a sound ACK or PURGE in the log always counts;
- if no source says that a message was acked, it was not: rather delivered twice than never.
  Messages kept only for this reason are `again`, and flagged redelivered.

Sound messages whose queue is no longer known go to a queue of their own.

Past 600 lines because index files, log and catalog are compared message by message, and each source
corrects the others.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from amqpstore import tables
from amqpstore.checkpoint_state import enqueued
from amqpstore.index import Bits, Entries, IndexState, live_runs, no_entries
from amqpstore.records import Gap, Operation, OperationKind
from amqpstore.runs import ReadyList, Run
from amqpstore.tables import START, Position, PreparedRow, StoreRows
from amqpstore_tools.check.store import queue_name
from amqpstore_tools.offline.segments import IndexImage
from amqpstore_tools.repair.evidence import Accounted
from amqpstore_tools.repair.facts import Facts, LogBatch
from amqpstore_tools.repair.homes import Homes
from amqpstore_tools.repair.losses import last_loss
from amqpstore_tools.repair.names import (
    DEFAULT_VHOST,
    LOST_AND_FOUND,
    definition_of,
    mend_definitions,
)
from amqpstore_tools.repair.ranges import Ranges

_MOST = 1 << 64

_INDEX_CODES = {"index-missing", "index-damaged", "index-order", "index-row-differs"}


class Lost(NamedTuple):
    """Messages that a queue held and whose records are missing or damaged."""

    first_sequence: int
    first_id: int
    message_count: int


@dataclass
class QueueTruth:
    """A queue, and its ready messages. `again` counts messages that may have been acked;
    `is_recovered`, whether its name is lost.
    """

    id: int
    definition: Any
    ready: ReadyList = field(default_factory=ReadyList)
    next_sequence: int = 1
    again: int = 0
    lost: list[Lost] = field(default_factory=list)
    is_recovered: bool = False

    def put(self, run: Run) -> list[tuple[int, int]]:
        """Add the part of a run that is missing. Returns the ranges of sequences that were
        added.
        """
        there = Ranges()
        for one in self.ready.between(run.first_sequence, run.end):
            there.add(one.first_sequence, one.end)
        added = there.missing(run.first_sequence, run.end)
        for first, end in added:
            part = _part(run, first, end)
            if len(self.ready) and self.ready.last.end <= first:
                self.ready.append_stored(part)
            else:
                self.ready.insert(part)
        self.next_sequence = max(self.next_sequence, run.end)
        return added


@dataclass
class Truth:
    """The result: queues and prepared transactions by id, and lower bounds for numbers.

    `orphans` are the ids of messages that are only in the queue of lost messages, `notes` concern
    the whole.
    """

    queues: dict[int, QueueTruth]
    prepared: dict[int, PreparedRow]
    vhosts: dict[str, Any]
    homes: Homes
    next_queue_id: int = 1
    next_lsn: int = 1
    next_message_id: int = 1
    orphans: Ranges = field(default_factory=Ranges)
    lost_and_found: int = 0
    notes: list[str] = field(default_factory=list)


class _Hole(NamedTuple):
    """Sequences whose entries in an index file are lost.

    `acked` of each, if known; `delivered` counts by sequence, if known.
    """

    first: int
    end: int
    acked: Bits | None
    delivered: dict[int, int]

    def times(self, sequence: int) -> int:
        """Return how often a message had been delivered, or may have been."""
        if self.acked is None:
            return max(self.delivered.values(), default=0)
        return self.delivered.get(sequence, 0)


def find_truth(facts: Facts) -> Truth:
    """Find what the store holds. Raises: OSError."""
    return _Finder(facts).run()


class _Finder:
    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._rows = facts.rows
        self._accounted = Accounted(self._rows)
        self._log = list(facts.log())
        self._position = self._trusted_position()
        heads = tables.NEXT_SEQUENCES.read(self._rows.__getitem__) if self._rows is not None else {}
        self._heads = {queue_id: row.next_sequence for queue_id, row in heads.items()}
        self._is_index_lost = facts.is_lost("index")
        self._is_index_whole = not self._is_index_lost and not facts.codes & _INDEX_CODES
        self._explained = Ranges()
        self._holes: dict[int, list[_Hole]] = {}
        self._doubtful: list[tuple[QueueTruth, Entries, IndexState]] = []
        self._unsure: dict[int, Ranges] = {}
        self._complete_from = self._acks_are_complete_from()
        start = self._position
        self._lost_at = last_loss(facts, (start.segment, start.offset)) if start else None
        self._behind: dict[int, Ranges] = {}
        # Live entries of deleted queues, which no checkpoint has released yet.
        self._held_elsewhere: Counter[int] = Counter()
        self._short = Ranges()
        rowed = set()
        if self._rows is not None:
            rowed = tables.SEGMENTS.read_keys(self._rows.__getitem__)
        preferred = sorted(
            facts.segments.values(),
            key=lambda one: (not one.is_sound, one.number not in rowed, one.number),
        )
        prepared = tables.PREPARED.read(facts.table)
        self._truth = Truth({}, prepared, facts.table("vhosts"), Homes(preferred))

    def run(self) -> Truth:
        self._name_queues()
        self._read_index()
        self._settle_doubts()
        self._fill_holes_from_log()
        self._fill_holes_by_order()
        self._note_short()
        self._read_log()
        self._number()
        self._drop_lost()
        self._count_unsure()
        self._mend_prepared()
        self._collect_orphans()
        self._say_what_is_uncertain()
        return self._truth

    # What can be relied on.

    def _trusted_position(self) -> Position | None:
        if self._rows is None or "position-wrong" in self._facts.codes:
            return None
        if position := StoreRows.read(self._rows.__getitem__).position:
            return position
        is_lost = self._facts.is_lost("store")
        return None if is_lost or self._rows["heads"] or self._rows["index"] else START

    def _acks_are_complete_from(self) -> int:
        """Return the segment from which on no ack of the log is missing or damaged."""
        log = [one for one in self._facts.segments.values() if not one.is_compacted]
        complete = _MOST
        for segment in sorted(log, key=lambda one: -one.number):
            if complete not in (_MOST, segment.number + 1) or not segment.is_sound:
                break
            complete = segment.number
        return complete

    # Which queues exist.

    def _evident_ids(self) -> set[int]:
        """Return the ids of queues that the log and index files mention."""
        found = {image.queue_id for image in self._facts.index}
        for _, batch in self._log:
            found |= {one.queue_id for one in batch.operations}
        return found

    def _name_queues(self) -> None:
        facts = self._facts
        evident = self._evident_ids()
        definitions = tables.QUEUES.read(facts.table)
        nameless: set[int] = set()
        copy = facts.copy
        counted = copy.next_queue_id if copy else 1
        if self._rows is None:
            nameless = {one for one in evident if not copy or one >= counted}
        elif facts.is_lost("queues"):
            keys = {key for table, key in facts.checked.damaged_rows if table == "queues"}
            known = set(_queue_ids(keys))
            nameless = known if len(known) == len(keys) else known | set(self._heads)
        for queue_id in nameless - definitions.keys():
            definitions[queue_id] = None
        has_names = facts.is_lost("queues") or facts.is_lost("prepared")
        is_whole = not (has_names or facts.is_lost("vhosts"))
        hidden = set(self._truth.prepared)
        recovered = set()
        if not is_whole:
            recovered = mend_definitions(definitions, hidden, self._truth.vhosts)
        for queue_id in sorted(definitions):
            queue = QueueTruth(queue_id, definitions[queue_id])
            queue.next_sequence = self._heads.get(queue_id, 1)
            queue.is_recovered = queue_id in recovered
            self._truth.queues[queue_id] = queue
        for queue_id in self._truth.prepared.keys() - definitions.keys():
            del self._truth.prepared[queue_id]
        if self._rows is not None:
            counted = max(counted, StoreRows.read(self._rows.__getitem__).next_queue_id or 1)
        highest = max([0, *evident, *definitions, *self._heads])
        self._truth.next_queue_id = max(counted, highest + 1)

    # Index files.

    def _read_index(self) -> None:
        images = {(one.queue_id, one.number): one for one in self._facts.index}
        states = tables.INDEX.read(self._rows.__getitem__) if self._rows is not None else {}
        for key, state in sorted(states.items()):
            self._read_file(key.queue_id, state, images.pop(key, None))
        if not self._is_index_whole:
            for image in images.values():
                self._read_unrowed(image)

    def _read_file(self, queue_id: int, state: IndexState, image: IndexImage | None) -> None:
        blocks = list(_blocks(image, state.end_bytes))
        queue = self._truth.queues.get(queue_id)
        entries = no_entries()
        for block in blocks:
            if block is not None:
                self._explain(block)
                entries.extend(block)
        is_whole = None not in blocks and len(entries.ids) == state.entries
        if queue is None:
            if is_whole and _ascend(entries):
                for run in live_runs(entries, state, 0, _MOST):
                    self._held_elsewhere.update(range(run.first_id, run.first_id + run.count))
            return
        if not is_whole or not _ascend(entries):
            self._salvage(queue, state, blocks)
            return
        for run in live_runs(entries, state, 0, _MOST):
            queue.put(run)
        acked = Bits.of(state.acked, state.entries)
        if acked.count(1) != state.acked_count:
            self._doubtful.append((queue, entries, state))
        queue.next_sequence = max(queue.next_sequence, entries.sequences[-1] + 1)

    def _salvage(self, queue: QueueTruth, state: IndexState, blocks: list[Entries | None]) -> None:
        """Use the sound part of a damaged index file, and note the rest."""
        acked = Bits.of(state.acked, state.entries)
        places = _places(blocks, state.entries)
        last_sequence, last_place = state.first - 1, 0
        for place, block in places:
            if block is None:
                continue
            if place < 0:
                self._put_unsure(queue, block)
            else:
                count = len(block.ids)
                part = IndexState(
                    *(state.number, 0, count, block.sequences[0], block.sequences[-1] + 1),
                    acked=Bits(acked[place : place + count]).packed(),
                    delivered={
                        at - place: times
                        for at, times in state.delivered.items()
                        if place <= at < place + count
                    },
                    postponed=state.postponed,
                    postponed_deliveries=state.postponed_deliveries,
                )
                for run in live_runs(block, part, 0, _MOST):
                    queue.put(run)
            self._note_hole(queue, state, last_sequence + 1, block.sequences[0], last_place, place)
            last_sequence = block.sequences[-1]
            last_place = place + len(block.ids) if place >= 0 else -1
        end = max(state.end, last_sequence + 1)
        self._note_hole(queue, state, last_sequence + 1, end, last_place, state.entries)
        queue.next_sequence = max(queue.next_sequence, end)

    def _note_hole(
        self, queue: QueueTruth, state: IndexState, first: int, end: int, place: int, stop: int
    ) -> None:
        """Note that entries of these places, within these sequences, are lost."""
        if first >= end or (place >= 0 and place == stop):
            return
        counts = [*state.delivered.values(), *(one[2] for one in state.postponed_deliveries)]
        hole = _Hole(first, end, None, {first: max(counts)} if counts else {})
        if 0 <= place < stop and stop - place == end - first:
            acked = Bits.of(state.acked, state.entries)
            delivered = {
                first + at - place: times
                for at, times in state.delivered.items()
                if place <= at < stop
            }
            for start, behind, times in state.postponed_deliveries:
                for sequence in range(max(start, first), min(behind, end)):
                    delivered[sequence] = max(delivered.get(sequence, 0), times)
            hole = _Hole(first, end, Bits(acked[place:stop]), delivered)
        self._holes.setdefault(queue.id, []).append(hole)

    def _read_unrowed(self, image: IndexImage) -> None:
        """Read an index file without a row: which of its entries were acked is unknown."""
        queue = self._truth.queues.get(image.queue_id)
        for block in _blocks(image, None):
            if block is not None:
                self._explain(block)
                if queue:
                    self._put_unsure(queue, block)

    def _put_unsure(self, queue: QueueTruth, block: Entries) -> None:
        count = len(block.ids)
        delivered = {place: times for place, times in enumerate(block.delivery_counts) if times}
        state = IndexState(0, 0, count, block.sequences[0], block.sequences[-1] + 1)
        for run in live_runs(block, state._replace(delivered=delivered), 0, _MOST):
            # A log that is complete from its start has all acks.
            self._consider(queue, run, is_sure=self._complete_from <= 1)

    def _explain(self, block: Entries) -> None:
        ids = block.ids
        if ids[-1] - ids[0] == len(ids) - 1:
            self._explained.add(ids[0], ids[-1] + 1)
        else:
            for one in ids:
                self._explained.add(one, one + 1)

    def _consider(
        self, queue: QueueTruth, run: Run, acked: Bits | None = None, *, is_sure: bool = False
    ) -> None:
        """Put messages in a queue, except those that are known to be acked.

        Args: acked, of each; is_sure, whether no ACK of them can be missing.
        """
        unsure = self._unsure.setdefault(queue.id, Ranges())
        queue.next_sequence = max(queue.next_sequence, run.end)
        told = [
            bool(acked[place]) if acked is not None else self._is_dead(run.first_id + place)
            for place in range(run.count)
        ]
        sequence = run.first_sequence
        for is_dead, group in groupby(told):
            end = sequence + len(list(group))
            if not is_dead:
                for first, stop in queue.put(_part(run, sequence, end)):
                    if is_dead is None and not is_sure:
                        unsure.add(first, stop)
            sequence = end

    def _is_dead(self, message_id: int) -> bool | None:
        """Tell whether no queue held a message; None if unknown."""
        references = self._accounted.references(message_id)
        return None if references is None else not references

    def _settle_doubts(self) -> None:
        """Decide by the accounts which entries are live if a bitmap and its count differ."""
        ids = {one for _, entries, _ in self._doubtful for one in entries.ids}
        held: Counter[int] = Counter()
        for queue in self._truth.queues.values() if ids else ():
            for run in queue.ready:
                held.update(ids.intersection(range(run.first_id, run.first_id + run.count)))
        for queue, entries, state in self._doubtful:
            acked = Bits.of(state.acked, state.entries)
            for place, (sequence, message_id) in enumerate(
                zip(entries.sequences, entries.ids, strict=True)
            ):
                references = self._accounted.references(message_id)
                if references is None:
                    continue
                if acked[place] and references > held[message_id]:
                    one = entries.part(place, place + 1)
                    alone = IndexState(0, 0, 1, sequence, sequence + 1)
                    for run in live_runs(one, alone, 0, _MOST):
                        queue.put(run)
                    held[message_id] += 1
                elif not acked[place] and references < held[message_id]:
                    queue.ready.remove(sequence, 1)
                    held[message_id] -= 1

    # The log.

    def _read_log(self) -> None:
        acks: dict[int, Ranges] = {}
        delivered: dict[int, list[Operation]] = {}
        for batch in self._log:
            for operation in batch.batch.possible_operations:
                queue_id, first = operation.queue_id, operation.first_sequence
                end = first + operation.message_count
                if operation.kind == OperationKind.ENQUEUE:
                    stop = operation.first_id + operation.message_count
                    self._explained.add(operation.first_id, stop)
                    if queue := self._truth.queues.get(queue_id):
                        self._enqueue(queue, operation, batch)
                elif operation.kind == OperationKind.DELIVERED:
                    delivered.setdefault(queue_id, []).append(operation)
                else:
                    acks.setdefault(queue_id, Ranges()).add(first, end)
        for queue_id, queue in self._truth.queues.items():
            for first, end in acks.get(queue_id, ()):
                queue.ready.remove(first, end - first)
                queue.next_sequence = max(queue.next_sequence, end)
            for one in delivered.get(queue_id, ()):
                _deliver(queue, one.first_sequence, one.message_count, one.detail)

    def _enqueue(self, queue: QueueTruth, operation: Operation, one: LogBatch) -> None:
        """Add messages that were enqueued after the checkpoint, or may have been."""
        run = enqueued(operation)
        boundary = self._boundary(queue, run, one)
        if self._lost_at and (one.segment.number, one.batch.start) >= self._lost_at:
            self._behind.setdefault(queue.id, Ranges()).add(run.first_sequence, run.end)
        if boundary is None:
            self._consider(queue, run, is_sure=one.segment.number >= self._complete_from)
        elif boundary < run.end:
            queue.put(_part(run, boundary, run.end))

    def _boundary(self, queue: QueueTruth, run: Run, one: LogBatch) -> int | None:
        """Return the first sequence of a run that the last checkpoint had not seen, if known."""
        if self._position is not None:
            return run.first_sequence if one.batch.lsn >= self._position.lsn else run.end
        head = self._heads.get(queue.id)
        return None if head is None else min(max(head, run.first_sequence), run.end)

    def _fill_holes_from_log(self) -> None:
        """Fill in lost entries of index files, as far as the log still has them."""
        if not (self._holes or self._is_index_lost):
            return
        for one in self._log:
            for operation in one.batch.possible_operations:
                if operation.kind != OperationKind.ENQUEUE:
                    continue
                self._explained.add(
                    operation.first_id, operation.first_id + operation.message_count
                )
                if queue := self._truth.queues.get(operation.queue_id):
                    run = enqueued(operation)
                    boundary = self._boundary(queue, run, one)
                    if boundary is not None and boundary > run.first_sequence:
                        self._fill(queue, _part(run, run.first_sequence, boundary), one)

    def _fill(self, queue: QueueTruth, run: Run, one: LogBatch) -> None:
        """Fill in messages from before the checkpoint: live ones are in an index file, if that is
        not lost.
        """
        queue.next_sequence = max(queue.next_sequence, run.end)
        is_sure = one.segment.number >= self._complete_from
        if self._is_index_lost:
            self._consider(queue, run, is_sure=is_sure)
            return
        for hole in self._holes.get(queue.id, ()):
            first, end = max(hole.first, run.first_sequence), min(hole.end, run.end)
            if first < end:
                acked = hole.acked
                if acked is not None:
                    acked = Bits(acked[first - hole.first : end - hole.first])
                self._consider(queue, _part(run, first, end), acked, is_sure=is_sure)
                for sequence in range(first, end) if hole.delivered else ():
                    _deliver(queue, sequence, 1, hole.times(sequence))

    def _fill_holes_by_order(self) -> None:
        """Fill in entries that no log has any more, by order: ids ascend as sequences do.

        If everything missing belongs to one queue, and there are as many live messages without a
        queue as missing places, each has its place. Expiry and priority are lost.
        """
        if self._is_index_lost or len(self._holes) != 1:
            return
        ((queue_id, holes),) = self._holes.items()
        queue = self._truth.queues[queue_id]
        places = []
        for hole in holes:
            if hole.acked is None:
                return
            places += [
                (hole.first + place, hole.times(hole.first + place))
                for place, is_acked in enumerate(hole.acked)
                if not is_acked and queue.ready.at(hole.first + place) is None
            ]
        held = self._held_counts()
        missing = [
            (message_id, references - held[message_id])
            for message_id, references in self._accounted.live()
            if references != held[message_id]
        ]
        if len(missing) != len(places) or any(short != 1 for _, short in missing):
            return
        for (sequence, times), (message_id, _) in zip(sorted(places), missing, strict=True):
            queue.put(Run(sequence, 1, first_id=message_id, delivery_count=times))
            self._explained.add(message_id, message_id + 1)
        name = queue_name(queue.definition) or f"#{queue_id}"
        if places:
            self._truth.notes.append(
                f"queue {name}: {len(places)} messages are placed in the order of "
                "their ids; their expiry times and priorities are no longer known"
            )

    def _note_short(self) -> None:
        """Note messages that more queues held than are known: nothing tells which queues."""
        if not self._is_index_whole:
            held = self._held_counts()
            for message_id, references in self._accounted.live():
                if references > held[message_id]:
                    self._short.add(message_id, message_id + 1)

    def _held_counts(self) -> Counter[int]:
        """Return how many queues hold each message, as of the last checkpoint."""
        held = Counter(self._held_elsewhere)
        for queue in self._truth.queues.values():
            for run in queue.ready:
                held.update(range(run.first_id, run.first_id + run.count))
        return held

    def _count_unsure(self) -> None:
        """Flag messages that may have been acked as redelivered."""
        for queue in self._truth.queues.values() if self._lost_at else ():
            behind = self._behind.get(queue.id, Ranges())
            unsure = self._unsure.setdefault(queue.id, Ranges())
            for run in queue.ready:
                for first, end in behind.missing(run.first_sequence, run.end):
                    unsure.add(first, end)
        for queue_id, unsure in self._unsure.items():
            queue = self._truth.queues[queue_id]
            for first, end in unsure:
                for run in queue.ready.remove(first, end - first):
                    queue.again += run.count
                    run.delivery_count = max(run.delivery_count, 1)
                    queue.ready.insert(run)

    # Consequences.

    def _number(self) -> None:
        truth = self._truth
        lsns = [batch.lsn for one in self._facts.segments.values() for batch in one.scanned.batches]
        start = self._position or START
        # One more: that of a torn tail was used as well.
        truth.next_lsn = max([start.lsn, *(lsn + 1 for lsn in lsns)]) + 1
        ends = [end for _, end in (*self._explained, *truth.homes.known)]
        if self._rows is not None:
            rows = tables.SEGMENTS.read(self._rows.__getitem__)
            ends += [row.end_id for row in rows.values()]
        truth.next_message_id = max([start.message_id, *ends])

    def _drop_lost(self) -> None:
        known = self._truth.homes.known
        for queue in self._truth.queues.values():
            for run in list(queue.ready):
                for first, end in known.missing(run.first_id, run.first_id + run.count):
                    sequence = run.first_sequence + first - run.first_id
                    queue.lost.append(Lost(sequence, first, end - first))
            for lost in queue.lost:
                queue.ready.remove(lost.first_sequence, lost.message_count)

    def _mend_prepared(self) -> None:
        """Fix prepared transactions: they publish the messages that are left, and stay
        undecided.
        """
        for queue_id, row in self._truth.prepared.items():
            ready = self._truth.queues[queue_id].ready
            groups = [part for group in row.publishes for part in _left_of(group, ready)]
            if groups != row.publishes:
                self._truth.prepared[queue_id] = row._replace(publishes=groups)
                self._truth.notes.append(
                    f"the prepared transaction of queue {queue_id} publishes what is left of it"
                )

    def _collect_orphans(self) -> None:
        orphans = self._truth.orphans
        for segment in self._facts.segments.values():
            if segment.is_compacted and self._is_index_whole and self._rows is not None:
                continue
            for run in segment.runs:
                for first, end in self._explained.missing(run.first_id, run.end_id):
                    for message_id in range(first, end):
                        if not self._is_done_with(message_id):
                            orphans.add(message_id, message_id + 1)
        for first, end in self._short:
            for start, stop in self._truth.homes.known.within(first, end):
                orphans.add(start, stop)
        if any(True for _ in orphans):
            queue = self._lost_and_found()
            for first, end in orphans:
                count = end - first
                queue.put(Run(queue.next_sequence, count, first_id=first, delivery_count=1))

    def _is_done_with(self, message_id: int) -> bool:
        if self._accounted.references(message_id) == 0:
            return True
        is_history = self._position is not None and message_id < self._position.message_id
        return is_history and self._is_index_whole

    def _lost_and_found(self) -> QueueTruth:
        """Return the queue for messages whose queue is unknown."""
        truth = self._truth
        vhosts = truth.vhosts
        if not vhosts:
            vhosts[DEFAULT_VHOST] = {}
        vhost = DEFAULT_VHOST if DEFAULT_VHOST in vhosts else min(vhosts)
        wanted = definition_of(vhost, LOST_AND_FOUND)
        for queue in truth.queues.values():
            found = queue.definition
            if isinstance(found, dict) and found.get("name") == LOST_AND_FOUND:
                truth.lost_and_found = queue.id
                return queue
        queue = QueueTruth(truth.next_queue_id, wanted)
        truth.next_queue_id += 1
        truth.queues[queue.id] = queue
        truth.lost_and_found = queue.id
        return queue

    def _say_what_is_uncertain(self) -> None:
        notes = self._truth.notes
        if self._lost_at:
            notes.append(
                "a part of the log is lost, and acks with it: messages that were in a queue "
                "before it may be delivered again, flagged redelivered"
            )
        elif any(queue.again for queue in self._truth.queues.values()):
            notes.append(
                "it is unknown which messages were acked before the last checkpoint: some may be "
                "delivered again, flagged redelivered"
            )
        if self._rows is None:
            copy = self._facts.copy
            notes.append(
                "the catalog is lost: definitions come from the copy made by a checkpoint; later "
                "ones are missing"
                if copy
                else "the catalog is lost and there is no copy of the definitions: queues are "
                "named after their ids; users, exchanges, bindings, permissions and policies are "
                "lost"
            )


def _left_of(group: Sequence[Any], ready: ReadyList) -> list[list[Any]]:
    """Return the existing parts of a group of messages that a prepared transaction publishes.

    If there is none, they were transient, or the transaction is decided: the group is unchanged.
    """
    first, count, priority, placements = group
    there = Ranges()
    for run in ready.between(first, first + count):
        there.add(run.first_sequence, run.end)
    parts = []
    for start, end in there.within(first, first + count):
        skipped = start - first
        placed = [
            [queue_id, expires_ms, None if most is None else most - skipped]
            for queue_id, expires_ms, most in placements
            if most is None or most > skipped
        ]
        parts.append([start, end - start, priority, placed])
    is_whole = sum(part[1] for part in parts) in (0, count)
    return [list(group)] if is_whole else parts


def _part(run: Run, first: int, end: int) -> Run:
    """Return a run's messages from sequence `first` to before `end`."""
    return Run(
        first,
        end - first,
        first_id=run.first_id + first - run.first_sequence,
        delivery_count=run.delivery_count,
        expires_ms=run.expires_ms,
        priority=run.priority,
    )


def _deliver(queue: QueueTruth, first: int, count: int, times: int) -> None:
    """Set a lower bound for how often messages have been delivered."""
    for run in queue.ready.remove(first, count):
        run.delivery_count = max(run.delivery_count, times)
        queue.ready.insert(run)


def _blocks(image: IndexImage | None, size: int | None) -> Iterator[Entries | None]:
    """Yield the blocks of an index file up to `size`, and None for lost ones."""
    if image is None:
        yield None
        return
    was_lost = False
    for found in image.blocks(size):
        is_lost = isinstance(found, Gap) or found[1] != image.queue_id or not _ascend(found[2])
        if is_lost:
            if not was_lost:
                yield None
        elif not isinstance(found, Gap):
            yield found[2]
        was_lost = is_lost
    if size is not None and image.size is not None and image.size < size and not was_lost:
        yield None


def _ascend(entries: Entries) -> bool:
    return bool(entries.ids) and all(
        not any(map(int.__ge__, column, column[1:])) for column in (entries.sequences, entries.ids)
    )


def _places(blocks: Iterable[Entries | None], total: int) -> list[tuple[int, Entries | None]]:
    """Return each block with the place of its first entry in the file; -1 if unknown."""
    found = list(blocks)
    placed: list[tuple[int, Entries | None]] = [(-1, block) for block in found]
    place = 0
    for at, block in enumerate(found):
        if block is None:
            break
        placed[at] = place, block
        place += len(block.ids)
    place = total
    for at in range(len(found) - 1, -1, -1):
        block = found[at]
        if block is None or placed[at][0] >= 0:
            break
        place -= len(block.ids)
        placed[at] = place, block
    if place < 0 or (None not in found and place != total):
        return [(-1, block) for block in found]
    return placed


def _queue_ids(keys: Iterable[str]) -> Iterator[int]:
    """Yield the queues that keys of damaged rows name; keys of another form name none."""
    for key in keys:
        with contextlib.suppress(ValueError):
            yield tables.QUEUES.parse_key(key)
