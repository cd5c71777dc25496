"""Converts content properties (section 4.2.6.1) to an object, and back."""

from __future__ import annotations

import struct
from typing import Any

from amqpstore_tools.offline.contents import PROPERTIES
from amqpstore_tools.transfer.fields import (
    FieldError,
    as_bytes,
    decode_short,
    decode_table,
    encode_short,
    encode_table,
)

_FLAGS = struct.Struct(">H")
_LONGLONG = struct.Struct(">Q")

_RAW = "raw"
"""The name used instead of all others, for bytes that do not survive as properties of class
basic.
"""


def decode_properties(raw: bytes) -> dict[str, Any]:
    """Decode properties by name; `{"raw": ...}` if they would not be encoded to the same bytes."""
    try:
        found = _decode(raw)
        if encode_properties(found) == raw:
            return found
    except FieldError:
        pass
    return {_RAW: raw}


def encode_properties(properties: dict[str, Any]) -> bytes:
    """Encode the same bytes again. Raises: FieldError."""
    if properties.keys() == {_RAW}:
        return as_bytes(properties[_RAW])
    if unknown := properties.keys() - set(PROPERTIES):
        raise FieldError(f"{min(unknown)!r} is not a property")
    flags = 0
    parts = []
    for place, name in enumerate(PROPERTIES):
        if name in properties:
            flags |= 1 << (15 - place)
            parts.append(_encode_one(name, properties[name]))
    return _FLAGS.pack(flags) + b"".join(parts)


def _decode(raw: bytes) -> dict[str, Any]:
    if len(raw) < _FLAGS.size:
        raise FieldError("there are no property flags")
    (flags,) = _FLAGS.unpack_from(raw)
    offset = _FLAGS.size
    found: dict[str, Any] = {}
    for place, name in enumerate(PROPERTIES):
        if flags & 1 << (15 - place):
            found[name], offset = _decode_one(name, raw, offset)
    return found


def _decode_one(name: str, raw: bytes, offset: int) -> tuple[Any, int]:
    if name == "headers":
        return decode_table(raw, offset)
    if name in ("delivery_mode", "priority"):
        if offset >= len(raw):
            raise FieldError(f"{name} is missing")
        return raw[offset], offset + 1
    if name == "timestamp":
        if offset + _LONGLONG.size > len(raw):
            raise FieldError("timestamp is missing")
        return _LONGLONG.unpack_from(raw, offset)[0], offset + _LONGLONG.size
    return decode_short(raw, offset)


def _encode_one(name: str, value: Any) -> bytes:
    if name == "headers":
        return encode_table(value)
    if name in ("delivery_mode", "priority", "timestamp"):
        size = 8 if name == "timestamp" else 1
        if type(value) is not int or not 0 <= value < 1 << 8 * size:
            raise FieldError(f"{name} cannot be {value!r}")
        return value.to_bytes(size, "big")
    return encode_short(value)
