"""Acknowledging: ack, nack, reject, recover, and what a lost client leaves."""

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.conformance.wire_client import (
    BASIC_CONSUME_OK,
    BASIC_DELIVER,
    WireClient,
    basic_consume,
)
from tests.interop.pika_client import (
    Inbox,
    Received,
    channel_closed_with,
    drain,
    get,
    ready,
    settle,
    wait_until,
    wait_until_ready,
)


@pytest.fixture
def consuming(connection: pika.BlockingConnection) -> BlockingChannel:
    """The channel whose messages are acked; `channel` looks on."""
    return connection.channel()


def deliver(
    channel: BlockingChannel, consuming: BlockingChannel, queue: str, count: int = 6
) -> list[Received]:
    """Messages 0..count-1, delivered to `consuming`, whose consumer is then cancelled."""
    channel.queue_declare(queue, exclusive=True)
    for number in range(count):
        channel.basic_publish("", queue, str(number).encode())
    wait_until_ready(channel, queue, count)
    inbox = Inbox(consuming, queue)
    received = inbox.wait_for(count)
    consuming.basic_cancel(inbox.consumer_tag)
    return received


def left(channel: BlockingChannel, consuming: BlockingChannel, queue: str) -> list[int]:
    """Return what the queue holds when `consuming` gave back what it had not settled."""
    consuming.close()
    return [int(message.body) for message in drain(channel, queue)]


def test_an_acked_message_is_gone(
    channel: BlockingChannel, consuming: BlockingChannel, name: str
) -> None:
    """C089."""
    messages = deliver(channel, consuming, name)
    for message in messages[:4]:
        consuming.basic_ack(message.delivery_tag)
    assert left(channel, consuming, name) == [4, 5]


def test_acks_may_come_in_any_order(
    channel: BlockingChannel, consuming: BlockingChannel, name: str
) -> None:
    messages = deliver(channel, consuming, name)
    for position in (3, 0, 5):
        consuming.basic_ack(messages[position].delivery_tag)
    assert left(channel, consuming, name) == [1, 2, 4]


def test_ack_multiple_takes_all_up_to_the_tag(
    channel: BlockingChannel, consuming: BlockingChannel, name: str
) -> None:
    """F04."""
    messages = deliver(channel, consuming, name)
    consuming.basic_ack(messages[4].delivery_tag)
    consuming.basic_ack(messages[2].delivery_tag, multiple=True)
    assert left(channel, consuming, name) == [3, 5]


def test_ack_multiple_of_tag_zero_takes_all(
    channel: BlockingChannel, consuming: BlockingChannel, name: str
) -> None:
    """C002, F04."""
    deliver(channel, consuming, name)
    consuming.basic_ack(0, multiple=True)
    assert left(channel, consuming, name) == []


def test_ack_multiple_leaves_other_channels_alone(
    connection: pika.BlockingConnection,
    channel: BlockingChannel,
    consuming: BlockingChannel,
    name: str,
) -> None:
    deliver(channel, consuming, name, count=3)
    other = connection.channel()
    deliver(channel, other, f"{name}.other", count=3)
    other.basic_ack(0, multiple=True)
    settle(other)
    assert left(channel, consuming, name) == [0, 1, 2]


@pytest.mark.parametrize("tag", [1, 7, 1 << 63])
@pytest.mark.parametrize("how", ["ack", "nack", "reject"])
def test_an_unknown_tag_is_406(channel: BlockingChannel, how: str, tag: int) -> None:
    """C104."""
    settlements = {
        "ack": channel.basic_ack,
        "nack": channel.basic_nack,
        "reject": channel.basic_reject,
    }
    with channel_closed_with(406):
        settlements[how](tag)
        settle(channel)


def test_acking_twice_is_406(
    channel: BlockingChannel, consuming: BlockingChannel, name: str
) -> None:
    """C104: and the message is not lost by it, nor another acked."""
    messages = deliver(channel, consuming, name, count=3)
    consuming.basic_ack(messages[1].delivery_tag)
    with channel_closed_with(406):
        consuming.basic_ack(messages[1].delivery_tag)
        settle(consuming)
    assert [int(message.body) for message in drain(channel, name)] == [0, 2]


def test_acking_what_multiple_took_already_is_406(
    channel: BlockingChannel, consuming: BlockingChannel, name: str
) -> None:
    """C104."""
    messages = deliver(channel, consuming, name, count=3)
    consuming.basic_ack(messages[2].delivery_tag, multiple=True)
    with channel_closed_with(406):
        consuming.basic_ack(messages[0].delivery_tag)
        settle(consuming)


def test_acking_what_needs_no_ack_is_406(channel: BlockingChannel, name: str) -> None:
    """C104."""
    channel.queue_declare(name, exclusive=True)
    channel.basic_publish("", name, b"x")
    message = get(channel, name, auto_ack=True)
    assert message is not None
    with channel_closed_with(406):
        channel.basic_ack(message.delivery_tag)
        settle(channel)


@pytest.mark.parametrize("how", ["nack", "reject"])
@pytest.mark.parametrize("requeue", [False, True])
def test_a_refused_message_comes_back_only_if_asked(
    channel: BlockingChannel, consuming: BlockingChannel, name: str, how: str, requeue: bool
) -> None:
    """F05, F06: and back at its own place in the queue."""
    messages = deliver(channel, consuming, name)
    refuse = consuming.basic_nack if how == "nack" else consuming.basic_reject
    refuse(messages[2].delivery_tag, requeue=requeue)
    settle(consuming)
    back = [(message.body, message.redelivered) for message in drain(channel, name)]
    assert back == ([(b"2", True)] if requeue else [])
    assert left(channel, consuming, name) == [0, 1, 3, 4, 5]


@pytest.mark.parametrize("requeue", [False, True])
def test_nack_multiple_refuses_all_up_to_the_tag(
    channel: BlockingChannel, consuming: BlockingChannel, name: str, requeue: bool
) -> None:
    messages = deliver(channel, consuming, name)
    consuming.basic_nack(messages[3].delivery_tag, multiple=True, requeue=requeue)
    settle(consuming)
    back = [int(message.body) for message in drain(channel, name)]
    assert back == ([0, 1, 2, 3] if requeue else [])
    assert left(channel, consuming, name) == [4, 5]


def test_requeued_messages_take_their_old_places(
    channel: BlockingChannel, consuming: BlockingChannel, name: str
) -> None:
    """F08: ahead of what was published meanwhile, in order however they were given back."""
    messages = deliver(channel, consuming, name)
    for number in (6, 7):
        channel.basic_publish("", name, str(number).encode())
    for position in (4, 1, 3):
        consuming.basic_nack(messages[position].delivery_tag, requeue=True)
    settle(consuming)
    back = drain(channel, name)
    assert [int(message.body) for message in back] == [1, 3, 4, 6, 7]
    assert [message.redelivered for message in back] == [True, True, True, False, False]


def test_a_rejected_message_goes_to_its_consumer_again_flagged(
    channel: BlockingChannel, name: str
) -> None:
    """C003: with a new tag."""
    channel.queue_declare(name, exclusive=True)
    channel.basic_publish("", name, b"again")
    inbox = Inbox(channel, name)
    for tag in range(1, 6):
        message = inbox.wait_for(tag)[-1]
        assert (message.delivery_tag, message.redelivered) == (tag, tag > 1)
        channel.basic_reject(message.delivery_tag, requeue=True)


def test_recover_redelivers_all_unacked(channel: BlockingChannel, name: str) -> None:
    """C110, F07."""
    channel.queue_declare(name, exclusive=True)
    for number in range(5):
        channel.basic_publish("", name, str(number).encode())
    inbox = Inbox(channel, name)
    channel.basic_ack(inbox.wait_for(5)[2].delivery_tag)
    channel.basic_recover(requeue=True)
    again = inbox.wait_for(9)[5:]
    assert [(message.body, message.redelivered) for message in again] == [
        (b"0", True),
        (b"1", True),
        (b"3", True),
        (b"4", True),
    ]
    channel.basic_ack(again[-1].delivery_tag, multiple=True)
    settle(channel)


def test_what_get_took_comes_back_flagged(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    channel.basic_publish("", name, b"x")
    for turn in range(3):
        message = get(channel, name)
        assert message is not None
        assert message.redelivered == (turn > 0)
        channel.basic_nack(message.delivery_tag, requeue=True)


def test_a_client_that_vanishes_gives_back_what_it_had(
    url: str, channel: BlockingChannel, name: str
) -> None:
    """B01, D21: redelivered, in order, and ahead of what was never delivered."""
    channel.queue_declare(name)
    for number in range(5):
        channel.basic_publish("", name, str(number).encode())
    lost = WireClient.connected(url, channels=1)
    lost.send(basic_consume(1, name, "tag", no_ack=False))
    lost.expect(BASIC_CONSUME_OK, 1)
    for _ in range(5):
        lost.expect(BASIC_DELIVER, 1)
        lost.expect_content()
    channel.basic_publish("", name, b"5")
    lost.expect(BASIC_DELIVER, 1)
    lost.abort()
    wait_until(channel, lambda: ready(channel, name) == 6)
    assert [(int(message.body), message.redelivered) for message in drain(channel, name)] == [
        (number, True) for number in range(6)
    ]
    channel.queue_delete(name)


def test_another_consumer_takes_over_at_once(url: str, channel: BlockingChannel, name: str) -> None:
    """D21."""
    channel.queue_declare(name)
    channel.basic_publish("", name, b"x")
    lost = WireClient.connected(url, channels=1)
    lost.send(basic_consume(1, name, "tag", no_ack=False))
    lost.expect(BASIC_CONSUME_OK, 1)
    lost.expect(BASIC_DELIVER, 1)
    inbox = Inbox(channel, name)
    assert inbox.received == []
    lost.abort()
    assert inbox.wait_for(1)[0].redelivered
    channel.queue_delete(name)
