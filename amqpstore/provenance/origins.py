"""The messages that a message was before, to which the log is read backwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from amqpstore.format.batches import StoredBatch
from amqpstore.format.message import Message
from amqpstore.format.records import Operation, OperationKind, Record
from amqpstore.provenance.log_reading import LogReading
from amqpstore.provenance.trails import QueuePosition, Trail
from amqpstore.system.filenames import is_compacted

MAX_FOLLOWED = 32
"""How many messages that it became are followed, and how many that it was."""

MAX_SEARCHED_BYTES = 256 << 20
"""How much of the log before a message is searched for what it was before."""

IsCopy = Callable[[Message, Message, int], bool]
"""Tells whether the second message, with the same body, is what became of the first, which left the
queue of that id in the same batch.
"""


def origins_of(
    reading: LogReading, trail: Trail | None, acked: list[Operation], is_copy: IsCopy
) -> list[int]:
    """Return the ids of the messages that a message was before, the last one first.

    Args: trail, of the message, None if it is not known; acked, what left queues in the batch that
    it was published in.
    """
    origins: list[int] = []
    # There is no index backwards: at worst all of the log is read for a message that was never
    # anything else.
    left_bytes = min(reading.left_bytes, MAX_SEARCHED_BYTES)
    while trail is not None and trail.message is not None and acked:
        if len(origins) == MAX_FOLLOWED:
            break
        origin = None
        # The newest first: letters mostly come from a queue that they were in shortly before.
        for number in reversed(_log_until(reading, trail.segment)):
            left_bytes -= reading.size_of(number)
            if left_bytes < 0:
                return origins
            if origin := _origin_in(reading, number, trail, trail.message, acked, is_copy):
                break
        if origin is None:
            break
        trail, acked = origin
        origins.append(trail.id)
    return origins


def acks_in(batch: StoredBatch) -> list[Operation]:
    """Return the operations by which messages left queues, in a batch that has messages, too."""
    return [one for one in batch.operations if one.kind == OperationKind.ACK]


def _log_until(reading: LogReading, segment: int) -> list[int]:
    return [one for one in reading.numbers() if not is_compacted(one) and one <= segment]


def _origin_in(
    reading: LogReading,
    number: int,
    copy: Trail,
    copied: Message,
    acked: list[Operation],
    is_copy: IsCopy,
) -> tuple[Trail, list[Operation]] | None:
    """Find the message that became a copy in a segment of the log: it left its queue by one of
    the `acked` operations. Returns it, and what left queues in its own batch.
    """
    with reading.opened(number) as segment:
        if segment is None:
            return None
        for batch in reading.batches_of(segment):
            if not reading.goes_on():
                return None
            if not batch.is_whole():
                continue
            # A message was published before what it became.
            if batch.lsn > copy.lsn:
                return None
            for position, record in _left_of(batch, acked):
                if record.number == copy.id or not may_have(record, copied.body):
                    continue
                original = reading.message(segment.file, record)
                # The body is all that the two have in common: ids, keys and headers change with a
                # dead letter.
                if original is None or original.body != copied.body:
                    continue
                if is_copy(original, copied, position.queue_id):
                    trail = Trail(record.number, message=original, segment=number)
                    trail.lsn = batch.lsn
                    return trail, acks_in(batch)
    return None


def may_have(record: Record, body: bytes) -> bool:
    """Tell whether a record may be that of a message with a body: one that is not compressed has at
    least as many bytes.
    """
    return bool(record.flags) or record.end - record.payload_offset >= len(body)


def _left_of(
    batch: StoredBatch, acked: Iterable[Operation]
) -> Iterator[tuple[QueuePosition, Record]]:
    """Yield the messages of a batch that later left the places it gave them, by `acked`."""
    records: dict[int, Record] = {}
    for enqueue in batch.operations:
        if enqueue.kind != OperationKind.ENQUEUE:
            continue
        for ack in acked:
            if ack.queue_id != enqueue.queue_id:
                continue
            first = max(ack.first_sequence, enqueue.first_sequence)
            end = min(
                ack.first_sequence + ack.message_count,
                enqueue.first_sequence + enqueue.message_count,
            )
            if first < end and not records:
                records = {one.number: one for one in batch.messages}
            for sequence in range(first, end):
                record = records.get(enqueue.first_id + sequence - enqueue.first_sequence)
                if record is not None:
                    yield QueuePosition(enqueue.queue_id, sequence), record
