"""Publishing: confirms, bodies of every size, messages that no queue takes."""

import random
from collections.abc import Sequence

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import UnroutableError
from pika.spec import Basic, BasicProperties

from tests.interop.confirming_publisher import ConfirmingPublisher, Outgoing
from tests.interop.conftest import Connect
from tests.interop.pika_client import (
    PERSISTENT,
    TRANSIENT,
    channel_closed_with,
    drain,
    publish_confirmed,
    ready,
    settle,
)

MIB = 1 << 20


def octets(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.mark.parametrize("frame_max", [4096, 131_072])
def test_confirmed_bodies_around_the_frame_boundary_are_identical(
    open_connection: Connect, name: str, frame_max: int
) -> None:
    room = frame_max - 8
    sizes = [0, 1, 2, room - 1, room, room + 1, 2 * room - 1, 2 * room, 2 * room + 1]
    channel = open_connection(frame_max=frame_max).channel()
    channel.queue_declare(name, durable=True)
    publish_confirmed(channel, name, [octets(size) for size in sizes])
    messages = drain(channel, name)
    assert [message.body for message in messages] == [octets(size) for size in sizes]
    assert {message.properties.delivery_mode for message in messages} == {2}
    channel.queue_delete(name)


@pytest.mark.parametrize("properties", [TRANSIENT, PERSISTENT, None], ids=["1", "2", "none"])
@pytest.mark.parametrize("durable", [False, True])
def test_every_mix_of_queue_and_delivery_mode_is_confirmed(
    channel: BlockingChannel, name: str, durable: bool, properties: BasicProperties | None
) -> None:
    channel.queue_declare(name, durable=durable)
    channel.confirm_delivery()
    channel.basic_publish("", name, b"body", properties, mandatory=True)
    assert [message.body for message in drain(channel, name)] == [b"body"]
    channel.queue_delete(name)


def test_a_body_of_a_mebibyte(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, durable=True)
    publish_confirmed(channel, name, [octets(MIB)])
    assert [message.body == octets(MIB) for message in drain(channel, name)] == [True]
    channel.queue_delete(name)


def test_a_body_of_64_mebibytes(channel: BlockingChannel, name: str) -> None:
    body = octets(MIB) * 64
    channel.queue_declare(name, durable=True)
    publish_confirmed(channel, name, [body])
    assert [message.body == body for message in drain(channel, name)] == [True]
    channel.queue_delete(name)


def test_a_confirm_means_the_message_is_in_the_queue(channel: BlockingChannel, name: str) -> None:
    """C158."""
    channel.queue_declare(name, exclusive=True)
    channel.confirm_delivery()
    for count in range(1, 20):
        channel.basic_publish("", name, b"x")
        assert ready(channel, name) == count


def test_each_of_many_outstanding_messages_is_confirmed_once(
    url: str, channel: BlockingChannel, name: str
) -> None:
    """E10: exactly one answer a tag, tags from 1."""
    channel.queue_declare(name, durable=True)
    messages = [Outgoing("", name, str(number).encode()) for number in range(2000)]
    publisher = ConfirmingPublisher(url, messages, window=500)
    publisher.run()
    assert publisher.confirmed == list(range(2000))
    assert publisher.most_outstanding > 1
    assert [int(message.body) for message in drain(channel, name)] == list(range(2000))
    channel.queue_delete(name)


def test_a_mandatory_message_without_a_queue_is_returned_before_the_confirm(
    channel: BlockingChannel, name: str
) -> None:
    """C101, E04: pika raises only for what came back before the ack."""
    channel.confirm_delivery()
    properties = BasicProperties(delivery_mode=2, headers={"key": "value"}, message_id="id")
    with pytest.raises(UnroutableError) as caught:
        channel.basic_publish("amq.direct", name, b"body", properties, mandatory=True)
    (returned,) = caught.value.messages
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    assert (returned.method.exchange, returned.method.routing_key) == ("amq.direct", name)
    assert returned.body == b"body"
    assert returned.properties == properties


@pytest.mark.parametrize("size", [0, 1, 300_000])
def test_a_mandatory_message_is_returned_without_confirms_too(
    channel: BlockingChannel, name: str, size: int
) -> None:
    returned: list[tuple[int | None, bytes]] = []

    def on_return(
        _channel: BlockingChannel, method: Basic.Return, _properties: BasicProperties, body: bytes
    ) -> None:
        returned.append((method.reply_code, body))

    channel.add_on_return_callback(on_return)
    channel.basic_publish("", name, octets(size), mandatory=True)
    settle(channel)
    assert returned == [(312, octets(size))]


def test_an_unroutable_message_that_is_not_mandatory_is_confirmed(
    channel: BlockingChannel, name: str
) -> None:
    """C37."""
    channel.confirm_delivery()
    channel.basic_publish("amq.direct", name, b"dropped", PERSISTENT)


def test_a_routed_mandatory_message_is_not_returned(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    publish_confirmed(channel, name, [b"routed"])
    assert ready(channel, name) == 1


@pytest.mark.parametrize("confirms", [False, True])
def test_publishing_to_an_unknown_exchange_is_404(
    channel: BlockingChannel, name: str, confirms: bool
) -> None:
    """C097: a channel error, which the connection survives."""
    if confirms:
        channel.confirm_delivery()
    with channel_closed_with(404):
        channel.basic_publish(name, "key", b"body")
        settle(channel)
    channel.connection.channel().close()


def test_messages_of_one_channel_keep_their_order(channel: BlockingChannel, name: str) -> None:
    """C159, C087: whatever their persistence and size."""
    channel.queue_declare(name, durable=True)
    sizes: Sequence[int] = [5000, 4, 70_000, 4, 300, 4, 200_000, 4] * 5
    for number, size in enumerate(sizes):
        mode = TRANSIENT if number % 3 == 0 else PERSISTENT
        channel.basic_publish("", name, number.to_bytes(4, "big").ljust(size), mode)
    received = [message.body for message in drain(channel, name)]
    assert [int.from_bytes(body[:4], "big") for body in received] == list(range(len(sizes)))
    assert [len(body) for body in received] == list(sizes)
    channel.queue_delete(name)
