"""Durable batches and messages missing in the log, as findings: see `amqpstore.evidence`."""

from __future__ import annotations

from collections.abc import Iterable

from amqpstore.catalog import tables
from amqpstore.catalog.shapes import Rows
from amqpstore.catalog.tables import START, Position, StoreRows
from amqpstore.evidence import ReadLog, Shortfall, find_shortfall
from amqpstore.evidence.present_numbers import PresentNumbers
from amqpstore.format.records import Operation
from amqpstore.system.files import Files
from amqpstore_tools.check.findings import Findings
from amqpstore_tools.check.jobs import Summary


def read_log(
    rows: Rows | None, summaries: Iterable[Summary], operations: Iterable[Operation]
) -> ReadLog:
    """Return what the log has. Args: rows, None without a catalog; summaries of its segments, and
    operations of its batches behind the last checkpoint.
    """
    lsns, ids = PresentNumbers(), PresentNumbers()
    sequences: dict[int, int] = {}
    position = None
    if rows is not None:
        position = StoreRows.read(rows.__getitem__).position or START
        heads = tables.NEXT_SEQUENCES.read(rows.__getitem__)
        for queue_id in tables.QUEUES.read_keys(rows.__getitem__):
            sequences[queue_id] = heads[queue_id].next_sequence if queue_id in heads else 1
    at_checkpoint = dict(sequences)
    for summary in summaries:
        for there, ranges in ((lsns, summary.lsns), (ids, summary.ids)):
            for first, end in ranges:
                there.add_range(first, end)
        for queue_id, sequence in summary.history.next_sequences.items():
            if queue_id in sequences:
                sequences[queue_id] = max(sequences[queue_id], sequence)
    if position is None:
        # Without the catalog it is not known what came before, and may have been removed.
        first_lsn = lsns.ranges[0][0] if lsns.ranges else 1 << 62
        position = Position(0, 0, first_lsn, ids.ranges[0][0] if ids.ranges else 1 << 62)
    return ReadLog(position, lsns, ids, sequences, at_checkpoint, operations)


def check_shortfall(
    files: Files, directory: str, seed: int, log: ReadLog, file: str, findings: Findings
) -> Shortfall:
    """Report what the log lacks, and return it. Args: file, the last one of the log."""
    found = find_shortfall(files, directory, seed, log)
    if found:
        of_queues = {queue: one.messages - one.settled for queue, one in found.queues.items()}
        rest = max(found.lost - sum(of_queues.values()), 0)
        findings.add("log-short", file, found.text, messages=rest)
        for queue_id, count in of_queues.items():
            end = found.queues[queue_id].end
            text = f"it had messages up to sequence {end - 1}: at least {count} of them are missing"
            sequence = log.next_sequences[queue_id]
            findings.add(
                "log-short", file, text, queue_id=queue_id, sequence=sequence, messages=count
            )
    return found
