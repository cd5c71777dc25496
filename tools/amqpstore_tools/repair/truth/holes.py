"""Fills in entries that index files have lost: from the log, or by the order of ids."""

from __future__ import annotations

from collections.abc import Iterable

from amqpstore.checkpoints.checkpoint_state import enqueued
from amqpstore.format.index import Bits
from amqpstore.format.records import OperationKind
from amqpstore.format.runs import Run
from amqpstore_tools.check.store import queue_name
from amqpstore_tools.repair.facts import LogBatch
from amqpstore_tools.repair.ranges import Ranges
from amqpstore_tools.repair.truth.indexed import Indexed
from amqpstore_tools.repair.truth.logged import acked_in
from amqpstore_tools.repair.truth.trust import Trust
from amqpstore_tools.repair.truth.values import Placements, QueueTruth, run_slice


def fill_from_log(trust: Trust, placements: Placements, indexed: Indexed) -> None:
    """Fill in lost entries of index files, as far as the log still has them."""
    if not (indexed.holes or trust.is_index_lost):
        return
    for one in trust.log:
        for operation in one.batch.possible_operations:
            if operation.kind != OperationKind.ENQUEUE:
                continue
            stop = operation.first_id + operation.message_count
            placements.explained.add(operation.first_id, stop)
            if queue := placements.queues.get(operation.queue_id):
                run = enqueued(operation)
                boundary = trust.boundary(operation.queue_id, run, one)
                if boundary is not None and boundary > run.first_sequence:
                    known = run_slice(run, run.first_sequence, boundary)
                    _fill(trust, placements, indexed, queue, known, one)


def _fill(
    trust: Trust,
    placements: Placements,
    indexed: Indexed,
    queue: QueueTruth,
    run: Run,
    batch: LogBatch,
) -> None:
    """Fill in messages from before the checkpoint: live ones are in an index file, if that is
    not lost.
    """
    queue.next_sequence = max(queue.next_sequence, run.end)
    is_sure = batch.segment.number >= trust.complete_from
    if trust.is_index_lost:
        placements.consider(queue, run, is_sure=is_sure)
        return
    for hole in indexed.holes.get(queue.id, ()):
        first, end = max(hole.first, run.first_sequence), min(hole.end, run.end)
        if first < end:
            acked = hole.acked
            if acked is not None:
                acked = Bits(acked[first - hole.first : end - hole.first])
            placements.consider(queue, run_slice(run, first, end), acked, is_sure=is_sure)
            for sequence in range(first, end) if hole.delivered else ():
                queue.deliver(sequence, 1, hole.times(sequence))


def fill_by_order(trust: Trust, placements: Placements, indexed: Indexed) -> list[str]:
    """Fill in entries that no log has any more, by order: ids ascend as sequences do.

    If everything missing belongs to one queue, and there are as many live messages without a
    queue as missing places, each has its place. Expiry and priority are lost. Returns notes.
    """
    if trust.is_index_lost or len(indexed.holes) != 1:
        return []
    ((queue_id, holes),) = indexed.holes.items()
    queue = placements.queues[queue_id]
    indexes = []
    for hole in holes:
        if hole.acked is None:
            return []
        indexes += [
            (hole.first + index, hole.times(hole.first + index))
            for index, is_acked in enumerate(hole.acked)
            if not is_acked and queue.ready.at(hole.first + index) is None
        ]
    held = placements.holders(indexed.elsewhere)
    missing = [
        (message_id, references - held[message_id])
        for message_id, references in trust.accounted.live()
        if references != held[message_id]
    ]
    if len(missing) != len(indexes) or any(short != 1 for _, short in missing):
        return []
    for (sequence, times), (message_id, _) in zip(sorted(indexes), missing, strict=True):
        queue.put(Run(sequence, 1, first_id=message_id, delivery_count=times))
        placements.explained.add(message_id, message_id + 1)
    name = queue_name(queue.definition) or f"#{queue_id}"
    if not indexes:
        return []
    note = (
        f"queue {name}: {len(indexes)} messages are placed in the order of their ids; their expiry "
        "times and priorities are no longer known"
    )
    return [note]


def short_of(trust: Trust, placements: Placements, indexed: Indexed) -> Ranges:
    """Return messages that more queues held than are known: nothing tells which queues."""
    short = Ranges()
    if not (trust.is_index_whole and indexed.is_whole):
        held = placements.holders(indexed.elsewhere)
        for message_id, references in trust.accounted.live():
            if references > held[message_id]:
                short.add(message_id, message_id + 1)
    return short


def count_absent(trust: Trust, placements: Placements, indexed: Indexed) -> dict[int, int]:
    """Count, by queue, live messages that rows of index files know and that nothing else does.

    Which of them were acked since is not known: a message counts only if no ack in the log can be
    of it.
    """
    absent: dict[int, int] = {}
    acked = acked_in(trust) if indexed.damaged else {}
    for queue_id, states in indexed.damaged.items():
        there = Ranges()
        for run in placements.queues[queue_id].ready:
            there.add(run.first_sequence, run.end)
        for state in states:
            first, end = state.first, state.end
            known = _sum(there.within(first, end))
            for start, stop in acked.get(queue_id, Ranges()).within(first, end):
                known += _sum(there.missing(start, stop))
            known += sum(stop - start for start, stop in state.postponed)
            missing = max(state.entries - state.acked_count - known, 0)
            absent[queue_id] = absent.get(queue_id, 0) + missing
    return absent


def _sum(ranges: Iterable[tuple[int, int]]) -> int:
    return sum(end - first for first, end in ranges)
