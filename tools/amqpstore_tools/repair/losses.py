"""Finds where TRANSACTIONs are lost in the log behind the last checkpoint, and acks with them."""

from __future__ import annotations

from collections.abc import Sequence

from amqpstore.catalog import tables
from amqpstore.system.filenames import is_compacted
from amqpstore_tools.repair.facts import Facts, SegmentFacts

SegmentOffset = tuple[int, int]
"""A segment's number, and an offset in it."""


def last_loss(facts: Facts, start: SegmentOffset) -> SegmentOffset | None:
    """Return the last place in the log where a TRANSACTION is missing; None if there is none.

    Messages that were in a queue by then may have been acked there.
    Args: start, of the part to check.
    """
    read = [_best(files) for number, files in facts.log_files() if number >= start[0]]
    ends = tables.SEGMENT_ENDS.read(facts.rows.__getitem__) if facts.rows is not None else {}
    wanted = start[0]
    loss: SegmentOffset | None = None
    lsn = 0
    for segment in read:
        if segment.number != wanted and wanted:
            loss = segment.number, 0
            lsn = 0
        for batch in segment.scanned.batches:
            if (segment.number, batch.end) <= start:
                continue
            if not batch.lsn:
                loss = segment.number, batch.end
            elif lsn and batch.lsn != lsn + 1:
                loss = segment.number, batch.start
            lsn = batch.lsn or lsn
        noted = ends.get(segment.number)
        if _is_cut(segment, noted.end if noted else None):
            loss = segment.number, segment.size
        if noted:
            # After a crash, the LSN of the torn batch may have been left out.
            lsn = 0
        wanted = segment.number + 1
    known = {*ends, *(one for one in facts.replaced if not is_compacted(one))}
    if wanted <= max([start[0], *(one for one in known if one < wanted + 1024)]):
        loss = wanted, 0
    return loss


def _best(files: Sequence[SegmentFacts]) -> SegmentFacts:
    """Return the file of a segment that has most of it."""
    return max(files, key=lambda one: (one.is_sound, len(one.scanned.batches), -one.size))


def _is_cut(segment: SegmentFacts, noted: int | None) -> bool:
    """Tell whether the file ends before it should, or nothing of it is left."""
    if noted is not None and segment.end < noted:
        return True
    return not segment.scanned.batches and bool(segment.scanned.gaps)
