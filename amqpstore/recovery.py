"""Recovery: from what is in the directory to what was true.

Segments are read in the order of their numbers and whole transactions are applied in the order
they were written. Two kinds of unsound bytes are told apart:

- a *torn tail*: the last batch, cut off by a crash before its fdatasync returned. Nobody was
  promised anything about it. It is taken back as a whole and its bytes are counted;
- *damage*: unsound bytes of a batch that was durable. It is reported with file and offset, the
  messages it took are named, and everything sound around it is served.

Each record names its batch, so a batch whose TRANSACTION is damaged still ends where another's
records begin.

A batch is written only after the batch before it is durable. So bytes in front of a sound record
of a later batch were durable, and only the end of the last segment can be torn; where a segment
ends is noted in the catalog before anything is written behind it (`Recovered.changes`), and then
what precedes that end can only be damaged. Recovering twice gives the same as once.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from amqpstore.catalog import Change, Value
from amqpstore.filenames import SEGMENTS, segment_number, segment_path
from amqpstore.files import File, Files
from amqpstore.log import FORMAT_VERSION
from amqpstore.queue import Queue
from amqpstore.records import (
    SEGMENT_PAYLOAD,
    Gap,
    Kind,
    Operation,
    OperationKind,
    Record,
    checksum_seed,
    decode_transaction,
    record_at,
    scan,
)
from amqpstore.runs import Run
from amqpstore.segments import Segment

_PAGE_BYTES = 4096


@dataclass
class RecoveryReport:
    """What recovery found, for people and machines: `dataclasses.asdict` is plain JSON.

    `kept` and `redelivered` count messages by queue id; `lost` names messages that were durable
    and cannot be read, as (queue id, sequence, message id); `orphaned` are the ids of messages
    whose record is sound and whose TRANSACTION, which said where they belong, is damaged.
    `torn_bytes` were taken back from the end of the log, `rolled_back` messages among them;
    `damage` is (path, offset, bytes, reason); `unknown_files` were left alone.
    """

    kept: dict[int, int] = field(default_factory=dict)
    redelivered: dict[int, int] = field(default_factory=dict)
    lost: list[tuple[int, int, int]] = field(default_factory=list)
    orphaned: list[int] = field(default_factory=list)
    torn_bytes: int = 0
    rolled_back: int = 0
    damage: list[tuple[str, int, int, str]] = field(default_factory=list)
    unknown_files: list[str] = field(default_factory=list)
    segments: int = 0
    scanned_bytes: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether nothing was torn and nothing is damaged."""
        return not (self.torn_bytes or self.rolled_back or self.damage or self.lost)


@dataclass
class Recovered:
    """Where the log goes on, and what the catalog must say before it does."""

    report: RecoveryReport
    segments: list[Segment] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    next_segment: int = 1
    next_message_id: int = 1
    next_lsn: int = 1


@dataclass
class _Batch:
    """Records up to and with one TRANSACTION, number `lsn` (0: not there), and gaps in them.

    `tag` is what its records say of their batch, the LSN's low 16 bits; -1 where none is sound.
    """

    start: int
    end: int = 0
    tag: int = -1
    messages: list[Record] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    lsn: int = 0
    operations: list[Operation] = field(default_factory=list)

    def is_whole(self) -> bool:
        """Whether the TRANSACTION is there, and each message that it enqueues."""
        if not self.lsn:
            return False
        present = {record.number for record in self.messages}
        return all(
            first_id + place in present
            for kind, count, _, _, first_id in self.operations
            if kind == OperationKind.ENQUEUE
            for place in range(count)
        )


def recover(
    files: Files, directory: str, store_id: bytes, rows: dict[str, Value], queues: dict[int, Queue]
) -> Recovered:
    """Put the messages that the log holds into `queues` (by id, still empty).

    `rows` is the catalog's table "segments". Nothing is changed on disk but the last segment's
    `datasync`: what a crashed process had written may be in the page cache only, and must not be
    served before it is durable. Raises: OSError.
    """
    return _Recovery(files, directory, store_id, rows, queues).run()


class _Recovery:
    def __init__(
        self,
        files: Files,
        directory: str,
        store_id: bytes,
        rows: dict[str, Value],
        queues: dict[int, Queue],
    ) -> None:
        self._files = files
        self._directory = directory
        self._store_id = store_id
        self._seed = checksum_seed(store_id)
        self._ends = {int(key): row["end"] for key, row in rows.items()}
        self._queues = queues
        self._report = RecoveryReport()
        self._out = Recovered(self._report)

    def run(self) -> Recovered:
        numbers = self._segment_numbers()
        for number in numbers:
            self._segment(number, is_last=number == numbers[-1])
        out = self._out
        out.next_segment = max([*numbers, *self._ends, 0]) + 1
        if out.segments and (last := out.segments[-1]).number not in self._ends:
            last.file().datasync()
            self._files.sync_directory(f"{self._directory}/{SEGMENTS}")
            out.changes.append(Change("segments", f"{last.number:010}", {"end": last.size}))
        self._drop_lost()
        for queue in self._queues.values():
            self._report.kept[queue.id] = queue.ready_count
            delivered = sum(run.count for run in queue.ready if run.delivery_count)
            self._report.redelivered[queue.id] = delivered
        return out

    def _segment_numbers(self) -> list[int]:
        names = self._files.list_directory(f"{self._directory}/{SEGMENTS}")
        known = {name: segment_number(name) for name in names}
        self._report.unknown_files = [name for name, number in known.items() if number is None]
        numbers = sorted(number for number in known.values() if number is not None)
        present = set(numbers)
        expected = set(range(1, max(numbers, default=0) + 1)) | set(self._ends)
        for number in sorted(expected - present):
            self._damage(segment_path(self._directory, number), Gap(0, 0, "the file is missing"))
        return numbers

    def _segment(self, number: int, *, is_last: bool) -> None:
        segment = Segment(self._files, segment_path(self._directory, number), number, self._seed)
        content = self._content(segment)
        end = self._ends.get(number)
        if end is not None and len(content) < end:
            gap = Gap(len(content), end, "the file is shorter than when it was closed")
            self._damage(segment.path, gap)
        content = content[:end]
        segment.size = len(content)
        self._report.segments += 1
        self._report.scanned_bytes += len(content)
        if reason := self._foreign(content, number):
            self._damage(segment.path, Gap(0, len(content), reason))
            batches = []
        else:
            batches = list(_batches(content, number, self._seed))
        is_torn = is_last and end is None and batches and not batches[-1].is_whole()
        torn = batches.pop() if is_torn else None
        for batch in batches:
            self._apply(segment, batch)
        if torn:
            self._take_back(segment, torn)
        if not segment.offsets:
            segment.first_id = self._out.next_message_id
        self._out.segments.append(segment)

    def _content(self, segment: Segment) -> bytes:
        """A segment's file; zeros, which are damage, where the disk cannot read it."""
        file = segment.file()
        size = file.size()
        try:
            return file.read(0, size)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        pages = [self._page(file, offset) for offset in range(0, size, _PAGE_BYTES)]
        return b"".join(pages)[:size]

    def _page(self, file: File, offset: int) -> bytes:
        try:
            return file.read(offset, _PAGE_BYTES)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self._damage(file.path, Gap(offset, offset + _PAGE_BYTES, str(error)))
            return bytes(_PAGE_BYTES)

    def _foreign(self, content: bytes, number: int) -> str | None:
        """Why nothing in this segment is ours; None when nothing says so."""
        found = record_at(content, 0, number, self._seed)
        if isinstance(found, Gap) or found.kind != Kind.SEGMENT:
            return None
        payload = content[found.payload_offset : found.end]
        if len(payload) != SEGMENT_PAYLOAD.size:
            return "its header is not a segment's"
        version, store_id, _ = SEGMENT_PAYLOAD.unpack(payload)
        if version != FORMAT_VERSION:
            return f"its format version is {version}"
        if store_id != self._store_id:
            return f"it is of another store ({store_id.hex()})"
        return None

    def _take_back(self, segment: Segment, torn: _Batch) -> None:
        """Leave the torn tail out: the segment ends where its last whole batch does."""
        self._report.torn_bytes += torn.end - torn.start
        self._report.rolled_back += len(torn.messages)
        segment.size = torn.start
        for record in torn.messages:
            self._out.next_message_id = max(self._out.next_message_id, record.number + 1)
        self._out.next_lsn = max(self._out.next_lsn, torn.lsn + 1)

    def _apply(self, segment: Segment, batch: _Batch) -> None:
        out = self._out
        for gap in batch.gaps:
            self._damage(segment.path, gap)
        present = self._placed(segment, batch)
        if not batch.lsn:
            self._report.orphaned += present
            return
        if batch.lsn < out.next_lsn:
            reason = f"transaction {batch.lsn} does not ascend"
            self._damage(segment.path, Gap(batch.start, batch.end, reason))
            return
        out.next_lsn = batch.lsn + 1
        for operation in batch.operations:
            if operation.kind == OperationKind.ENQUEUE:
                # Also where the record is damaged: no other message may get its id.
                end_id = operation.first_id + operation.message_count
                out.next_message_id = max(out.next_message_id, end_id)
            # A queue that the catalog no longer has was deleted, and its messages with it.
            if queue := self._queues.get(operation.queue_id):
                apply(queue, operation)

    def _placed(self, segment: Segment, batch: _Batch) -> list[int]:
        """Note where the batch's messages are. Returns their ids."""
        out = self._out
        placed = []
        for record in batch.messages:
            if record.number < out.next_message_id:
                reason = f"message {record.number} does not ascend"
                self._damage(segment.path, Gap(record.offset, record.end, reason))
                continue
            segment.place(record.number, record.offset)
            out.next_message_id = record.number + 1
            placed.append(record.number)
        return placed

    def _drop_lost(self) -> None:
        """Put messages whose record is not there in quarantine, and name them."""
        if not self._report.damage:
            return
        segments = [segment for segment in self._out.segments if segment.offsets]
        for queue in self._queues.values():
            for run in queue.ready:
                for place in range(run.count):
                    message_id = run.first_id + place
                    at = bisect_right(segments, message_id, key=attrgetter("first_id")) - 1
                    if at < 0 or not segments[at].holds(message_id):
                        sequence = run.first_sequence + place
                        self._report.lost.append((queue.id, sequence, message_id))
        for queue_id, sequence, _ in self._report.lost:
            queue = self._queues[queue_id]
            for run in queue.ready.remove(sequence, 1):
                queue.quarantined.insert(run)

    def _damage(self, path: str, gap: Gap) -> None:
        self._report.damage.append((path, gap.offset, gap.end - gap.offset, gap.reason))


def _batches(content: bytes, segment: int, seed: int) -> Iterator[_Batch]:
    """A segment's content, cut behind each TRANSACTION and where the records' batch changes."""
    batch = _Batch(0)
    for found in scan(content, segment, seed):
        if isinstance(found, Gap):
            batch.gaps.append(found)
            continue
        if found.kind == Kind.SEGMENT:
            continue
        if batch.tag not in (-1, found.batch):
            batch.end = found.offset
            yield batch
            batch = _Batch(found.offset)
        batch.tag = found.batch
        if found.kind == Kind.MESSAGE:
            batch.messages.append(found)
        elif found.kind == Kind.TRANSACTION:
            try:
                _, batch.operations = decode_transaction(content[found.payload_offset : found.end])
            except ValueError as error:
                batch.gaps.append(Gap(found.offset, found.end, str(error)))
                continue
            batch.lsn = found.number
            batch.end = found.end
            yield batch
            batch = _Batch(found.end)
    if batch.start < len(content):
        batch.end = len(content)
        yield batch


def apply(queue: Queue, operation: Operation) -> None:
    """Do to a queue, whose messages are all ready and on disk, what the log says was done."""
    kind, count, _, first_sequence, first_id = operation
    if kind == OperationKind.ENQUEUE:
        run = Run(first_sequence, count, first_id=first_id)
        queue.ready.append_stored(run)
        queue.next_sequence = max(queue.next_sequence, run.end)
        return
    # Also where the ENQUEUE is damaged: no other message may get its sequence.
    queue.next_sequence = max(queue.next_sequence, first_sequence + count)
    removed = queue.ready.remove(first_sequence, count)
    if kind == OperationKind.DELIVERED:
        for run in removed:
            run.delivery_count += 1
            queue.ready.insert(run)
