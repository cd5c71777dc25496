"""Durable definitions, persistent messages, their order and their flags outlive a clean restart."""

from collections.abc import Generator
from contextlib import contextmanager

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPConnectionError

from tests.broker_process import BrokerProcess
from tests.interop.pika_client import (
    PERSISTENT,
    TRANSIENT,
    Inbox,
    channel_closed_with,
    connect,
    drain,
    exists,
    get,
    publish_confirmed,
    ready,
    settle,
)


@contextmanager
def session(broker: BrokerProcess) -> Generator[BlockingChannel]:
    """A channel of a connection that is closed before the broker goes on."""
    connection = connect(broker.url)
    try:
        yield connection.channel()
    finally:
        if connection.is_open:
            connection.close()


def test_durable_definitions_and_bindings_survive(broker: BrokerProcess) -> None:
    """C051, C059."""
    with session(broker) as channel:
        channel.exchange_declare("direct", "direct", durable=True)
        channel.exchange_declare("fanout", "fanout", durable=True)
        channel.queue_declare("bound", durable=True)
        channel.queue_declare("unbound", durable=True, arguments={"x-note": "kept"})
        channel.queue_bind("bound", "direct", "one")
        channel.queue_bind("bound", "direct", "two")
        channel.queue_bind("bound", "direct", "gone")
        channel.queue_bind("bound", "fanout")
        channel.queue_bind("bound", "amq.direct", "predeclared")
        channel.queue_unbind("bound", "direct", "gone")
        channel.queue_declare("deleted", durable=True)
        channel.queue_delete("deleted")
    broker.restart()
    with session(broker) as channel:
        channel.exchange_declare("direct", "direct", durable=True)
        channel.queue_declare("unbound", durable=True, arguments={"x-note": "kept"})
        assert not exists(channel.connection, "deleted")
        for exchange, key in [
            ("direct", "one"),
            ("direct", "two"),
            ("direct", "gone"),
            ("fanout", "any"),
            ("amq.direct", "predeclared"),
            ("", "bound"),
        ]:
            channel.basic_publish(exchange, key, key.encode())
        assert [message.body for message in drain(channel, "bound")] == [
            b"one",
            b"two",
            b"any",
            b"predeclared",
            b"bound",
        ]


def test_transient_definitions_vanish(broker: BrokerProcess) -> None:
    """D05, D08, C29: a binding that has a transient end goes too."""
    with session(broker) as channel:
        channel.queue_declare("transient")
        channel.queue_declare("exclusive", durable=True, exclusive=True)
        channel.queue_declare("durable", durable=True)
        channel.exchange_declare("transient", "fanout")
        channel.queue_bind("durable", "transient")
        publish_confirmed(channel, "transient", [b"lost"])
    broker.restart()
    with session(broker) as channel:
        assert not exists(channel.connection, "transient")
        assert not exists(channel.connection, "exclusive")
        channel.exchange_declare("transient", "fanout")
        channel.basic_publish("transient", "", b"to nobody")
        assert ready(channel, "durable") == 0


def test_persistent_messages_survive_in_order_and_transient_ones_vanish(
    broker: BrokerProcess,
) -> None:
    """E07, D04."""
    bodies = [str(number).encode() * (1 + number % 7 * 900) for number in range(200)]
    with session(broker) as channel:
        channel.queue_declare("queue", durable=True)
        channel.confirm_delivery()
        for number, body in enumerate(bodies):
            mode = TRANSIENT if number % 4 == 3 else PERSISTENT
            channel.basic_publish("", "queue", body, mode)
    broker.restart()
    with session(broker) as channel:
        messages = drain(channel, "queue")
    kept = [body for number, body in enumerate(bodies) if number % 4 != 3]
    assert [message.body for message in messages] == kept
    assert not any(message.redelivered for message in messages)


def test_a_quorum_queue_keeps_every_confirmed_message(broker: BrokerProcess) -> None:
    """D04: with delivery-mode 1 and without any, also those that came through an exchange."""
    with session(broker) as channel:
        channel.queue_declare("queue", durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_bind("queue", "amq.fanout")
        channel.confirm_delivery()
        for number in range(20):
            properties = pika.BasicProperties(delivery_mode=(None, 1, 2)[number % 3])
            exchange, key = ("", "queue") if number < 10 else ("amq.fanout", "any")
            channel.basic_publish(exchange, key, b"%d" % number, properties, mandatory=True)
    broker.kill()
    broker.start()
    with session(broker) as channel:
        messages = drain(channel, "queue")
    assert [message.body for message in messages] == [b"%d" % number for number in range(20)]


def test_bodies_of_every_size_survive_with_their_properties(broker: BrokerProcess) -> None:
    sizes = (0, 1, 131_064, 5 << 20)
    sent = [bytes(range(256)) * (size // 256) + b"x" * (size % 256) for size in sizes]
    properties = pika.BasicProperties(
        delivery_mode=2,
        headers={"key": ["value", 1, {"a": None}]},
        message_id="id",
        timestamp=1_700_000_000,
    )
    with session(broker) as channel:
        channel.queue_declare("queue", durable=True)
        publish_confirmed(channel, "queue", sent, properties)
    broker.restart()
    with session(broker) as channel:
        messages = drain(channel, "queue")
    assert [message.body for message in messages] == sent
    for message in messages:
        assert message.properties == properties
        assert (message.exchange, message.routing_key) == ("", "queue")


def test_what_was_delivered_before_comes_back_flagged(broker: BrokerProcess) -> None:
    """C003, C110: and acked messages do not come back."""
    with session(broker) as channel:
        channel.queue_declare("queue", durable=True)
        publish_confirmed(channel, "queue", [str(number).encode() for number in range(10)])
        for number in range(4):
            message = get(channel, "queue")
            assert message is not None
            if number in (1, 2):
                channel.basic_ack(message.delivery_tag)
        settle(channel)
    broker.restart()
    with session(broker) as channel:
        back = [(int(message.body), message.redelivered) for message in drain(channel, "queue")]
    assert back == [(0, True), (3, True), *((number, False) for number in range(4, 10))]


def test_what_a_connected_consumer_held_comes_back_flagged(
    stopped_broker: BrokerProcess,
) -> None:
    """The broker stops under its clients: they lose the connection, and no message."""
    broker = stopped_broker
    broker.environment["AMQPSTORE_DRAIN_S"] = "0"  # the acks that it would wait for do not come
    broker.start()
    connection = connect(broker.url)
    channel = connection.channel()
    channel.queue_declare("queue", durable=True)
    publish_confirmed(channel, "queue", [str(number).encode() for number in range(6)])
    channel.basic_qos(prefetch_count=3)
    Inbox(channel, "queue").wait_for(3)
    assert broker.terminate() == 0
    with pytest.raises(AMQPConnectionError):
        connection.process_data_events(time_limit=10)
    broker.start()
    with session(broker) as again:
        back = [(int(message.body), message.redelivered) for message in drain(again, "queue")]
    assert back == [(number, number < 3) for number in range(6)]


def test_purged_and_deleted_messages_stay_gone(broker: BrokerProcess) -> None:
    with session(broker) as channel:
        for queue in ("purged", "deleted"):
            channel.queue_declare(queue, durable=True)
            publish_confirmed(channel, queue, [b"1", b"2", b"3"])
        channel.queue_purge("purged")
        channel.queue_delete("deleted")
        publish_confirmed(channel, "purged", [b"4"])
    broker.restart()
    with session(broker) as channel:
        assert [message.body for message in drain(channel, "purged")] == [b"4"]
        channel.queue_declare("deleted", durable=True)
        assert ready(channel, "deleted") == 0


def test_a_message_in_two_queues_survives_in_each(broker: BrokerProcess) -> None:
    """C32: acked in one, it stays in the other."""
    with session(broker) as channel:
        for queue in ("a", "b"):
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, "amq.fanout")
        channel.confirm_delivery()
        channel.basic_publish("amq.fanout", "", b"both" * 5000, PERSISTENT)
        assert len(drain(channel, "a")) == 1
    broker.restart()
    with session(broker) as channel:
        assert drain(channel, "a") == []
        assert [message.body for message in drain(channel, "b")] == [b"both" * 5000]


def test_several_restarts_lose_nothing(broker: BrokerProcess) -> None:
    with session(broker) as channel:
        channel.queue_declare("queue", durable=True)
    for turn in range(4):
        with session(broker) as channel:
            publish_confirmed(channel, "queue", [f"{turn}.{n}".encode() for n in range(5)])
            taken = get(channel, "queue", auto_ack=True)
            assert taken is not None
        broker.restart()
    with session(broker) as channel:
        bodies = [message.body.decode() for message in drain(channel, "queue")]
    assert bodies == [f"{turn}.{n}" for turn in range(4) for n in range(5)][4:]


def test_declaring_otherwise_after_a_restart_is_406(broker: BrokerProcess) -> None:
    """C050: the properties survive, not just the name."""
    with session(broker) as channel:
        channel.queue_declare("queue", durable=True, arguments={"x-max-length": 1})
        channel.exchange_declare("exchange", "fanout", durable=True)
    broker.restart()
    with session(broker) as channel, channel_closed_with(406):
        channel.queue_declare("queue", durable=True, arguments={"x-max-length": 2})
    with session(broker) as channel, channel_closed_with(406):
        channel.exchange_declare("exchange", "direct", durable=True)
