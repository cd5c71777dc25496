"""Properties whose shape is known, as JSON without decoding each field.

Properties have one shape if they differ only in numbers and in the characters of texts: those of
the messages of one program have few. The first of a shape are decoded field by field, and taken
apart by their lengths and types; those after them take one `unpack`, and one `%` of the JSON.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec

from amqpstore_tools.transfer.fields import NUMBERS
from amqpstore_tools.transfer.properties import (
    OCTET,
    SHORT,
    TIMESTAMP,
    decode_properties,
    present,
)

_MAX_SHAPES = 1024
_MAX_OF_A_LENGTH = 4
"""Properties are compared with each shape of their length."""

_MAX_BYTES = 1 << 10
"""Longer properties are decoded field by field."""

_MAX_TRIED = 32
"""The number of properties in a column whose shape is looked for: each takes as long as decoding
ten.
"""

_MAX_FAILED = 64
"""The number of properties without a shape after which it is no longer looked for."""

_ROUND = 1024
"""The number of properties after which shapes are given up, if not even a quarter had one that was
known.
"""

_PAUSE = 16 * _ROUND
"""How many properties are decoded field by field then, before shapes are looked for again."""

_MAX_DEPTH = 16

_encode = msgspec.json.Encoder().encode


class PropertyShapes:
    """The shapes of the properties so far: a limited number, and only while they are of use."""

    def __init__(self) -> None:
        self._shapes: dict[int, list[_Shape]] = {}
        self._count = 0
        self._failed = 0
        # How many properties are still to be decoded field by field.
        self._paused = 0
        # In this round: how many properties there were, and how many had a known shape.
        self._seen = 0
        self._known = 0

    def json_values(self, column: Sequence[bytes]) -> list[Any]:
        """Return what is to be encoded as JSON for each row: properties as `decode_properties`
        returns them, or JSON of the same bytes.
        """
        if self._paused > 0:
            self._paused -= len(column)
            return list(map(decode_properties, column))
        values: list[Any] = []
        indexes: list[int] = []
        texts: list[tuple[bytes, ...]] = []
        others: list[bytes] = []
        shapes_of = self._shapes.get
        for index, raw in enumerate(column):
            for shape in shapes_of(len(raw), ()):
                unpacked = shape.unpack(raw)
                if unpacked[::2] == shape.fixed:
                    values.append(msgspec.Raw(shape.template % unpacked[1::2]))
                    texts.append(shape.texts(raw))
                    indexes.append(index)
                    break
            else:
                values.append(decode_properties(raw))
                others.append(raw)
        self._seen += len(column)
        self._known += len(indexes)
        if not _are_plain(chain.from_iterable(texts)):
            for index, of_one in zip(indexes, texts, strict=True):
                if not _are_plain(of_one):
                    values[index] = decode_properties(column[index])
                    self._known -= 1
        for raw in others[:_MAX_TRIED]:
            self._learn(raw)
        if self._seen >= _ROUND:
            self._end_round()
        return values

    def _learn(self, raw: bytes) -> None:
        """Remember the shape of properties, unless it is known by now."""
        if len(raw) > _MAX_BYTES or self._count == _MAX_SHAPES or self._failed == _MAX_FAILED:
            return
        known = self._shapes.get(len(raw), [])
        if len(known) == _MAX_OF_A_LENGTH or any(shape.is_of(raw) for shape in known):
            return
        shape = _shape_of(raw)
        if shape is None:
            self._failed += 1
            return
        self._shapes[len(raw)] = [*known, shape]
        self._count += 1

    def _end_round(self) -> None:
        if self._known < self._seen // 4:
            self._shapes.clear()
            self._count = self._failed = 0
            self._paused = _PAUSE
        self._seen = self._known = 0


def _are_plain(texts: Iterable[bytes]) -> bool:
    """Tell whether texts are UTF-8, and have the same bytes in JSON."""
    joined = b" ".join(texts)
    try:
        return len(_encode(joined.decode())) == len(joined) + 2
    except UnicodeDecodeError:
        return False


class _Shape:
    """A shape of properties: `unpack` returns what is fixed, and the values, in turn, `texts` only
    the values that are texts; `template` is the JSON, for all values.
    """

    __slots__ = ("fixed", "template", "texts", "unpack")

    def __init__(self, raw: bytes, parser: _Parser) -> None:
        self.unpack = struct.Struct(parser.layout).unpack
        self.texts = struct.Struct(parser.texts).unpack
        self.template = b"".join(parser.template)
        self.fixed = self.unpack(raw)[::2]

    def is_of(self, raw: bytes) -> bool:
        """Tell whether properties of the same length have this shape."""
        return bool(self.unpack(raw)[::2] == self.fixed)


def _shape_of(raw: bytes) -> _Shape | None:
    """Return the shape of properties; None if they have anything that only `decode_properties`
    knows.
    """
    parser = _Parser(raw)
    try:
        parser.add_properties()
    except (ValueError, IndexError, struct.error):
        return None
    shape = _Shape(raw, parser)
    plain = shape.template % shape.unpack(raw)[1::2]
    return shape if plain == _encode(decode_properties(raw)) else None


class _Parser:
    """Takes properties apart: `layout` and `texts` are formats of `struct`, as in `_Shape`.

    Its methods raise ValueError, IndexError or struct.error for what has no shape.
    """

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._offset = 0
        # Where the value before ends: from there on it is fixed.
        self._value_end = 0
        self._text_end = 0
        self.layout = self.texts = ">"
        self.template: list[bytes] = []

    def add_properties(self) -> None:
        """Add all of them."""
        self._offset = 2
        for number, (name, kind) in enumerate(present(int.from_bytes(self._raw[:2], "big"))):
            self.template.append(b'%b"%b":' % (b"," if number else b"{", name.encode()))
            if kind == SHORT:
                self._add_text(self._number(1))
            elif kind == OCTET:
                self._add_number("B")
            elif kind == TIMESTAMP:
                self._add_number("Q")
            else:
                self._add_table(0)
        self.template.append(b"}" if self.template else b"{}")
        self._add_fixed(len(self._raw))
        self.texts += f"{len(self._raw) - self._text_end}x"
        if self._offset != len(self._raw):
            raise ValueError("something follows the properties")

    def _add_table(self, depth: int) -> None:
        end = self._number(4)
        end += self._offset
        names: set[bytes] = set()
        while self._offset < end:
            size = self._number(1)
            name = self._raw[self._offset : self._offset + size]
            self._offset += size
            encoded = _encode(name.decode()).replace(b"%", b"%%")
            self.template.append((b"," if names else b"{") + encoded + b":")
            if name in names:
                raise ValueError("a name occurs twice")
            names.add(name)
            self._add_field(depth)
        self.template.append(b"}" if names else b"{}")

    def _add_field(self, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise ValueError("it is nested too deep")
        tag = self._raw[self._offset : self._offset + 1]
        self._offset += 1
        if tag == b"S":
            self._add_text(self._number(4))
        elif tag == b"I":
            self._add_number("i")
        elif tag in NUMBERS:
            name, number = NUMBERS[tag]
            self.template.append(b'{"%b":' % name.encode())
            self._add_number(number.format[1:])
            self.template.append(b"}")
        elif tag == b"t":
            self.template.append((b"false", b"true")[self._number(1)])
        elif tag == b"V":
            self.template.append(b"null")
        elif tag == b"F":
            self.template.append(b'{"table":')
            self._add_table(depth + 1)
            self.template.append(b"}")
        elif tag == b"A":
            end = self._number(4)
            end += self._offset
            self.template.append(b"[")
            start = self._offset
            while self._offset < end:
                if self._offset > start:
                    self.template.append(b",")
                self._add_field(depth + 1)
            self.template.append(b"]")
        else:
            raise ValueError(f"{tag!r} has no shape")

    def _number(self, size: int) -> int:
        """Return a length, or another number that is the same in all of a shape."""
        self._offset += size
        if self._offset > len(self._raw):
            raise IndexError("a number is missing")
        return int.from_bytes(self._raw[self._offset - size : self._offset], "big")

    def _add_text(self, size: int) -> None:
        self.texts += f"{self._offset - self._text_end}x{size}s"
        self._text_end = self._offset + size
        self.template.append(b'"%b"')
        self._add_value(f"{size}s")

    def _add_number(self, code: str) -> None:
        self.template.append(b"%d")
        self._add_value(code)

    def _add_value(self, code: str) -> None:
        self._add_fixed(self._offset)
        self.layout += code
        self._offset += struct.calcsize(">" + code)
        self._value_end = self._offset

    def _add_fixed(self, end: int) -> None:
        self.layout += f"{end - self._value_end}s"
