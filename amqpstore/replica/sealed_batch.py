"""A batch on its way from a leader to its followers.

The leader sends the bytes that it writes to its own segment, and beside them what a checkpoint has
to know of each message, so that a follower need not take the records apart: it verifies one
checksum over all, and decodes the TRANSACTION alone.

Beside `content` there is its layout, all integers big-endian: lsn (8), segment (4), offset in it
(8), first message id (8), number of messages (4), `content` length (8); three columns of 4 bytes a
message: lengths of the records, these without compression, and of the bodies without compression;
and the CRC-32C of all that and of `content`.
"""

from __future__ import annotations

import struct
import sys
from array import array
from typing import NamedTuple

from crc32c import crc32c

from amqpstore.errors import RefusedBatchError
from amqpstore.format.batches import sound_operations
from amqpstore.format.records import (
    HEADER,
    SEGMENT_PAYLOAD,
    Gap,
    Kind,
    Operation,
    enqueued_ids,
    record_at,
)
from amqpstore.identity.identity import SegmentHeader
from amqpstore.log.batch import Batch, BatchSummary

_HEAD = struct.Struct(">QIQQIQ")
_CHECKSUM = struct.Struct(">I")
_IS_LITTLE = sys.byteorder == "little"
SEGMENT_BYTES = HEADER.size + SEGMENT_PAYLOAD.size
"""The size of a SEGMENT record."""


def transaction_checksum(content: bytes, offset: int) -> int:
    """Return the checksum of a TRANSACTION record, from its header."""
    return int.from_bytes(content[offset + HEADER.size - 4 : offset + HEADER.size], "big")


class SealedBatch(NamedTuple):
    """A batch that a leader has sealed, for `offset` of segment `segment`; at 0 it starts it.

    Its messages have contiguous ids from `first_id` on. `lengths` are those of their records,
    `sizes` the same without compression, `body_sizes` those of their bodies. `content` is what is
    written: a SEGMENT record if it starts one, the MESSAGE records, and the TRANSACTION.
    """

    lsn: int
    segment: int
    offset: int
    first_id: int
    lengths: array[int]
    sizes: array[int]
    body_sizes: array[int]
    content: bytes

    @classmethod
    def of(cls, batch: Batch) -> SealedBatch:
        """Return a batch that is encoded. Raises: ValueError."""
        if batch.segment is None or batch.summary is None:
            raise ValueError("the batch was not encoded")
        summary = batch.summary
        return cls(
            batch.lsn,
            summary.segment,
            0 if batch.starts_segment else batch.first_offset,
            summary.first_id,
            array("I", batch.lengths),
            summary.sizes,
            summary.body_sizes,
            b"".join(batch.buffers),
        )

    @property
    def end(self) -> int:
        """The offset in its segment at which the batch ends."""
        return self.offset + len(self.content)

    @property
    def checksum(self) -> int:
        """The checksum of its TRANSACTION, which two different batches do not share."""
        start = sum(self.lengths) + (0 if self.offset else SEGMENT_BYTES)
        return transaction_checksum(self.content, start)

    def layout(self) -> bytes:
        """Return what has to be known of `content`: see the module."""
        head = _HEAD.pack(
            *(self.lsn, self.segment, self.offset, self.first_id),
            *(len(self.lengths), len(self.content)),
        )
        columns = self.lengths + self.sizes + self.body_sizes
        # Big-endian on the wire as on disk, so members on different machines agree.
        if _IS_LITTLE:
            columns.byteswap()
        layout = head + columns.tobytes()
        return layout + _CHECKSUM.pack(crc32c(self.content, crc32c(layout)))

    @classmethod
    def of_layout(cls, layout: bytes, content: bytes) -> SealedBatch:
        """Put it together again. Raises: RefusedBatchError, if the two are not those of a batch."""
        if len(layout) < _HEAD.size + _CHECKSUM.size:
            raise RefusedBatchError(0, f"{len(layout)} bytes are too few for a layout")
        view = memoryview(layout)
        lsn, segment, offset, first_id, count, length = _HEAD.unpack_from(layout)
        end = len(layout) - _CHECKSUM.size
        (checksum,) = _CHECKSUM.unpack_from(layout, end)
        # Layout and content have one checksum: a layout that belongs to another batch would cut
        # the records in the wrong places.
        if crc32c(content, crc32c(view[:end])) != checksum:
            raise RefusedBatchError(0, "its checksum does not match")
        # The counts come from the network: they have to be those of what came.
        if (end, length) != (_HEAD.size + 12 * count, len(content)):
            raise RefusedBatchError(lsn, f"{end} and {len(content)} bytes are not its lengths")
        columns = array("I")
        columns.frombytes(view[_HEAD.size : end])
        if _IS_LITTLE:
            columns.byteswap()
        lengths, sizes = columns[:count], columns[count : 2 * count]
        return cls(lsn, segment, offset, first_id, lengths, sizes, columns[2 * count :], content)

    def operations(self, store_id: bytes, seed: int) -> list[Operation]:
        """Return the operations of its TRANSACTION, which is checked against all else it says.

        Raises: RefusedBatchError.
        """
        offset = sum(self.lengths)
        if not self.offset:
            offset += SEGMENT_BYTES
            self._check_segment(store_id)
        record = record_at(self.content, offset, self.segment, seed)
        if isinstance(record, Gap):
            raise self._refused(f"no TRANSACTION of this store is at {offset}: {record.reason}")
        if (record.kind, record.number, record.end) != (
            *(Kind.TRANSACTION, self.lsn),
            len(self.content),
        ):
            raise self._refused(f"the record at {offset} is not its TRANSACTION")
        try:
            payload = self.content[record.payload_offset : record.end]
            _, operations = sound_operations(payload, self.end, 0)
        except ValueError as error:
            raise self._refused(str(error)) from None
        # The layout is not in the log: what it says about the messages must be what the
        # TRANSACTION says, as a restart will only see that.
        first_id, stop = enqueued_ids(operations)
        if stop - first_id != len(self.lengths) or (stop and first_id != self.first_id):
            raise self._refused(f"it enqueues other messages than its {len(self.lengths)}")
        return operations

    def summary(self, operations: list[Operation]) -> BatchSummary:
        """Return what a checkpoint has to know of it."""
        return BatchSummary(
            *(operations, self.first_id, self.sizes, self.body_sizes, self.segment, self.end)
        )

    def _check_segment(self, store_id: bytes) -> None:
        found = record_at(self.content, 0, self.segment, 0)
        if isinstance(found, Gap) or found.kind != Kind.SEGMENT:
            raise self._refused("it does not begin with the SEGMENT record of a new segment")
        try:
            header = SegmentHeader.of_payload(self.content[found.payload_offset : found.end])
        except ValueError as error:
            raise self._refused(str(error)) from None
        if reason := header.why_foreign(store_id):
            raise self._refused(f"of its segment: {reason}")

    def _refused(self, reason: str) -> RefusedBatchError:
        return RefusedBatchError(self.lsn, reason)
