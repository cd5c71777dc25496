"""A row of the catalog as it is stored: its value, with a checksum of table, key and value.

LMDB has no checksums: a bit that flips on the disk would be another key or another value. So each
value is preceded by a byte that starts no msgpack and the CRC-32C of table, key and value. In
format version 1 a value had neither, which is still so until the upgrade of such a store is done.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgpack
from crc32c import crc32c

from amqpstore.catalog.shapes import misshapen

HEAD = struct.Struct(">BI")
"""`CHECKSUMMED`, and the checksum; the value's msgpack follows."""

CHECKSUMMED = 0xC1
"""No msgpack starts with it."""

_MAX_DEPTH = 128
"""The deepest nesting of maps and lists. msgpack can read deeper values than it writes; a broker
allows less.
"""

_KEY_BYTES = struct.Struct(">H")


def encode_row(table: str, key: bytes, value: Any) -> bytes:
    """Return a row's value as it is stored. Raises: TypeError, ValueError: it cannot be stored."""
    try:
        packed: bytes = msgpack.packb(value)
    except OverflowError:
        raise ValueError("a whole number in a row must fit into 64 bits") from None
    check_depth(packed, value)
    return HEAD.pack(CHECKSUMMED, _checksum(table, key, packed)) + packed


def check_row(table: str, key: bytes, stored: bytes, *, plain: bool) -> bytes:
    """Verify the checksum of a stored value, and return its msgpack.

    Args: plain, whether it may be a value of version 1, which has none.
    Raises: ValueError.
    """
    # In version 2 a row without a checksum is damage. Taking it for an old one would let a flipped
    # bit in this byte pass.
    if stored[:1] != b"\xc1":
        if plain:
            return stored
        raise ValueError("it has no checksum")
    packed = stored[HEAD.size :]
    # The table and the key are under the checksum too: a sound value under another row's key is
    # found.
    if len(stored) <= HEAD.size or HEAD.unpack_from(stored)[1] != _checksum(table, key, packed):
        raise ValueError("its checksum does not match")
    return packed


def decode_row(table: str, key: bytes, stored: bytes, *, plain: bool) -> tuple[str, Any]:
    """Return key and value of a stored row, after checking that it has the form of its table.

    Args: plain, as in `check_row`.
    Raises: ValueError, which says what is wrong.
    """
    packed = check_row(table, key, stored, plain=plain)
    try:
        name = key.decode()
        value = msgpack.unpackb(packed, strict_map_key=False)
        check_depth(packed, value)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ValueError(str(error)) from None
    if reason := misshapen(table, name, value):
        raise ValueError(reason)
    return name, value


def check_depth(packed: bytes, value: Any) -> None:
    """Make sure that a value is not nested too deeply for its readers.

    Args: packed, the value's msgpack.
    Raises: ValueError.
    """
    # Each level takes a byte.
    if len(packed) <= _MAX_DEPTH:
        return
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            inner
            for one in level
            if isinstance(one, (dict, list))
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return
    raise ValueError(f"it is nested more than {_MAX_DEPTH} levels deep")


def corrected_row(table: str, key: bytes, stored: bytes) -> tuple[str, Any] | None:
    """Return key and value of a row with one flipped bit, corrected; None if more is wrong.

    With one bit of key, checksum or value flipped back the checksum is right: CRC-32C detects any
    two wrong bits, so no other bit can do that.
    """
    for of_key, of_stored in _with_one_bit_flipped(key, stored):
        try:
            return decode_row(table, of_key, of_stored, plain=False)
        except ValueError:
            continue
    return None


def _with_one_bit_flipped(key: bytes, stored: bytes) -> Iterator[tuple[bytes, bytes]]:
    for bit in range(8 * len(key)):
        yield _flipped(key, bit), stored
    for bit in range(8 * len(stored)):
        yield key, _flipped(stored, bit)


def _flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit >> 3] ^= 1 << (bit & 7)
    return bytes(changed)


def _checksum(table: str, key: bytes, packed: bytes) -> int:
    names = b"%b\0%b%b" % (table.encode(), _KEY_BYTES.pack(len(key)), key)
    return crc32c(packed, crc32c(names))
