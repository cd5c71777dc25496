"""Connections, channels, contents and what is logged of them (rules B and Appendix A)."""

import pytest

from tests.broker_process import BrokerProcess
from tests.conformance.wire_client import (
    BASIC_ACK,
    BASIC_QOS,
    BASIC_QOS_OK,
    BASIC_REJECT,
    CHANNEL_CLOSE_OK,
    CONNECTION_UPDATE_SECRET,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    WireClient,
    basic_get,
    body,
    channel_close,
    confirm_select,
    field,
    frame,
    header,
    long_string,
    method,
    publish,
    publish_method,
    short_string,
    start_ok,
    table,
)
from tests.waiting import wait_until


def wait_for_log(broker: BrokerProcess, *words: str) -> None:
    """Return once a line of the log has all of the words."""

    def is_there() -> bool:
        return any(all(word in line for word in words) for line in broker.stderr.splitlines())

    wait_until(is_there, f"{words} in the log")


def test_what_clients_do_wrong_is_logged(broker: BrokerProcess) -> None:
    """C020, C027, C141, C145, C160, B01: by what it was, with the peer's address."""
    with WireClient(broker.url) as client:
        client.send(b"GET / HTTP/1.1\r\n\r\n")
        client.read_to_end()
    wait_for_log(broker, "not AMQP 0-9-1", "peer=127.0.0.1")
    with WireClient.greeted(broker.url) as client:
        client.send(start_ok(response=b"\0guest\0wrong"))
        client.expect_closed()
    wait_for_log(broker, "login refused", "user=guest")
    with WireClient.connected(broker.url) as client:
        client.send(frame(1, 0, b"\x00\x0a\x00\x32", end=0))
        client.expect_closed()
    wait_for_log(broker, "without a close method", "0xce")
    with WireClient.connected(broker.url, channels=1) as client:
        client.send(basic_get(1, "missing"))
        client.expect_channel_close(1, 404)
        client.abort()
    wait_for_log(broker, "channel error", "no queue 'missing'")
    wait_for_log(broker, "unexpectedly closed")


def test_channels_are_numbered_by_the_client_and_light(url: str) -> None:
    """B02, C156."""
    with WireClient.connected(url) as client:
        for number in (1, 2, 700, client.tune.channel_max):
            client.open_channel(number)
        for number in (700, 1):
            client.send(channel_close(number))
            client.expect(CHANNEL_CLOSE_OK, number)
            client.open_channel(number)


def test_frames_of_one_channel_are_handled_in_order(url: str, name: str) -> None:
    """B03, C159."""
    with WireClient.connected(url, channels=1) as client:
        client.declare_queue(name)
        client.send(*(publish(1, name, bytes([number])) for number in range(100)))
        for number in range(100):
            assert client.get(name)[1] == bytes([number])


@pytest.mark.parametrize("name_of_field", ["", "1st", "with space", "\N{SNOWMAN}", "x" * 128])
def test_a_field_may_have_any_name(url: str, name: str, name_of_field: str) -> None:
    """C148, C149: as in RabbitMQ the specification's alphabet is not enforced."""
    with WireClient.connected(url, channels=1) as client:
        fields = table(field(name_of_field, b"S", long_string("value")))
        client.send(method(1, QUEUE_DECLARE, bytes(2) + short_string(name) + b"\x04" + fields))
        client.expect(QUEUE_DECLARE_OK, 1)


def test_a_reject_while_a_content_is_sent_does_not_cut_it_short(url: str, name: str) -> None:
    """C105: contents are sent whole; the reject is for what has come already."""
    large = bytes(1 << 20)
    with WireClient.connected(url, channels=1) as client:
        client.declare_queue(name)
        client.send(publish(1, name, b"first"), publish_method(1, name), header(1, len(large)))
        step = client.frame_max - 8
        client.send(*(body(1, large[at : at + step]) for at in range(0, len(large), step)))
        client.send(basic_get(1, name, no_ack=False), basic_get(1, name, no_ack=False))
        client.send(method(1, BASIC_REJECT, (1).to_bytes(8, "big") + b"\x00"))
        client.next_frame()
        assert client.expect_content()[1] == b"first"
        client.next_frame()
        assert client.expect_content()[1] == large
        client.expect_alive()


def test_a_new_secret_keeps_the_connection(url: str) -> None:
    """B14: connection.update-secret, of RabbitMQ."""
    with WireClient.connected(url, channels=1) as client:
        for secret in ("guest", "another", ""):
            arguments = long_string(secret) + short_string("the token expires")
            client.send(method(0, CONNECTION_UPDATE_SECRET, arguments))
            client.expect((10, 71))
        client.send(method(1, BASIC_QOS, bytes(7)))
        client.expect(BASIC_QOS_OK, 1)


def test_a_confirm_comes_after_what_was_published_on_any_channel(url: str, name: str) -> None:
    """B03, C157: channels of one connection share it; none starves."""
    with WireClient.connected(url, channels=3) as client:
        client.declare_queue(name)
        for channel in (2, 3):
            client.send(confirm_select(channel))
            client.next_frame()
        client.send(*(publish(2, name, b"x" * 1000) for _ in range(500)))
        client.send(publish(3, name, b"y"))
        confirmed = {2: 0, 3: 0}
        while confirmed != {2: 500, 3: 1}:
            received = client.next_frame()
            assert received.method == BASIC_ACK
            tag = int.from_bytes(received.arguments[:8], "big")
            confirmed[received.channel] = max(tag, confirmed[received.channel])
