"""Shapes: what content headers have in common that differ in their values alone.

Most producers send the same properties and header names with each message, and only other values:
a message-id, a timestamp, a trace. To walk through such a header in Python takes longer than all
the rest that is done with its message. So the first header of a shape is decoded, and its shape
remembered: flags, lengths, names and types, at their places. Any other header that is equal to it
in these, found out by one comparison, is well formed as well.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from amqpstore_server.protocol.content import (
    MORE_FLAGS,
    PROPERTY_TYPES,
    READ_HEADERS,
    PropertyType,
    concerns_the_broker,
)
from amqpstore_server.protocol.events import PROPERTIES_AT
from amqpstore_server.protocol.spec import FRAME_BODY, FRAME_END, FRAME_HEADER

_MAX_SHAPES = 64
_MAX_BYTES = 512
"""A shape takes about twice its header's bytes, for as long as the connection lives."""

_LEARN_EVERY = 16
"""The interval of learning: where headers have more shapes than are remembered, it is not worth
learning each of them.
"""

_FIXED_BYTES = {
    **dict.fromkeys(b"tbB", 1),
    **dict.fromkeys(b"sUu", 2),
    **dict.fromkeys(b"Iif", 4),
    ord("D"): 5,
    **dict.fromkeys(b"lLdT", 8),
    ord("V"): 0,
}
"""Bytes of a field's value, by the tag of its type."""

_HEAD = struct.Struct(">BBHI")
"""The end of a frame, and the beginning of the next: type, channel and size."""
_HEADER_HEAD_MASK = b"\xff\xff\0\0\xff\xff\xff\xff"
_BODY_HEAD_MASK = b"\xff\xff\0\0\0\0\0\0"

_READ_HEADERS = {name[1:] for name in READ_HEADERS}
"""The names of the headers that the broker reads, without their length."""

_STRINGS = b"Sx"
_TABLE, _ARRAY = b"FA"
_COUNT = struct.Struct(">I")


class Shape(NamedTuple):
    """The bits that headers of a shape share: `mask` says which these are, `bits` what they are.

    `plain_at` are the offsets of delivery-mode and priority, as of `publish_header`.

    `middle_mask` and `middle_bits` are the same for the `middle_bytes` between the payload of a
    method and its body in one frame: a frame-end, the header's frame, and the beginning of the
    body's. `middle` unpacks from these what they may differ in: the header's channel, the size of
    the body, the body's channel, and the size of its frame.
    """

    mask: int
    bits: int
    plain_at: tuple[int, int] | None
    middle_bytes: int
    middle_mask: int
    middle_bits: int
    middle: struct.Struct


NO_SHAPE = Shape(0, 1, None, 0, 0, 1, _COUNT)
"""No header has it."""


class Shapes:
    """The shapes of the headers that one connection sent."""

    def __init__(self) -> None:
        self._by_size: dict[int, list[Shape]] = {}
        self._count = 0
        self._missed = 0

    def find(self, payload: bytes) -> Shape | None:
        """Return the shape of a content header's payload, if it is a known one."""
        shapes = self._by_size.get(len(payload))
        if shapes is not None:
            number = int.from_bytes(payload, "big")
            for shape in shapes:
                if number & shape.mask == shape.bits:
                    return shape
        return None

    def learn(self, payload: bytes) -> None:
        """Remember the shape of a header that `decode_content_header` has accepted."""
        self._missed += 1
        if len(payload) > _MAX_BYTES or (
            self._count >= _MAX_SHAPES and self._missed % _LEARN_EVERY
        ):
            return
        if (shape := _Walk(payload).shape()) is None:
            return
        if self._count >= _MAX_SHAPES:
            self._by_size.clear()
            self._count = 0
        self._by_size.setdefault(len(payload), []).append(shape)
        self._count += 1


class _Walk:
    """Goes through an accepted header, and marks which bits of it make up its shape."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._mask = bytearray(len(payload))
        self._offset = 0
        self._is_plain = True
        self._is_ascii = True

    def shape(self) -> Shape | None:
        """Return the shape; None for text that is not ASCII, whose UTF-8 has to be looked at."""
        payload = self._payload
        self._share(4)
        self._offset = PROPERTIES_AT
        flags = int.from_bytes(self._share(2), "big")
        last = flags
        while last & MORE_FLAGS:
            last = int.from_bytes(self._share(2), "big")
        indexes = {}
        for index, (name, kind) in enumerate(PROPERTY_TYPES):
            if flags & 1 << (15 - index):
                indexes[name] = start = self._offset
                self._property(kind)
                if kind is PropertyType.SHORTSTR and concerns_the_broker(
                    name, payload[start + 1 : self._offset]
                ):
                    self._is_plain = False
        if not self._is_ascii:
            return None
        plain_at = indexes.get("delivery_mode", 0), indexes.get("priority", 0)
        mask = int.from_bytes(self._mask, "big")
        size = len(payload)
        # No body in one frame is as large as 4 GiB.
        self._mask[4:8] = b"\xff" * 4
        middle_mask = b"".join((_HEADER_HEAD_MASK, self._mask, _BODY_HEAD_MASK))
        middle = b"".join(
            (_HEAD.pack(FRAME_END, FRAME_HEADER, 0, size), payload[:4], bytes(4), payload[8:])
        ) + _HEAD.pack(FRAME_END, FRAME_BODY, 0, 0)
        return Shape(
            mask,
            int.from_bytes(payload, "big") & mask,
            plain_at if self._is_plain else None,
            len(middle),
            int.from_bytes(middle_mask, "big"),
            int.from_bytes(middle, "big") & int.from_bytes(middle_mask, "big"),
            struct.Struct(f">2xH12xI{size - 10}xHI"),
        )

    def _share(self, size: int) -> bytes:
        """Mark bytes in which all headers of the shape are equal."""
        start = self._offset
        self._offset = end = start + size
        self._mask[start:end] = b"\xff" * size
        return self._payload[start:end]

    def _property(self, kind: PropertyType) -> None:
        if kind is PropertyType.SHORTSTR:
            start = self._offset + 1
            (size,) = self._share(1)
            self._offset = end = start + size
            # ASCII has no highest bit: what has one takes the long way.
            self._mask[start:end] = b"\x80" * size
            self._is_ascii = self._is_ascii and self._payload[start:end].isascii()
        elif kind is PropertyType.TABLE:
            self._table()
        else:
            self._offset += kind.value

    def _table(self) -> None:
        size = self._size()
        ends = [(self._offset + size, True)]
        while ends:
            end, has_names = ends[-1]
            if self._offset >= end:
                ends.pop()
                continue
            if has_names:
                (size,) = self._share(1)
                name = self._share(size)
                if len(ends) == 1 and name in _READ_HEADERS:
                    self._is_plain = False
            (tag,) = self._share(1)
            if tag in _STRINGS:
                size = self._size()  # which moves the offset itself
                self._offset += size
            elif tag in (_TABLE, _ARRAY):
                size = self._size()
                ends.append((self._offset + size, tag == _TABLE))
            else:
                self._offset += _FIXED_BYTES[tag]

    def _size(self) -> int:
        size: int = _COUNT.unpack(self._share(_COUNT.size))[0]
        return size
