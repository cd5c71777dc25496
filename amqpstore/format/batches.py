"""Batches of the log: where they end, whether they are whole, and where the torn tail starts.

A batch is what one fdatasync makes durable: MESSAGE records, then one TRANSACTION with the
operations. It ends after a TRANSACTION that a store can have written, or where a record names
another batch: so a batch with a damaged TRANSACTION still ends. It is *whole* when its TRANSACTION
and each message that it enqueues are sound.

A batch is written only after the batch before it is durable. So everything before a record of a
later batch was durable: missing parts of it are damage. Only the last batch of a segment whose end
is not noted can be a *torn tail*, cut off by a crash before its fdatasync returned, and it is one
exactly when it is not whole.

Behind the last batch of that segment there may be zeros: it is filled with them ahead of use, and
the next batches overwrite them. They are left out with a torn tail, and are not counted as bytes of
one; nor are they a sign of a later batch. Whoever reads the segment while a broker runs reads it up
to `written_end` only.

Recovery, check, repair, copy, inspect and Spark all read the log by these rules.
"""

from __future__ import annotations

import errno
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from amqpstore.format.records import (
    HEADER,
    LEAST_MESSAGE_BYTES,
    Gap,
    Kind,
    Operation,
    OperationKind,
    Record,
    decode_transaction,
    enqueued_ids,
    malformed,
    scan,
)
from amqpstore.system.files import File

_READ_BYTES = 64 << 10
"""Read at a time, from the end of a file backwards."""


@dataclass
class StoredBatch:
    """Records up to and including one TRANSACTION, number `lsn` (0: missing), and gaps between
    them.

    `tag` is the batch number in its records, the LSN's low 16 bits; -1 if none is sound. One that
    `is_blank` is only zeros, behind the last record.
    """

    start: int
    end: int = 0
    tag: int = -1
    messages: list[Record] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    transaction: Record | None = None
    time_ms: int = 0
    operations: list[Operation] = field(default_factory=list)
    is_blank: bool = False

    @property
    def lsn(self) -> int:
        """The number of its TRANSACTION; 0 if that is missing or not sound."""
        return self.transaction.number if self.transaction else 0

    @property
    def is_damaged(self) -> bool:
        """Whether any of its messages may be missing."""
        return bool(self.gaps)

    @property
    def end_id(self) -> int:
        """The id after its last sound message; 0 if it has none."""
        return self.messages[-1].number + 1 if self.messages else 0

    def is_whole(self) -> bool:
        """Tell whether the TRANSACTION exists, and each message that it enqueues."""
        return is_whole(self.lsn, self.operations, self.has)

    def has(self, first_id: int, count: int) -> bool:
        """Tell whether it has sound MESSAGE records of contiguous ids."""
        messages = self.messages
        index = bisect_left(messages, first_id, key=attrgetter("number"))
        last = index + count - 1
        return (
            last < len(messages)
            and messages[index].number == first_id
            and messages[last].number == first_id + count - 1
        )


def is_whole(lsn: int, operations: Iterable[Operation], has: Callable[[int, int], bool]) -> bool:
    """Tell whether a batch is whole.

    Args: lsn, 0 without a sound TRANSACTION; has, tells whether the batch has sound MESSAGE records
    of a first id and a count.
    """
    return bool(lsn) and all(
        has(operation.first_id, operation.message_count)
        for operation in operations
        if operation.kind == OperationKind.ENQUEUE
    )


def batches(
    scanned: Iterable[Record | Gap],
    payload_of: Callable[[Record], bytes],
    start: int,
    end: int,
) -> Iterator[StoredBatch]:
    """Cut the scanned part of a segment, which starts between two batches, into batches.

    The last batch has no sound TRANSACTION if bytes follow the last one that has.
    """
    batch = StoredBatch(start)
    claimed = 0
    for item in scanned:
        if isinstance(item, Gap):
            batch.gaps.append(item)
            continue
        if item.kind == Kind.SEGMENT:
            continue
        if batch.tag not in (-1, item.batch):
            batch.end = item.offset
            yield batch
            batch = StoredBatch(item.offset)
        batch.tag = item.batch
        if item.kind == Kind.MESSAGE:
            batch.messages.append(item)
        elif item.kind == Kind.TRANSACTION:
            try:
                time_ms, operations = sound_operations(payload_of(item), item.end, claimed)
            except ValueError as error:
                batch.gaps.append(Gap(item.offset, item.end, str(error)))
                continue
            claimed += claimed_by(operations)
            batch.transaction, batch.time_ms, batch.operations = item, time_ms, operations
            batch.end = item.end
            yield batch
            batch = StoredBatch(item.end)
    if batch.start < end:
        batch.end = end
        if batch.tag == -1:
            rest = payload_of(Record(0, 0, 0, batch.start, batch.start, end, 0))
            batch.is_blank = is_blank(rest)
        yield batch


def sound_operations(payload: bytes, end: int, claimed: int) -> tuple[int, list[Operation]]:
    """Decode a TRANSACTION's time and operations.

    Whatever a damaged TRANSACTION claims, work per message stays in proportion to the file.
    Args: end, where its record ends; claimed, how many messages those before it in the segment
    enqueue.
    Raises: ValueError, when one of the operations is one that no store writes.
    """
    time_ms, operations = decode_transaction(payload, end)
    if reason := malformed(operations):
        raise ValueError(reason)
    claimed += claimed_by(operations)
    if claimed > end // LEAST_MESSAGE_BYTES:
        raise ValueError(f"with it {claimed} messages are enqueued")
    return time_ms, operations


def claimed_by(operations: Sequence[Operation]) -> int:
    """Count the messages that a batch enqueues."""
    first_id, stop = enqueued_ids(operations)
    return stop - first_id


def in_segment(
    content: bytes, scanned: Iterable[Record | Gap], start: int = 0
) -> Iterator[StoredBatch]:
    """Cut a segment that is in memory into batches: see `batches`."""
    return batches(
        scanned, lambda found: content[found.payload_offset : found.end], start, len(content)
    )


def take_torn_tail(found: list[StoredBatch]) -> StoredBatch | None:
    """Remove the torn tail of a segment whose end is not noted, and return it; None if there is
    none.

    Args: found, all batches of the segment, from its start or from between two of them on.
    """
    if not found or found[-1].is_whole():
        return None
    torn = found.pop()
    if torn.is_blank and found and not found[-1].is_whole():
        # Zeros were there before: no batch was begun after that one.
        found[-1].end = torn.end
        return found.pop()
    return torn


def is_blank(content: bytes) -> bool:
    """Tell whether bytes are only zeros: no batch is there, and none was."""
    return not content.strip(b"\0")


def torn_bytes(tail: bytes) -> int:
    """Count the bytes of a torn tail, without the zeros that the segment was filled with."""
    written = len(tail.rstrip(b"\0"))
    # A TRANSACTION ends with up to 23 zeros: the end of its last operation.
    return len(tail) if written > 0 and len(tail) - written < HEADER.size else written


def written_end(file: File) -> int:
    """Return where the batches end that are in the log's last segment now, at the latest: behind
    that are only zeros.

    While a broker runs it overwrites them, and somebody who reads on there could miss the start of
    one batch and see a later one. Before that offset only the last batch can still change.
    """
    size = file.size()
    end = size
    while end:
        start = max(end - _READ_BYTES, 0)
        written = len(_written(file, start, end - start))
        if written:
            # With the zeros that it may end with.
            return min(start + written + HEADER.size, size)
        end = start
    return 0


def _written(file: File, offset: int, size: int) -> bytes:
    """Read bytes without the zeros at their end. What the disk cannot read (EIO) is not zeros."""
    try:
        return file.read(offset, size).rstrip(b"\0")
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b"?" * size


def whole_end(
    content: bytes,
    number: int,
    seed: int,
    start: int = 0,
    last_numbers: Mapping[int, int] | None = None,
) -> int:
    """Find where the last whole batch of the log's last segment ends: the torn tail follows.

    Args: content of the segment; start, between two batches, where to start; last_numbers, of each
    kind of record before that.
    """
    scanned = scan(content, number, seed, start, last_numbers)
    torn = take_torn_tail(list(in_segment(content, scanned, start)))
    return torn.start if torn else len(content)
