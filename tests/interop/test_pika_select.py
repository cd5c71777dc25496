"""pika's SelectConnection: everything in callbacks, nothing waits for an answer."""

import os
from pathlib import Path

import pytest
from pika.channel import Channel
from pika.exceptions import (
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ProbableAuthenticationError,
)
from pika.frame import Method
from pika.spec import Basic, BasicProperties

from tests.broker_process import BrokerProcess
from tests.conftest import URL_VARIABLE
from tests.interop.pika_client import PERSISTENT
from tests.interop.pika_select import Client, Publisher
from tests.small_disk import fill, small_disk

MIB = 1 << 20


def test_a_connection_opens_and_closes(url: str) -> None:
    with Client(url) as client:
        assert client.connection.is_open
        assert client.connection.publisher_confirms
        assert client.connection.basic_nack
        assert client.connection.consumer_cancel_notify
        assert client.connection.exchange_exchange_bindings
        client.connection.close(200, "done")
        client.run_until(lambda: client.closed_by is not None)
        assert client.connection.is_closed
    assert client.blocked == []


def test_a_wrong_password_is_told_to_the_open_error_callback(url: str) -> None:
    client = Client(url.replace("guest:guest", "guest:wrong"))
    client.run_until(lambda: client.closed_by is not None)
    client.connection.ioloop.close()
    assert isinstance(client.closed_by, ProbableAuthenticationError)


def test_a_pipelined_publisher_gets_every_confirm_once(url: str, name: str) -> None:
    with Client(url) as client:
        publisher = Publisher(client)
        client.declare(publisher.channel, name, exclusive=True)
        for number in range(2000):
            publisher.publish("", name, b"%d" % number, PERSISTENT)
        publisher.wait_confirmed()
        assert publisher.nacked == set()
        assert client.declare(publisher.channel, name, passive=True).message_count == 2000


def test_an_unroutable_mandatory_message_is_returned_before_its_confirm(
    url: str, name: str
) -> None:
    with Client(url) as client:
        publisher = Publisher(client)
        order: list[str] = []
        publisher.channel.add_on_return_callback(lambda *_arguments: order.append("return"))
        publisher.channel.add_callback(
            lambda _frame: order.append("confirm"), [Basic.Ack], one_shot=False
        )
        publisher.publish("", name, b"nobody", mandatory=True)
        publisher.wait_confirmed()
        assert publisher.returned == [(312, name, b"nobody")]
        assert order == ["return", "confirm"]


def test_what_a_full_queue_rejects_is_nacked(url: str, name: str) -> None:
    """x-overflow=reject-publish: the newest is refused, and the publisher hears of it."""
    with Client(url) as client:
        publisher = Publisher(client)
        limits: dict[str, object] = {"x-max-length": 2, "x-overflow": "reject-publish"}
        client.declare(publisher.channel, name, exclusive=True, arguments=limits)
        for number in range(2):
            publisher.publish("", name, b"%d" % number)
        publisher.wait_confirmed()
        refused = {publisher.publish("", name, b"one too many") for _ in range(3)}
        publisher.wait_confirmed()
        assert publisher.nacked == refused
        assert client.declare(publisher.channel, name, passive=True).message_count == 2


def test_a_consumer_holds_no_more_than_its_prefetch(url: str, name: str) -> None:
    """Five are held back unacknowledged; each acknowledgement brings one more, in order."""
    with Client(url) as client:
        publisher = Publisher(client)
        client.declare(publisher.channel, name, exclusive=True)
        for number in range(100):
            publisher.publish("", name, b"%d" % number)
        publisher.wait_confirmed()

        consumer = client.channel()
        limited: list[object] = []
        consumer.basic_qos(prefetch_count=5, callback=limited.append)
        client.wait_until(lambda: bool(limited))
        held: list[int] = []
        bodies: list[bytes] = []

        def on_message(
            _channel: Channel, method: Basic.Deliver, _properties: BasicProperties, body: bytes
        ) -> None:
            held.append(method.delivery_tag or 0)
            bodies.append(body)
            assert len(held) <= 5

        consumer.basic_consume(name, on_message)
        client.wait_until(lambda: len(held) == 5)
        # Answered after all that the server had to deliver: there are five, and no sixth.
        assert client.declare(consumer, name, passive=True).message_count == 95
        assert len(bodies) == 5
        while len(bodies) < 100:
            expected = min(100, len(bodies) + 5)
            consumer.basic_ack(held[-1], multiple=True)
            held.clear()
            client.wait_until(lambda count=expected: len(bodies) == count)  # type: ignore[misc]
        assert bodies == [b"%d" % number for number in range(100)]


def test_a_consumer_is_told_that_its_queue_was_deleted(url: str, name: str) -> None:
    with Client(url) as client:
        channel = client.channel()
        client.declare(channel, name)
        cancelled: list[str | None] = []

        def on_cancel(frame: Method[Basic.Cancel]) -> None:
            cancelled.append(frame.method.consumer_tag)

        channel.add_on_cancel_callback(on_cancel)
        ready: list[object] = []
        tag = channel.basic_consume(name, lambda *_arguments: None, callback=ready.append)
        client.wait_until(lambda: bool(ready))
        client.channel().queue_delete(name)
        client.wait_until(lambda: bool(cancelled))
        assert cancelled == [tag]
        assert channel.is_open


def test_a_cancelled_consumer_gets_nothing_more(url: str, name: str) -> None:
    with Client(url) as client:
        publisher = Publisher(client)
        client.declare(publisher.channel, name, exclusive=True)
        bodies: list[bytes] = []
        answers: list[object] = []
        tag = publisher.channel.basic_consume(
            name, lambda _channel, _method, _properties, body: bodies.append(body), auto_ack=True
        )
        publisher.publish("", name, b"before")
        client.wait_until(lambda: bool(bodies))
        publisher.channel.basic_cancel(tag, callback=answers.append)
        client.wait_until(lambda: bool(answers))
        publisher.publish("", name, b"after")
        publisher.wait_confirmed()
        assert client.declare(publisher.channel, name, passive=True).message_count == 1
        assert bodies == [b"before"]


def test_a_soft_error_closes_one_channel_only(url: str, name: str) -> None:
    with Client(url) as client:
        channel, other = client.channel(), client.channel()
        closed: list[Exception] = []
        channel.add_on_close_callback(lambda _channel, reason: closed.append(reason))
        channel.queue_declare(name, passive=True)
        client.wait_until(lambda: bool(closed))
        assert isinstance(closed[0], ChannelClosedByBroker)
        assert closed[0].reply_code == 404
        assert client.declare(other, name, exclusive=True).queue == name


def test_a_hard_error_closes_the_connection(url: str, name: str) -> None:
    """An exchange type that the server does not know is a command it cannot obey: 503."""
    with Client(url) as client:
        channel = client.channel()
        channel.exchange_declare(name, "no-such-type")
        client.run_until(lambda: client.closed_by is not None)
        assert isinstance(client.closed_by, ConnectionClosedByBroker)
        assert client.closed_by.reply_code == 503


def test_many_channels_work_at_once(url: str, name: str) -> None:
    with Client(url) as client:
        publishers = [Publisher(client) for _ in range(20)]
        client.declare(publishers[0].channel, name, exclusive=True)
        for number in range(50):
            for publisher in publishers:
                publisher.publish("", name, b"%d" % number, PERSISTENT)
        for publisher in publishers:
            publisher.wait_confirmed()
        assert client.declare(publishers[0].channel, name, passive=True).message_count == 1000


def test_publishers_are_told_when_the_disk_is_nearly_full_and_when_not_any_more(
    tmp_path: Path, name: str
) -> None:
    """connection.blocked comes to the connection that publishes; what it sent meanwhile waits."""
    if os.environ.get(URL_VARIABLE):
        pytest.skip("needs a broker process of its own")
    configuration = tmp_path / "config.toml"
    configuration.write_text(f"least_free_bytes = {64 * MIB}\n")
    with (
        small_disk(str(tmp_path / "disk"), mebibytes=512) as disk,
        BrokerProcess(
            f"{disk}/store", str(tmp_path / "log"), ("--config", str(configuration))
        ) as broker,
    ):
        broker.start()
        # Publishers are blocked below twice `least_free_bytes`.
        fill(f"{disk}/filler", left_bytes=100 * MIB)
        with Client(broker.url) as client:
            publisher = Publisher(client)
            client.declare(publisher.channel, name, durable=True)

            def publish_until_blocked() -> bool:
                publisher.publish("", name, b"some more", PERSISTENT)
                return bool(client.blocked)

            try:
                client.wait_until(publish_until_blocked)
                assert client.blocked[0] != ""
                os.remove(f"{disk}/filler")
                client.wait_until(lambda: client.unblocked == 1)
                publisher.wait_confirmed()
                assert publisher.nacked == set()
                client.connection.close()
                client.run_until(lambda: client.closed_by is not None)
            finally:
                # From a connection that is blocked the broker reads nothing, no close either.
                broker.kill()
                client.run_until(lambda: client.closed_by is not None)
        assert "Traceback" not in broker.stderr, broker.log_tail()
