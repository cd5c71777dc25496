"""Connecting with pika: authentication, virtual host, tuning, heartbeats, closing."""

import time

import pika
import pytest
from pika.channel import Channel
from pika.credentials import PlainCredentials
from pika.exceptions import (
    ConnectionWrongStateError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)
from pika.frame import Method
from pika.spec import Basic, BasicProperties, Queue

from tests.conformance.wire_client import WireClient
from tests.interop.conftest import Connect
from tests.interop.pika_client import Inbox, connect, drain, parameters


def test_guest_connects_to_the_default_virtual_host(connection: pika.BlockingConnection) -> None:
    assert connection.is_open
    assert connection.publisher_confirms_supported
    assert connection.basic_nack_supported
    assert connection.consumer_cancel_notify_supported
    connection.close()
    assert connection.is_closed


@pytest.mark.parametrize(
    "credentials", [("guest", "wrong"), ("guest", ""), ("nobody", "guest")], ids=str
)
def test_wrong_credentials_are_refused_with_403(url: str, credentials: tuple[str, str]) -> None:
    with pytest.raises(ProbableAuthenticationError, match="403"):
        connect(url, credentials=PlainCredentials(*credentials))


def test_an_unknown_virtual_host_is_refused_with_530(url: str) -> None:
    with pytest.raises(ProbableAccessDeniedError, match="530"):
        connect(url, virtual_host="no-such-vhost")


def test_a_refused_client_leaves_the_server_to_others(url: str, open_connection: Connect) -> None:
    with pytest.raises(ProbableAuthenticationError):
        connect(url, credentials=PlainCredentials("guest", "wrong"))
    assert open_connection().is_open


def test_a_closed_connection_takes_no_more_channels(connection: pika.BlockingConnection) -> None:
    connection.close()
    with pytest.raises(ConnectionWrongStateError):
        connection.channel()


def test_fifty_connections_at_once(open_connection: Connect, name: str) -> None:
    channels = [open_connection().channel() for _ in range(50)]
    channels[0].queue_declare(name, auto_delete=True)
    for number, channel in enumerate(channels):
        channel.confirm_delivery()
        channel.basic_publish("", name, str(number).encode())
    assert [int(message.body) for message in drain(channels[-1], name)] == list(range(50))


def test_the_server_proposes_a_heartbeat_and_takes_the_clients(url: str) -> None:
    proposed: list[int] = []

    def choose(_connection: object, server_heartbeat_s: int) -> int:
        proposed.append(server_heartbeat_s)
        return 7

    connect(url, heartbeat=choose).close()
    assert proposed[0] > 0


@pytest.mark.parametrize("frame_max", [4096, 10_000, 131_072])
def test_a_smaller_frame_max_is_kept_to(
    open_connection: Connect, name: str, frame_max: int
) -> None:
    """pika refuses a frame longer than it asked for, so what arrives was cut to fit."""
    channel = open_connection(frame_max=frame_max).channel()
    channel.queue_declare(name, exclusive=True)
    body = bytes(range(256)) * 1200
    channel.basic_publish("", name, body)
    assert [message.body for message in drain(channel, name)] == [body]


def test_an_idle_connection_with_a_heartbeat_of_one_second_stays_open(
    open_connection: Connect, name: str
) -> None:
    connection = open_connection(heartbeat=1)
    channel = connection.channel()
    end = time.monotonic() + 3.5
    while time.monotonic() < end:
        connection.process_data_events(time_limit=0.25)
    channel.queue_declare(name, exclusive=True)


def test_a_connection_without_heartbeats_stays_open(open_connection: Connect, name: str) -> None:
    connection = open_connection(heartbeat=0)
    connection.channel().queue_declare(name, exclusive=True)


def test_a_silent_client_is_closed_after_two_missed_heartbeats(url: str) -> None:
    """The server keeps sending its own heartbeats until then."""
    silent_since = time.monotonic()
    with WireClient.connected(url, heartbeat_s=1) as client:
        heartbeats = 0
        while (frame := client.read_frame()) is not None:
            assert frame.is_heartbeat
            heartbeats += 1
        silent_s = time.monotonic() - silent_since
    assert heartbeats >= 1
    assert silent_s > 1.5


def test_closing_with_unread_deliveries_ends_cleanly(open_connection: Connect, name: str) -> None:
    connection = open_connection()
    channel = connection.channel()
    channel.queue_declare(name, auto_delete=True)
    for _ in range(200):
        channel.basic_publish("", name, b"x" * 1000)
    Inbox(channel, name)
    connection.close()


class SelectSession:
    """Declare, publish with a confirm, consume, ack and close: each step started by the last."""

    def __init__(self, url: str, queue: str) -> None:
        self.steps: list[str] = []
        self.body = b""
        self._queue = queue
        self._channel: Channel
        self.connection = pika.SelectConnection(
            parameters(url),
            on_open_callback=self._on_open,
            on_open_error_callback=lambda _connection, error: self._fail(error),
            on_close_callback=self._on_close,
        )
        self.connection.ioloop.call_later(20, lambda: self._fail("too slow"))

    def _fail(self, reason: object) -> None:
        self.steps.append(f"failed: {reason}")
        self.connection.ioloop.stop()

    def _on_open(self, connection: pika.SelectConnection) -> None:
        self.steps.append("open")
        connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Channel) -> None:
        self.steps.append("channel")
        self._channel = channel
        channel.queue_declare(self._queue, exclusive=True, callback=self._on_declared)

    def _on_declared(self, _frame: Method[Queue.DeclareOk]) -> None:
        self.steps.append("declared")
        self._channel.confirm_delivery(self._on_confirm, callback=self._on_confirming)

    def _on_confirming(self, _frame: object) -> None:
        self._channel.basic_publish("", self._queue, b"hello")

    def _on_confirm(self, frame: Method[Basic.Ack | Basic.Nack]) -> None:
        assert isinstance(frame.method, Basic.Ack)
        self.steps.append(f"confirmed {frame.method.delivery_tag}")
        self._channel.basic_consume(self._queue, self._on_message)

    def _on_message(
        self, channel: Channel, method: Basic.Deliver, _properties: BasicProperties, body: bytes
    ) -> None:
        self.body = body
        self.steps.append(f"delivered {method.delivery_tag}")
        channel.basic_ack(method.delivery_tag or 0)
        self.connection.close()

    def _on_close(self, _connection: pika.SelectConnection, reason: BaseException) -> None:
        self.steps.append(f"closed {getattr(reason, 'reply_code', reason)}")
        self.connection.ioloop.stop()


def test_a_select_connection_runs_a_whole_session(url: str, name: str) -> None:
    session = SelectSession(url, name)
    session.connection.ioloop.start()
    session.connection.ioloop.close()
    assert session.steps == [
        "open",
        "channel",
        "declared",
        "confirmed 1",
        "delivered 1",
        "closed 200",
    ]
    assert session.body == b"hello"
