"""Converts field tables to values of JSON and msgpack, and back to the same bytes.

The field types that most clients send are plain values: `I` a number, `S` a text, `t` true or
false, `V` null, `A` a list. Any other is an object with one key, which names the type: `{"int64":
5}`, `{"table": {...}}`. tools/README.md has them all. So a table can be distinguished from a typed
value, and every type from every other.

Bytes are bytes here. In JSON they are base64, and `as_bytes` accepts either.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Callable
from typing import Any

_MAX_DEPTH = 128
"""The deepest nesting of tables and arrays, as the broker allows it."""

_NUMBERS = {
    b"b": ("int8", struct.Struct(">b")),
    b"B": ("uint8", struct.Struct(">B")),
    b"s": ("int16", struct.Struct(">h")),
    b"U": ("int16-U", struct.Struct(">h")),
    b"u": ("uint16", struct.Struct(">H")),
    b"i": ("uint32", struct.Struct(">I")),
    b"l": ("int64", struct.Struct(">q")),
    b"L": ("int64-L", struct.Struct(">q")),
    b"T": ("timestamp", struct.Struct(">Q")),
}
_FLOATS = {b"f": ("float", struct.Struct(">f")), b"d": ("double", struct.Struct(">d"))}
_INT32 = struct.Struct(">i")
_LENGTH = struct.Struct(">I")
_DECIMAL = struct.Struct(">Bi")


class FieldError(ValueError):
    """Bytes that are not a field table, or a value that is not valid for a field."""


def decode_table(buffer: bytes, offset: int, depth: int = 0) -> tuple[Any, int]:
    """Decode the table at `offset`; also returns the offset after it.

    Returns an object; or a list of pairs, if a name occurs twice or is not UTF-8.
    Raises: FieldError.
    """
    content, end = _long(buffer, offset)
    pairs: list[list[Any]] = []
    place = 0
    while place < len(content):
        name, place = decode_short(content, place)
        value, place = _decode(content, place, depth + 1)
        pairs.append([name, value])
    names = [name for name, _ in pairs if isinstance(name, str)]
    if len(set(names)) == len(pairs):
        return {name: value for name, value in pairs}, end  # noqa: C416 (pairs are lists)
    return pairs, end


def encode_table(table: Any, depth: int = 0) -> bytes:
    """Encode the same bytes again. Raises: FieldError."""
    pairs = table.items() if isinstance(table, dict) else table
    if not isinstance(table, (dict, list)):
        raise FieldError(f"{table!r} is not a table")
    parts = []
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise FieldError(f"{pair!r} is not a pair of a name and a value")
        parts += [encode_short(pair[0]), _encode(pair[1], depth + 1)]
    content = b"".join(parts)
    return _LENGTH.pack(len(content)) + content


def decode_short(buffer: bytes, offset: int) -> tuple[Any, int]:
    """Decode the short string at `offset`: a text, or `{"string": ...}`. Raises: FieldError."""
    if offset >= len(buffer):
        raise FieldError("a short string is missing")
    end = offset + 1 + buffer[offset]
    return _text(_part(buffer, offset + 1, end)), end


def encode_short(value: Any) -> bytes:
    """Encode the same bytes again. Raises: FieldError."""
    content = _text_bytes(value)
    if len(content) > 255:
        raise FieldError(f"a short string may have at most 255 bytes, this one has {len(content)}")
    return bytes([len(content)]) + content


def as_bytes(value: Any) -> bytes:
    """Return bytes, from bytes as in msgpack, or base64 as in JSON. Raises: FieldError."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as error:
            raise FieldError(f"{value[:40]!r} is not base64: {error}") from None
    raise FieldError(f"{value!r} is not valid for bytes")


def _decode(buffer: bytes, offset: int, depth: int) -> tuple[Any, int]:
    if depth > _MAX_DEPTH:
        raise FieldError(f"tables are nested more than {_MAX_DEPTH} deep")
    tag = _part(buffer, offset, offset + 1)
    offset += 1
    if tag in _NUMBERS:
        name, number = _NUMBERS[tag]
        (value,) = number.unpack(_part(buffer, offset, offset + number.size))
        return {name: value}, offset + number.size
    if tag in _FLOATS:
        name, number = _FLOATS[tag]
        raw = _part(buffer, offset, offset + number.size)
        (value,) = number.unpack(raw)
        return {name: value if math.isfinite(value) else {"bits": raw}}, offset + number.size
    decode = _DECODERS.get(tag)
    if decode is None:
        raise FieldError(f"{tag!r} is not a field type")
    return decode(buffer, offset, depth)


def _encode(value: Any, depth: int) -> bytes:
    if depth > _MAX_DEPTH:
        raise FieldError(f"tables are nested more than {_MAX_DEPTH} deep")
    if value is None:
        return b"V"
    if isinstance(value, bool):
        return b"t\1" if value else b"t\0"
    if isinstance(value, int):
        return b"I" + _packed(_INT32, value)
    if isinstance(value, str):
        return b"S" + _counted(value.encode())
    if isinstance(value, list):
        return b"A" + _counted(b"".join(_encode(one, depth + 1) for one in value))
    if isinstance(value, dict) and len(value) == 1:
        ((name, content),) = value.items()
        if name in _ENCODERS:
            return _ENCODERS[name](content, depth)
    raise FieldError(f"{value!r} is not valid for a field")


def _decode_int32(buffer: bytes, offset: int, _depth: int) -> tuple[Any, int]:
    return _INT32.unpack(_part(buffer, offset, offset + 4))[0], offset + 4


def _decode_bool(buffer: bytes, offset: int, _depth: int) -> tuple[Any, int]:
    octet = _part(buffer, offset, offset + 1)[0]
    return bool(octet) if octet < 2 else {"bool": octet}, offset + 1


def _decode_decimal(buffer: bytes, offset: int, _depth: int) -> tuple[Any, int]:
    end = offset + _DECIMAL.size
    scale, unscaled = _DECIMAL.unpack(_part(buffer, offset, end))
    return {"decimal": {"scale": scale, "unscaled": unscaled}}, end


def _decode_string(buffer: bytes, offset: int, _depth: int) -> tuple[Any, int]:
    content, end = _long(buffer, offset)
    return _text(content), end


def _decode_bytes(buffer: bytes, offset: int, _depth: int) -> tuple[Any, int]:
    content, end = _long(buffer, offset)
    return {"bytes": content}, end


def _decode_array(buffer: bytes, offset: int, depth: int) -> tuple[Any, int]:
    content, end = _long(buffer, offset)
    values = []
    place = 0
    while place < len(content):
        value, place = _decode(content, place, depth + 1)
        values.append(value)
    return values, end


def _decode_table(buffer: bytes, offset: int, depth: int) -> tuple[Any, int]:
    table, end = decode_table(buffer, offset, depth)
    return {"table": table}, end


_DECODERS: dict[bytes, Callable[[bytes, int, int], tuple[Any, int]]] = {
    b"I": _decode_int32,
    b"t": _decode_bool,
    b"D": _decode_decimal,
    b"S": _decode_string,
    b"x": _decode_bytes,
    b"A": _decode_array,
    b"F": _decode_table,
    b"V": lambda _buffer, offset, _depth: (None, offset),
}


def _encode_number(tag: bytes, number: struct.Struct) -> Callable[[Any, int], bytes]:
    return lambda value, _depth: tag + _packed(number, value)


def _encode_float(tag: bytes, number: struct.Struct) -> Callable[[Any, int], bytes]:
    def encode(value: Any, _depth: int) -> bytes:
        if isinstance(value, dict) and value.keys() == {"bits"}:
            bits = as_bytes(value["bits"])
            if len(bits) != number.size:
                raise FieldError(f"{bits!r} are not {number.size} bytes")
            return tag + bits
        return tag + _packed(number, value)

    return encode


def _encode_decimal(value: Any, _depth: int) -> bytes:
    if not isinstance(value, dict) or value.keys() != {"scale", "unscaled"}:
        raise FieldError(f"{value!r} is not a decimal, which has scale and unscaled")
    return b"D" + _packed(_DECIMAL, value["scale"], value["unscaled"])


def _encode_octet(value: Any, _depth: int) -> bytes:
    return b"t" + _packed(struct.Struct("B"), value)


_ENCODERS: dict[str, Callable[[Any, int], bytes]] = {
    **{name: _encode_number(tag, number) for tag, (name, number) in _NUMBERS.items()},
    **{name: _encode_float(tag, number) for tag, (name, number) in _FLOATS.items()},
    "bool": _encode_octet,
    "decimal": _encode_decimal,
    "string": lambda value, _depth: b"S" + _counted(as_bytes(value)),
    "bytes": lambda value, _depth: b"x" + _counted(as_bytes(value)),
    "table": lambda value, depth: b"F" + encode_table(value, depth),
}


def _packed(number: struct.Struct, *values: Any) -> bytes:
    if any(isinstance(value, bool) for value in values):
        raise FieldError(f"{values!r} is not a number")
    try:
        return number.pack(*values)
    except (struct.error, OverflowError) as error:
        raise FieldError(f"{values!r} does not fit its type: {error}") from None


def _text(content: bytes) -> Any:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"string": content}


def _text_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"string"}:
        return as_bytes(value["string"])
    raise FieldError(f"{value!r} is not a string")


def _long(buffer: bytes, offset: int) -> tuple[bytes, int]:
    (length,) = _LENGTH.unpack(_part(buffer, offset, offset + 4))
    return _part(buffer, offset + 4, offset + 4 + length), offset + 4 + length


def _counted(content: bytes) -> bytes:
    return _LENGTH.pack(len(content)) + content


def _part(buffer: bytes, start: int, end: int) -> bytes:
    if end > len(buffer):
        raise FieldError(f"a value ends at byte {end}, of {len(buffer)}")
    return buffer[start:end]
