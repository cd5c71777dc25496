"""Records: the framing of everything in a segment, how records are found, and how damage is
detected.

A record is a 32-byte header and a payload (FORMAT.md gives the layout and an example). Each record
identifies itself: its header holds its kind, its number, the segment it belongs to and its length,
with a checksum of its own, so that no length is trusted before it was verified; the payload's
checksum continues the header's, so that a payload cannot pass under another header. The checksums
start with a seed that no client knows: a body that looks like a record is not sound.
"""

from __future__ import annotations

import enum
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter, sub
from typing import NamedTuple

from crc32c import crc32c

from amqpstore.format.compression import body_size
from amqpstore.format.message import HEAD, Envelope, Message

MAGIC = b"\xc7REC"

HEADER = struct.Struct(">4sBBHQIIII")
"""magic, kind, flags, batch, number, segment, payload length, two checksums."""

_IDENTITY = struct.Struct(">4sBBHQII")
_CHECKSUMS = struct.Struct(">II")

FORMAT_VERSION = 2
"""The version that is written."""

READ_VERSIONS = (1, FORMAT_VERSION)
"""The versions that are read. A store of an earlier one is upgraded when it is opened."""

SEGMENT_PAYLOAD = struct.Struct(">I16sQ")
"""format version, store id, time of creation (ms since 1970)."""

COMMIT_TIME = struct.Struct(">Q")
"""ms since 1970, at the start of a TRANSACTION's payload."""

OPERATION = struct.Struct(">BBxxIQQQQ")
"""kind, priority, count, queue id, first sequence, first message id, detail."""

MAX_COUNT = (1 << 32) - 1
"""The most messages that one operation names."""

COMPRESSED = 1
"""The flag of a MESSAGE whose body is a zstd frame."""

LEAST_MESSAGE_BYTES = 38
"""The smallest MESSAGE record: its header, and the lengths of empty fields."""

_MAX_NUMBER = 1 << 62
"""Stores use no higher numbers. Twice as many must fit in the catalog's integers."""

_MAX_DELIVERIES = (1 << 32) - 1
_MAX_VAIN_PASSES = 8
_MAX_DECOMPRESSED_BYTES = 1 << 20
"""How many bytes of bodies are decompressed at a time; a single body may have more."""


class Kind(enum.IntEnum):
    """The kind of a record."""

    SEGMENT = 1
    MESSAGE = 2
    TRANSACTION = 3
    INDEX = 4


class OperationKind(enum.IntEnum):
    """The kind of an operation on a run of messages of one queue."""

    ENQUEUE = 1
    ACK = 2
    DELIVERED = 3
    PURGE = 4


class Operation(NamedTuple):
    """An operation on `message_count` messages of contiguous sequences of one queue.

    `first_id` is the id of the first message of an ENQUEUE (its ids are contiguous too), else 0.
    `detail` is, for an ENQUEUE, when they expire (ms since 1970, 0 never), and for a DELIVERED,
    their delivery count; else 0. `priority` is that of an ENQUEUE's messages.
    """

    kind: int
    message_count: int
    queue_id: int
    first_sequence: int
    first_id: int = 0
    detail: int = 0
    priority: int = 0


_AS_FIELDS = itemgetter(0, 2, 3, 4, 5, 6, 1)
"""Puts an operation as it is stored in the order of the fields of `Operation`."""

_operation_of: Callable[[tuple[int, ...]], Operation] = partial(tuple.__new__, Operation)


class SpreadEnqueue(NamedTuple):
    """An ENQUEUE of messages whose ids ascend and need not be contiguous: one column instead of an
    `Operation` for each stretch, which is what the disk has.
    """

    queue_id: int
    first_sequence: int
    ids: array[int]
    priority: int = 0

    @property
    def kind(self) -> int:
        """The kind of an ENQUEUE."""
        return OperationKind.ENQUEUE

    @property
    def message_count(self) -> int:
        """The number of messages that are enqueued."""
        return len(self.ids)

    def stretches(self) -> list[Operation]:
        """Return the same as operations with contiguous ids."""
        ids, queue_id, priority = self.ids, self.queue_id, self.priority
        # Where an id does not follow the one before it.
        starts = [index for index, step in enumerate(map(sub, ids, ids[:1] + ids)) if step != 1]
        ends = [*starts[1:], len(ids)]
        kind, first = OperationKind.ENQUEUE, self.first_sequence
        return [
            Operation(kind, end - start, queue_id, first + start, ids[start], 0, priority)
            for start, end in zip(starts, ends, strict=True)
        ]


class Record(NamedTuple):
    """A sound record: offsets in bytes from the start of its file."""

    kind: int
    batch: int
    number: int
    offset: int
    payload_offset: int
    end: int
    flags: int = 0


class Gap(NamedTuple):
    """Bytes of a segment that are not a sound record of it."""

    offset: int
    end: int
    reason: str


def checksum_seed(store_id: bytes) -> int:
    """Return the seed of the checksums of a store's records, except SEGMENT records."""
    return crc32c(store_id)


def encode_record(
    kind: Kind,
    number: int,
    segment: int,
    payload: bytes,
    *,
    seed: int,
    batch: int = 0,
    flags: int = 0,
) -> bytes:
    """Encode one record. `batch` is the LSN of the batch it is in: its low 16 bits are stored."""
    identity = _IDENTITY.pack(MAGIC, kind, flags, batch & 0xFFFF, number, segment, len(payload))
    header_checksum = crc32c(identity, seed)
    return b"%b%b%b" % (
        identity,
        _CHECKSUMS.pack(header_checksum, crc32c(payload, header_checksum)),
        payload,
    )


def encode_messages(
    messages: Iterable[Message],
    first_id: int,
    segment: int,
    buffers: list[bytes],
    lengths: list[int],
    *,
    seed: int,
    batch: int,
    compress: Callable[[bytes], bytes | None] | None = None,
) -> None:
    """Append the MESSAGE records of `messages` to `buffers`, their lengths in bytes to `lengths`.

    Their ids are contiguous from `first_id` on. The bytes are those of `encode_record`, without
    copying a body: this is the hot path.
    Args: compress, compresses a body; returns None if it is not worth it.
    """
    pack_identity = _IDENTITY.pack
    pack_checksums = _CHECKSUMS.pack
    kind = int(Kind.MESSAGE)
    batch &= 0xFFFF
    for message_id, message in enumerate(messages, first_id):
        body = message.body
        flags = 0
        if compress is not None and (compressed := compress(body)) is not None:
            body = compressed
            flags = COMPRESSED
        head = message.envelope.head
        size = len(head) + len(body)
        identity = pack_identity(MAGIC, kind, flags, batch, message_id, segment, size)
        checksum = crc32c(identity, seed)
        payload_checksum = crc32c(body, crc32c(head, checksum))
        buffers.append(identity + pack_checksums(checksum, payload_checksum) + head)
        buffers.append(body)
        lengths.append(size + 32)


def encode_transaction(
    operations: Sequence[Operation | SpreadEnqueue],
    number: int,
    segment: int,
    time_ms: int,
    *,
    seed: int,
) -> bytes:
    """Encode the TRANSACTION record, log sequence number `number`, of one batch."""
    pack = OPERATION.pack
    packed = [COMMIT_TIME.pack(time_ms)]
    for one in operations:
        for kind, count, queue_id, first_sequence, first_id, detail, priority in (
            one.stretches() if isinstance(one, SpreadEnqueue) else (one,)
        ):
            packed.append(pack(kind, priority, count, queue_id, first_sequence, first_id, detail))
    payload = b"".join(packed)
    return encode_record(Kind.TRANSACTION, number, segment, payload, seed=seed, batch=number)


def encode_segment_header(segment: int, version: int, store_id: bytes, time_ms: int) -> bytes:
    """Encode the first record of a segment. Its seed is 0, because it contains the store id."""
    payload = SEGMENT_PAYLOAD.pack(version, store_id, time_ms)
    return encode_record(Kind.SEGMENT, segment, segment, payload, seed=0)


_SHARED_ENVELOPES = 4096
_SHARED_HEAD_BYTES = 2 << 10
"""Larger envelopes are not cached: one may have most of a gigabyte."""


class MessageDecoder(NamedTuple):
    """Decodes messages; caches small envelopes by their encoded form, so that like messages share
    one. Its decompressor raises ValueError for a body that cannot be decompressed.
    """

    envelopes: dict[bytes, Envelope]
    decompress: Callable[[bytes], bytes]


def head_size(payload: bytes) -> int:
    """Return the bytes before the body in a sound MESSAGE's payload.

    Raises: ValueError, when its lengths are inconsistent.
    """
    if len(payload) < HEAD.size:
        raise ValueError("payload is shorter than its lengths")
    size: int = HEAD.size + sum(HEAD.unpack_from(payload))
    if size > len(payload):
        raise ValueError("lengths run past the payload's end")
    return size


def envelope_of(head: bytes) -> Envelope:
    """Decode what precedes the body in a MESSAGE's payload. Raises: ValueError, if it is not
    UTF-8.
    """
    exchange_size, routing_key_size, _ = HEAD.unpack_from(head)
    exchange_end = HEAD.size + exchange_size
    routing_key_end = exchange_end + routing_key_size
    return Envelope.restored(
        head[HEAD.size : exchange_end].decode(),
        head[exchange_end:routing_key_end].decode(),
        head[routing_key_end:],
        head,
    )


class MessageStart(NamedTuple):
    """The fields before the body in a MESSAGE record that is not compressed: `start_bytes`, with
    the header.

    `checksum` is the payload's up to the body; with the body it should be `payload_checksum`.
    """

    head: bytes
    start_bytes: int
    body_bytes: int
    checksum: int
    payload_checksum: int


def message_start(
    content: bytes, offset: int, segment: int, seed: int, message_id: int
) -> MessageStart | None:
    """Return the start of a message's record at `offset`; None if it is not all in `content`, not
    sound, compressed, or of another message.
    """
    if len(content) - offset < HEADER.size + HEAD.size:
        return None
    magic, kind, flags, _, number, written_in, size, header_checksum, payload_checksum = (
        HEADER.unpack_from(content, offset)
    )
    identity = content[offset : offset + _IDENTITY.size]
    header = magic, kind, flags, number, written_in, header_checksum
    if header != (MAGIC, Kind.MESSAGE, 0, message_id, segment, crc32c(identity, seed)):
        return None
    payload_offset = offset + HEADER.size
    head_bytes = HEAD.size + sum(HEAD.unpack_from(content, payload_offset))
    head = content[payload_offset : payload_offset + head_bytes]
    if len(head) < head_bytes or head_bytes > size:
        return None
    checksum = crc32c(head, header_checksum)
    start_bytes = HEADER.size + head_bytes
    return MessageStart(head, start_bytes, size - head_bytes, checksum, payload_checksum)


def decode_message(payload: bytes, flags: int, decoder: MessageDecoder) -> Message:
    """Decode a message from a sound payload. Raises: ValueError, when it is inconsistent."""
    head_end = head_size(payload)
    envelopes = decoder.envelopes
    head = payload[:head_end]
    envelope = envelopes.get(head)
    if envelope is None:
        envelope = envelope_of(head)
        if head_end <= _SHARED_HEAD_BYTES:
            if len(envelopes) >= _SHARED_ENVELOPES:
                envelopes.clear()
            envelopes[head] = envelope
    body = payload[head_end:]
    return Message(envelope, decoder.decompress(body) if flags else body)


def logical_bytes(content: bytes, record: Record) -> int:
    """Return the size of a sound MESSAGE record of `content` without compression."""
    size = record.end - record.offset
    if record.flags:
        payload = content[record.payload_offset : record.end]
        try:
            body = payload[head_size(payload) :]
            return size - len(body) + body_size(body)
        except ValueError:
            return size
    return size


def size_of_body(content: bytes, record: Record) -> int:
    """Return the size of the body of a sound MESSAGE record of `content` without compression.

    Raises: ValueError, if the record does not have it.
    """
    payload = content[record.payload_offset : record.end]
    size = head_size(payload)
    return body_size(payload[size:]) if record.flags else len(payload) - size


def decode_transaction(payload: bytes, end: int) -> tuple[int, list[Operation]]:
    """Decode time in ms and operations from a sound payload.

    Args: end, of its record in the segment.
    Raises: ValueError, on a wrong length, or when it enqueues more messages than fit before it.
    """
    if len(payload) < COMMIT_TIME.size or (len(payload) - COMMIT_TIME.size) % OPERATION.size:
        raise ValueError(f"{len(payload)} bytes are not a whole number of operations")
    (time_ms,) = COMMIT_TIME.unpack_from(payload)
    unpacked = OPERATION.iter_unpack(memoryview(payload)[COMMIT_TIME.size :])
    operations = [*map(_operation_of, map(_AS_FIELDS, unpacked))]
    first_id, stop = enqueued_ids(operations)
    if stop - first_id > end // LEAST_MESSAGE_BYTES:
        raise ValueError(f"it enqueues {stop - first_id} messages, which do not fit below id {end}")
    return time_ms, operations


def enqueued_ids(operations: Iterable[Operation]) -> tuple[int, int]:
    """Return the range of the ids that a batch puts in queues; 0 and 0 if there are none."""
    enqueue = OperationKind.ENQUEUE
    least = stop = 0
    for kind, count, _, _, first_id, _, _ in operations:
        if kind == enqueue:
            if first_id < least or not least:
                least = first_id
            if first_id + count > stop:
                stop = first_id + count
    return least, stop


def malformed(operations: Iterable[Operation]) -> str:
    """Return why no store writes the first such operation among some; empty if there is none."""
    enqueue, delivered = OperationKind.ENQUEUE, OperationKind.DELIVERED
    for kind, count, queue_id, first, first_id, detail, priority in operations:
        if kind not in _OPERATION_KINDS:
            return f"there is no operation of kind {kind}"
        if not (count and queue_id and first):
            return f"an operation of {count} messages, queue {queue_id}, sequence {first}"
        is_enqueue = kind == enqueue
        if is_enqueue != bool(first_id) or (priority and not is_enqueue):
            return f"an operation of kind {kind} has first id {first_id} and priority {priority}"
        if detail and not is_enqueue and (kind != delivered or detail > _MAX_DELIVERIES):
            return f"an operation of kind {kind} has detail {detail}"
        if queue_id > _MAX_NUMBER or first + count > _MAX_NUMBER or first_id + count > _MAX_NUMBER:
            return f"an operation of queue {queue_id}, sequence {first}, first id {first_id}"
    return ""


def read_messages(
    content: bytes,
    segment: int,
    seed: int,
    first_id: int,
    count: int,
    decoder: MessageDecoder,
) -> tuple[list[Message], int, str | None]:
    """Return up to `count` messages of contiguous ids from `content`, which starts at a record.

    Records before `first_id` are skipped. Returns the messages, the offset after the last record
    that was read, and why it ended there: None when all were found, or when `content` ended.
    """
    messages: list[Message] = []
    offset = 0
    decompressed_bytes = 0
    size = len(content)
    unpack = HEADER.unpack_from
    head = names = b""
    head_end = names_end = 0
    envelope: Envelope | None = None
    restored = Envelope.restored
    wanted = first_id
    last_id = first_id + count
    while wanted < last_id and offset + 32 <= size:
        magic, kind, flags, _, number, written_in, length, header_checksum, payload_checksum = (
            unpack(content, offset)
        )
        # A SEGMENT record has another seed: if its length is wrong, no sound record follows it.
        if (
            crc32c(content[offset : offset + 24], seed) != header_checksum
            or magic != MAGIC
            or written_in != segment
            or flags > COMPRESSED
        ) and kind != Kind.SEGMENT:
            return messages, offset, "no sound record starts where one should"
        payload_offset = offset + 32
        end = payload_offset + length
        if end > size:
            break
        if kind == Kind.MESSAGE and number >= wanted:
            if number > wanted:
                return messages, offset, f"message {number} was found in its place"
            payload = content[payload_offset:end]
            if crc32c(payload, header_checksum) != payload_checksum:
                return messages, offset, "the payload's checksum does not match"
            if (
                envelope is not None
                and not flags
                and head_end <= length
                and payload.startswith(names)
            ):
                # It differs from the one before in its properties at most, and not in their size.
                if not payload.startswith(head):
                    head = payload[:head_end]
                    envelope = restored(
                        envelope.exchange, envelope.routing_key, head[names_end:], head
                    )
                messages.append(Message(envelope, payload[head_end:]))
            else:
                try:
                    message = decode_message(payload, flags, decoder)
                except ValueError as error:
                    return messages, offset, str(error)
                messages.append(message)
                envelope = message.envelope
                head = envelope.head
                head_end = len(head)
                names_end = head_end - len(envelope.properties)
                names = head[:names_end]
                if flags:
                    decompressed_bytes += len(message.body)
            wanted += 1
            if decompressed_bytes > _MAX_DECOMPRESSED_BYTES:
                # A few bytes of zstd may expand to a large body: the others are read when they are
                # due.
                return messages, end, None
        offset = end
    return messages, offset, None


def scan(
    content: bytes,
    segment: int,
    seed: int,
    start: int = 0,
    last_numbers: Mapping[int, int] | None = None,
    most: int = _MAX_NUMBER,
) -> Iterator[Record | Gap]:
    """Scan a segment's file from `start` on: yields sound records of `segment`, and the gaps
    between them.

    A gap whose header is sound ends where that header says; otherwise the next sound record is
    searched byte by byte, so that one damaged record costs no other.
    Args: last_numbers, from which on the numbers of each kind ascend; most, the highest number that
    there can be.
    """
    offset = start
    size = len(content)
    search = Search()
    last = dict.fromkeys(_KINDS, 0) | dict(last_numbers or {})
    while offset < size:
        item = record_at(content, offset, segment, seed)
        if isinstance(item, Record):
            # A stale block of the disk may have a copy of an earlier record.
            reason = not_next(item.number, last[item.kind], most)
            if not reason:
                last[item.kind] = item.number
                yield item
                offset = item.end
                continue
            item = Gap(offset, item.end, reason)
        end = item.end
        if end == offset:
            end = search.next_record(content, offset + 1, segment, seed)
        yield Gap(offset, end, item.reason)
        offset = end


def not_next(number: int, last: int, most: int = _MAX_NUMBER) -> str:
    """Return why no record has a number after the `last` one of its kind; empty if one may."""
    if number <= last:
        return f"number {number} is out of order"
    return f"number {number} is larger than any that a store assigns" if number > most else ""


def record_at(content: bytes, offset: int, segment: int, seed: int) -> Record | Gap:
    """Return the record at `offset`, or why there is none: a Gap whose end is `offset` if
    unknown.
    """
    if len(content) - offset < HEADER.size:
        return Gap(offset, offset, "shorter than a record's header")
    magic, kind, flags, batch, number, written_in, size, header_checksum, payload_checksum = (
        HEADER.unpack_from(content, offset)
    )
    if magic != MAGIC:
        return Gap(offset, offset, "no record starts here")
    identity = content[offset : offset + _IDENTITY.size]
    if crc32c(identity, 0 if kind == Kind.SEGMENT else seed) != header_checksum:
        return Gap(offset, offset, "the header's checksum does not match")
    payload_offset = offset + HEADER.size
    end = payload_offset + size
    if end > len(content):
        return Gap(offset, offset, f"the record's {size} bytes run past the end of the file")
    if crc32c(memoryview(content)[payload_offset:end], header_checksum) != payload_checksum:
        return Gap(offset, end, "the payload's checksum does not match")
    # A sound record in the wrong file: a misdirected write, or what a recycled file had before.
    if written_in != segment:
        return Gap(offset, end, f"the record was written for segment {written_in}")
    if kind not in _KINDS or flags > (COMPRESSED if kind == Kind.MESSAGE else 0):
        return Gap(offset, end, f"kind {kind} with flags {flags:#x} is of a newer format")
    return Record(kind, batch, number, offset, payload_offset, end, flags)


_KINDS = frozenset(int(kind) for kind in Kind)

_OPERATION_KINDS = frozenset(int(kind) for kind in OperationKind)


class Search:
    """Searches for sound records byte by byte, throughout one file. Once many bytes were checked
    without finding one, a sound header is trusted: what it claims as its payload is one gap.
    """

    def __init__(self) -> None:
        self._vain_bytes = 0

    def next_record(self, content: bytes, offset: int, segment: int, seed: int) -> int:
        """Return the offset of the next sound record, or the end of the content."""
        while (offset := content.find(MAGIC, offset)) != -1:
            found = record_at(content, offset, segment, seed)
            if isinstance(found, Record):
                return offset
            # A sound header can claim that all that follows is its payload, and only the checksum
            # of that disproves it. Somebody who can write sound headers could nest them, and the
            # search would take time proportional to the square of the file's size.
            if found.end > offset:
                self._vain_bytes += found.end - offset
                if self._vain_bytes > _MAX_VAIN_PASSES * len(content):
                    return offset
            offset += 1
        return len(content)
