"""Field tables that a store has, in half a megabyte: decoded in linear time, whatever is nested."""

import struct
import time

import pytest

from amqpstore_server.protocol.content import decode_properties
from amqpstore_server.protocol.errors import MalformedError
from amqpstore_tools.transfer.properties import decode_properties as decode_for_export

BYTES = 1 << 19
MAX_CPU_S = 5


def counted(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


def nested(tag: bytes, depth: int, leaf: bytes = b"") -> bytes:
    """Values in each other, each of which holds all that is left, as the lengths say."""
    name = b"\1a" if tag == b"F" else b""
    whole = (depth * (len(name) + 5)) + len(leaf)
    parts = []
    for _ in range(depth):
        whole -= len(name) + 5
        parts.append(name + tag + struct.pack(">I", whole))
    return b"".join(parts) + leaf


TABLES = {
    "many values": counted(b"\0V" * (BYTES // 2)),
    "tables in each other": counted(nested(b"F", BYTES // 7)),
    "arrays in each other": counted(b"\1a" + nested(b"A", BYTES // 5)),
    "a wide array in 30 arrays": counted(b"\1a" + nested(b"A", 30, b"V" * BYTES)),
    "many empty tables": counted(b"\1aA" + counted(b"F\0\0\0\0" * (BYTES // 5))),
    "many chains of tables": counted(nested(b"F", 30) * (BYTES // 210)),
}


@pytest.mark.parametrize("name", TABLES)
def test_nested_tables_take_linear_time(name: str) -> None:
    raw = b"\x20\0" + TABLES[name]
    started = time.process_time()
    try:
        decode_properties(raw)
    except MalformedError as error:
        assert "nested more than 136 deep" in str(error)  # noqa: PT017 - the others are decoded
    else:
        assert "in each other" not in name
    found = decode_for_export(raw)
    assert ("raw" in found) == ("in each other" in name)
    assert time.process_time() - started < MAX_CPU_S
