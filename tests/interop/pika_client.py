"""Helpers of the pika tests: connecting, waiting for a condition, expecting a close."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NamedTuple

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker
from pika.spec import Basic, BasicProperties

WAIT_S = 60.0
PERSISTENT = BasicProperties(delivery_mode=2)
TRANSIENT = BasicProperties(delivery_mode=1)


class Received(NamedTuple):
    """One message as a consumer or a get sees it."""

    body: bytes
    redelivered: bool
    delivery_tag: int
    properties: BasicProperties
    exchange: str = ""
    routing_key: str = ""


def _received(
    method: Basic.Deliver | Basic.GetOk, properties: BasicProperties, body: bytes
) -> Received:
    return Received(
        body,
        method.redelivered,
        method.delivery_tag or 0,
        properties,
        method.exchange or "",
        method.routing_key or "",
    )


class Inbox:
    """A consumer on a channel that keeps what arrives, in order of arrival."""

    def __init__(
        self,
        channel: BlockingChannel,
        queue: str,
        auto_ack: bool = False,
        exclusive: bool = False,
        consumer_tag: str | None = None,
    ) -> None:
        self.received: list[Received] = []
        self._channel = channel
        self.consumer_tag = channel.basic_consume(
            queue,
            self._on_message,
            auto_ack=auto_ack,
            exclusive=exclusive,
            consumer_tag=consumer_tag,
        )

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.received]

    def wait_for(self, count: int) -> list[Received]:
        """All that arrived, once it is `count` or more."""
        wait_until(self._channel, lambda: len(self.received) >= count)
        return self.received

    def _on_message(
        self,
        _channel: BlockingChannel,
        method: Basic.Deliver,
        properties: BasicProperties,
        body: bytes,
    ) -> None:
        self.received.append(_received(method, properties, body))


def connect(url: str, **settings: object) -> pika.BlockingConnection:
    """Connect with pika's parameters, each keyword set as the attribute of that name."""
    return pika.BlockingConnection(parameters(url, **settings))


def parameters(url: str, **settings: object) -> pika.URLParameters:
    made = pika.URLParameters(url)
    for attribute, value in settings.items():
        setattr(made, attribute, value)
    return made


def wait_until(
    channel: BlockingChannel, condition: Callable[[], bool], timeout_s: float = WAIT_S
) -> None:
    """Process the connection's events until the condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"still waiting after {timeout_s} s"
        channel.connection.process_data_events(time_limit=0.02)


def settle(channel: BlockingChannel) -> None:
    """Return when the server has handled all that was sent on the channel.

    A synchronous method is answered after everything before it on its channel, and deliveries
    that came before the answer have reached their callbacks.
    """
    channel.basic_qos(prefetch_count=0)
    channel.connection.process_data_events(time_limit=0)


def ready(channel: BlockingChannel, queue: str) -> int:
    """Return how many messages in the queue wait for a consumer."""
    return channel.queue_declare(queue, passive=True).method.message_count


def wait_until_ready(channel: BlockingChannel, queue: str, count: int) -> None:
    """Return when the queue has `count` messages ready. A server may answer a declare first."""
    wait_until(channel, lambda: ready(channel, queue) == count)


def get(channel: BlockingChannel, queue: str, auto_ack: bool = False) -> Received | None:
    method, properties, body = channel.basic_get(queue, auto_ack=auto_ack)
    if method is None or properties is None or body is None:
        return None
    return _received(method, properties, body)


def drain(channel: BlockingChannel, queue: str) -> list[Received]:
    """Take everything out of the queue."""
    messages = []
    while message := get(channel, queue, auto_ack=True):
        messages.append(message)
    return messages


def publish_confirmed(
    channel: BlockingChannel,
    queue: str,
    bodies: list[bytes],
    properties: BasicProperties = PERSISTENT,
) -> None:
    """Publish to the queue; each is confirmed by the server before the next is sent."""
    channel.confirm_delivery()
    for body in bodies:
        channel.basic_publish("", queue, body, properties, mandatory=True)


def exists(connection: pika.BlockingConnection, queue: str) -> bool:
    channel = connection.channel()
    try:
        channel.queue_declare(queue, passive=True)
    except ChannelClosedByBroker as closed:
        if closed.reply_code != 404:
            raise
        return False
    channel.close()
    return True


@contextmanager
def channel_closed_with(reply_code: int) -> Generator[None]:
    """The server closes the channel, and only the channel, with this reply code."""
    with pytest.raises(ChannelClosedByBroker) as caught:
        yield
    assert caught.value.reply_code == reply_code, caught.value


@contextmanager
def connection_closed_with(reply_code: int) -> Generator[None]:
    with pytest.raises(ConnectionClosedByBroker) as caught:
        yield
    assert caught.value.reply_code == reply_code, caught.value
