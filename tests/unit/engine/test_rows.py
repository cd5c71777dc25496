"""Rows nested too deeply to be read are refused when they are written and when they are read."""

from typing import Any

import msgpack
import pytest
from crc32c import crc32c

from amqpstore.catalog.rows import CHECKSUMMED, HEAD, decode_row, encode_row


def nested(depth: int) -> Any:
    value: Any = []
    for number in range(depth):
        value = {"in": value} if number % 2 else [value, 1]
    return value


def test_a_value_of_many_levels_is_read_and_written() -> None:
    value = {"arguments": nested(120)}
    assert decode_row("users", b"x", encode_row("users", b"x", value), plain=False) == ("x", value)


@pytest.mark.parametrize("depth", [128, 400])
def test_a_value_of_too_many_levels_is_refused(depth: int) -> None:
    value = {"arguments": nested(depth)}
    with pytest.raises(ValueError, match="nested more than 128 levels deep"):
        encode_row("users", b"x", value)
    packed = msgpack.packb(value)
    stored = HEAD.pack(CHECKSUMMED, crc32c(packed, crc32c(b"users\0\0\1x"))) + packed
    with pytest.raises(ValueError, match="nested more than 128 levels deep"):
        decode_row("users", b"x", stored, plain=False)
