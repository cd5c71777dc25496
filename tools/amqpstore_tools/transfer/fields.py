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

NUMBERS = {
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
_FLOAT = struct.Struct(">f")
_DOUBLE = struct.Struct(">d")
_INT32 = struct.Struct(">i")
_LENGTH = struct.Struct(">I")
_DECIMAL = struct.Struct(">Bi")

_SIZED = {
    ord(tag): (name, number.unpack_from, 1 + number.size) for tag, (name, number) in NUMBERS.items()
}
"""By tag: name, how to decode the value, and the size of both."""
_STRING, _INT = b"SI"
_UNPACK_LENGTH = _LENGTH.unpack_from
_UNPACK_INT = _INT32.unpack_from


class FieldError(ValueError):
    """Bytes that are not a field table, or a value that is not valid for a field."""


def decode_table(buffer: bytes, offset: int, depth: int = 0) -> tuple[Any, int]:
    """Decode the table at `offset`; also returns the offset after it.

    Returns an object; or a list of pairs, if a name occurs twice or is not UTF-8.
    Raises: FieldError.
    """
    try:
        return _decode_table(buffer, offset, depth)
    except (IndexError, struct.error):
        raise FieldError(f"a value runs past the end of {len(buffer)} bytes") from None


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


def _decode_table(buffer: bytes, offset: int, depth: int) -> tuple[Any, int]:
    """Decode a table, which may end behind the buffer, or a value of it behind the table: the
    caller sees that in the offset. This is done for each message, so the usual types are decoded
    here. Raises: FieldError, IndexError, struct.error.
    """
    depth += 1
    at = offset + 4
    end = at + _UNPACK_LENGTH(buffer, offset)[0]
    if depth > _MAX_DEPTH and at < end:
        raise FieldError(f"tables are nested more than {_MAX_DEPTH} deep")
    table: dict[str, Any] = {}
    while at < end:
        start = at + 1
        at = start + buffer[at]
        try:
            name = buffer[start:at].decode()
        except UnicodeDecodeError:
            return _decode_pairs(buffer, start - 1, end, depth, table)
        if name in table:
            return _decode_pairs(buffer, start - 1, end, depth, table)
        tag = buffer[at]
        if tag == _STRING:
            start = at + 5
            at = start + _UNPACK_LENGTH(buffer, at + 1)[0]
            try:
                table[name] = buffer[start:at].decode()
            except UnicodeDecodeError:
                table[name] = {"string": buffer[start:at]}
        elif tag == _INT:
            table[name] = _UNPACK_INT(buffer, at + 1)[0]
            at += 5
        elif tag in _SIZED:
            kind, unpack, size = _SIZED[tag]
            table[name] = {kind: unpack(buffer, at + 1)[0]}
            at += size
        else:
            table[name], at = _decode(buffer, at, depth)
    if at != end or end > len(buffer):
        raise FieldError(f"a table that should end at byte {end} ends at byte {at}")
    return table, end


def _decode_pairs(
    buffer: bytes, at: int, end: int, depth: int, before: dict[str, Any]
) -> tuple[Any, int]:
    """Decode the rest of a table that cannot be an object, from the entry at `at` on."""
    pairs: list[list[Any]] = [[name, value] for name, value in before.items()]
    while at < end:
        start = at + 1
        at = start + buffer[at]
        name = _text(buffer[start:at])
        value, at = _decode(buffer, at, depth)
        pairs.append([name, value])
    if at != end or end > len(buffer):
        raise FieldError(f"a table that should end at byte {end} ends at byte {at}")
    return pairs, end


def _decode(buffer: bytes, at: int, depth: int) -> tuple[Any, int]:
    """Decode the value whose tag is at `at`, as `_decode_table` does."""
    if depth > _MAX_DEPTH:
        raise FieldError(f"tables are nested more than {_MAX_DEPTH} deep")
    tag = buffer[at]
    at += 1
    if tag in _SIZED:
        name, unpack, size = _SIZED[tag]
        return {name: unpack(buffer, at)[0]}, at + size - 1
    decode = _DECODERS.get(tag)
    if decode is None:
        raise FieldError(f"{bytes([tag])!r} is not a field type")
    return decode(buffer, at, depth)


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


def _decode_float(buffer: bytes, at: int, _depth: int) -> tuple[Any, int]:
    (value,) = _FLOAT.unpack_from(buffer, at)
    raw = buffer[at : at + 4]
    return {"float": value if math.isfinite(value) else {"bits": raw}}, at + 4


def _decode_double(buffer: bytes, at: int, _depth: int) -> tuple[Any, int]:
    (value,) = _DOUBLE.unpack_from(buffer, at)
    raw = buffer[at : at + 8]
    return {"double": value if math.isfinite(value) else {"bits": raw}}, at + 8


def _decode_bool(buffer: bytes, at: int, _depth: int) -> tuple[Any, int]:
    octet = buffer[at]
    return bool(octet) if octet < 2 else {"bool": octet}, at + 1


def _decode_decimal(buffer: bytes, at: int, _depth: int) -> tuple[Any, int]:
    scale, unscaled = _DECIMAL.unpack_from(buffer, at)
    return {"decimal": {"scale": scale, "unscaled": unscaled}}, at + _DECIMAL.size


def _decode_string(buffer: bytes, at: int, _depth: int) -> tuple[Any, int]:
    end = at + 4 + _UNPACK_LENGTH(buffer, at)[0]
    return _text(buffer[at + 4 : end]), end


def _decode_bytes(buffer: bytes, at: int, _depth: int) -> tuple[Any, int]:
    end = at + 4 + _UNPACK_LENGTH(buffer, at)[0]
    return {"bytes": buffer[at + 4 : end]}, end


def _decode_array(buffer: bytes, at: int, depth: int) -> tuple[Any, int]:
    end = at + 4 + _UNPACK_LENGTH(buffer, at)[0]
    at += 4
    values = []
    while at < end:
        value, at = _decode(buffer, at, depth + 1)
        values.append(value)
    if at != end or end > len(buffer):
        raise FieldError(f"an array that should end at byte {end} ends at byte {at}")
    return values, end


def _decode_nested(buffer: bytes, at: int, depth: int) -> tuple[Any, int]:
    table, end = _decode_table(buffer, at, depth)
    return {"table": table}, end


_DECODERS: dict[int, Callable[[bytes, int, int], tuple[Any, int]]] = {
    ord("I"): lambda buffer, at, _depth: (_UNPACK_INT(buffer, at)[0], at + 4),
    ord("f"): _decode_float,
    ord("d"): _decode_double,
    ord("t"): _decode_bool,
    ord("D"): _decode_decimal,
    ord("S"): _decode_string,
    ord("x"): _decode_bytes,
    ord("A"): _decode_array,
    ord("F"): _decode_nested,
    ord("V"): lambda _buffer, at, _depth: (None, at),
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
    **{name: _encode_number(tag, number) for tag, (name, number) in NUMBERS.items()},
    "float": _encode_float(b"f", _FLOAT),
    "double": _encode_float(b"d", _DOUBLE),
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


def _counted(content: bytes) -> bytes:
    return _LENGTH.pack(len(content)) + content
