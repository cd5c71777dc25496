"""The log as a whole: what its batches say of queues, sequences and messages.

Batches before the position of the last checkpoint are history: their outcome is in the catalog, and
only their order is checked. A start reads the batches after it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from amqpstore.catalog import tables
from amqpstore.catalog.shapes import Rows
from amqpstore.catalog.tables import START, StoreRows
from amqpstore.format.records import Operation, OperationKind
from amqpstore_tools.check.catalog import FILE
from amqpstore_tools.check.findings import Findings
from amqpstore_tools.check.scanning import ScannedBatch
from amqpstore_tools.check.segments import CheckedSegment


@dataclass(slots=True)
class Fresh:
    """Messages that a batch after the checkpoint position put in a queue."""

    segment: CheckedSegment
    operation: Operation


@dataclass
class LogHistory:
    """The result of reading the log. `next_sequences` are by queue id; `fresh` runs were enqueued
    after the checkpoint position, `removed` are the ranges of sequences that left their queue after
    it, by queue, ascending and disjoint.
    """

    next_sequences: dict[int, int] = field(default_factory=dict)
    fresh: list[Fresh] = field(default_factory=list)
    removed: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    highest_queue_id: int = 0

    def remove(self, queue_id: int, first: int, end: int) -> None:
        """Note that messages left their queue, some of them perhaps before."""
        ranges = self.removed.setdefault(queue_id, [])
        low = bisect_left(ranges, first, key=itemgetter(1))
        high = bisect_right(ranges, end, key=itemgetter(0))
        if low < high:
            first, end = min(first, ranges[low][0]), max(end, ranges[high - 1][1])
        ranges[low:high] = [(first, end)]

    def operations(self) -> Iterator[Operation]:
        """Yield what put messages in queues and took them from there, in any order."""
        yield from (one.operation for one in self.fresh)
        for queue_id, ranges in self.removed.items():
            for first, end in ranges:
                yield Operation(OperationKind.ACK, end - first, queue_id, first)

    def removed_of(self, queue_id: int, first: int, end: int) -> int:
        """Return how many of a range of sequences left their queue after the checkpoint
        position.
        """
        ranges = self.removed.get(queue_id, ())
        index = bisect_right(ranges, first, key=itemgetter(1))
        count = 0
        while index < len(ranges) and ranges[index][0] < end:
            count += min(end, ranges[index][1]) - max(first, ranges[index][0])
            index += 1
        return count


class LogState(NamedTuple):
    """The state before a place in the log: the highest LSN and id, whether any of it `is_behind`
    the checkpoint position, and the next sequence of queues by id.
    """

    lsn: int
    message_id: int
    is_behind: bool
    next_sequences: dict[int, int]


class LogChecker:
    """Checks the log's segments in their order.

    Args: rows, None without a catalog: then all of the log is history.
    """

    def __init__(self, rows: Rows | None, findings: Findings) -> None:
        self._findings = findings
        self._rows = rows
        self._heads: dict[int, int] = {}
        self._next_queue_id: int | None = None
        self._position = START
        if rows is not None:
            for queue_id, head in tables.NEXT_SEQUENCES.read(rows.__getitem__).items():
                self._heads[queue_id] = head.next_sequence
            of_store = StoreRows.read(rows.__getitem__)
            self._next_queue_id = of_store.next_queue_id
            self._position = of_store.position or START
        self._lsn = 0
        self._message_id = 0
        self._is_behind = False
        self.history = LogHistory()

    def resume(self, state: LogState) -> None:
        """Continue at another place in the log, with an empty history."""
        self._lsn, self._message_id, self._is_behind = state[:3]
        self.history = LogHistory(dict(state.next_sequences))

    def begin(self, findings: Findings) -> None:
        """Continue with the next segment, with new findings and an empty history."""
        self._findings = findings
        self.history = LogHistory(self.history.next_sequences)

    def state(self) -> LogState:
        """Return the current state."""
        return LogState(self._lsn, self._message_id, self._is_behind, self.history.next_sequences)

    def joined(self, before: LogState, after: LogState) -> LogState:
        """Combine the state before a place with the result of a segment that was checked without
        that state.
        """
        known = dict(before.next_sequences)
        for queue_id, sequence in after.next_sequences.items():
            known[queue_id] = max(sequence, known.get(queue_id, 0))
        if after.is_behind and not before.is_behind:
            # From the checkpoint position on the catalog has the next sequences, whatever came
            # before.
            known |= {queue_id: after.next_sequences[queue_id] for queue_id in self._heads}
        return LogState(
            max(before.lsn, after.lsn),
            max(before.message_id, after.message_id),
            before.is_behind or after.is_behind,
            known,
        )

    def check(self, segment: CheckedSegment) -> None:
        """Check the next segment of the log."""
        lsn = 0
        for batch in segment.scanned.batches:
            is_behind = (segment.number, batch.start) >= self._position[:2]
            # Segments before the position may be gone, and with them what they said of a queue.
            if is_behind and not self._is_behind:
                self._is_behind = True
                self.history.next_sequences |= self._heads
            self._check_batch(segment, batch, is_behind=is_behind)
            if batch.lsn:
                # What is missing in a gap is a finding already.
                if lsn and batch.lsn != lsn + 1 and not segment.scanned.gaps:
                    self._add("log-order", segment, batch, f"LSN {lsn} is followed by {batch.lsn}")
                lsn = batch.lsn
            elif batch.malformed:
                # It has a number that the segment's findings do not change.
                lsn = 0
            self._check_numbers(segment, batch, is_behind=is_behind)
            self._check_operations(segment, batch, is_behind=is_behind)

    def _add(
        self, code: str, segment: CheckedSegment, batch: ScannedBatch, text: str, queue_id: int = 0
    ) -> None:
        offset = batch.transaction or batch.start
        self._findings.add(code, segment.name, text, offset, queue_id=queue_id)

    def _check_batch(
        self, segment: CheckedSegment, batch: ScannedBatch, *, is_behind: bool
    ) -> None:
        """Check that a batch is complete and consistent."""
        if batch.gaps:
            # Missing parts of it were found there.
            if is_behind and not batch.lsn:
                for first, end in batch.messages:
                    text = f"messages {first} to {end - 1} are sound, but their TRANSACTION is not:"
                    self._findings.add(
                        "message-orphaned",
                        segment.name,
                        f"{text} the queues that held them are not known",
                        batch.start,
                        message_id=first,
                        messages=end - first,
                    )
            return
        if batch.malformed:
            self._add("operation-malformed", segment, batch, batch.malformed)
            return
        if not batch.lsn and not batch.messages:
            text = "its records are neither messages nor a TRANSACTION"
            self._add("batch-broken", segment, batch, text)
            return
        if not batch.lsn:
            first, end = batch.messages[0][0], batch.messages[-1][1]
            text = f"messages {first} to {end - 1} have no TRANSACTION: their queues are unknown"
            self._add("batch-broken", segment, batch, text)
            return
        if batch.tag != batch.lsn & 0xFFFF:
            text = f"batch {batch.lsn} has records that name batch {batch.tag}"
            self._add("batch-broken", segment, batch, text)
        enqueued = batch.enqueued
        if enqueued != batch.messages:
            text = (
                f"it enqueues messages {_ranges(enqueued)}, but contains {_ranges(batch.messages)}"
            )
            self._add("batch-broken", segment, batch, text)
        elif reason := batch.contradiction:
            self._add("operation-malformed", segment, batch, reason)
        keys = [(one.kind, one.queue_id) for one in batch.operations]
        if keys != sorted(keys):
            self._add("operation-malformed", segment, batch, "the operations are not in order")

    def _check_numbers(
        self, segment: CheckedSegment, batch: ScannedBatch, *, is_behind: bool
    ) -> None:
        """Check that LSNs and ids ascend from segment to segment, and that the checkpoint position
        is between two batches.
        """
        if batch.lsn:
            if batch.lsn <= self._lsn:
                text = f"LSN {batch.lsn} is behind {self._lsn}"
                self._add("log-order", segment, batch, text)
            self._lsn = max(self._lsn, batch.lsn)
        for first, end in batch.messages:
            if first <= self._message_id:
                text = f"message {first} is behind message {self._message_id}"
                self._add("log-order", segment, batch, text)
            self._message_id = max(self._message_id, end - 1)
        # Without a checkpoint, all of the log is behind it.
        if self._position == START:
            return
        _, _, lsn, message_id = self._position
        ids = [one for first, end in batch.messages for one in (first, end - 1)]
        wrong = ""
        if batch.lsn and (batch.lsn >= lsn) != is_behind:
            wrong = f"LSN {batch.lsn} is {_side(is_behind)} it, and its LSN is {lsn}"
        elif any((one >= message_id) != is_behind for one in ids):
            wrong = f"messages {ids[0]} to {ids[-1]} are {_side(is_behind)} it, and its message"
            wrong += f" id is {message_id}"
        if wrong:
            text = f"the position in segment {self._position.segment}: {wrong}"
            self._findings.add("position-wrong", FILE, text)

    def _check_operations(
        self, segment: CheckedSegment, batch: ScannedBatch, *, is_behind: bool
    ) -> None:
        history, heads = self.history, self._heads
        next_sequences, next_queue_id = history.next_sequences, self._next_queue_id
        enqueue, delivered = OperationKind.ENQUEUE, OperationKind.DELIVERED
        highest = history.highest_queue_id
        for operation in batch.operations:
            kind, count, queue_id, first, _, _, _ = operation
            end = first + count
            if queue_id > highest:
                highest = queue_id
            if next_queue_id is not None and queue_id >= next_queue_id:
                text = f"an operation names queue {queue_id}, but ids have been assigned only below"
                text = f"{text} {next_queue_id}"
                self._add("operation-queue-unknown", segment, batch, text, queue_id)
            known = next_sequences.get(queue_id)
            if kind == enqueue:
                if known is not None and first < known:
                    text = f"sequence {first} is assigned twice: {known} was next"
                    self._add("sequence-reused", segment, batch, text, queue_id)
                next_sequences[queue_id] = end if known is None or end > known else known
                if is_behind:
                    history.fresh.append(Fresh(segment, operation))
            else:
                if is_behind and known is not None and end > known and not segment.scanned.gaps:
                    text = f"sequence {end - 1} has left the queue or was delivered, but {known}"
                    text = f"{text} is next"
                    self._add("operation-sequence-unknown", segment, batch, text, queue_id)
                if is_behind and kind != delivered:
                    history.remove(queue_id, first, end)
            head = heads.get(queue_id)
            if head is not None and not is_behind and end > head:
                text = (
                    f"queue {queue_id}: sequence {end - 1} was given, but {head} is noted as the "
                    "next one"
                )
                self._findings.add("head-too-low", FILE, text, queue_id=queue_id, sequence=end - 1)
        history.highest_queue_id = highest


def check_position(rows: Rows, segments: dict[int, CheckedSegment], findings: Findings) -> None:
    """Check that the checkpoint position is between two batches of an existing segment."""
    position = StoreRows.read(rows.__getitem__).position
    if not position or not position.segment:
        return
    segment = segments.get(position.segment)
    if segment is None:
        return  # It is missing, and that was found.
    offset = position.offset
    boundaries = {0, segment.end}
    boundaries |= {index for batch in segment.scanned.batches for index in (batch.start, batch.end)}
    if offset not in boundaries and not segment.in_gap(offset):
        text = (
            f"the position, offset {offset} of segment {segment.number}, is in the middle of "
            "a batch"
        )
        findings.add("position-wrong", FILE, text)


def _side(is_behind: bool) -> str:
    return "behind" if is_behind else "before"


def _ranges(ranges: Sequence[tuple[int, int]]) -> str:
    shown = [f"{first} to {end - 1}" for first, end in ranges[:3]]
    return (", ".join(shown) or "none") + (", ..." if len(ranges) > 3 else "")
