"""The handshake octet by octet (0-9-1 sections 2.2.4 and 4.2.2)."""

import struct

import pytest

from tests.conformance.wire_client import (
    CHANNEL_OPEN,
    CONNECTION_CLOSE,
    CONNECTION_CLOSE_OK,
    CONNECTION_OPEN_OK,
    CONNECTION_START,
    CONNECTION_START_OK,
    CONNECTION_TUNE,
    HEARTBEAT,
    METHOD,
    PROTOCOL_HEADER,
    Close,
    WireClient,
    body,
    channel_open,
    connection_close,
    connection_open,
    frame,
    header,
    heartbeat,
    long_string,
    method,
    publish_method,
    queue_declare,
    short_string,
    start_ok,
    table,
    tune_ok,
)

REQUIRED_PROPERTIES = {"product", "version", "platform", "copyright", "information"}
REQUIRED_CAPABILITIES = {
    "publisher_confirms",
    "basic.nack",
    "consumer_cancel_notify",
    "authentication_failure_close",
}


def split_table(encoded: bytes) -> dict[str, tuple[bytes, bytes]]:
    """The fields of a table of strings, flags and tables: name to tag and value."""
    fields = {}
    while encoded:
        end = 1 + encoded[0]
        name, tag, rest = encoded[1:end].decode(), encoded[end : end + 1], encoded[end + 1 :]
        if tag == b"t":
            value, encoded = rest[:1], rest[1:]
        else:
            assert tag in (b"S", b"F"), f"{name} has tag {tag!r}"
            (size,) = struct.unpack_from(">I", rest)
            value, encoded = rest[4 : 4 + size], rest[4 + size :]
        fields[name] = (tag, value)
    return fields


def test_connection_start_says_what_the_server_is(url: str) -> None:
    """C006, C008, C009: version 0-9, required properties, mechanism PLAIN, locale en_US."""
    with WireClient(url) as client:
        client.send(PROTOCOL_HEADER)
        arguments = client.expect(CONNECTION_START).arguments
    assert arguments[:2] == b"\x00\x09"
    (size,) = struct.unpack_from(">I", arguments, 2)
    properties = split_table(arguments[6 : 6 + size])
    assert properties.keys() >= REQUIRED_PROPERTIES
    assert all(properties[required][1] for required in REQUIRED_PROPERTIES)
    tag, capabilities = properties["capabilities"]
    assert tag == b"F"
    offered = split_table(capabilities)
    assert {
        capability for capability, (tag, value) in offered.items() if (tag, value) == (b"t", b"\1")
    } >= REQUIRED_CAPABILITIES
    rest = arguments[6 + size :]
    (size,) = struct.unpack_from(">I", rest)
    assert b"PLAIN" in rest[4 : 4 + size].split(b" ")
    locales = rest[4 + size :]
    assert b"en_US" in locales[4:].split(b" ")
    assert struct.unpack_from(">I", locales) == (len(locales) - 4,)


def test_connection_tune_proposes_limits(url: str) -> None:
    """C013, C121."""
    with WireClient.tuning(url) as client:
        assert client.tune.frame_max == 0 or client.tune.frame_max >= 4096
        assert client.tune.heartbeat_s > 0


def test_the_limits_may_be_reduced(url: str, name: str) -> None:
    """C122, C156: down to one channel of the smallest frames."""
    with WireClient.connected(url, channels=1, frame_max=4096, channel_max=1) as client:
        client.declare_queue(name)


def test_a_channel_number_above_the_agreed_channel_max_is_refused(url: str) -> None:
    """C156: 530, as RabbitMQ has it, and the text says why."""
    with WireClient.connected(url, channels=1, channel_max=1) as client:
        client.send(channel_open(2))
        close = client.expect_connection_close(530)
    assert "channel-max" in close.reply_text
    assert close.failing_method == CHANNEL_OPEN


@pytest.mark.parametrize(
    "opening",
    [b"AMQP\x01\x01\x00\x09", b"AMQP\x01\x01\x08\x00", b"AMQP\x01\x01\x09\x01"],
    ids=["0-9", "0-8", "0-8 as some have it"],
)
def test_older_protocol_headers_are_answered_with_0_9_1(url: str, opening: bytes) -> None:
    """C118: as RabbitMQ does, for clients that speak 0-9-1 and say otherwise."""
    with WireClient(url) as client:
        client.send(opening)
        assert client.expect(CONNECTION_START).arguments[:2] == b"\x00\x09"
        client.send(start_ok())
        client.expect(CONNECTION_TUNE)


def test_a_larger_channel_max_closes_the_socket(url: str) -> None:
    """C014."""
    with WireClient.tuning(url) as client:
        client.send(tune_ok(client.tune.channel_max + 1, client.tune.frame_max, 0))
        client.send_to_closing_peer(connection_open("/"))
        client.expect_closed()


def test_a_larger_frame_max_closes_the_socket(url: str) -> None:
    """C016."""
    with WireClient.tuning(url) as client:
        client.send(tune_ok(client.tune.channel_max, client.tune.frame_max + 1, 0))
        client.send_to_closing_peer(connection_open("/"))
        client.expect_closed()


@pytest.mark.parametrize("frame_max", [1, 8, 4095])
def test_a_frame_max_below_the_minimum_closes_the_socket(url: str, frame_max: int) -> None:
    """C013, C015."""
    with WireClient.tuning(url) as client:
        client.send(tune_ok(client.tune.channel_max, frame_max, 0))
        client.send_to_closing_peer(connection_open("/"))
        client.expect_closed()


@pytest.mark.parametrize("mechanism", ["", "NONE", "plain", "PLAIN "])
def test_an_unknown_mechanism_closes_with_nothing_more_sent(url: str, mechanism: str) -> None:
    """C012."""
    with WireClient.greeted(url) as client:
        client.send(start_ok(mechanism=mechanism))
        client.expect_closed()


def test_any_locale_is_taken(url: str) -> None:
    with WireClient.greeted(url) as client:
        client.send(start_ok(locale="de_DE"))
        client.expect(CONNECTION_TUNE)


def test_wrong_credentials_close_the_socket(url: str) -> None:
    """C117: and with nothing sent to a client that did not ask for the 403."""
    with WireClient.greeted(url) as client:
        client.send(start_ok(response=b"\x00guest\x00wrong"))
        client.expect_closed()


def test_wrong_credentials_are_told_to_a_client_that_asks_for_it(url: str) -> None:
    """B14: the capability authentication_failure_close. The client's socket stays open until it has
    read the close: bytes that it sends meanwhile do not have the connection reset.
    """
    with WireClient.greeted(url) as client:
        flag = short_string("authentication_failure_close") + b"t\x01"
        capabilities = short_string("capabilities") + b"F" + table(flag)
        client.send(
            method(
                0,
                CONNECTION_START_OK,
                table(capabilities)
                + short_string("PLAIN")
                + long_string(b"\x00guest\x00wrong")
                + short_string("en_US"),
            )
        )
        answer = client.next_frame()
        assert (answer.method, Close.decode(answer.arguments).reply_code) == (CONNECTION_CLOSE, 403)
        timeout = client.socket.gettimeout()
        client.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.socket.recv(1)
        client.socket.settimeout(timeout)
        client.send(heartbeat())
        client.send(method(0, CONNECTION_CLOSE_OK))
        client.expect_closed()


@pytest.mark.parametrize(
    "response", [b"", b"guest", b"\x00guest", b"\x00", b"guest\x00guest\x00"], ids=repr
)
def test_a_malformed_plain_response_closes_the_socket(url: str, response: bytes) -> None:
    """C117."""
    with WireClient.greeted(url) as client:
        client.send(start_ok(response=response))
        client.expect_closed()


@pytest.mark.parametrize(
    "early",
    [
        tune_ok(10, 4096, 0),
        connection_open("/"),
        channel_open(1),
        queue_declare(1, "early"),
        frame(METHOD, 0, b"\x00\x0a"),
        method(0, (10, 99)),
        method(0, CONNECTION_START_OK, b"\xff\xff\xff\xff"),
        heartbeat(),
        publish_method(1, "early"),
        publish_method(1, "early")[:11],
        publish_method(0, "early"),
        header(1, 10),
        header(0, 10),
        body(1, b"early"),
        body(0, b""),
        connection_close(),
        frame(9, 0, b""),
        frame(METHOD, 0, b"\x00\x0a\x00\x0b", end=0),
    ],
    ids=[
        "tune-ok",
        "open",
        "channel.open",
        "queue.declare",
        "half a method",
        "unknown method",
        "start-ok cut short",
        "heartbeat",
        "publish",
        "the first bytes of a publish",
        "publish on channel 0",
        "content header",
        "content header on channel 0",
        "content body",
        "content body on channel 0",
        "close",
        "unknown frame type",
        "bad frame end",
    ],
)
def test_an_error_before_start_ok_closes_the_socket(url: str, early: bytes) -> None:
    """C117: no close handshake before the connection is open."""
    with WireClient.greeted(url) as client:
        client.send(early)
        client.expect_closed()


@pytest.mark.parametrize(
    "early",
    [
        start_ok(),
        connection_open("/"),
        channel_open(1),
        method(0, CONNECTION_TUNE, bytes(8)),
        heartbeat(),
        publish_method(1, "early"),
        header(1, 10),
        body(1, b"early"),
    ],
    ids=["start-ok", "open", "channel.open", "tune", "heartbeat", "publish", "header", "body"],
)
def test_an_error_before_tune_ok_closes_the_socket(url: str, early: bytes) -> None:
    """C117."""
    with WireClient.tuning(url) as client:
        client.send(early)
        client.expect_closed()


@pytest.mark.parametrize(
    "early",
    [
        channel_open(1),
        tune_ok(1, 4096, 0),
        publish_method(1, "early"),
        header(1, 10),
        body(1, b"early"),
        frame(HEARTBEAT, 0, b"early"),
    ],
    ids=["channel.open", "tune-ok", "publish", "header", "body", "heartbeat with a payload"],
)
def test_an_error_before_open_closes_the_socket(url: str, early: bytes) -> None:
    """C117."""
    with WireClient.tuning(url) as client:
        client.send(tune_ok(client.tune.channel_max, client.tune.frame_max, 0))
        client.send(early)
        client.expect_closed()


def test_an_oversized_frame_before_tune_closes_the_socket(url: str) -> None:
    """C013, C117: before tuning, a peer need not take much more than the minimum."""
    with WireClient.greeted(url) as client:
        client.send_to_closing_peer(struct.pack(">BHI", METHOD, 0, 1 << 20))
        client.expect_closed()


def test_a_frame_of_the_minimum_size_is_taken_before_tune(url: str) -> None:
    """C013, C015: start-ok padded to 4096 octets, framing included."""
    without_filler = len(start_ok(response=b"\x00guest\x00guest"))
    with WireClient.greeted(url) as client:
        overhead = len(short_string("filler") + b"S" + long_string(""))
        filler = b"f" * (4096 - without_filler - overhead)
        properties = table(
            short_string("product") + b"S" + long_string("wire client"),
            short_string("filler") + b"S" + long_string(filler),
        )
        padded = method(
            0,
            CONNECTION_START_OK,
            properties
            + short_string("PLAIN")
            + long_string(b"\x00guest\x00guest")
            + short_string("en_US"),
        )
        assert len(padded) == 4096
        client.send(padded)
        client.expect(CONNECTION_TUNE)


def test_opening_twice_is_refused(url: str) -> None:
    """C127: one virtual host for the life of the connection."""
    with WireClient.connected(url) as client:
        client.send(connection_open("/"))
        client.expect_connection_close(503, 530)


def test_an_unknown_virtual_host_is_refused(url: str) -> None:
    """C018, A06."""
    with WireClient.tuning(url) as client:
        client.send(tune_ok(client.tune.channel_max, client.tune.frame_max, 0))
        client.send(connection_open("no-such-vhost"))
        client.expect_connection_close(530)


def test_heartbeats_may_come_before_open(url: str) -> None:
    """C155."""
    with WireClient.tuning(url) as client:
        client.send(tune_ok(client.tune.channel_max, client.tune.frame_max, 0))
        client.send(heartbeat(), connection_open("/"))
        client.expect(CONNECTION_OPEN_OK)
