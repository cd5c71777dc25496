"""Consuming: prefetch, priorities, redelivery, cancellation (rules F; class basic)."""

import struct
from collections import Counter
from collections.abc import Sequence

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.conformance.topology import Arguments, bodies, bound, exchange, queue, unique
from tests.conformance.wire_client import (
    BASIC_CANCEL,
    BASIC_CONSUME_OK,
    BASIC_DELIVER,
    BASIC_RECOVER,
    BASIC_RECOVER_OK,
    QUEUE_DELETE,
    QUEUE_DELETE_OK,
    WireClient,
    basic_consume,
    method,
    publish,
    short_string,
)
from tests.interop.pika_client import (
    Inbox,
    channel_closed_with,
    get,
    ready,
    settle,
    wait_until,
    wait_until_ready,
)


def fill(channel: BlockingChannel, name: str, count: int, size_bytes: int = 1) -> None:
    for number in range(count):
        channel.basic_publish("", name, str(number).encode().ljust(size_bytes))


class Consumer(Inbox):
    """An inbox with arguments for its consumer."""

    def __init__(
        self, channel: BlockingChannel, name: str, arguments: Arguments, auto_ack: bool = False
    ) -> None:
        self._given = dict(arguments)
        self.received = []
        self._channel = channel
        self.consumer_tag = channel.basic_consume(
            name, self._on_message, auto_ack=auto_ack, arguments=self._given
        )


def wait_for_total(channel: BlockingChannel, inboxes: Sequence[Inbox], count: int) -> None:
    """Return once the inboxes hold `count` messages together."""
    wait_until(channel, lambda: sum(held(*inboxes)) >= count)
    assert sum(held(*inboxes)) == count


def held(*inboxes: Inbox) -> list[int]:
    return [len(inbox.received) for inbox in inboxes]


@pytest.mark.usefixtures("ours_alone")
def test_prefetch_size_limits_the_bytes_that_are_unacked(channel: BlockingChannel) -> None:
    """F11: what would go over it waits."""
    name = queue(channel)
    channel.basic_qos(prefetch_size=100)
    inbox = Inbox(channel, name)
    fill(channel, name, 10, size_bytes=40)
    inbox.wait_for(2)
    settle_by_get(channel)
    assert held(inbox) == [2]
    channel.basic_ack(inbox.received[0].delivery_tag)
    inbox.wait_for(3)
    settle_by_get(channel)
    assert held(inbox) == [3]


def settle_by_get(channel: BlockingChannel) -> None:
    """Do as `settle` does, but leave the prefetch of the channel as it is."""
    get(channel, queue(channel))
    channel.connection.process_data_events(time_limit=0)


@pytest.mark.usefixtures("ours_alone")
def test_prefetch_size_does_not_limit_a_single_message(channel: BlockingChannel) -> None:
    """C090: one at a time, however large."""
    name = queue(channel)
    channel.basic_qos(prefetch_size=10)
    inbox = Inbox(channel, name)
    fill(channel, name, 3, size_bytes=1000)
    for count in range(1, 4):
        message = inbox.wait_for(count)[-1]
        settle_by_get(channel)
        assert held(inbox) == [count]
        channel.basic_ack(message.delivery_tag)


def test_prefetch_of_a_channel_is_shared_by_its_consumers(channel: BlockingChannel) -> None:
    """F12: global=true."""
    first, second = queue(channel), queue(channel)
    channel.basic_qos(prefetch_count=3, global_qos=True)
    inboxes = [Inbox(channel, first), Inbox(channel, second)]
    fill(channel, first, 5)
    fill(channel, second, 5)
    wait_until(channel, lambda: sum(held(*inboxes)) >= 3)
    settle_by_get(channel)
    assert sum(held(*inboxes)) == 3
    for inbox in inboxes:
        for message in inbox.received:
            channel.basic_ack(message.delivery_tag)
    wait_until(channel, lambda: sum(held(*inboxes)) >= 6)
    settle_by_get(channel)
    assert sum(held(*inboxes)) == 6


def test_a_shared_prefetch_is_shared_fairly(channel: BlockingChannel) -> None:
    """F12: none of three queues waits until another is empty; no consumer goes on without limit."""
    names = [queue(channel) for _ in range(3)]
    for name in names:
        fill(channel, name, 20)
    channel.basic_qos(prefetch_count=2, global_qos=True)
    inboxes = [Inbox(channel, name) for name in names]
    unlimited = queue(channel)
    acked: set[int] = set()
    while len(acked) < 30:
        wait_until(channel, lambda: sum(held(*inboxes)) > len(acked))
        for message in [message for inbox in inboxes for message in inbox.received]:
            if message.delivery_tag not in acked:
                channel.basic_ack(message.delivery_tag)
                acked.add(message.delivery_tag)
    assert min(held(*inboxes)) >= 5
    fill(channel, unlimited, 1)
    wait_until(channel, lambda: sum(held(*inboxes)) >= len(acked) + 2)
    without_acks = Inbox(channel, unlimited, auto_ack=True)
    settle_by_get(channel)
    assert held(without_acks) == [0]


def test_both_prefetch_limits_hold(channel: BlockingChannel) -> None:
    """F12: the limit of the consumer and that of the channel."""
    names = [queue(channel) for _ in range(3)]
    channel.basic_qos(prefetch_count=2)
    channel.basic_qos(prefetch_count=5, global_qos=True)
    inboxes = [Inbox(channel, name) for name in names]
    for name in names:
        fill(channel, name, 6)
    wait_until(channel, lambda: sum(held(*inboxes)) >= 5)
    settle_by_get(channel)
    assert sum(held(*inboxes)) == 5
    assert max(held(*inboxes)) == 2


def test_prefetch_set_later_is_for_later_consumers(channel: BlockingChannel) -> None:
    """F12: global=false says nothing to those that are there."""
    first, second = queue(channel), queue(channel)
    before = Inbox(channel, first)
    channel.basic_qos(prefetch_count=1)
    after = Inbox(channel, second)
    fill(channel, first, 4)
    fill(channel, second, 4)
    before.wait_for(4)
    after.wait_for(1)
    settle_by_get(channel)
    assert held(before, after) == [4, 1]


def test_a_prefetch_of_zero_is_no_limit(channel: BlockingChannel) -> None:
    """F20: it is the default, and unbounded."""
    name = queue(channel)
    fill(channel, name, 1000)
    assert len(Inbox(channel, name).wait_for(1000)) == 1000


def test_consumers_of_higher_priority_are_served_first(channel: BlockingChannel) -> None:
    """F22: until they are at their limit; round robin begins behind that."""
    name = queue(channel)
    channel.basic_qos(prefetch_count=2)
    low = Consumer(channel, name, {"x-priority": -(1 << 31)})
    plain = Consumer(channel, name, {})
    high = Consumer(channel, name, {"x-priority": 1 << 40})
    for count, expected in enumerate(
        ([0, 0, 1], [0, 0, 2], [0, 1, 2], [0, 2, 2], [1, 2, 2], [2, 2, 2], [2, 2, 2])
    ):
        fill(channel, name, 1)
        wait_for_total(channel, (low, plain, high), min(count + 1, 6))
        assert held(low, plain, high) == expected
    channel.basic_ack(high.received[0].delivery_tag)
    high.wait_for(3)


def test_a_consumer_priority_must_be_a_number(channel: BlockingChannel) -> None:
    """F22: 406."""
    with channel_closed_with(406):
        Consumer(channel, queue(channel), {"x-priority": "high"})


def test_a_single_active_consumer_is_followed_by_the_next(
    connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    """F22, A22: x-single-active-consumer; the others wait for their turn in order."""
    name = queue(channel, {"x-single-active-consumer": True})
    channels = [connection.channel() for _ in range(3)]
    first, second, third = (Inbox(on, name) for on in channels)
    fill(channel, name, 10)
    first.wait_for(10)
    assert held(first, second, third) == [10, 0, 0]
    channels[0].basic_ack(first.received[3].delivery_tag, multiple=True)
    channels[0].close()
    second.wait_for(6)
    assert held(second, third) == [6, 0]
    assert [int(message.body) for message in second.received] == list(range(4, 10))
    channels[1].basic_cancel(second.consumer_tag)
    fill(channel, name, 1)
    third.wait_for(1)


def test_a_single_active_queue_takes_no_exclusive_consumer(channel: BlockingChannel) -> None:
    """F22: 403."""
    with channel_closed_with(403):
        Inbox(channel, queue(channel, {"x-single-active-consumer": True}), exclusive=True)


@pytest.mark.usefixtures("ours_alone")
@pytest.mark.parametrize("how", ["reject", "nack"])
def test_a_rejected_message_goes_to_another_consumer(
    connection: pika.BlockingConnection, channel: BlockingChannel, how: str
) -> None:
    """C108, F05, F06: not to the one that had it, as long as there is another."""
    name = queue(channel)
    channels = [connection.channel(), connection.channel()]
    inboxes = [Inbox(on, name) for on in channels]
    for round_ in range(1, 11):
        before = held(*inboxes)
        fill(channel, name, 1)
        wait_for_total(channel, inboxes, sum(before) + 1)
        at = 0 if len(inboxes[0].received) > before[0] else 1
        tag = inboxes[at].received[-1].delivery_tag
        refuse = channels[at].basic_reject if how == "reject" else channels[at].basic_nack
        refuse(tag, requeue=True)
        inboxes[1 - at].wait_for(before[1 - at] + 1)
        assert inboxes[1 - at].received[-1].redelivered
        channels[1 - at].basic_ack(inboxes[1 - at].received[-1].delivery_tag)
        assert sum(held(*inboxes)) == 2 * round_


def test_a_rejected_message_comes_back_where_there_is_no_other_consumer(
    channel: BlockingChannel,
) -> None:
    """C003, C106, F05."""
    name = queue(channel)
    inbox = Inbox(channel, name)
    fill(channel, name, 1)
    channel.basic_reject(inbox.wait_for(1)[0].delivery_tag, requeue=True)
    assert inbox.wait_for(2)[1].redelivered


@pytest.mark.usefixtures("ours_alone")
@pytest.mark.parametrize("method_id", [100, 110], ids=["recover-async", "recover"])
def test_recover_without_requeue_redelivers_to_the_same_consumer(
    url: str, name: str, method_id: int
) -> None:
    """F07, C109, C110: flagged, in order, under new tags, and to no other consumer."""
    with WireClient.connected(url, channels=2) as client:
        client.declare_queue(name)
        client.send(basic_consume(1, name, "mine", no_ack=False))
        client.expect(BASIC_CONSUME_OK, 1)
        client.send(*(publish(1, name, bytes([number])) for number in range(3)))
        for _ in range(3):
            client.expect(BASIC_DELIVER, 1)
            client.expect_content()
        client.send(basic_consume(2, name, "another", no_ack=False))
        client.expect(BASIC_CONSUME_OK, 2)
        client.send(method(1, (60, method_id), b"\x00"))
        seen: list[tuple[int, int, bytes]] = []
        while len(seen) < 3:
            received = client.next_frame()
            if received.method == BASIC_RECOVER_OK:
                assert method_id == BASIC_RECOVER[1]
                continue
            assert (received.method, received.channel) == (BASIC_DELIVER, 1)
            assert received.arguments.startswith(short_string("mine"))
            tag, redelivered = struct.unpack_from(">QB", received.arguments, 5)
            seen.append((tag, redelivered, client.expect_content()[1]))
        assert seen == [(4, 1, b"\x00"), (5, 1, b"\x01"), (6, 1, b"\x02")]


def test_recover_with_requeue_flags_what_it_returns(channel: BlockingChannel) -> None:
    """F07, C109, C110: every unacked message of the channel, that of a get as well."""
    name = queue(channel)
    fill(channel, name, 3)
    for _ in range(3):
        get(channel, name)
    channel.basic_recover(requeue=True)
    wait_until_ready(channel, name, 3)
    seen = []
    while message := get(channel, name, auto_ack=True):
        seen.append((int(message.body), message.redelivered))
    assert seen == [(0, True), (1, True), (2, True)]


@pytest.mark.parametrize("capable", [True, False], ids=["capable", "not capable"])
def test_only_clients_with_the_capability_are_told_of_a_cancel(
    url: str, name: str, capable: bool
) -> None:
    """F22: consumer_cancel_notify. A client that deletes the queue is answered first: py-amqp takes
    a cancel that comes before the answer for the failure of its request.
    """
    capabilities = ("consumer_cancel_notify",) if capable else ()
    with WireClient.connected(url, channels=1, capabilities=capabilities) as client:
        client.declare_queue(name)
        client.send(basic_consume(1, name, "tag"))
        client.expect(BASIC_CONSUME_OK, 1)
        client.send(method(1, QUEUE_DELETE, bytes(2) + short_string(name) + b"\x00"))
        received = [client.next_frame() for _ in range(1 + capable)]
        assert received[0].method == QUEUE_DELETE_OK
        cancels = [frame.arguments for frame in received if frame.method == BASIC_CANCEL]
        assert cancels == ([short_string("tag") + b"\x01"] if capable else [])
        client.expect_alive()


def test_a_tag_of_one_channel_means_nothing_on_another(
    connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    """C001: 406; and C094, a consumer is its channel's alone."""
    name = queue(channel)
    fill(channel, name, 1)
    message = get(channel, name)
    assert message is not None
    other = connection.channel()
    with channel_closed_with(406):
        other.basic_ack(message.delivery_tag)
        settle(other)
    assert ready(channel, name) == 0


def test_cancelling_a_consumer_of_another_channel_changes_nothing(
    connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    """C094."""
    name = queue(channel)
    inbox = Inbox(channel, name, auto_ack=True)
    other = connection.channel()
    vars(other)["_impl"].basic_cancel(inbox.consumer_tag, callback=lambda _frame: None)
    settle(other)
    fill(channel, name, 1)
    inbox.wait_for(1)


def test_each_group_gets_each_message_and_one_member_of_it(
    connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    """A21, D18, D19: a queue for each group, and many consumers on the queue."""
    source = exchange(channel, "fanout")
    groups = []
    for _ in range(2):
        name = bound(channel, source)
        groups.append([Inbox(connection.channel(), name, auto_ack=True) for _ in range(3)])
    for number in range(90):
        channel.basic_publish(source, "", str(number).encode())
    everyone = [inbox for group in groups for inbox in group]
    wait_until(channel, lambda: sum(held(*everyone)) == 180)
    for group in groups:
        seen = Counter(body for inbox in group for body in inbox.bodies)
        assert seen == Counter({str(number).encode(): 1 for number in range(90)})


def test_messages_published_one_by_one_go_round_the_consumers(
    connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    """D19."""
    name = queue(channel)
    inboxes = [Inbox(connection.channel(), name, auto_ack=True) for _ in range(3)]
    for count in range(1, 31):
        fill(channel, name, 1)
        wait_for_total(channel, inboxes, count)
    assert held(*inboxes) == [10, 10, 10]


def test_one_message_is_never_with_two_consumers(
    connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    """D13, D18: consumers and gets alike."""
    name = queue(channel)
    fill(channel, name, 100)
    inboxes = [Inbox(connection.channel(), name) for _ in range(2)]
    getting = connection.channel()
    taken = []
    while message := get(getting, name):
        taken.append(message.body)
    wait_until(channel, lambda: sum(held(*inboxes)) + len(taken) == 100)
    seen = Counter([*taken, *inboxes[0].bodies, *inboxes[1].bodies])
    assert set(seen.values()) == {1}


def test_two_ways_to_take_messages(channel: BlockingChannel) -> None:
    """F01, F03, D17: pushed or asked for, removed at once or when acked."""
    name = queue(channel)
    fill(channel, name, 2)
    assert get(channel, name, auto_ack=True) is not None
    held_back = get(channel, name)
    assert held_back is not None
    channel.basic_ack(held_back.delivery_tag)
    inbox = Inbox(channel, name, auto_ack=True)
    fill(channel, name, 1)
    inbox.wait_for(1)
    channel.basic_cancel(inbox.consumer_tag)
    assert bodies(channel, name) == []


def test_a_channel_may_have_many_consumers(channel: BlockingChannel) -> None:
    """C092, F18: of one queue and of several."""
    names = [queue(channel) for _ in range(4)]
    inboxes = [Inbox(channel, name, auto_ack=True) for name in names for _ in range(16)]
    assert len({inbox.consumer_tag for inbox in inboxes}) == 64
    for name in names:
        fill(channel, name, 16)
    wait_until(channel, lambda: sum(held(*inboxes)) == 64)


def test_an_exclusive_consumer_needs_a_queue_without_consumers(channel: BlockingChannel) -> None:
    """C095: 403."""
    name = queue(channel)
    Inbox(channel, name)
    with channel_closed_with(403):
        Inbox(channel, name, exclusive=True)


def test_a_queue_name_is_found_whatever_its_characters(channel: BlockingChannel) -> None:
    """A14, C048: as in RabbitMQ, the specification's alphabet is not enforced."""
    name = unique() + " \N{SNOWMAN}/#*&%?<script>"
    channel.queue_declare(name, exclusive=True)
    fill(channel, name, 1)
    assert bodies(channel, name) == [b"0"]
