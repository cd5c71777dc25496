"""Content headers: the size of a message's body, and its properties.

The broker keeps and forwards a message's properties as the bytes that the publisher sent, so
everything that `decode_content_header` accepts must be well formed for every consumer.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from amqpstore_server.protocol.errors import FrameError, MalformedError
from amqpstore_server.protocol.events import ContentHeader
from amqpstore_server.protocol.field_table import (
    EMPTY_TABLE,
    Encoded,
    FieldValue,
    check_table,
    decode_own_table,
    decode_table,
    encode_name,
    encode_table,
    encode_value,
    join_table,
    split_table,
    without_fields,
)
from amqpstore_server.protocol.primitives import (
    LONG,
    Reader,
    Writer,
    read_longlong,
    read_octet,
    read_short,
    read_shortstr,
    write_longlong,
    write_octet,
    write_short,
    write_shortstr,
)

_HEADER = struct.Struct(">HHQ")
"""Class id, weight (always 0), body size in bytes; the properties follow (section 4.2.6.1)."""


@dataclass(slots=True)
class BasicProperties:
    """The properties of class basic; None is absent. `timestamp` in seconds since 1970, UTC."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: dict[str, FieldValue] | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


class PropertyType(enum.Enum):
    """The type of a property; for a fixed width its value is the bytes."""

    SHORTSTR = "shortstr"
    TABLE = "table"
    OCTET = 1
    LONGLONG = 8


PROPERTY_TYPES: tuple[tuple[str, PropertyType], ...] = (
    ("content_type", PropertyType.SHORTSTR),
    ("content_encoding", PropertyType.SHORTSTR),
    ("headers", PropertyType.TABLE),
    ("delivery_mode", PropertyType.OCTET),
    ("priority", PropertyType.OCTET),
    ("correlation_id", PropertyType.SHORTSTR),
    ("reply_to", PropertyType.SHORTSTR),
    ("expiration", PropertyType.SHORTSTR),
    ("message_id", PropertyType.SHORTSTR),
    ("timestamp", PropertyType.LONGLONG),
    ("type", PropertyType.SHORTSTR),
    ("user_id", PropertyType.SHORTSTR),
    ("app_id", PropertyType.SHORTSTR),
    ("cluster_id", PropertyType.SHORTSTR),
)
"""In the order on the wire; the first has the flag of the highest bit."""

_CODECS: dict[PropertyType, tuple[Reader, Writer]] = {
    PropertyType.SHORTSTR: (read_shortstr, write_shortstr),
    PropertyType.TABLE: (decode_table, encode_table),
    PropertyType.OCTET: (read_octet, write_octet),
    PropertyType.LONGLONG: (read_longlong, write_longlong),
}
_PROPERTIES: tuple[tuple[str, Reader, Writer], ...] = tuple(
    (name, *_CODECS[kind]) for name, kind in PROPERTY_TYPES
)

_FLAGS = tuple((1 << (15 - index), name, read) for index, (name, read, _) in enumerate(_PROPERTIES))
_OWN_FLAGS = tuple(
    (flag, name, decode_own_table if name == "headers" else read) for flag, name, read in _FLAGS
)
"""For properties that `decode_content_header` has accepted before."""

_CHECKED_FLAGS = tuple(
    (flag, name, check_table if name == "headers" else read) for flag, name, read in _FLAGS
)
"""For properties of which headers are not needed, but have to be right."""

_READERS = {name: read for name, read, _ in _PROPERTIES}
_WRITERS = {name: write for name, _, write in _PROPERTIES}

REPLY_TO = "amq.rabbitmq.reply-to"
"""The name that a client consumes its direct replies from, and writes into reply-to."""

_KEY_NAMES = encode_name("CC"), encode_name("BCC")
READ_HEADERS = (*_KEY_NAMES, encode_name("x-death-landmark"))
"""The headers that concern the broker, encoded: routing keys, and one that it alone may write, in
which there is the name of one of these.
"""
"""The headers that have routing keys, encoded."""

_NOT_PLAIN = frozenset({"expiration", "user_id"})

_UNKNOWN_FLAG = 0b10
MORE_FLAGS = 0b01
"""The flag that announces another word of flags."""


def concerns_the_broker(name: str, value: str | bytes) -> bool:
    """Tell whether a property of text makes its message one that is not `plain`.

    Of a reply-to only the length is asked for: headers of one `Shape` have that in common.
    """
    return name in _NOT_PLAIN or (name == "reply_to" and len(value) == len(REPLY_TO))


def decode_content_header(payload: bytes) -> ContentHeader:
    """Decode the payload of a content header frame.

    Raises: FrameError when it is too short for a header, or its weight is not 0; MalformedError for
    properties that `decode_properties` would refuse.
    """
    return decode_counted_header(payload)[0]


def decode_counted_header(payload: bytes) -> tuple[ContentHeader, int]:
    """Do as `decode_content_header`. Also returns the number of entries of the headers."""
    if len(payload) < _HEADER.size:
        raise FrameError(f"a content header of {len(payload)} bytes, shorter than {_HEADER.size}")
    class_id, weight, body_size = _HEADER.unpack_from(payload)
    # Section 4.2.6.1: weight is not used, and must be zero.
    if weight:
        raise FrameError(f"a content header with weight {weight}, which must be 0")
    properties = payload[_HEADER.size :]
    mode = priority = count = 0
    is_plain = True
    for name, value in _walk(properties, _CHECKED_FLAGS):
        if name == "delivery_mode":
            mode = value
        elif name == "priority":
            priority = value
        elif name == "headers":
            count = value
            is_plain = is_plain and not _has_read_headers(properties)
        elif concerns_the_broker(name, value):
            is_plain = False
    plain = (mode, priority) if is_plain else None
    return ContentHeader(class_id, body_size, properties, plain), count


def _has_read_headers(properties: bytes) -> bool:
    """Tell whether properties have headers that concern the broker."""
    if not any(name in properties for name in _KEY_NAMES):
        return False  # as in nearly all
    headers = split_table(split_properties(properties)["headers"])
    return any(name in headers for name in READ_HEADERS)


def decode_properties(raw: bytes) -> BasicProperties:
    """Decode property flags and property list.

    Raises: MalformedError when the list is too short or too long, is malformed, or has a flag other
    than the fourteen.
    """
    properties = BasicProperties()
    for name, value in _walk(raw, _OWN_FLAGS):
        setattr(properties, name, value)
    return properties


def encode_properties(properties: BasicProperties) -> bytes:
    """Encode property flags and property list. Raises: ValueError for a value that does not fit."""
    flags = 0
    parts = [b""]
    for (flag, name, _), (_, _, write) in zip(_FLAGS, _PROPERTIES, strict=True):
        value = getattr(properties, name)
        if value is not None:
            flags |= flag
            parts.append(write(value))
    parts[0] = write_short(flags)
    return b"".join(parts)


def as_table(raw: bytes) -> dict[str, FieldValue]:
    """Return the properties as a field table, by name; the headers in it stay as they are
    encoded.
    """
    found: dict[str, FieldValue] = {}
    for name, part in split_properties(raw).items():
        found[name] = Encoded(b"F" + part) if name == "headers" else decode_property(name, part)
    return found


def edit_properties(
    raw: bytes,
    *,
    headers: Mapping[str, FieldValue] | None = None,
    without_headers: Collection[str] = (),
    **properties: Any,
) -> bytes:
    """Return the properties with some of them, and some of the headers, changed.

    Everything else stays the same, byte for byte.
    Args: headers to set, and names of headers to remove; properties by name, None removes one.
    Raises: ValueError for a value that does not fit.
    """
    parts = split_properties(raw)
    if headers:
        fields = split_table(parts.get("headers", EMPTY_TABLE))
        for name, value in headers.items():
            fields[encode_name(name)] = encode_value(value)
        parts["headers"] = join_table(fields)
    if without_headers:
        names = map(encode_name, without_headers)
        parts["headers"] = without_fields(parts.get("headers", EMPTY_TABLE), names)
    for name, value in properties.items():
        if value is None:
            parts.pop(name, None)
        else:
            parts[name] = _WRITERS[name](value)
    return join_properties(parts)


def split_properties(raw: bytes) -> dict[str, bytes]:
    """Return each property that is present, encoded, of properties that were accepted before."""
    flags, offset = _flags(raw)
    parts: dict[str, bytes] = {}
    for name, width in _present(flags):
        if width == _SHORT:
            end = offset + 1 + raw[offset]
        elif width == _LONG:
            end = offset + LONG.size + LONG.unpack_from(raw, offset)[0]
        else:
            end = offset + width
        parts[name] = raw[offset:end]
        offset = end
    return parts


def decode_property(name: str, part: bytes) -> Any:
    """Return the value of a property that is encoded."""
    return _READERS[name](part, 0)[0]


def join_properties(parts: Mapping[str, bytes]) -> bytes:
    """Return property flags and property list. Args: parts, each property that is present,
    encoded, in any order.
    """
    flags = 0
    content = [b""]
    for flag, name, _ in _FLAGS:
        if name in parts:
            flags |= flag
            content.append(parts[name])
    content[0] = write_short(flags)
    return b"".join(content)


_SHORT, _LONG = -1, -4
"""In place of a width: a property that begins with its length, in one octet or in four."""

_WIDTHS = {PropertyType.SHORTSTR: _SHORT, PropertyType.TABLE: _LONG}


@lru_cache(maxsize=256)
def _present(flags: int) -> tuple[tuple[str, int], ...]:
    """Return the properties that these flags announce, in order, and how wide they are."""
    return tuple(
        (name, _WIDTHS.get(kind) or int(kind.value))
        for index, (name, kind) in enumerate(PROPERTY_TYPES)
        if flags & 1 << (15 - index)
    )


def _walk(raw: bytes, readers: Iterable[tuple[int, str, Reader]]) -> Iterator[tuple[str, Any]]:
    """Yield each property that is present, with its name."""
    flags, offset = _flags(raw)
    for flag, name, read in readers:
        if flags & flag:
            value, offset = read(raw, offset)
            yield name, value
    # Bytes behind the last property would be passed on to consumers, whose decoders may read them
    # as something else.
    if offset != len(raw):
        raise MalformedError(f"{len(raw) - offset} bytes behind the last property")


def _flags(raw: bytes) -> tuple[int, int]:
    """Return the property flags, and the offset of the property list."""
    flags, offset = read_short(raw, 0)
    last = flags
    while last & MORE_FLAGS:
        last, offset = read_short(raw, offset)
        # Class basic has fourteen properties: a further word has none to announce.
        if last & ~MORE_FLAGS:
            raise MalformedError(f"property flags {last:#06x} behind the first are not known")
    # An unknown property would shift every property behind it.
    if flags & _UNKNOWN_FLAG:
        raise MalformedError(f"property flags {flags:#06x} include one that belongs to no property")
    return flags, offset
