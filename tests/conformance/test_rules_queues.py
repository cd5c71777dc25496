"""Queues: life, names, limits and priorities (rules D and H; class queue)."""

import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pika
import pytest
from pika import DeliveryMode
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError
from pika.spec import BasicProperties

from tests.conformance.topology import (
    bodies,
    bound,
    confirming,
    deaths,
    exchange,
    get_soon,
    has_route,
    queue,
    texts,
    unique,
)
from tests.conformance.wire_client import (
    BASIC_ACK,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    WireClient,
    body,
    confirm_select,
    field,
    header,
    long_string,
    method,
    publish_method,
    queue_bind,
    short_string,
    table,
)
from tests.interop.pika_client import (
    PERSISTENT,
    TRANSIENT,
    Inbox,
    channel_closed_with,
    drain,
    get,
    ready,
    settle,
    wait_until,
    wait_until_ready,
)


def publish(
    channel: BlockingChannel, name: str, *messages: str, priority: int | None = None
) -> None:
    for text in messages:
        channel.basic_publish("", name, text.encode(), BasicProperties(priority=priority))


def test_an_unused_queue_expires(
    connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    """D24: and what it held is not dead-lettered."""
    dead = queue(channel)
    name = unique()
    arguments = {
        "x-expires": 300,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead,
    }
    channel.queue_declare(name, arguments=arguments)
    confirms = confirming(connection)
    assert has_route(confirms, name)
    wait_until(channel, lambda: not has_route(confirms, name))
    assert bodies(channel, dead) == []


def test_a_queue_in_use_does_not_expire(
    connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    """D24: a consumer keeps it, a basic.get and a declare each start the time anew."""
    used = consumed, fetched, declared = unique(), unique(), unique()
    marker = unique()
    expiring = {"x-expires": 5000}
    for name in used:
        channel.queue_declare(name, arguments=expiring)
    channel.basic_consume(consumed, lambda *_: None, auto_ack=True)
    confirms = confirming(connection)
    assert has_route(confirms, declared)
    for _ in range(8):
        channel.queue_declare(marker, arguments={"x-expires": 700})
        wait_until(channel, lambda: not has_route(confirms, marker))
        channel.basic_get(fetched)
        channel.queue_declare(declared, arguments=expiring)
    assert bodies(channel, declared) == [b"ping"]  # it is the one that was declared first
    for name in used:
        assert has_route(confirms, name)
        channel.queue_delete(name)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x-expires", 0),
        ("x-expires", -1),
        ("x-expires", "100"),
        ("x-message-ttl", -1),
        ("x-message-ttl", "100"),
        ("x-max-length", -1),
        ("x-max-length", "ten"),
        ("x-max-length-bytes", -1),
        ("x-overflow", "drop-tail"),
        ("x-overflow", 1),
        ("x-max-priority", -1),
        ("x-max-priority", 256),
        ("x-dead-letter-exchange", 5),
        ("x-single-active-consumer", "yes"),
    ],
)
def test_an_argument_that_cannot_be_is_406(
    channel: BlockingChannel, argument: str, value: object
) -> None:
    """D24, H01, H09, H14, H16: by name, when the queue is declared."""
    with channel_closed_with(406):
        channel.queue_declare(unique(), exclusive=True, arguments={argument: value})


def test_a_dead_letter_key_without_an_exchange_is_406(channel: BlockingChannel) -> None:
    """H09."""
    with channel_closed_with(406):
        queue(channel, {"x-dead-letter-routing-key": "key"})


def test_an_equal_number_of_another_width_is_no_difference(channel: BlockingChannel) -> None:
    """C050: what counts is the value, not the octets that say it."""
    name = unique()
    channel.queue_declare(name, exclusive=True, arguments={"x-max-length": 10})
    channel.queue_declare(
        name, exclusive=True, arguments={"x-max-length": 10 + (1 << 32) - (1 << 32)}
    )
    with channel_closed_with(406):
        channel.queue_declare(name, exclusive=True, arguments={"x-max-length": 11})


@pytest.mark.parametrize(
    ("first", "again"),
    [
        ({}, {"x-note": "mine"}),
        ({"x-note": "mine"}, {"x-note": 5}),
        ({"x-note": "mine"}, {}),
        ({}, {"alternate-exchange": "of exchanges"}),
        ({}, {"x-queue-type": "classic"}),
        ({"x-queue-type": "classic", "x-message-ttl": 10}, {"x-message-ttl": 10}),
    ],
)
def test_what_has_no_effect_may_be_declared_otherwise(
    channel: BlockingChannel, first: dict[str, object], again: dict[str, object]
) -> None:
    """C050: two services that share a queue need not agree in it."""
    name = unique()
    channel.queue_declare(name, exclusive=True, arguments=first)
    channel.queue_declare(name, exclusive=True, arguments=again)


@pytest.mark.parametrize(
    ("first", "again"),
    [
        ({"x-message-ttl": 10}, {}),
        ({}, {"x-message-ttl": 10}),
        ({"x-message-ttl": 1}, {"x-message-ttl": True}),
        ({"x-dead-letter-exchange": "a"}, {"x-dead-letter-exchange": b"a\xff"}),
        ({}, {"x-queue-type": "quorum"}),
        ({}, {"x-max-length": None}),
    ],
)
def test_what_has_an_effect_may_not(
    channel: BlockingChannel, first: dict[str, object], again: dict[str, object]
) -> None:
    """C050: 406, and a number of another type is another."""
    name = unique()
    channel.queue_declare(name, exclusive=True, arguments=first)
    with channel_closed_with(406):
        channel.queue_declare(name, exclusive=True, arguments=again)


@pytest.mark.parametrize("value", [True, datetime(2026, 1, 1, tzinfo=UTC), Decimal(10), "10"])
def test_a_number_of_a_queue_is_an_integer(channel: BlockingChannel, value: object) -> None:
    """H01: a boolean, a timestamp, a decimal and a text are 406."""
    with channel_closed_with(406):
        channel.queue_declare(unique(), exclusive=True, arguments={"x-message-ttl": value})


def test_a_double_is_not_the_integer_of_its_value(url: str) -> None:
    """C050, H01: neither for a queue that is there, nor for a new one."""
    name = unique()
    integer = field("x-message-ttl", b"I", struct.pack(">i", 10))
    double = field("x-message-ttl", b"d", struct.pack(">d", 10.0))

    def declare(argument: bytes) -> bytes:
        names = struct.pack(">H", 0) + short_string(name) + bytes([0b100])
        return method(1, QUEUE_DECLARE, names + table(argument))

    with WireClient.connected(url, channels=1) as client:
        client.send(declare(double))
        client.expect_channel_close(1, 406)
    with WireClient.connected(url, channels=1) as client:
        client.send(declare(integer))
        client.expect(QUEUE_DECLARE_OK, 1)
        client.send(declare(double))
        client.expect_channel_close(1, 406)


@pytest.mark.parametrize("exclusive", [True, False])
def test_a_queue_that_is_exclusive_is_not_declared_shared(
    channel: BlockingChannel, exclusive: bool
) -> None:
    """C050, C054: nor the reverse: 405, also for the connection that has it."""
    name = unique()
    channel.queue_declare(name, exclusive=exclusive, auto_delete=True)
    with channel_closed_with(405):
        channel.queue_declare(name, exclusive=not exclusive, auto_delete=True)


@pytest.mark.parametrize("durable", [True, False])
def test_whether_an_exclusive_queue_is_declared_durable_makes_no_difference(
    channel: BlockingChannel, durable: bool
) -> None:
    """C050: it ends with its connection, so RabbitMQ does not compare it either."""
    name = unique()
    channel.queue_declare(name, exclusive=True, durable=durable)
    channel.queue_declare(name, exclusive=True, durable=not durable)


def test_the_default_exchange_is_refused_whether_the_queue_exists_or_not(
    connection: pika.BlockingConnection,
) -> None:
    """C064, C066, C070: 403, as in RabbitMQ."""
    with channel_closed_with(403):
        connection.channel().queue_bind(unique(), "", "key")
    with channel_closed_with(403):
        connection.channel().queue_unbind(unique(), "", "key")


@pytest.mark.parametrize(
    "wrong",
    [
        {"durable": False},
        {"exclusive": True},
        {"auto_delete": True},
        {"arguments": {"x-max-priority": 5}},
        {"arguments": {"x-queue-mode": "lazy"}},
    ],
    ids=str,
)
def test_a_quorum_queue_is_declared_as_one_can_be(
    channel: BlockingChannel, wrong: dict[str, Any]
) -> None:
    """D04: durable, shared and lasting; otherwise it is 406."""
    arguments = {"x-queue-type": "quorum", **wrong.pop("arguments", {})}
    with channel_closed_with(406):
        channel.queue_declare(unique(), arguments=arguments, **{"durable": True, **wrong})


@pytest.mark.parametrize("type_arguments", [{"x-note": 1}, {"hash-header": "h"}, {"a": None}])
def test_arguments_of_an_exchange_may_be_declared_otherwise(
    channel: BlockingChannel, type_arguments: dict[str, Any]
) -> None:
    """C040: all but the alternate exchange."""
    name = unique()
    channel.exchange_declare(name, "fanout", auto_delete=True)
    channel.exchange_declare(name, "fanout", auto_delete=True, arguments=type_arguments)
    with channel_closed_with(406):
        other = {"alternate-exchange": "amq.fanout"}
        channel.exchange_declare(name, "fanout", auto_delete=True, arguments=other)


def test_max_length_drops_the_oldest(channel: BlockingChannel) -> None:
    """H14."""
    name = queue(channel, {"x-max-length": 3})
    publish(channel, name, *"abcde")
    assert texts(channel, name) == ["c", "d", "e"]


def test_max_length_bytes_counts_bodies(channel: BlockingChannel) -> None:
    """H14: and neither properties nor routing keys."""
    name = queue(channel, {"x-max-length-bytes": 10})
    fields = BasicProperties(headers={"long": "x" * 500})
    for text in (b"aaaa", b"bbbb", b"cc", b"dd"):
        channel.basic_publish("", name, text, fields)
    assert texts(channel, name) == ["bbbb", "cc", "dd"]


def test_max_length_counts_ready_messages_only(channel: BlockingChannel) -> None:
    """D20, H14."""
    name = queue(channel, {"x-max-length": 2})
    publish(channel, name, "a", "b")
    held = [get(channel, name), get(channel, name)]
    publish(channel, name, "c", "d", "e")
    wait_until_ready(channel, name, 2)
    first = held[0]
    assert first is not None
    channel.basic_ack(first.delivery_tag)
    assert texts(channel, name) == ["d", "e"]


def test_max_length_zero_keeps_what_a_consumer_takes_at_once(channel: BlockingChannel) -> None:
    """D16, H14."""
    name = queue(channel, {"x-max-length": 0})
    publish(channel, name, "dropped")
    assert ready(channel, name) == 0
    inbox = Inbox(channel, name, auto_ack=True)
    publish(channel, name, "taken")
    assert [message.body for message in inbox.wait_for(1)] == [b"taken"]


def test_what_max_length_drops_is_dead_lettered(channel: BlockingChannel) -> None:
    """H10, H14: reason maxlen."""
    dead = queue(channel)
    name = queue(
        channel,
        {"x-max-length": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead},
    )
    publish(channel, name, "a", "b")
    message = get_soon(channel, dead)
    assert message.body == b"a"
    assert [(entry["reason"], entry["queue"]) for entry in deaths(message)] == [("maxlen", name)]


def test_reject_publish_nacks_what_does_not_fit(
    connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    """E11, H14: the queue keeps what it has."""
    name = queue(channel, {"x-max-length": 2, "x-overflow": "reject-publish"})
    confirms = confirming(connection)
    publish(confirms, name, "a", "b")
    wait_until_ready(channel, name, 2)
    with pytest.raises(NackError):
        publish(confirms, name, "c")
    assert texts(channel, name) == ["a", "b"]
    publish(confirms, name, "d")
    assert texts(channel, name) == ["d"]


@pytest.mark.parametrize("mode", [PERSISTENT, TRANSIENT], ids=["persistent", "transient"])
def test_reject_publish_of_one_queue_of_several(
    connection: pika.BlockingConnection, channel: BlockingChannel, mode: BasicProperties
) -> None:
    """E11, H14: the others take the message, and the publisher hears nack."""
    source = exchange(channel, "fanout")
    roomy = bound(channel, source)
    full = queue(channel, {"x-max-length": 0, "x-overflow": "reject-publish"})
    channel.queue_bind(full, source)
    with pytest.raises(NackError):
        confirming(connection).basic_publish(source, "", b"x", mode)
    wait_until_ready(channel, roomy, 1)


def test_reject_publish_counts_all_that_comes_in_one_read(url: str, name: str) -> None:
    """E11, H14: whatever the messages' exchanges and keys are, each is acked or nacked."""
    with WireClient.connected(url, channels=1) as client:
        arguments = table(
            field("x-max-length", b"I", (2).to_bytes(4, "big")),
            field("x-overflow", b"S", long_string("reject-publish")),
        )
        declare = bytes(2) + short_string(name) + b"\x04" + arguments
        client.send(method(1, QUEUE_DECLARE, declare))
        client.expect(QUEUE_DECLARE_OK, 1)
        for key in ("one", "two"):
            client.send(queue_bind(1, name, "amq.direct", f"{name}.{key}"))
            client.next_frame()
        client.send(confirm_select(1))
        client.next_frame()
        content = header(1, 1) + body(1, b"x")
        ways = [("", name), ("amq.direct", f"{name}.one"), ("amq.direct", f"{name}.two")]
        client.send(*(publish_method(1, key, target) + content for target, key in ways * 2))
        acked: set[int] = set()
        nacked: set[int] = set()
        while len(acked | nacked) < 6:
            received = client.next_frame()
            tag, multiple = struct.unpack(">QB", received.arguments)
            settled = set(range(1, tag + 1)) - acked - nacked if multiple & 1 else {tag}
            (acked if received.method == BASIC_ACK else nacked).update(settled)
        assert (acked, nacked) == ({1, 2}, {3, 4, 5, 6})
        assert client.ready(name) == 2


def test_reject_publish_dlx_dead_letters_the_new_message(
    connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    """H14: and nacks it."""
    dead = queue(channel)
    name = queue(
        channel,
        {
            "x-max-length": 1,
            "x-overflow": "reject-publish-dlx",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": dead,
        },
    )
    confirms = confirming(connection)
    publish(confirms, name, "a")
    wait_until_ready(channel, name, 1)
    with pytest.raises(NackError):
        publish(confirms, name, "b")
    message = get_soon(channel, dead)
    assert (message.body, deaths(message)[0]["reason"]) == (b"b", "maxlen")
    assert texts(channel, name) == ["a"]


def test_higher_priorities_are_delivered_first(channel: BlockingChannel) -> None:
    """H16: no priority is 0, what is above the maximum is the maximum."""
    name = queue(channel, {"x-max-priority": 5})
    for text, priority in (("none", None), ("0", 0), ("5", 5), ("1", 1), ("200", 200), ("3", 3)):
        publish(channel, name, text, priority=priority)
    assert texts(channel, name) == ["5", "200", "3", "1", "none", "0"]


def test_messages_of_one_priority_keep_their_order(channel: BlockingChannel) -> None:
    """C087, H19, D11: whatever their persistence."""
    name = queue(channel, {"x-max-priority": 2})
    for number in range(60):
        mode = DeliveryMode.Persistent if number % 3 else DeliveryMode.Transient
        properties = BasicProperties(priority=number % 2, delivery_mode=mode)
        channel.basic_publish("", name, str(number).encode(), properties)
    expected = [*range(1, 60, 2), *range(0, 60, 2)]
    assert [int(text) for text in texts(channel, name)] == expected


def test_a_requeued_message_comes_before_later_ones_of_its_priority(
    channel: BlockingChannel,
) -> None:
    """F08, H16."""
    name = queue(channel, {"x-max-priority": 5})
    publish(channel, name, "a5", "b5", priority=5)
    publish(channel, name, "a1", priority=1)
    first = get(channel, name)
    assert first is not None
    publish(channel, name, "c5", priority=5)
    channel.basic_nack(first.delivery_tag, requeue=True)
    assert texts(channel, name) == ["a5", "b5", "c5", "a1"]


def test_without_a_backlog_priority_has_no_effect(channel: BlockingChannel) -> None:
    """H17."""
    name = queue(channel, {"x-max-priority": 5})
    inbox = Inbox(channel, name, auto_ack=True)
    for number, priority in enumerate((0, 5, 1)):
        publish(channel, name, str(number), priority=priority)
        inbox.wait_for(number + 1)
    assert inbox.bodies == [b"0", b"1", b"2"]


def test_priorities_need_x_max_priority(channel: BlockingChannel) -> None:
    """C085, C086: as in RabbitMQ; a plain queue is first in, first out."""
    name = queue(channel)
    publish(channel, name, "low", priority=0)
    publish(channel, name, "high", priority=9)
    assert texts(channel, name) == ["low", "high"]


def test_ten_priorities_are_ten_levels(channel: BlockingChannel) -> None:
    """C086: with x-max-priority."""
    name = queue(channel, {"x-max-priority": 9})
    for priority in range(10):
        publish(channel, name, str(priority), priority=priority)
    assert texts(channel, name) == [str(priority) for priority in range(9, -1, -1)]


@pytest.mark.usefixtures("ours_alone")
def test_max_length_drops_the_lowest_priority_first(channel: BlockingChannel) -> None:
    """H18, C084: and the oldest within it."""
    name = queue(channel, {"x-max-length": 3, "x-max-priority": 5})
    publish(channel, name, "a5", "b5", priority=5)
    publish(channel, name, "a1", "b1", "c1", priority=1)
    assert texts(channel, name) == ["a5", "b5", "c1"]
    publish(channel, name, "a1", "b1", "c1", priority=1)
    publish(channel, name, "a5", priority=5)
    assert texts(channel, name) == ["a5", "b1", "c1"]


def test_a_lazy_queue_is_a_queue(channel: BlockingChannel) -> None:
    """K17: x-queue-mode."""
    name = queue(channel, {"x-queue-mode": "lazy"})
    publish(channel, name, *"abc")
    assert texts(channel, name) == ["a", "b", "c"]


def test_a_server_named_queue_is_called_amq_gen(channel: BlockingChannel) -> None:
    """A14, C046, D23, H21."""
    names = {channel.queue_declare("", exclusive=True).method.queue for _ in range(20)}
    assert len(names) == 20
    assert all(name.startswith("amq.gen-") for name in names)


@pytest.mark.parametrize("exclusive", [False, True], ids=["shared", "exclusive"])
def test_auto_delete_is_not_triggered_by_get(channel: BlockingChannel, exclusive: bool) -> None:
    """A20."""
    name = unique()
    channel.queue_declare(name, auto_delete=True, exclusive=exclusive)
    channel.basic_get(name, auto_ack=True)
    assert ready(channel, name) == 0
    channel.queue_delete(name)


def test_a_redeclare_with_the_other_auto_delete_is_406(channel: BlockingChannel) -> None:
    """C055: as in RabbitMQ, it is not ignored."""
    name = unique()
    channel.queue_declare(name, exclusive=True, auto_delete=False)
    with channel_closed_with(406):
        channel.queue_declare(name, exclusive=True, auto_delete=True)


def test_deleting_a_queue_dead_letters_nothing(channel: BlockingChannel) -> None:
    """C075, D10: nor does a purge."""
    dead = queue(channel)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    name = queue(channel, arguments)
    publish(channel, name, "purged")
    channel.queue_purge(name)
    publish(channel, name, "deleted")
    channel.queue_delete(name)
    settle(channel)
    assert bodies(channel, dead) == []


def test_purged_messages_are_gone(channel: BlockingChannel) -> None:
    """C072, D25: purged messages cannot come back."""
    name = queue(channel)
    publish(channel, name, "a", "b")
    assert channel.queue_purge(name).method.message_count == 2
    assert drain(channel, name) == []


def test_a_purge_of_a_priority_queue_empties_every_level(channel: BlockingChannel) -> None:
    """D25, H16."""
    name = queue(channel, {"x-max-priority": 3})
    for priority in range(4):
        publish(channel, name, "x", priority=priority)
    assert channel.queue_purge(name).method.message_count == 4
    assert ready(channel, name) == 0


def test_queues_are_independent(channel: BlockingChannel) -> None:
    """D01: what happens to one concerns no other."""
    first, second = queue(channel), queue(channel)
    publish(channel, first, "a")
    publish(channel, second, "b")
    channel.queue_delete(first)
    assert texts(channel, second) == ["b"]


def test_a_queue_and_an_exchange_may_have_one_name(channel: BlockingChannel) -> None:
    """A11: they are two namespaces."""
    name = unique()
    channel.exchange_declare(name, "fanout", auto_delete=True)
    channel.queue_declare(name, exclusive=True)
    channel.queue_bind(name, name)
    channel.basic_publish(name, "", b"x")
    channel.basic_publish("", name, b"y")
    assert texts(channel, name) == ["x", "y"]


def test_a_message_for_a_waiting_consumer_goes_at_once(channel: BlockingChannel) -> None:
    """D16: it is never counted as ready."""
    name = queue(channel, {"x-message-ttl": 0})
    inbox = Inbox(channel, name)
    publish(channel, name, "a", "b")
    assert [message.body for message in inbox.wait_for(2)] == [b"a", b"b"]
    assert ready(channel, name) == 0


@pytest.mark.parametrize("method", ["bind", "unbind", "purge", "delete"])
def test_an_empty_queue_name_means_the_last_declared(
    connection: pika.BlockingConnection, channel: BlockingChannel, method: str
) -> None:
    """C061, C067, C073, C076: and is an error before any was declared."""
    calls = {
        "bind": lambda on: on.queue_bind("", "amq.direct", "key"),
        "unbind": lambda on: on.queue_unbind("", "amq.direct", "key"),
        "purge": lambda on: on.queue_purge(""),
        "delete": lambda on: on.queue_delete(""),
    }
    queue(channel)
    calls[method](channel)
    with channel_closed_with(404):
        calls[method](connection.channel())
