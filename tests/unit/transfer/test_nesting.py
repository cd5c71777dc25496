"""Headers nested as deeply as the broker takes them are exported, imported and inspected; deeper
ones, which another program has stored, are bytes to all of these.
"""

import struct
from typing import Any

import pytest

from amqpstore_server.protocol.bounds import MAX_DEPTH
from amqpstore_server.protocol.errors import PreconditionFailed
from amqpstore_server.protocol.field_table import decode_own_table, decode_table
from amqpstore_tools.offline.contents import plain, properties_of
from amqpstore_tools.transfer.properties import decode_properties, encode_properties
from tests.unit.transfer.test_fields import through_json, through_msgpack

LENGTH = struct.Struct(">I")
HEADERS = struct.pack(">H", 1 << 13)
"""The flags of properties with headers alone."""

OWN_DEPTH = MAX_DEPTH + 8
"""The depth that a table may have once the broker has added to it."""


def nested(depth: int, kinds: bytes) -> bytes:
    """Return a table with containers of these kinds in each other, `depth` in all."""
    content = b""
    for level in range(depth - 1, 0, -1):
        value = b"%c%b%b" % (kinds[level % len(kinds)], LENGTH.pack(len(content)), content)
        is_in_table = level == 1 or kinds[(level - 1) % len(kinds)] == ord("F")
        content = b"\1k" + value if is_in_table else value
    return LENGTH.pack(len(content)) + content


@pytest.mark.parametrize("kinds", [b"F", b"A", b"FA"])
def test_the_deepest_headers_are_shown_exported_and_imported(kinds: bytes) -> None:
    for depth in (1, 2, MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, OWN_DEPTH, OWN_DEPTH + 1, 1000):
        table = nested(depth, kinds)
        raw = HEADERS + table
        if depth <= MAX_DEPTH:
            decode_table(table, 0)
        else:
            with pytest.raises(PreconditionFailed):
                decode_table(table, 0)
        for through in (through_json, through_msgpack):
            assert encode_properties(through(decode_properties(raw))) == raw
        if depth <= OWN_DEPTH:
            decode_own_table(table, 0)
            assert through_json(properties_of(raw))
        else:
            # Which is shown as bytes.
            with pytest.raises(ValueError, match="nested"):
                properties_of(raw)
        if depth <= MAX_DEPTH:
            assert "headers" in decode_properties(raw)


def test_values_of_any_depth_are_shown() -> None:
    value: Any = b"core"
    for level in range(20_000):
        value = {"k": value, 7: level} if level % 2 else [value, b"\xff"]
    found = plain(value)
    for level in reversed(range(20_000)):
        if level % 2:
            assert list(found) == ["k", "7"]
            assert found["7"] == level
            found = found["k"]
        else:
            assert found[1] == {"hex": "ff"}
            found = found[0]
    assert found == "core"
