"""Converts content properties (section 4.2.6.1) to an object, and back."""

from __future__ import annotations

import functools
import struct
from typing import Any

from amqpstore_tools.offline.contents import PROPERTIES
from amqpstore_tools.transfer.fields import (
    FieldError,
    as_bytes,
    decode_table,
    encode_short,
    encode_table,
)

_FLAGS = struct.Struct(">H")
_LONGLONG = struct.Struct(">Q")

_RESERVED = 3
"""The flags that no property of class basic has."""

SHORT, OCTET, TABLE, TIMESTAMP = range(4)
_KINDS = {"headers": TABLE, "delivery_mode": OCTET, "priority": OCTET, "timestamp": TIMESTAMP}

_RAW = "raw"
"""The name used instead of all others, for bytes that do not survive as properties of class
basic.
"""


def decode_properties(raw: bytes) -> dict[str, Any]:
    """Decode properties by name; `{"raw": ...}` if they would not be encoded to the same bytes."""
    try:
        return _decode(raw)
    except FieldError:
        return {_RAW: raw}


def encode_properties(properties: dict[str, Any]) -> bytes:
    """Encode the same bytes again. Raises: FieldError."""
    if properties.keys() == {_RAW}:
        return as_bytes(properties[_RAW])
    if unknown := properties.keys() - set(PROPERTIES):
        raise FieldError(f"{min(unknown)!r} is not a property")
    flags = 0
    parts = []
    for index, name in enumerate(PROPERTIES):
        if name in properties:
            flags |= 1 << (15 - index)
            parts.append(_encode_one(name, properties[name]))
    return _FLAGS.pack(flags) + b"".join(parts)


def _decode(raw: bytes) -> dict[str, Any]:
    """Decode each bit and byte, all of which are in the result. Raises: FieldError."""
    if len(raw) < _FLAGS.size:
        raise FieldError("there are no property flags")
    offset = _FLAGS.size
    properties: dict[str, Any] = {}
    try:
        for name, kind in present(_FLAGS.unpack_from(raw)[0]):
            if kind == SHORT:
                start = offset + 1
                offset = start + raw[offset]
                try:
                    properties[name] = raw[start:offset].decode()
                except UnicodeDecodeError:
                    properties[name] = {"string": raw[start:offset]}
            elif kind == OCTET:
                properties[name] = raw[offset]
                offset += 1
            elif kind == TABLE:
                properties[name], offset = decode_table(raw, offset)
            else:
                properties[name] = _LONGLONG.unpack_from(raw, offset)[0]
                offset += _LONGLONG.size
    except (IndexError, struct.error):
        raise FieldError("a property is missing") from None
    if offset != len(raw):
        raise FieldError(f"properties of {len(raw)} bytes end at byte {offset}")
    return properties


@functools.cache
def present(flags: int) -> list[tuple[str, int]]:
    """Return which properties are there, each with its type. Raises: FieldError."""
    if flags & _RESERVED:
        raise FieldError(f"flags {flags:#x} are not those of class basic")
    return [
        (name, _KINDS.get(name, SHORT))
        for index, name in enumerate(PROPERTIES)
        if flags & 1 << (15 - index)
    ]


def _encode_one(name: str, value: Any) -> bytes:
    if name == "headers":
        return encode_table(value)
    if name in ("delivery_mode", "priority", "timestamp"):
        size = 8 if name == "timestamp" else 1
        if type(value) is not int or not 0 <= value < 1 << 8 * size:
            raise FieldError(f"{name} cannot be {value!r}")
        return value.to_bytes(size, "big")
    return encode_short(value)
