"""View `findings`: what is wrong in one segment, by the codes of `amqpstore check`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from amqpstore.filenames import FIRST_COMPACTED
from amqpstore.log import FORMAT_VERSION
from amqpstore.records import SEGMENT_PAYLOAD
from tools.spark.live import LiveRuns
from tools.spark.messages import QueueName, stretches
from tools.spark.scanning import Batch, Scanner

_MOST_LISTED = 1000
"""Findings of one code in one segment that are listed one by one."""


def segment_findings(
    scanner: Scanner,
    name: str,
    number: int,
    live: LiveRuns,
    names: Mapping[int, QueueName],
    store_id: bytes | None,
) -> Iterator[tuple[Any, ...]]:
    """Rows of the view. Args: name, of the segment's file in the store. Raises: OSError."""
    next_id = 0
    is_log = number < FIRST_COMPACTED
    before = 0
    for batch in scanner.batches():
        damaged = len(scanner.gaps) > before
        before = len(scanner.gaps)
        if is_log and not batch.lsn and batch.ids:
            yield from _orphans(batch, live, name, is_damaged=damaged)
        if batch.ids:
            yield from _lost(batch, live, names, (next_id, batch.ids[-1] + 1), name)
            next_id = batch.ids[-1] + 1
    if next_id < live.end_id:
        yield from _lost(Batch(), live, names, (next_id, live.end_id), name)
    yield from _header(scanner, name, number, store_id)
    for gap in scanner.gaps[:_MOST_LISTED]:
        text = f"{gap.end - gap.offset} bytes are no record: {gap.reason}"
        yield "record-damaged", name, gap.offset, gap.end, text, None, None
    if rest := scanner.gaps[_MOST_LISTED:]:
        size = sum(gap.end - gap.offset for gap in rest)
        text = f"{size} bytes in {len(rest)} more places are no records"
        yield "record-damaged", name, rest[0].offset, rest[-1].end, text, None, None
    for offset, message_id, reason, is_body in scanner.unread:
        code = "body-damaged" if is_body else "message-malformed"
        yield code, name, offset, None, reason, None, message_id


def _orphans(
    batch: Batch, live: LiveRuns, name: str, *, is_damaged: bool
) -> Iterator[tuple[Any, ...]]:
    """Messages of a batch that has no TRANSACTION, and that no queue holds for all that."""
    lost = [
        (start, end)
        for start, end, count in live.held(batch.ids[0], batch.ids[-1] + 1)
        if not count
    ]
    if not lost:
        return
    first, end = lost[0][0], lost[-1][1]
    text = f"messages {first} to {end - 1} are sound, and what put them in queues is not there"
    code = "message-orphaned" if is_damaged else "batch-broken"
    yield code, name, batch.offsets[0], None, text, None, first


def _lost(
    batch: Batch,
    live: LiveRuns,
    names: Mapping[int, QueueName],
    bounds: tuple[int, int],
    name: str,
) -> Iterator[tuple[Any, ...]]:
    for one in stretches(batch, live, names, bounds, is_log=True):
        if one.start < 0 and one.queue_id is not None:
            last = one.first_id + one.size - 1
            queue = names.get(one.queue_id, QueueName(None, None)).queue
            text = (
                f"queue {queue or one.queue_id} holds messages {one.first_id} to {last}, and no "
                "sound record of them is there"
            )
            yield "message-lost", name, None, None, text, one.queue_id, one.first_id


def _header(
    scanner: Scanner, name: str, number: int, store_id: bytes | None
) -> Iterator[tuple[Any, ...]]:
    if scanner.header is None or scanner.header[0]:
        text = "it does not begin with its SEGMENT record"
        yield "segment-header", name, 0, None, text, None, None
        return
    payload = scanner.header[1]
    if len(payload) != SEGMENT_PAYLOAD.size:
        yield "segment-header", name, 0, None, "its SEGMENT record is none", None, None
        return
    version, of, _ = SEGMENT_PAYLOAD.unpack(payload)
    if version != FORMAT_VERSION:
        text = f"its format version is {version}"
        yield "segment-header", name, 0, None, text, None, None
    elif store_id not in (None, of):
        text = f"segment {number} is of another store, {uuid.UUID(bytes=of)}"
        yield "store-id-differs", name, 0, None, text, None, None
