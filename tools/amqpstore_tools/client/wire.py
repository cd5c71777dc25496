"""AMQP 0-9-1 encoding: the few methods a load generator sends and reads.

Frames are `type u8, channel u16, length u32, payload, 0xCE`, all integers big-endian (specification
2.3.5); a method payload is `class u16, method u16, arguments` (2.3.5.1).
"""

import struct
from collections.abc import Mapping

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE
FRAME_OVERHEAD_BYTES = 8  # type, channel and length before the payload, the end octet after it
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"

CONNECTION_START, CONNECTION_START_OK = (10, 10), (10, 11)
CONNECTION_TUNE, CONNECTION_TUNE_OK = (10, 30), (10, 31)
CONNECTION_OPEN, CONNECTION_OPEN_OK = (10, 40), (10, 41)
CONNECTION_CLOSE, CONNECTION_CLOSE_OK = (10, 50), (10, 51)
CONNECTION_BLOCKED, CONNECTION_UNBLOCKED = (10, 60), (10, 61)
CHANNEL_OPEN, CHANNEL_OPEN_OK = (20, 10), (20, 11)
CHANNEL_FLOW, CHANNEL_FLOW_OK = (20, 20), (20, 21)
CHANNEL_CLOSE, CHANNEL_CLOSE_OK = (20, 40), (20, 41)
EXCHANGE_DECLARE, EXCHANGE_DECLARE_OK = (40, 10), (40, 11)
EXCHANGE_DELETE, EXCHANGE_DELETE_OK = (40, 20), (40, 21)
QUEUE_DECLARE, QUEUE_DECLARE_OK = (50, 10), (50, 11)
QUEUE_BIND, QUEUE_BIND_OK = (50, 20), (50, 21)
QUEUE_PURGE, QUEUE_PURGE_OK = (50, 30), (50, 31)
QUEUE_DELETE, QUEUE_DELETE_OK = (50, 40), (50, 41)
BASIC_QOS, BASIC_QOS_OK = (60, 10), (60, 11)
BASIC_CONSUME, BASIC_CONSUME_OK = (60, 20), (60, 21)
BASIC_CANCEL, BASIC_CANCEL_OK = (60, 30), (60, 31)
BASIC_PUBLISH = (60, 40)
BASIC_RETURN = (60, 50)
BASIC_DELIVER = (60, 60)
BASIC_ACK = (60, 80)
BASIC_RECOVER, BASIC_RECOVER_OK = (60, 110), (60, 111)
BASIC_NACK = (60, 120)
CONFIRM_SELECT, CONFIRM_SELECT_OK = (85, 10), (85, 11)
TX_SELECT, TX_SELECT_OK = (90, 10), (90, 11)
TX_COMMIT, TX_COMMIT_OK = (90, 20), (90, 21)
TX_ROLLBACK, TX_ROLLBACK_OK = (90, 30), (90, 31)

type_channel_length = struct.Struct(">BHI")
_class_and_method = struct.Struct(">HH")
_ack_arguments = struct.Struct(">QB")
_content_header = struct.Struct(">HHQ")
DELIVERY_MODE_FLAG = 0x1000

MethodId = tuple[int, int]
TableItem = str | bool | int | Mapping[str, "TableItem"]


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Return a whole frame around `payload`."""
    return type_channel_length.pack(kind, channel, len(payload)) + payload + b"\xce"


def method(channel: int, method_id: MethodId, arguments: bytes = b"") -> bytes:
    """Return a whole method frame; `arguments` are encoded."""
    return frame(METHOD, channel, _class_and_method.pack(*method_id) + arguments)


def short_string(text: str) -> bytes:
    """Encode a length octet and up to 255 octets of UTF-8 (specification 4.2.5.3)."""
    octets = text.encode()
    return bytes((len(octets),)) + octets


def long_string(octets: bytes) -> bytes:
    """Encode a length u32 and the octets (specification 4.2.5.3)."""
    return struct.pack(">I", len(octets)) + octets


def table(items: Mapping[str, TableItem]) -> bytes:
    """Encode a field table of strings, booleans, i32 numbers and tables (4.2.5.5)."""
    fields = bytearray()
    for name, item in items.items():
        fields += short_string(name)
        if isinstance(item, bool):
            fields += b"t" + bytes((item,))
        elif isinstance(item, int):
            fields += b"I" + struct.pack(">i", item)
        elif isinstance(item, str):
            fields += b"S" + long_string(item.encode())
        else:
            fields += b"F" + table(item)
    return long_string(bytes(fields))


def read_short_string(octets: bytes, at: int) -> tuple[str, int]:
    """Return the short string at offset `at`, and the offset after it."""
    end = at + 1 + octets[at]
    return octets[at + 1 : end].decode(errors="replace"), end


def read_strings_of_table(octets: bytes, at: int) -> dict[str, str]:
    """Return the string fields at the start of the table at `at`.

    Reading stops at the first field of a type other than string, boolean, i32 or table: only
    `product` and `version` of a broker's server-properties are wanted, and both are strings.
    """
    (length,) = struct.unpack_from(">I", octets, at)
    at += 4
    end = min(at + length, len(octets))
    strings: dict[str, str] = {}
    while at < end:
        name, at = read_short_string(octets, at)
        kind, at = octets[at : at + 1], at + 1
        if kind in (b"S", b"F"):
            (size,) = struct.unpack_from(">I", octets, at)
            if kind == b"S":
                strings[name] = octets[at + 4 : at + 4 + size].decode(errors="replace")
            at += 4 + size
        elif kind == b"t":
            at += 1
        elif kind == b"I":
            at += 4
        else:
            break
    return strings


def ack(channel: int, delivery_tag: int) -> bytes:
    """Return a basic.ack with `multiple` set: everything up to and including `delivery_tag`. 21
    bytes.
    """
    return method(channel, BASIC_ACK, _ack_arguments.pack(delivery_tag, 1))


def delivery_mode(*, persistent: bool) -> bytes:
    """Encode content properties with only the delivery mode: 2 when persistent, otherwise 1."""
    return struct.pack(">HB", DELIVERY_MODE_FLAG, 2 if persistent else 1)


def publish(
    channel: int, exchange: str, routing_key: str, body: bytes, *, properties: bytes, frame_max: int
) -> bytes:
    """Encode basic.publish, content header and body frames of one message.

    `properties` are the property flags and the values that they announce (specification 4.2.6.1).
    """
    arguments = b"\0\0" + short_string(exchange) + short_string(routing_key) + b"\0"
    header = _content_header.pack(60, 0, len(body)) + properties
    step = frame_max - FRAME_OVERHEAD_BYTES
    bodies = (frame(BODY, channel, body[at : at + step]) for at in range(0, len(body), step))
    return b"".join(
        (method(channel, BASIC_PUBLISH, arguments), frame(HEADER, channel, header), *bodies)
    )
