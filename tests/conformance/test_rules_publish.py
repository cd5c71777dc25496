"""Publishing: returns, confirms, properties, requests and replies (rules E and H)."""

import struct
import threading

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError, UnroutableError
from pika.spec import BasicProperties

from tests.conformance.topology import bodies, bound, confirming, exchange, get_soon, headers, queue
from tests.conformance.wire_client import (
    BASIC_ACK,
    BASIC_CONSUME_OK,
    BASIC_DELIVER,
    BASIC_QOS,
    BASIC_QOS_OK,
    BASIC_RETURN,
    CONFIRM_SELECT_OK,
    WireClient,
    basic_consume,
    body,
    confirm_select,
    header,
    method,
    publish_method,
)
from tests.interop.pika_client import (
    Inbox,
    channel_closed_with,
    drain,
    settle,
    wait_until,
    wait_until_ready,
)


def publish_immediate(client: WireClient, queue_name: str, mandatory: bool = False) -> None:
    message = publish_method(1, queue_name, mandatory=mandatory, immediate=True)
    client.send(message, header(1, 2), body(1, b"hi"))


def confirmed(client: WireClient) -> None:
    client.send(confirm_select(1))
    client.expect(CONFIRM_SELECT_OK, 1)


def expect_return(client: WireClient, reply_code: int) -> None:
    arguments = client.expect(BASIC_RETURN, 1).arguments
    assert struct.unpack_from(">H", arguments) == (reply_code,)
    assert client.expect_content()[1] == b"hi"


@pytest.mark.usefixtures("ours_alone")
def test_an_immediate_message_without_a_consumer_is_returned(url: str, name: str) -> None:
    """E05, C102: 313, then the confirm; and the queue does not have it."""
    with WireClient.connected(url, channels=1) as client:
        client.declare_queue(name)
        confirmed(client)
        publish_immediate(client, name)
        expect_return(client, 313)
        client.expect(BASIC_ACK, 1)
        assert client.ready(name) == 0


@pytest.mark.usefixtures("ours_alone")
def test_an_immediate_message_that_a_consumer_takes_is_not_returned(url: str, name: str) -> None:
    """E05, C102."""
    with WireClient.connected(url, channels=1) as client:
        client.declare_queue(name)
        client.send(basic_consume(1, name, "tag"))
        client.expect(BASIC_CONSUME_OK, 1)
        publish_immediate(client, name)
        client.expect(BASIC_DELIVER, 1)
        assert client.expect_content()[1] == b"hi"


@pytest.mark.usefixtures("ours_alone")
def test_an_immediate_message_is_returned_where_all_consumers_are_at_their_limit(
    url: str, name: str
) -> None:
    """E05, C102."""
    with WireClient.connected(url, channels=1) as client:
        client.declare_queue(name)
        client.send(method(1, BASIC_QOS, struct.pack(">IHB", 0, 1, 0)))
        client.expect(BASIC_QOS_OK, 1)
        client.send(basic_consume(1, name, "tag", no_ack=False))
        client.expect(BASIC_CONSUME_OK, 1)
        publish_immediate(client, name)
        client.expect(BASIC_DELIVER, 1)
        client.expect_content()
        publish_immediate(client, name)
        expect_return(client, 313)


@pytest.mark.usefixtures("ours_alone")
def test_an_immediate_and_mandatory_message_without_a_queue_has_no_route(
    url: str, name: str
) -> None:
    """E05: 312."""
    with WireClient.connected(url, channels=1) as client:
        publish_immediate(client, name, mandatory=True)
        expect_return(client, 312)


def test_a_mandatory_message_that_one_queue_of_several_refuses_is_nacked(
    connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    """E04, E10, E11: it has a route, so there is no return."""
    full = queue(channel, {"x-max-length": 0, "x-overflow": "reject-publish"})
    with pytest.raises(NackError):
        confirming(connection).basic_publish("", full, b"x", mandatory=True)


def test_confirms_and_transactions_do_not_mix(connection: pika.BlockingConnection) -> None:
    """E15: 406, either way round."""
    channel = connection.channel()
    channel.tx_select()
    with channel_closed_with(406):
        channel.confirm_delivery()
    channel = connection.channel()
    channel.confirm_delivery()
    with channel_closed_with(406):
        channel.tx_select()


def test_confirm_select_may_be_repeated(channel: BlockingChannel, url: str, name: str) -> None:
    """E10: tags go on counting."""
    with WireClient.connected(url, channels=1) as client:
        client.declare_queue(name)
        for tag in (1, 2):
            confirmed(client)
            client.send(publish_method(1, name), header(1, 2), body(1, b"hi"))
            assert client.expect(BASIC_ACK, 1).arguments == struct.pack(">QB", tag, 0)


def test_an_unroutable_message_is_confirmed(
    connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    """C37, E16: with an ack, as no queue is waited for."""
    confirming(connection).basic_publish("amq.direct", "nobody has bound this", b"x")


def test_a_user_id_must_be_the_users(channel: BlockingChannel) -> None:
    """E17, O05: 406."""
    name = queue(channel)
    channel.basic_publish("", name, b"mine", BasicProperties(user_id="guest"))
    settle(channel)
    with channel_closed_with(406):
        channel.basic_publish("", name, b"not mine", BasicProperties(user_id="somebody"))
        settle(channel)


def test_every_part_of_a_message_is_delivered(channel: BlockingChannel) -> None:
    """E02, E03, E17: exchange, routing key, properties, headers and body."""
    source = exchange(channel, "topic")
    name = bound(channel, source, "#")
    properties = BasicProperties(
        content_type="application/json",
        headers={"list": ["a", 1, None], "table": {"deep": True}},
        correlation_id="c",
        reply_to="r",
        type="t",
        app_id="a",
    )
    inbox = Inbox(channel, name, auto_ack=True)
    channel.basic_publish(source, "some.key", b"{}", properties)
    [message] = inbox.wait_for(1)
    assert (message.body, message.exchange, message.routing_key) == (b"{}", source, "some.key")
    assert message.properties == properties


def test_a_message_that_no_one_waits_for_is_kept(channel: BlockingChannel) -> None:
    """E01, A17, D16: store and forward, in order, to consumers that come later."""
    name = queue(channel)
    for number in range(50):
        channel.basic_publish("", name, str(number).encode())
    inbox = Inbox(channel, name, auto_ack=True)
    inbox.wait_for(50)
    assert inbox.bodies == [str(number).encode() for number in range(50)]


def test_a_reply_comes_through_a_queue_of_the_clients_own(
    channel: BlockingChannel, other_channel: BlockingChannel
) -> None:
    """H20, H21, A18: a server-named exclusive queue, and a correlation id for each request."""
    requests = queue(channel)
    replies = other_channel.queue_declare("", exclusive=True).method.queue
    inbox = Inbox(other_channel, replies, auto_ack=True)
    for number in range(3):
        properties = BasicProperties(reply_to=replies, correlation_id=str(number))
        other_channel.basic_publish("", requests, str(number).encode(), properties)
    for _ in range(3):
        request = get_soon(channel, requests)
        answer = str(int(request.body) ** 2).encode()
        properties = BasicProperties(correlation_id=request.properties.correlation_id)
        channel.basic_publish("", request.properties.reply_to or "", answer, properties)
    inbox.wait_for(3)
    answers = {message.properties.correlation_id: message.body for message in inbox.received}
    assert answers == {"0": b"0", "1": b"1", "2": b"4"}


DIRECT = "amq.rabbitmq.reply-to"


def test_a_reply_comes_without_a_queue(
    channel: BlockingChannel, other_channel: BlockingChannel
) -> None:
    """H20: direct reply-to, through a name that is made for the requester."""
    requests = queue(channel)
    inbox = Inbox(other_channel, DIRECT, auto_ack=True)
    properties = BasicProperties(reply_to=DIRECT, correlation_id="7")
    other_channel.basic_publish("", requests, b"question", properties)
    request = get_soon(channel, requests)
    reply_to = request.properties.reply_to or ""
    assert reply_to.startswith(f"{DIRECT}.")
    assert channel.queue_declare(reply_to, passive=True).method.queue == reply_to
    answer = BasicProperties(correlation_id=request.properties.correlation_id)
    channel.basic_publish("", reply_to, b"answer", answer)
    [message] = inbox.wait_for(1)
    assert (message.body, message.properties.correlation_id) == (b"answer", "7")
    assert (message.exchange, message.routing_key) == ("", reply_to)
    other_channel.close()
    with channel_closed_with(404):
        channel.queue_declare(reply_to, passive=True)


def test_a_direct_reply_is_no_route(
    channel: BlockingChannel, other_channel: BlockingChannel
) -> None:
    """H20: a mandatory one is returned, as in RabbitMQ, as no queue has it."""
    requests = queue(channel)
    Inbox(other_channel, DIRECT, auto_ack=True)
    other_channel.basic_publish("", requests, b"question", BasicProperties(reply_to=DIRECT))
    reply_to = get_soon(channel, requests).properties.reply_to or ""
    with pytest.raises(UnroutableError):
        confirming(channel.connection).basic_publish("", reply_to, b"answer", mandatory=True)


def test_direct_reply_to_needs_no_ack_and_a_consumer(connection: pika.BlockingConnection) -> None:
    """H20: 406 for a consumer with acks, and for a request before there is a consumer."""
    with channel_closed_with(406):
        connection.channel().basic_consume(DIRECT, lambda *_: None, auto_ack=False)
    channel = connection.channel()
    with channel_closed_with(406):
        channel.basic_publish("", "anywhere", b"", BasicProperties(reply_to=DIRECT))
        settle(channel)
    channel = connection.channel()
    channel.basic_consume(DIRECT, lambda *_: None, auto_ack=True)
    with channel_closed_with(406):
        channel.basic_consume(DIRECT, lambda *_: None, auto_ack=True)


def test_a_published_body_is_never_changed(channel: BlockingChannel) -> None:
    """C125, E06, G01: whatever its bytes are, and however often it is delivered."""
    name = queue(channel)
    payload = bytes(range(256)) * 1000
    channel.basic_publish("", name, payload, BasicProperties(headers={"x": "y"}))
    for _ in range(3):
        message = get_soon(channel, name, auto_ack=False)
        assert message.body == payload
        assert headers(message.properties) == {"x": "y"}
        channel.basic_nack(message.delivery_tag, requeue=True)
        wait_until_ready(channel, name, 1)


def test_a_consumer_may_tell_duplicates_by_message_id(channel: BlockingChannel) -> None:
    """H22, O03: a message that was not acked comes again under its own id, flagged."""
    name = queue(channel)
    channel.basic_publish("", name, b"x", BasicProperties(message_id="unique"))
    first = get_soon(channel, name, auto_ack=False)
    channel.basic_nack(first.delivery_tag, requeue=True)
    wait_until_ready(channel, name, 1)
    [again] = drain(channel, name)
    assert (again.properties.message_id, again.redelivered) == ("unique", True)


def test_publishers_of_two_connections_do_not_wait_for_each_other(
    url: str, channel: BlockingChannel, other_channel: BlockingChannel
) -> None:
    """D11: each one's messages stay in their order."""
    name = queue(channel)

    def publish(number: int) -> None:
        connection = pika.BlockingConnection(pika.URLParameters(url))
        publisher = connection.channel()
        publisher.confirm_delivery()
        for count in range(100):
            publisher.basic_publish("", name, f"{number} {count}".encode())
        connection.close()

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    wait_until(channel, lambda: not any(thread.is_alive() for thread in threads))
    seen = [body_.decode().split() for body_ in bodies(channel, name)]
    for number in ("0", "1"):
        counts = [int(count) for publisher, count in seen if publisher == number]
        assert counts == list(range(100))
