"""basic.get that waits, by amqpstore_tools.pika.get."""

import threading
import time

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from amqpstore_tools.pika import ExtensionMissingError, get
from tests.interop.pika_client import PERSISTENT, connect, publish_confirmed, ready
from tests.interop.relay import Relay


@pytest.fixture
def queue(channel: BlockingChannel, name: str) -> str:
    channel.queue_declare(name, durable=True)
    return name


def test_what_is_there_comes_at_once(channel: BlockingChannel, queue: str) -> None:
    """J13."""
    channel.basic_publish("", queue, b"one", PERSISTENT)
    channel.basic_publish("", queue, b"", PERSISTENT)
    first = get(channel, queue, wait_s=20, auto_ack=True)
    assert first is not None
    assert (first[0].routing_key, first[1].delivery_mode, first[2]) == (queue, 2, b"one")
    empty = get(channel, queue, wait_s=20, auto_ack=True)
    assert empty is not None
    assert empty[2] == b""


def test_nothing_comes_back_when_the_time_is_over(channel: BlockingChannel, queue: str) -> None:
    before = time.monotonic()
    assert get(channel, queue, wait_s=0.2) is None
    assert time.monotonic() - before >= 0.2
    assert get(channel, queue) is None


def test_a_message_that_comes_meanwhile_ends_the_wait(
    channel: BlockingChannel, queue: str, url: str
) -> None:
    def publish() -> None:
        with connect(url) as connection:
            publish_confirmed(connection.channel(), queue, [b"late"])

    publisher = threading.Timer(0.1, publish)
    publisher.start()
    received = get(channel, queue, wait_s=20)
    publisher.join()
    assert received is not None
    assert received[2] == b"late"
    channel.basic_nack(received[0].delivery_tag or 0)
    again = get(channel, queue, wait_s=20)
    assert again is not None
    assert again[0].redelivered
    channel.basic_ack(again[0].delivery_tag or 0)
    assert ready(channel, queue) == 0


def test_an_ordinary_get_is_as_before(channel: BlockingChannel, queue: str) -> None:
    assert get(channel, queue, wait_s=0.01) is None
    assert channel.basic_get(queue) == (None, None, None)


def test_a_queue_that_is_not_there_is_refused(channel: BlockingChannel, name: str) -> None:
    with pytest.raises(ChannelClosedByBroker, match="404"):
        get(channel, name, wait_s=20)


@pytest.mark.parametrize("wait_s", [-0.1, float("inf"), float("nan")])
def test_a_wait_has_limits(channel: BlockingChannel, queue: str, wait_s: float) -> None:
    with pytest.raises(ValueError, match="wait_s"):
        get(channel, queue, wait_s=wait_s)


def test_a_server_that_cannot_wait_is_told_apart(url: str, name: str) -> None:
    def without_wait(octets: bytes) -> bytes:
        return octets.replace(b"basic.get.wait", b"basic.get.----")

    with Relay(url, without_wait) as relay, connect(relay.url) as connection:
        channel = connection.channel()
        channel.queue_declare(name, exclusive=True)
        with pytest.raises(ExtensionMissingError, match=r"basic\.get\.wait"):
            get(channel, name, wait_s=1)
        assert get(channel, name) is None
