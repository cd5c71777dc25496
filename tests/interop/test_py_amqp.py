"""py-amqp by itself: the client below kombu and Celery."""

import time
from collections.abc import Callable, Generator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import amqp
import pytest
from amqp.exceptions import AccessRefused, MessageNacked, NotFound, PreconditionFailed

from tests.broker_process import BrokerProcess
from tests.interop.pika_client import WAIT_S

Message = amqp.Message
# The published stubs lack `events` and `active`, and the names in a declare-ok.
Channel = Any


def connect(url: str, **settings: Any) -> amqp.Connection:
    parts = urlsplit(url)
    connection = amqp.Connection(
        f"{parts.hostname}:{parts.port}",
        userid=settings.pop("userid", parts.username),
        password=settings.pop("password", parts.password),
        virtual_host="/",
        **settings,
    )
    connection.connect()
    return connection


@pytest.fixture
def amqp_connection(url: str) -> Generator[amqp.Connection]:
    connection = connect(url)
    yield connection
    connection.close()


@pytest.fixture
def amqp_channel(amqp_connection: amqp.Connection) -> Channel:
    return amqp_connection.channel()


def wait_until(connection: amqp.Connection, condition: Callable[[], bool]) -> None:
    """Drain the connection's events until the condition holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        left = deadline - time.monotonic()
        assert left > 0, f"still waiting after {WAIT_S} s"
        connection.drain_events(timeout=left)


def count(channel: Channel, queue: str) -> int:
    """Return how many messages are ready. Answered after all that the channel did before."""
    return int(channel.queue_declare(queue, passive=True).message_count)


def bodies(channel: Channel, queue: str) -> list[Any]:
    """Take everything out of the queue."""
    taken = []
    while message := channel.basic_get(queue, no_ack=True):
        taken.append(message.body)
    return taken


def test_the_server_says_what_it_can_do(amqp_connection: amqp.Connection) -> None:
    able = amqp_connection.server_capabilities
    for capability in (
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "consumer_priorities",
        "authentication_failure_close",
        "per_consumer_qos",
        "direct_reply_to",
    ):
        assert able[capability] is True, capability


def test_a_wrong_password_is_refused(url: str) -> None:
    with pytest.raises(AccessRefused, match="403"):
        connect(url, password="wrong")


def test_publish_and_get(amqp_channel: Channel, name: str) -> None:
    amqp_channel.queue_declare(name, exclusive=True)
    assert amqp_channel.basic_get(name) is None
    amqp_channel.basic_publish(Message("grüße", content_type="text/plain"), "", name)
    message = amqp_channel.basic_get(name)
    assert message is not None
    assert message.body == "grüße"
    assert message.properties == {"content_type": "text/plain", "content_encoding": "utf-8"}
    assert message.delivery_info["routing_key"] == name
    assert message.delivery_info["redelivered"] is False
    amqp_channel.basic_ack(message.delivery_tag)


def test_every_property_and_table_type_comes_back(amqp_channel: Channel, name: str) -> None:
    headers = {
        "text": "grüße",
        "octets": b"\x00\xff",
        "true": True,
        "false": False,
        "small": 1,
        "negative": -(2**31),
        "large": 2**40,
        "double": 1.5,
        "decimal": Decimal("-3.14"),
        "when": datetime(2024, 2, 29, 12, 0, 1, tzinfo=UTC).replace(tzinfo=None),
        "nothing": None,
        "list": ["a", 1, None, {"deep": [True]}],
        "table": {"one": {"two": {"three": 3}}},
        "empty": {},
        "no items": [],
    }
    properties = {
        "content_type": "application/octet-stream",
        "content_encoding": "binary",
        "delivery_mode": 2,
        "priority": 7,
        "correlation_id": "c" * 255,
        "reply_to": "answers",
        "expiration": "60000",
        "message_id": "m1",
        "timestamp": 1_700_000_000,
        "type": "order",
        "user_id": "guest",
        "app_id": "test",
    }
    amqp_channel.queue_declare(name, exclusive=True)
    sent = Message(b"\x00\xffbody", application_headers=headers, **properties)
    amqp_channel.basic_publish(sent, "", name)
    message = amqp_channel.basic_get(name, no_ack=True)
    assert message is not None
    assert message.headers == headers
    received = {key: value for key, value in message.properties.items() if key in properties}
    assert received == properties
    assert message.body == b"\x00\xffbody"


def test_a_body_of_many_frames(amqp_channel: Channel, name: str) -> None:
    body = bytes(range(256)) * 4096
    amqp_channel.queue_declare(name, exclusive=True)
    amqp_channel.basic_publish(Message(body), "", name)
    message = amqp_channel.basic_get(name, no_ack=True)
    assert message is not None
    assert message.body == body


def test_confirmed_publishing(url: str, name: str) -> None:
    """With `confirm_publish` each publish returns when the server has confirmed it."""
    with connect(url, confirm_publish=True) as connection:
        channel = connection.channel()
        channel.queue_declare(name, exclusive=True)
        for number in range(50):
            channel.basic_publish(Message(str(number), delivery_mode=2), "", name)
        assert bodies(channel, name) == [str(number) for number in range(50)]


def test_a_negative_confirm_is_an_exception(url: str, name: str) -> None:
    with connect(url, confirm_publish=True) as connection:
        channel = connection.channel()
        limits = {"x-max-length": 1, "x-overflow": "reject-publish"}
        channel.queue_declare(name, exclusive=True, arguments=limits)
        channel.basic_publish(Message("first"), "", name)
        with pytest.raises(MessageNacked):
            channel.basic_publish(Message("second"), "", name)
        assert bodies(channel, name) == ["first"]


def test_an_unroutable_message_is_returned(
    amqp_connection: amqp.Connection, amqp_channel: Channel, name: str
) -> None:
    returned: list[tuple[int, str, str]] = []

    def on_return(error: Exception, exchange: str, routing_key: str, message: amqp.Message) -> None:
        returned.append((getattr(error, "reply_code", 0), routing_key, str(message.body)))

    amqp_channel.events["basic_return"].add(on_return)
    amqp_channel.basic_publish(Message("back"), "amq.direct", name, mandatory=True)
    wait_until(amqp_connection, lambda: bool(returned))
    assert returned == [(312, name, "back")]


def test_consume_acknowledge_reject(
    amqp_connection: amqp.Connection, amqp_channel: Channel, name: str
) -> None:
    """A rejected message that is requeued comes again, flagged; one that is not is gone."""
    amqp_channel.queue_declare(name, exclusive=True, auto_delete=False)
    received: list[Any] = []
    amqp_channel.basic_qos(0, 1, a_global=False)
    tag = amqp_channel.basic_consume(name, callback=received.append)
    for text in ("keep", "drop"):
        amqp_channel.basic_publish(Message(text), "", name)
    wait_until(amqp_connection, lambda: len(received) == 1)
    amqp_channel.basic_reject(received[0].delivery_tag, requeue=True)
    wait_until(amqp_connection, lambda: len(received) == 2)
    assert [message.body for message in received] == ["keep", "keep"]
    assert received[1].delivery_info["redelivered"] is True
    amqp_channel.basic_ack(received[1].delivery_tag)
    wait_until(amqp_connection, lambda: len(received) == 3)
    amqp_channel.basic_reject(received[2].delivery_tag, requeue=False)
    amqp_channel.basic_cancel(tag)
    assert count(amqp_channel, name) == 0


def test_a_prefetch_limit_is_the_channels_and_can_be_raised(
    amqp_connection: amqp.Connection, amqp_channel: Channel, name: str
) -> None:
    """The limit is that of the specification, by which this client goes with all brokers but
    RabbitMQ.
    """
    if vars(amqp_connection)["server_properties"]["product"] == "RabbitMQ":
        pytest.skip("there it limits each consumer, and those that are there not at all")
    received: list[Any] = []
    amqp_channel.basic_qos(0, 2, a_global=False)
    for queue in (name, f"{name}.other"):
        amqp_channel.queue_declare(queue, exclusive=True)
        for text in ("1", "2", "3"):
            amqp_channel.basic_publish(Message(text), "", queue)
        amqp_channel.basic_consume(queue, callback=received.append)
    assert count(amqp_channel, name) + count(amqp_channel, f"{name}.other") == 4
    amqp_channel.basic_qos(0, 5, a_global=False)
    assert count(amqp_channel, name) + count(amqp_channel, f"{name}.other") == 1
    wait_until(amqp_connection, lambda: len(received) == 5)


def test_a_broker_may_call_itself_what_its_clients_know(
    data_directory: str, tmp_path: Path, name: str
) -> None:
    """The name gives basic.qos the meaning that it has for RabbitMQ: a limit of each later
    consumer.
    """
    config = tmp_path / "amqpstore.toml"
    config.write_text('product = "RabbitMQ"\nversion = "3.13.7"\n')
    log = f"{data_directory}.log"
    with BrokerProcess(data_directory, log, ["--config", str(config)]) as broker:
        broker.start()
        connection = connect(broker.url)
        assert vars(connection)["server_properties"]["product"] == "RabbitMQ"
        assert vars(connection)["server_properties"]["version"] == "3.13.7"
        channel: Channel = connection.channel()
        channel.basic_qos(0, 2, a_global=False)
        channel.queue_declare(name, exclusive=True)
        for text in ("1", "2", "3", "4", "5"):
            channel.basic_publish(Message(text), "", name)
        for _ in range(2):
            channel.basic_consume(name, callback=lambda message: None)
        channel.basic_qos(0, 5, a_global=False)
        assert count(channel, name) == 1
        connection.close()


def test_recover_requeues_what_is_not_acknowledged(amqp_channel: Channel, name: str) -> None:
    amqp_channel.queue_declare(name, exclusive=True)
    amqp_channel.basic_publish(Message("again"), "", name)
    assert amqp_channel.basic_get(name) is not None
    amqp_channel.basic_recover(requeue=True)
    message = amqp_channel.basic_get(name, no_ack=True)
    assert message is not None
    assert (message.body, message.delivery_info["redelivered"]) == ("again", True)


def test_a_consumer_is_told_that_its_queue_was_deleted(
    amqp_connection: amqp.Connection, amqp_channel: Channel, name: str
) -> None:
    amqp_channel.queue_declare(name)
    cancelled: list[str] = []
    tag = amqp_channel.basic_consume(
        name, callback=lambda _message: None, on_cancel=cancelled.append
    )
    amqp_connection.channel().queue_delete(name)
    wait_until(amqp_connection, lambda: bool(cancelled))
    assert cancelled == [tag]
    assert amqp_channel.is_open


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
def test_a_transaction_is_all_or_nothing(
    amqp_connection: amqp.Connection, amqp_channel: Channel, name: str, commit: bool
) -> None:
    """Publishes and acknowledgements alike, over two queues."""
    source, target = f"{name}.source", f"{name}.target"
    outside = amqp_connection.channel()
    for queue in (source, target):
        outside.queue_declare(queue, exclusive=True)
    outside.basic_publish(Message("work"), "", source)
    amqp_channel.tx_select()
    message = amqp_channel.basic_get(source)
    assert message is not None
    amqp_channel.basic_publish(Message("done"), "", target)
    amqp_channel.basic_ack(message.delivery_tag)
    assert count(amqp_channel, target) == 0
    if commit:
        amqp_channel.tx_commit()
    else:
        amqp_channel.tx_rollback()
    # What was not acknowledged after all is requeued when the channel closes.
    amqp_channel.close()
    assert bodies(outside, source) == ([] if commit else ["work"])
    assert bodies(outside, target) == (["done"] if commit else [])


def test_exchange_to_exchange(amqp_channel: Channel, name: str) -> None:
    source, destination = f"{name}.all", f"{name}.errors"
    amqp_channel.exchange_declare(source, "topic", auto_delete=True)
    amqp_channel.exchange_declare(destination, "fanout", auto_delete=True)
    amqp_channel.queue_declare(name, exclusive=True)
    amqp_channel.queue_bind(name, destination)
    amqp_channel.exchange_bind(destination, source, "*.error")
    amqp_channel.basic_publish(Message("1"), source, "disk.error")
    amqp_channel.basic_publish(Message("2"), source, "disk.info")
    assert bodies(amqp_channel, name) == ["1"]
    amqp_channel.exchange_unbind(destination, source, "*.error")
    assert bodies(amqp_channel, name) == []


def test_headers_exchange(amqp_channel: Channel, name: str) -> None:
    amqp_channel.exchange_declare(name, "headers", auto_delete=True)
    amqp_channel.queue_declare(f"{name}.all", exclusive=True)
    amqp_channel.queue_declare(f"{name}.any", exclusive=True)
    for match in ("all", "any"):
        wanted = {"x-match": match, "colour": "red", "size": 3}
        amqp_channel.queue_bind(f"{name}.{match}", name, arguments=wanted)
    for number, headers in enumerate(
        ({"colour": "red", "size": 3}, {"colour": "red"}, {"size": 3.5}, {})
    ):
        amqp_channel.basic_publish(Message(str(number), application_headers=headers), name)
    assert bodies(amqp_channel, f"{name}.all") == ["0"]
    assert bodies(amqp_channel, f"{name}.any") == ["0", "1"]


@pytest.mark.parametrize(
    ("suffix", "passive", "error"),
    [("missing", True, NotFound), ("there", False, PreconditionFailed)],
    ids=["404", "406"],
)
def test_a_soft_error_leaves_the_connection(
    amqp_connection: amqp.Connection, name: str, suffix: str, passive: bool, error: type[Exception]
) -> None:
    there: Channel = amqp_connection.channel()
    there.queue_declare(f"{name}.there", exclusive=True)
    channel: Channel = amqp_connection.channel()
    unequal = {"x-max-length": 1}
    with pytest.raises(error):
        channel.queue_declare(
            f"{name}.{suffix}", passive=passive, exclusive=True, arguments=unequal
        )
    assert there.queue_declare("", exclusive=True).queue.startswith("amq.")


def test_purge_and_delete_say_how_many(amqp_channel: Channel, name: str) -> None:
    amqp_channel.queue_declare(name)
    for number in range(5):
        amqp_channel.basic_publish_confirm(Message(str(number)), "", name)
    assert count(amqp_channel, name) == 5
    assert amqp_channel.queue_purge(name) == 5
    amqp_channel.basic_publish_confirm(Message("last"), "", name)
    assert amqp_channel.queue_delete(name) == 1


def test_flow_is_answered(amqp_channel: Channel) -> None:
    amqp_channel.flow(active=True)
    assert amqp_channel.active


def test_heartbeats_go_both_ways(url: str) -> None:
    """py-amqp raises from `heartbeat_tick` when the server has been silent for two intervals."""
    with connect(url, heartbeat=1) as connection:
        assert connection.heartbeat == 1
        before = connection.bytes_recv
        deadline = time.monotonic() + WAIT_S
        while connection.bytes_recv < before + 3:
            assert time.monotonic() < deadline
            connection.heartbeat_tick()
            try:
                connection.drain_events(timeout=0.25)
            except TimeoutError:
                continue
        assert connection.channel().queue_declare("", exclusive=True) is not None
