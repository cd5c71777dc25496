"""Properties and headers come back as they were sent."""

import datetime
import decimal
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import BasicProperties

from tests.interop.pika_client import Inbox, get

ALL_PROPERTIES: dict[str, Any] = {
    "content_type": "text/plain; charset=utf-8",
    "content_encoding": "gzip",
    "headers": {"key": "value"},
    "delivery_mode": 2,
    "priority": 9,
    "correlation_id": "correlation é",
    "reply_to": "amq.gen-reply",
    "expiration": "600000",
    "message_id": "id",
    "timestamp": 1_700_000_000,
    "type": "type",
    "user_id": "guest",
    "app_id": "app",
    "cluster_id": "cluster",
}

HEADERS: dict[str, Any] = {
    "text": "text \N{SNOWMAN}",
    "empty": "",
    "long": "x" * 60_000,
    "octets": b"\x00\xff",
    "true": True,
    "false": False,
    "zero": 0,
    "int32": -(1 << 31),
    "int64": (1 << 62) + 1,
    "negative int64": -(1 << 62),
    "decimal": decimal.Decimal("3.14"),
    "time": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
    "void": None,
    "table": {"nested": {"deeper": [1, {"deepest": "x"}]}, "empty": {}},
    "array": ["a", 1, True, None, [], [[2]], {"k": "v"}],
}


def round_trip(channel: BlockingChannel, queue: str, properties: BasicProperties) -> None:
    channel.queue_declare(queue, exclusive=True)
    channel.basic_publish("", queue, b"by get", properties)
    channel.basic_publish("", queue, b"by consumer", properties)
    taken = get(channel, queue, auto_ack=True)
    assert taken is not None
    assert b"".join(taken.properties.encode()) == b"".join(properties.encode())
    (delivered,) = Inbox(channel, queue, auto_ack=True).wait_for(1)
    assert b"".join(delivered.properties.encode()) == b"".join(properties.encode())


def test_a_message_without_properties_has_none(channel: BlockingChannel, name: str) -> None:
    """E17."""
    round_trip(channel, name, BasicProperties())


def test_all_properties_come_back(channel: BlockingChannel, name: str) -> None:
    """C125."""
    round_trip(channel, name, BasicProperties(**ALL_PROPERTIES))


@pytest.mark.parametrize("only", ALL_PROPERTIES)
def test_each_property_alone_comes_back(channel: BlockingChannel, name: str, only: str) -> None:
    """C125."""
    round_trip(channel, name, BasicProperties(**{only: ALL_PROPERTIES[only]}))


def test_headers_of_every_type_come_back(channel: BlockingChannel, name: str) -> None:
    """B12: the types that pika can send; the wire tests send the rest."""
    round_trip(channel, name, BasicProperties(headers=HEADERS))


def test_five_hundred_headers_come_back_in_order(channel: BlockingChannel, name: str) -> None:
    headers = {f"header-{number * 7919 % 500}": number for number in range(500)}
    round_trip(channel, name, BasicProperties(headers=headers))


def test_properties_of_one_message_do_not_leak_into_the_next(
    channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, exclusive=True)
    channel.basic_publish("", name, b"1", BasicProperties(headers={"a": 1}, priority=3))
    channel.basic_publish("", name, b"2")
    first, second = Inbox(channel, name, auto_ack=True).wait_for(2)
    assert first.properties == BasicProperties(headers={"a": 1}, priority=3)
    assert second.properties == BasicProperties()
