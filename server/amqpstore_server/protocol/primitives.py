"""Integers and strings on the wire (section 4.2.5), in network byte order.

A reader takes a buffer and an offset, and returns the value and the offset after it. It raises
MalformedError if the buffer is too short for the value, and never reads past its end. A writer
raises ValueError for a value that the type cannot hold: that is a mistake of this side.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from amqpstore_server.protocol.errors import MalformedError

Reader = Callable[[bytes, int], tuple[Any, int]]
Writer = Callable[[Any], bytes]

LONG = struct.Struct(">I")

_SHORTSTR_BYTES = 255


def number_reader(number: struct.Struct, type_name: str) -> Reader:
    """Return a reader of one fixed-width number."""
    size = number.size
    unpack_from = number.unpack_from

    def read(buffer: bytes, offset: int) -> tuple[Any, int]:
        try:
            return unpack_from(buffer, offset)[0], offset + size
        except struct.error:
            raise truncated(type_name, buffer, offset) from None

    return read


def number_writer(number: struct.Struct, type_name: str) -> Writer:
    """Return a writer of one fixed-width number."""

    def write(value: Any) -> bytes:
        try:
            return number.pack(value)
        except (struct.error, OverflowError):
            raise ValueError(f"{value!r} does not fit the type {type_name}") from None

    return write


def truncated(type_name: str, buffer: bytes, offset: int) -> MalformedError:
    """Return the error for a value that is not completely in the buffer."""
    return MalformedError(
        f"the {type_name} at byte {offset} runs past the end of the {len(buffer)} bytes there are"
    )


def read_shortstr(buffer: bytes, offset: int) -> tuple[str, int]:
    """Read a length octet and that many bytes of UTF-8. Raises: MalformedError also for other
    bytes.
    """
    start = offset + 1
    if start > len(buffer):
        raise truncated("shortstr", buffer, offset)
    end = start + buffer[offset]
    if end > len(buffer):
        raise truncated("shortstr", buffer, offset)
    try:
        return buffer[start:end].decode(), end
    except UnicodeDecodeError as error:
        raise MalformedError(f"the shortstr at byte {offset} is not UTF-8: {error}") from None


def write_shortstr(value: str) -> bytes:
    """Write a short string. Raises: ValueError over 255 bytes, and for lone surrogates."""
    encoded = value.encode()
    if len(encoded) > _SHORTSTR_BYTES:
        raise ValueError(f"{len(encoded)} bytes do not fit a shortstr's {_SHORTSTR_BYTES}")
    return bytes((len(encoded),)) + encoded


def read_octets(buffer: bytes, offset: int) -> tuple[bytes, int]:
    """Read a length octet and that many bytes."""
    start = offset + 1
    end = start + buffer[offset] if offset < len(buffer) else start
    if end > len(buffer) or start > len(buffer):
        raise truncated("octets", buffer, offset)
    return buffer[start:end], end


def write_octets(value: bytes) -> bytes:
    """Write a length octet and the bytes. Raises: ValueError over 255 bytes."""
    if len(value) > _SHORTSTR_BYTES:
        raise ValueError(f"{len(value)} bytes do not fit the {_SHORTSTR_BYTES} of octets")
    return bytes((len(value),)) + value


def read_longstr(buffer: bytes, offset: int) -> tuple[bytes, int]:
    """Read four octets of length and that many bytes."""
    length, start = read_long(buffer, offset)
    end = start + length
    if end > len(buffer):
        raise truncated("longstr", buffer, offset)
    return buffer[start:end], end


def write_longstr(value: bytes | bytearray) -> bytes:
    """Write four octets of length and the bytes."""
    return write_long(len(value)) + value


read_octet = number_reader(struct.Struct(">B"), "octet")
read_short = number_reader(struct.Struct(">H"), "short")
read_long = number_reader(LONG, "long")
read_longlong = number_reader(struct.Struct(">Q"), "longlong")

write_octet = number_writer(struct.Struct(">B"), "octet")
write_short = number_writer(struct.Struct(">H"), "short")
write_long = number_writer(LONG, "long")
write_longlong = number_writer(struct.Struct(">Q"), "longlong")
