"""One batch of the log, from its first message until it is durable: see `log`."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

from amqpstore.format.compression import Compressor
from amqpstore.format.message import Message
from amqpstore.format.records import (
    HEADER,
    MAX_COUNT,
    Operation,
    OperationKind,
    SpreadEnqueue,
    encode_messages,
    encode_transaction,
)
from amqpstore.log.segments import Segment, TableSteps

MAX_STARTED_BYTES = 32 << 10
"""The largest batch for `start_write`: it is copied to the kernel's memory before that returns."""

_LARGE_BATCH_BYTES = 4 << 20
_LARGE_BATCH_MESSAGES = 8192
_LARGE_BATCH_OPERATIONS = 4096
"""A batch of more bytes, messages or operations is encoded by the thread that writes it: the owner
of the log would be held for up to 10 ms.
"""

MESSAGE_BYTES = 100
"""Approximate size of a message besides its body and its envelope."""

_NO_STEPS: TableSteps = ([], [])


class Batch:
    """Messages and operations that become durable together. `waiters` are called once they are.
    One that `is_large` is encoded when it is written. Before one that `fills` is, its segment is
    filled with zeros ahead of use.

    The messages have contiguous ids from `first_id` on.
    """

    __slots__ = (
        "buffers",
        "byte_count",
        "fills",
        "first_id",
        "first_offset",
        "is_appended",
        "is_synced",
        "lengths",
        "lsn",
        "messages",
        "operation_count",
        "runs",
        "sealed_ms",
        "segment",
        "starts_segment",
        "steps",
        "summary",
        "sync_s",
        "waiters",
    )

    def __init__(self, first_id: int) -> None:
        self.first_id = first_id
        self.messages: list[Message] = []
        self.runs: dict[tuple[int, int], list[Operation | SpreadEnqueue]] = {}
        self.waiters: list[Callable[[], None]] = []
        self.byte_count = 0
        self.operation_count = 0
        self.buffers: list[bytes] = []
        self.lengths: list[int] = []
        self.segment: Segment | None = None
        self.summary: BatchSummary | None = None
        self.starts_segment = False
        self.steps = _NO_STEPS
        self.fills = False
        self.is_appended = False
        self.is_synced = False
        self.first_offset = 0
        self.lsn = 0
        self.sealed_ms = 0
        self.sync_s = 0.0
        """The time at which its fdatasync began, and then how long it took."""

    @property
    def is_large(self) -> bool:
        """Whether it takes long to encode."""
        size = self.byte_count
        return (
            size > _LARGE_BATCH_BYTES
            or (
                size > _LARGE_BATCH_MESSAGES * MESSAGE_BYTES
                and len(self.messages) > _LARGE_BATCH_MESSAGES
            )
            or self.operation_count > _LARGE_BATCH_OPERATIONS
        )

    @property
    def is_small(self) -> bool:
        """Whether `Log.start_write` may write it. To be asked after `Log.seal` only."""
        return (
            self.summary is not None
            and not self.starts_segment
            and not self.fills
            and self.summary.end_bytes - self.first_offset <= MAX_STARTED_BYTES
        )

    def operations(self) -> list[Operation | SpreadEnqueue]:
        """Return the operations, sorted by kind, which is the order of a message's life."""
        return [operation for key in sorted(self.runs) for operation in self.runs[key]]

    def encode(self, segment: Segment, seed: int, compressor: Compressor | None) -> None:
        """Encode it for the end of a segment. Args: seed, see `checksum_seed`."""
        buffers, lsn = self.buffers, self.lsn
        encode_messages(
            self.messages,
            self.first_id,
            segment.number,
            buffers,
            self.lengths,
            seed=seed,
            batch=lsn,
            compress=compressor.compress if compressor else None,
        )
        if compressor:
            sizes = array("I", map(record_bytes, self.messages))
        else:
            sizes = array("I", self.lengths)
        operations = self.operations()
        transaction = encode_transaction(operations, lsn, segment.number, self.sealed_ms, seed=seed)
        buffers.append(transaction)
        segment.size += sum(self.lengths) + len(transaction)
        if self.messages:
            self.steps = segment.steps(self.first_id, self.lengths, self.first_offset)
        self.summary = BatchSummary(
            operations,
            self.first_id,
            sizes,
            array("I", [len(message.body) for message in self.messages]),
            segment.number,
            segment.size,
        )


class BatchSummary(NamedTuple):
    """A durable batch, as far as a checkpoint needs it.

    Its messages have contiguous ids from `first_id` on; `sizes` are those of their records in
    bytes, and `body_sizes` of the bodies in them, without compression. It ends at `end_bytes` of
    segment `segment`.
    """

    operations: Sequence[Operation | SpreadEnqueue]
    first_id: int
    sizes: array[int]
    body_sizes: array[int]
    segment: int
    end_bytes: int


def record_bytes(message: Message) -> int:
    """Return the size of a message's record, without compression."""
    return HEADER.size + len(message.envelope.head) + len(message.body)


def joined(before: Operation | SpreadEnqueue, after: Operation | SpreadEnqueue) -> Operation | None:
    """Merge two operations of one kind and queue, if the second continues exactly where the first
    ended.
    """
    if isinstance(before, SpreadEnqueue) or isinstance(after, SpreadEnqueue):
        return None
    count = before.message_count
    if before.first_sequence + count != after.first_sequence:
        return None
    if before.kind == OperationKind.ENQUEUE and before.first_id + count != after.first_id:
        return None
    if before.detail != after.detail or before.priority != after.priority:
        return None
    # The count has 32 bits in the record.
    if count + after.message_count > MAX_COUNT:
        return None
    kind, _, queue_id, first_sequence, first_id, detail, priority = before
    count += after.message_count
    return Operation(kind, count, queue_id, first_sequence, first_id, detail, priority)
