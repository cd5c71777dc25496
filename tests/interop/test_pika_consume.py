"""Consuming: prefetch, order, several consumers, cancelling, basic.get."""

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.frame import Method
from pika.spec import Basic, BasicProperties

from tests.interop.conftest import Connect
from tests.interop.pika_client import (
    Inbox,
    channel_closed_with,
    drain,
    get,
    publish_confirmed,
    ready,
    settle,
    wait_until,
    wait_until_ready,
)


def fill(channel: BlockingChannel, queue: str, count: int) -> list[bytes]:
    """Declare the queue and put `count` messages into it."""
    channel.queue_declare(queue, auto_delete=True)
    bodies = [str(number).encode() for number in range(count)]
    for body in bodies:
        channel.basic_publish("", queue, body)
    wait_until_ready(channel, queue, count)
    return bodies


def test_deliveries_come_in_order_with_tags_from_one(channel: BlockingChannel, name: str) -> None:
    bodies = fill(channel, name, 300)
    received = Inbox(channel, name).wait_for(300)
    assert [message.body for message in received] == bodies
    assert [message.delivery_tag for message in received] == list(range(1, 301))
    assert not any(message.redelivered for message in received)


def test_what_is_published_later_is_pushed(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    inbox = Inbox(channel, name, auto_ack=True)
    for number in range(20):
        channel.basic_publish("", name, str(number).encode())
        assert inbox.wait_for(number + 1)[-1].body == str(number).encode()


def test_a_consumer_without_acks_leaves_nothing_behind(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    """C088."""
    channel.queue_declare(name, exclusive=True)
    channel.basic_publish("", name, b"gone")
    consuming = connection.channel()
    Inbox(consuming, name, auto_ack=True).wait_for(1)
    consuming.close()
    assert ready(channel, name) == 0


@pytest.mark.parametrize("prefetch", [1, 3, 10])
def test_never_more_than_prefetch_messages_are_unacked(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str, prefetch: int
) -> None:
    """C091, F11: and each ack lets exactly one more through."""
    count = 25
    bodies = fill(channel, name, count)
    consuming = connection.channel()
    consuming.basic_qos(prefetch_count=prefetch)
    inbox = Inbox(consuming, name)
    for acked in range(count):
        expected = min(acked + prefetch, count)
        inbox.wait_for(expected)
        assert ready(consuming, name) == count - expected
        assert len(inbox.received) == expected
        consuming.basic_ack(inbox.received[acked].delivery_tag)
    assert inbox.bodies == bodies


def test_prefetch_is_per_consumer(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    """F12."""
    fill(channel, name, 10)
    consuming = connection.channel()
    consuming.basic_qos(prefetch_count=2)
    inboxes = [Inbox(consuming, name) for _ in range(3)]
    for inbox in inboxes:
        inbox.wait_for(2)
    assert ready(channel, name) == 4
    assert [len(inbox.received) for inbox in inboxes] == [2, 2, 2]


def test_prefetch_does_not_limit_a_consumer_without_acks(
    channel: BlockingChannel, name: str
) -> None:
    fill(channel, name, 50)
    channel.basic_qos(prefetch_count=1)
    Inbox(channel, name, auto_ack=True).wait_for(50)


def test_prefetch_does_not_limit_get(channel: BlockingChannel, name: str) -> None:
    """F13."""
    bodies = fill(channel, name, 5)
    channel.basic_qos(prefetch_count=1)
    assert [message.body for message in (get(channel, name) for _ in bodies) if message] == bodies


def test_two_consumers_take_turns(channel: BlockingChannel, name: str) -> None:
    """D19."""
    channel.queue_declare(name, exclusive=True)
    first, second = Inbox(channel, name), Inbox(channel, name)
    for number in range(20):
        channel.basic_publish("", name, str(number).encode())
    wait_until(channel, lambda: len(first.received) + len(second.received) == 20)
    assert (len(first.received), len(second.received)) == (10, 10)
    assert sorted([*first.bodies, *second.bodies], key=int) == [b"%d" % n for n in range(20)]


def test_two_consumers_of_two_connections_take_turns(open_connection: Connect, name: str) -> None:
    """D13, D19: nothing is seen by both."""
    channels = [open_connection().channel() for _ in range(2)]
    channels[0].queue_declare(name, auto_delete=True)
    inboxes = [Inbox(channel, name) for channel in channels]
    for number in range(20):
        channels[0].basic_publish("", name, str(number).encode())

    def all_received() -> bool:
        channels[1].connection.process_data_events(time_limit=0)
        return sum(len(inbox.received) for inbox in inboxes) == 20

    wait_until(channels[0], all_received)
    assert [len(inbox.received) for inbox in inboxes] == [10, 10]
    assert {*inboxes[0].bodies} | {*inboxes[1].bodies} == {b"%d" % n for n in range(20)}


def test_a_consumer_at_its_limit_does_not_hold_up_another(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, exclusive=True)
    limited = connection.channel()
    limited.basic_qos(prefetch_count=1)
    slow = Inbox(limited, name)
    fast = Inbox(channel, name)
    for number in range(30):
        channel.basic_publish("", name, str(number).encode())
    wait_until(channel, lambda: len(slow.received) + len(fast.received) == 30)
    assert len(slow.received) == 1


def test_no_delivery_after_cancel_ok(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, exclusive=True)
    consuming = connection.channel()
    inbox = Inbox(consuming, name, auto_ack=True)
    channel.basic_publish("", name, b"before")
    inbox.wait_for(1)
    consuming.basic_cancel(inbox.consumer_tag)
    channel.basic_publish("", name, b"after")
    assert ready(channel, name) == 1
    settle(consuming)
    assert inbox.bodies == [b"before"]


def test_what_a_cancelled_consumer_had_can_still_be_acked(
    channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, exclusive=True)
    channel.basic_publish("", name, b"x")
    inbox = Inbox(channel, name)
    (message,) = inbox.wait_for(1)
    channel.basic_cancel(inbox.consumer_tag)
    channel.basic_ack(message.delivery_tag)
    settle(channel)
    channel.close()


def test_deleting_the_queue_cancels_its_consumers(
    channel: BlockingChannel, other_channel: BlockingChannel, name: str
) -> None:
    """F22: the server tells the client."""
    cancelled: list[str] = []

    def on_cancel(frame: Method[Basic.Cancel]) -> None:
        cancelled.append(frame.method.consumer_tag or "")

    channel.queue_declare(name)
    channel.add_on_cancel_callback(on_cancel)
    tags = {Inbox(channel, name).consumer_tag for _ in range(2)}
    other_channel.queue_delete(name)
    wait_until(channel, lambda: len(cancelled) == 2)
    assert set(cancelled) == tags
    settle(channel)


def test_cancelling_after_the_queue_is_gone_is_no_error(
    channel: BlockingChannel, other_channel: BlockingChannel, name: str
) -> None:
    """C096."""
    channel.queue_declare(name)
    inbox = Inbox(channel, name)
    other_channel.queue_delete(name)
    channel.basic_cancel(inbox.consumer_tag)
    settle(channel)


def test_an_exclusive_consumer_keeps_others_out(
    channel: BlockingChannel, other_channel: BlockingChannel, name: str
) -> None:
    """403."""
    channel.queue_declare(name, auto_delete=True)
    Inbox(channel, name, exclusive=True)
    with channel_closed_with(403):
        Inbox(other_channel, name)


def test_an_exclusive_consumer_must_be_the_first(
    channel: BlockingChannel, other_channel: BlockingChannel, name: str
) -> None:
    """C095: 403."""
    channel.queue_declare(name, auto_delete=True)
    Inbox(channel, name)
    with channel_closed_with(403):
        Inbox(other_channel, name, exclusive=True)


def test_a_consumer_may_come_after_an_exclusive_one_left(
    channel: BlockingChannel, other_channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name)
    inbox = Inbox(channel, name, exclusive=True)
    channel.basic_cancel(inbox.consumer_tag)
    Inbox(other_channel, name)
    channel.queue_delete(name)


def test_a_consumer_tag_may_be_used_on_every_channel(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    """C094: a tag belongs to its channel."""
    channel.queue_declare(name, exclusive=True)
    other = connection.channel()
    assert Inbox(channel, name, consumer_tag="tag").consumer_tag == "tag"
    assert Inbox(other, name, consumer_tag="tag").consumer_tag == "tag"


def test_consuming_from_a_missing_queue_is_404(channel: BlockingChannel, name: str) -> None:
    with channel_closed_with(404):
        Inbox(channel, name)


def test_sixty_four_consumers_on_a_queue(channel: BlockingChannel, name: str) -> None:
    """C092."""
    channel.queue_declare(name, exclusive=True)
    inboxes = [Inbox(channel, name) for _ in range(64)]
    for number in range(128):
        channel.basic_publish("", name, str(number).encode())
    wait_until(channel, lambda: all(len(inbox.received) == 2 for inbox in inboxes))


def test_get_from_an_empty_queue(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    assert get(channel, name) is None
    channel.basic_publish("", name, b"x")
    assert get(channel, name) is not None
    assert get(channel, name) is None


def test_get_tells_how_many_messages_are_left(channel: BlockingChannel, name: str) -> None:
    bodies = fill(channel, name, 5)
    for left, body in zip(reversed(range(5)), bodies, strict=True):
        method, _, received = channel.basic_get(name)
        assert method is not None
        assert (method.message_count, received) == (left, body)
        assert (method.exchange, method.routing_key, method.redelivered) == ("", name, False)
    channel.queue_delete(name)


def test_get_without_ack_takes_the_message(channel: BlockingChannel, name: str) -> None:
    bodies = fill(channel, name, 3)
    assert [message.body for message in drain(channel, name)] == bodies
    channel.close()


def test_get_from_a_missing_queue_is_404(channel: BlockingChannel, name: str) -> None:
    with channel_closed_with(404):
        get(channel, name)


def test_gets_and_consumers_share_a_queue(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    """D13."""
    fill(channel, name, 6)
    consuming = connection.channel()
    consuming.basic_qos(prefetch_count=2)
    Inbox(consuming, name).wait_for(2)
    assert [message.body for message in drain(channel, name)] == [b"2", b"3", b"4", b"5"]


def test_a_request_and_its_reply(open_connection: Connect, name: str) -> None:
    """A18: a reply queue of the client's own, told by reply-to and correlation-id."""
    server, client = open_connection().channel(), open_connection().channel()
    server.queue_declare(name, auto_delete=True)
    replies = client.queue_declare("", exclusive=True).method.queue
    requests, answers = Inbox(server, name, auto_ack=True), Inbox(client, replies, auto_ack=True)
    for number in range(10):
        properties = BasicProperties(reply_to=replies, correlation_id=str(number))
        client.basic_publish("", name, b"ping", properties)
        request = requests.wait_for(number + 1)[-1]
        reply = BasicProperties(correlation_id=request.properties.correlation_id)
        server.basic_publish("", request.properties.reply_to or "", b"pong", reply)
        assert answers.wait_for(number + 1)[-1].properties.correlation_id == str(number)


def test_a_large_queue_is_consumed_while_it_is_filled(
    channel: BlockingChannel, other_channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, auto_delete=True)
    inbox = Inbox(other_channel, name, auto_ack=True)
    bodies = [str(number).encode() * 50 for number in range(200)]
    publish_confirmed(channel, name, bodies)
    inbox.wait_for(200)
    assert inbox.bodies == bodies
