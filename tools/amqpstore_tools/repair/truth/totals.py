"""The consequences: numbers that were used, messages that are lost or may come again, and those
without a queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amqpstore.catalog import tables
from amqpstore.catalog.tables import START, Position
from amqpstore.evidence import ReadLog, Shortfall, find_shortfall
from amqpstore.evidence.newer_segments import noted_newer
from amqpstore.evidence.present_numbers import PresentNumbers
from amqpstore.format.runs import ReadyList, Run
from amqpstore_tools.repair.facts import Facts
from amqpstore_tools.repair.names import DEFAULT_VHOST, LOST_AND_FOUND, definition_of
from amqpstore_tools.repair.ranges import Ranges
from amqpstore_tools.repair.truth.trust import Trust
from amqpstore_tools.repair.truth.values import Lost, Placements, QueueTruth, Truth


def number(facts: Facts, trust: Trust, placements: Placements, truth: Truth) -> None:
    """Find the lowest LSN and message id that were never used."""
    lsns = [batch.lsn for one in facts.segments for batch in one.scanned.batches]
    start = trust.position or START
    # One more: that of a torn tail was used as well.
    truth.next_lsn = max([start.lsn, *(lsn + 1 for lsn in lsns)]) + 1
    ends = [end for _, end in (*placements.explained, *truth.homes.known)]
    if facts.rows is not None:
        rows = tables.SEGMENTS.read(facts.rows.__getitem__)
        ends += [row.end_id for row in rows.values()]
    truth.next_message_id = max([start.message_id, *ends])
    truth.shortfall = found = _shortfall(facts, trust, truth)
    # No number of what is missing is given again, and nothing is missing behind them.
    truth.next_lsn = max(truth.next_lsn, found.lsn)
    truth.next_message_id = max(truth.next_message_id, found.message_id)
    for queue_id, missing in found.queues.items():
        queue = truth.queues[queue_id]
        queue.next_sequence = max(queue.next_sequence, missing.end)


def _shortfall(facts: Facts, trust: Trust, truth: Truth) -> Shortfall:
    """Return what was durable and is missing in the log, in whatever files it was looked for.
    While a broker writes the log, the notes may be ahead of what was read: then nothing is.
    """
    if facts.is_live:
        return Shortfall()
    batches = [one.batch for one in trust.log]
    lsns, ids = PresentNumbers(), PresentNumbers()
    for batch in batches:
        lsns.add(batch.lsn)
    enqueued = (one for batch in batches for one in batch.enqueued)
    for first, end in sorted([*truth.homes.known, *enqueued]):
        ids.add_range(first, end)
    position = trust.position
    if position is None:
        # It is not known what came before, and may have been removed.
        first_id = ids.ranges[0][0] if ids.ranges else 1 << 62
        position = Position(0, 0, lsns.ranges[0][0] if lsns.ranges else 1 << 62, first_id)
    sequences = {queue.id: queue.next_sequence for queue in truth.queues.values()}
    behind = [batch for batch in batches if batch.lsn >= position.lsn]
    operations = (one for batch in behind for one in batch.operations)
    heads = {queue_id: head for queue_id in sequences if (head := trust.head(queue_id))}
    log = ReadLog(position, lsns, ids, sequences, heads, operations)
    return find_shortfall(facts.files, facts.directory, facts.seed, log)


def drop_lost(truth: Truth) -> None:
    """Remove messages without a sound record from their queues, and count them."""
    known = truth.homes.known
    for queue in truth.queues.values():
        for run in list(queue.ready):
            for first, end in known.missing(run.first_id, run.first_id + run.count):
                sequence = run.first_sequence + first - run.first_id
                queue.lost.append(Lost(sequence, first, end - first))
        for lost in queue.lost:
            queue.ready.remove(lost.first_sequence, lost.message_count)


def count_unsure(
    trust: Trust, placements: Placements, truth: Truth, behind: dict[int, Ranges]
) -> None:
    """Flag messages that may have been acked as redelivered.

    Args: behind, by queue, what was enqueued behind the last place where acks are lost.
    """
    for queue in truth.queues.values() if trust.lost_at else ():
        unsure = placements.unsure.setdefault(queue.id, Ranges())
        for run in queue.ready:
            enqueued = behind.get(queue.id, Ranges())
            for first, end in enqueued.missing(run.first_sequence, run.end):
                unsure.add(first, end)
    for queue_id, unsure in placements.unsure.items():
        queue = truth.queues[queue_id]
        for first, end in unsure:
            for run in queue.ready.remove(first, end - first):
                queue.again += run.count
                run.delivery_count = max(run.delivery_count, 1)
                queue.ready.insert(run)


def mend_prepared(truth: Truth) -> None:
    """Fix prepared transactions: they publish the messages that are left, and stay undecided."""
    for queue_id, row in truth.prepared.items():
        ready = truth.queues[queue_id].ready
        groups = [part for group in row.publishes for part in _left_of(group, ready)]
        if groups != row.publishes:
            truth.prepared[queue_id] = row._replace(publishes=groups)
            truth.notes.append(
                f"the prepared transaction of queue {queue_id} publishes what is left of it"
            )


def collect_orphans(
    facts: Facts,
    trust: Trust,
    placements: Placements,
    truth: Truth,
    short: Ranges,
    *,
    is_index_whole: bool,
) -> None:
    """Put messages whose queue is unknown into a queue of their own.

    Args: short, ids of messages that more queues held than are known; is_index_whole, whether no
    entry is lost that the last checkpoint knew.
    """
    orphans = truth.orphans
    quarantine = tables.QUARANTINE.read(facts.table)
    newer = noted_newer(facts.files, facts.directory, quarantine, facts.seed)
    for segment in facts.segments:
        # A start has noted it: no checkpoint, not the last one either, has known what is there.
        noted = newer.get(segment.number)
        noted_ids = range(noted.first_id, noted.last_id + 1) if noted else range(0)
        for run in segment.runs:
            for first, end in placements.explained.missing(run.first_id, run.end_id):
                for message_id in range(first, end):
                    if message_id in noted_ids or not _is_done_with(
                        trust, message_id, is_index_whole=is_index_whole
                    ):
                        orphans.add(message_id, message_id + 1)
    for first, end in short:
        for start, stop in truth.homes.known.within(first, end):
            orphans.add(start, stop)
    if any(True for _ in orphans):
        queue = _lost_and_found(truth)
        for first, end in orphans:
            count = end - first
            # Flagged as redelivered: nothing tells whether it was delivered, or acked.
            queue.put(Run(queue.next_sequence, count, first_id=first, delivery_count=1))


def count_absent(truth: Truth, absent: dict[int, int]) -> None:
    """Note how many messages are lost without a trace: those may be among the ones without a queue.

    Args: absent, by queue, how many are known of that are not there.
    """
    found = sum(end - first for first, end in truth.orphans)
    for queue_id, count in absent.items():
        truth.queues[queue_id].absent = max(count - found, 0)
        found = max(found - count, 0)


def _is_done_with(trust: Trust, message_id: int, *, is_index_whole: bool) -> bool:
    if trust.accounted.references(message_id) == 0:
        return True
    is_history = trust.position is not None and message_id < trust.position.message_id
    was_seen = is_history and message_id not in trust.passed_over.message_ids
    return was_seen and is_index_whole


def _lost_and_found(truth: Truth) -> QueueTruth:
    """Return the queue for messages whose queue is unknown."""
    vhosts = truth.vhosts
    if not vhosts:
        vhosts[DEFAULT_VHOST] = {}
    vhost = DEFAULT_VHOST if DEFAULT_VHOST in vhosts else min(vhosts)
    wanted = definition_of(vhost, LOST_AND_FOUND)
    for queue in truth.queues.values():
        found = queue.definition
        if isinstance(found, dict) and found.get("name") == LOST_AND_FOUND:
            return queue
    queue = QueueTruth(truth.next_queue_id, wanted)
    truth.next_queue_id += 1
    truth.queues[queue.id] = queue
    return queue


def say_what_is_uncertain(facts: Facts, trust: Trust, truth: Truth) -> None:
    """Add notes on what no source tells."""
    notes = truth.notes
    if truth.shortfall:
        truth.is_log_lost = True
        notes.append(truth.shortfall.text)
    if trust.lost_at:
        truth.is_log_lost = True
        notes.append(
            "a part of the log is lost, and acks with it: messages that were in a queue "
            "before it may be delivered again, flagged redelivered"
        )
    elif any(queue.again for queue in truth.queues.values()):
        notes.append(
            "it is unknown which messages were acked before the last checkpoint: some may be "
            "delivered again, flagged redelivered"
        )
    if facts.is_salvaged:
        lacking = ", ".join(sorted(table for table, _ in facts.damaged_rows))
        notes.append(
            "the catalog is damaged: what its sound pages have is used"
            + (f"; these tables may lack rows: {lacking}" if lacking else "")
        )
    if facts.rows is None:
        notes.append(
            "the catalog is lost: definitions come from the copy made by a checkpoint; later "
            "ones are missing"
            if facts.copy
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
