"""Channels: many on one connection, each with its own life."""

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.interop.conftest import Connect
from tests.interop.pika_client import Inbox, channel_closed_with, drain, ready


def test_open_and_close(connection: pika.BlockingConnection) -> None:
    channel = connection.channel()
    assert channel.is_open
    channel.close()
    assert channel.is_closed
    assert connection.is_open


def test_two_hundred_channels_at_once(connection: pika.BlockingConnection, name: str) -> None:
    channels = [connection.channel() for _ in range(200)]
    channels[0].queue_declare(name, exclusive=True)
    for channel in channels:
        channel.basic_publish("", name, b"")
        channel.basic_qos(prefetch_count=1)
    assert ready(channels[-1], name) == 200
    for channel in channels:
        channel.close()


@pytest.mark.parametrize("number", [1, 2, 300, 2047])
def test_any_number_up_to_channel_max_can_be_opened(
    connection: pika.BlockingConnection, number: int
) -> None:
    channel = connection.channel(number)
    assert channel.channel_number == number
    channel.close()


def test_a_number_can_be_opened_again(connection: pika.BlockingConnection, name: str) -> None:
    for _ in range(20):
        channel = connection.channel(5)
        channel.queue_declare(name, exclusive=True)
        channel.close()


def test_a_number_can_be_opened_again_after_an_error(
    connection: pika.BlockingConnection, name: str
) -> None:
    for _ in range(10):
        channel = connection.channel(5)
        with channel_closed_with(404):
            channel.queue_declare(name, passive=True)
    assert connection.channel(5).is_open


def test_an_error_closes_its_channel_only(connection: pika.BlockingConnection, name: str) -> None:
    healthy, faulty = connection.channel(), connection.channel()
    healthy.queue_declare(name, exclusive=True)
    with channel_closed_with(404):
        faulty.queue_declare(f"{name}.missing", passive=True)
    healthy.basic_publish("", name, b"still here")
    assert [message.body for message in drain(healthy, name)] == [b"still here"]


def test_closing_a_channel_requeues_what_it_had_not_acked(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, exclusive=True)
    for number in range(5):
        channel.basic_publish("", name, str(number).encode())
    consuming = connection.channel()
    inbox = Inbox(consuming, name)
    consuming.basic_ack(inbox.wait_for(5)[1].delivery_tag)
    consuming.close()
    assert [(message.body, message.redelivered) for message in drain(channel, name)] == [
        (b"0", True),
        (b"2", True),
        (b"3", True),
        (b"4", True),
    ]


def test_delivery_tags_count_per_channel(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    """C001: one channel's tag means nothing on another."""
    channel.queue_declare(name, exclusive=True)
    channel.basic_publish("", name, b"1")
    channel.basic_publish("", name, b"2")
    other = connection.channel()
    assert Inbox(channel, name).wait_for(2)[1].delivery_tag == 2
    with channel_closed_with(406):
        other.basic_ack(2)
        other.basic_qos(prefetch_count=1)


def test_tags_start_again_on_a_reopened_channel(
    connection: pika.BlockingConnection, name: str
) -> None:
    for _ in range(3):
        channel = connection.channel(9)
        channel.queue_declare(name, exclusive=True)
        channel.basic_publish("", name, b"")
        message = Inbox(channel, name, auto_ack=True).wait_for(1)[0]
        assert message.delivery_tag == 1
        channel.close()


def test_channels_of_two_connections_share_numbers_but_nothing_else(
    open_connection: Connect, name: str
) -> None:
    first, second = open_connection().channel(1), open_connection().channel(1)
    first.queue_declare(name, auto_delete=True)
    with channel_closed_with(404):
        second.queue_declare(f"{name}.missing", passive=True)
    assert ready(first, name) == 0
