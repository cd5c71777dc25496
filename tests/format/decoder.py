"""A reader of segments, index files and catalog rows, written from amqpstore/FORMAT.md alone.

It shares no code with the engine, not even the checksum, so that the two can only agree where
both agree with the document.
"""

from itertools import accumulate
from typing import Any, NamedTuple

import msgpack
import zstandard


def crc32c(content: bytes) -> int:
    """CRC-32C, bit by bit."""
    remainder = 0xFFFFFFFF
    for byte in content:
        remainder ^= byte
        for _ in range(8):
            # 82f63b78 is 1edc6f41 with its bits in reverse order.
            remainder = remainder >> 1 ^ (0x82F63B78 if remainder & 1 else 0)
    return remainder ^ 0xFFFFFFFF


class SegmentHeader(NamedTuple):
    """A SEGMENT record."""

    number: int
    version: int
    store_id: bytes
    created_ms: int


class StoredMessage(NamedTuple):
    """A MESSAGE record. Of a compressed body, the zstd frame."""

    id: int
    exchange: str
    routing_key: str
    properties: bytes
    body: bytes
    is_compressed: bool = False


class StoredOperation(NamedTuple):
    """One operation of a TRANSACTION record."""

    kind: str
    message_count: int
    queue_id: int
    first_sequence: int
    first_id: int
    detail: int = 0
    priority: int = 0


class StoredTransaction(NamedTuple):
    """A TRANSACTION record."""

    lsn: int
    time_ms: int
    operations: list[StoredOperation]


class StoredEntry(NamedTuple):
    """One entry of an INDEX record."""

    sequence: int
    id: int
    size: int
    expires_ms: int
    delivery_count: int
    priority: int
    flags: int
    body_size: int = 0xFFFFFFFF


class StoredBlock(NamedTuple):
    """An INDEX record."""

    queue_id: int
    entries: list[StoredEntry]


Decoded = SegmentHeader | StoredMessage | StoredTransaction | StoredBlock

_OPERATION_KINDS = {1: "ENQUEUE", 2: "ACK", 3: "DELIVERED", 4: "PURGE"}


def decode_segment(content: bytes, segment: int) -> list[Decoded]:
    """All records of a segment without damage. Raises: ValueError at the first unsound byte."""
    decoded: list[Decoded] = []
    position = 0
    store_id = b""
    while position < len(content):
        record, position = decode_record(content, position, segment, store_id)
        if isinstance(record, SegmentHeader):
            store_id = record.store_id
        decoded.append(record)
    return decoded


def decode_index(content: bytes, number: int, store_id: bytes) -> list[StoredBlock]:
    """Return the blocks of a sound index file. Raises: ValueError at the first unsound byte."""
    blocks: list[StoredBlock] = []
    position = 0
    while position < len(content):
        record, position = decode_record(content, position, number, store_id)
        if not isinstance(record, StoredBlock):
            raise ValueError(f"no INDEX record before {position}")  # noqa: TRY004 (content)
        blocks.append(record)
    return blocks


def decode_row(table: str, key: str, stored: bytes) -> Any:
    """The value of a row of the catalog. Raises: ValueError."""
    name = key.encode()
    names = table.encode() + b"\0" + len(name).to_bytes(2, "big") + name
    if stored[:1] != b"\xc1" or crc32c(names + stored[5:]) != _integer(stored[1:5]):
        raise ValueError(f"checksum of row {key!r} of {table}")
    return msgpack.unpackb(stored[5:], strict_map_key=False)


def decode_column(packed: bytes) -> list[int]:
    """`ids` or `references` of a row in `segments`; none where it is empty."""
    size = {b"": 1, b"B": 1, b"H": 2, b"I": 4, b"Q": 8}[packed[:1]]
    return [_integer(packed[at : at + size]) for at in range(1, len(packed), size)]


def decode_record(
    content: bytes, position: int, segment: int, store_id: bytes
) -> tuple[Decoded, int]:
    """The record at `position`, and where the next one starts. Raises: ValueError."""
    header = content[position : position + 32]
    if len(header) < 32 or header[:4] != b"\xc7REC":
        raise ValueError(f"no header at {position}")
    seed = b"" if header[4] == 1 else store_id
    if crc32c(seed + header[:24]) != _integer(header[24:28]):
        raise ValueError(f"header checksum at {position}")
    end = position + 32 + _integer(header[20:24])
    payload = content[position + 32 : end]
    if end > len(content) or crc32c(seed + header[:24] + payload) != _integer(header[28:32]):
        raise ValueError(f"payload checksum at {position}")
    if _integer(header[16:20]) != segment:
        raise ValueError(f"record of segment {_integer(header[16:20])} at {position}")
    if header[5] > (header[4] == 2):
        raise ValueError(f"flags at {position}")
    number = _integer(header[8:16])
    if header[4] == 3 and _integer(header[6:8]) != number % 65536:
        raise ValueError(f"batch at {position}")
    match header[4]:
        case 1:
            return _segment(number, payload), end
        case 2:
            return _message(number, payload, header[5] == 1), end
        case 3:
            return _transaction(number, payload), end
        case 4:
            return _block(number, payload), end
    raise ValueError(f"kind {header[4]} at {position}")


def _segment(number: int, payload: bytes) -> SegmentHeader:
    if len(payload) != 28:
        raise ValueError("size of a SEGMENT payload")
    return SegmentHeader(number, _integer(payload[:4]), payload[4:20], _integer(payload[20:]))


def _message(number: int, payload: bytes, is_compressed: bool) -> StoredMessage:
    exchange_end = 6 + payload[0]
    routing_key_end = exchange_end + payload[1]
    properties_end = routing_key_end + _integer(payload[2:6])
    if properties_end > len(payload):
        raise ValueError("lengths in a MESSAGE payload")
    return StoredMessage(
        number,
        payload[6:exchange_end].decode(),
        payload[exchange_end:routing_key_end].decode(),
        payload[routing_key_end:properties_end],
        payload[properties_end:],
        is_compressed,
    )


def _transaction(number: int, payload: bytes) -> StoredTransaction:
    if len(payload) < 8 or len(payload) % 40 != 8:
        raise ValueError("size of a TRANSACTION payload")
    operations = [_operation(payload[at : at + 40]) for at in range(8, len(payload), 40)]
    return StoredTransaction(number, _integer(payload[:8]), operations)


def _operation(content: bytes) -> StoredOperation:
    if content[2:4] != bytes(2) or content[0] not in _OPERATION_KINDS:
        raise ValueError("an operation's first bytes")
    return StoredOperation(
        _OPERATION_KINDS[content[0]],
        _integer(content[4:8]),
        _integer(content[8:16]),
        _integer(content[16:24]),
        _integer(content[24:32]),
        _integer(content[32:40]),
        content[1],
    )


def _block(number: int, payload: bytes) -> StoredBlock:
    count = _integer(payload[8:12])
    content = zstandard.ZstdDecompressor().decompress(payload[16:])
    if len(content) not in (34 * count, 38 * count) or payload[12:16] != bytes(4):
        raise ValueError("size of an INDEX payload")
    columns = []
    start = 0
    sizes = (8, 8, 4, 8, 4, 1, 1, 4) if len(content) == 38 * count else (8, 8, 4, 8, 4, 1, 1)
    for size in sizes:
        end = start + size * count
        columns.append([_integer(content[at : at + size]) for at in range(start, end, size)])
        start = end
    for column in columns[:2]:
        column[:] = accumulate(column)
    entries = [StoredEntry(*row) for row in zip(*columns, strict=True)]
    if not entries or entries[0].sequence != number:
        raise ValueError("the number of an INDEX record")
    return StoredBlock(_integer(payload[:8]), entries)


def _integer(content: bytes) -> int:
    return int.from_bytes(content, "big")
