"""A reader of segments, written from amqpstore/FORMAT.md alone.

It shares no code with the engine, not even the checksum, so that the two can only agree where
both agree with the document.
"""

from typing import NamedTuple


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
    """A MESSAGE record."""

    id: int
    exchange: str
    routing_key: str
    properties: bytes
    body: bytes


class StoredOperation(NamedTuple):
    """One operation of a TRANSACTION record."""

    kind: str
    message_count: int
    queue_id: int
    first_sequence: int
    first_id: int


class StoredTransaction(NamedTuple):
    """A TRANSACTION record."""

    lsn: int
    time_ms: int
    operations: list[StoredOperation]


Decoded = SegmentHeader | StoredMessage | StoredTransaction

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
    if header[5] != 0:
        raise ValueError(f"flags at {position}")
    number = _integer(header[8:16])
    if header[4] == 3 and _integer(header[6:8]) != number % 65536:
        raise ValueError(f"batch at {position}")
    match header[4]:
        case 1:
            return _segment(number, payload), end
        case 2:
            return _message(number, payload), end
        case 3:
            return _transaction(number, payload), end
    raise ValueError(f"kind {header[4]} at {position}")


def _segment(number: int, payload: bytes) -> SegmentHeader:
    if len(payload) != 28:
        raise ValueError("size of a SEGMENT payload")
    return SegmentHeader(number, _integer(payload[:4]), payload[4:20], _integer(payload[20:]))


def _message(number: int, payload: bytes) -> StoredMessage:
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
    )


def _transaction(number: int, payload: bytes) -> StoredTransaction:
    if len(payload) < 8 or len(payload) % 32 != 8:
        raise ValueError("size of a TRANSACTION payload")
    operations = [_operation(payload[at : at + 32]) for at in range(8, len(payload), 32)]
    return StoredTransaction(number, _integer(payload[:8]), operations)


def _operation(content: bytes) -> StoredOperation:
    if content[1:4] != bytes(3) or content[0] not in _OPERATION_KINDS:
        raise ValueError("an operation's first bytes")
    return StoredOperation(
        _OPERATION_KINDS[content[0]],
        _integer(content[4:8]),
        _integer(content[8:16]),
        _integer(content[16:24]),
        _integer(content[24:32]),
    )


def _integer(content: bytes) -> int:
    return int.from_bytes(content, "big")
