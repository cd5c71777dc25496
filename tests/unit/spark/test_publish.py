"""Tests of the properties that a message gets from the columns of a row."""

import datetime
from typing import Any

import pytest

from amqpstore.format.message import encode_head
from amqpstore_server.protocol.content import BasicProperties, decode_properties, encode_properties
from amqpstore_server.protocol.field_table import Timestamp
from amqpstore_tools.spark.reading.envelopes import decode_head
from amqpstore_tools.spark.streams.publish import properties_from

TYPED = BasicProperties(
    content_type="text/plain",
    headers={"f": 1.5, "n": 7, "b": b"\xff", "t": {"a": [1, None]}, "w": Timestamp(5), "s": "x"},
    delivery_mode=1,
    timestamp=1_700_000_000,
)


def row_of(raw: bytes) -> dict[str, Any]:
    """The columns that a view makes of properties."""
    row = decode_head(encode_head("", "q", raw)).columns
    if "timestamp" in row:
        row["timestamp"] = datetime.datetime.fromtimestamp(row["timestamp"] / 1e6, datetime.UTC)
    return row


def test_a_row_of_a_view_is_published_as_it_was() -> None:
    raw = encode_properties(TYPED)
    assert properties_from(row_of(raw)) == raw
    assert properties_from({"properties": raw}) == raw


def test_columns_come_before_properties() -> None:
    row = row_of(encode_properties(TYPED))
    row["headers"] = {"n": "8", "f": "1.5", "new": "y", "null": None}
    row["priority"] = 3
    row["timestamp"] = datetime.datetime(2026, 1, 1)
    made = decode_properties(properties_from(row))
    assert made.headers == {"n": "8", "f": 1.5, "new": "y", "null": None}
    assert (made.priority, made.timestamp, made.content_type) == (3, 1_767_225_600, "text/plain")
    assert made.delivery_mode == 1


def test_without_properties_a_message_is_persistent() -> None:
    made = decode_properties(properties_from({"body": b"", "headers": {"CC": '["a"]'}}))
    assert (made.delivery_mode, made.headers) == (2, {"CC": ["a"]})
    assert properties_from({"delivery_mode": 1}) == encode_properties(
        BasicProperties(delivery_mode=1)
    )


def test_bytes_that_are_no_properties_are_told() -> None:
    with pytest.raises(ValueError, match="column properties"):
        properties_from({"properties": b"\xff\xff\xff"})
