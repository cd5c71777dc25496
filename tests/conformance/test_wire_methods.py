"""Methods and contents out of place (0-9-1 sections 4.2.4 and 4.2.6)."""

import struct

import pytest

from tests.conformance.wire_client import (
    BASIC_ACK,
    BASIC_CONSUME_OK,
    BASIC_DELIVER,
    BASIC_GET_OK,
    BASIC_QOS,
    BASIC_QOS_OK,
    BASIC_RETURN,
    CHANNEL_CLOSE,
    CHANNEL_FLOW,
    CHANNEL_FLOW_OK,
    CHANNEL_OPEN_OK,
    CONFIRM_SELECT_OK,
    CONNECTION_CLOSE,
    CONNECTION_OPEN_OK,
    METHOD,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    Close,
    WireClient,
    basic_consume,
    basic_get,
    body,
    channel_close,
    channel_open,
    confirm_select,
    field,
    frame,
    header,
    long_string,
    method,
    publish,
    publish_method,
    queue_declare,
    short_string,
    table,
)


def test_a_method_on_a_channel_that_is_not_open_is_a_channel_error(url: str) -> None:
    """C124: 504."""
    with WireClient.connected(url) as client:
        client.send(method(1, BASIC_QOS, bytes(7)))
        client.expect_connection_close(504)


def test_a_method_on_a_closed_channel_is_a_channel_error(url: str) -> None:
    """C124: 504."""
    with WireClient.connected(url, channels=1) as client:
        client.send(channel_close(1), method(1, BASIC_QOS, bytes(7)))
        client.next_frame()
        client.expect_connection_close(504)


def test_a_channel_method_on_channel_zero_is_refused(url: str) -> None:
    """C124: 503 or 504."""
    with WireClient.connected(url) as client:
        client.send(channel_open(0))
        client.expect_connection_close(503, 504)


def test_opening_a_channel_twice_is_a_channel_error(url: str) -> None:
    """C021: 504."""
    with WireClient.connected(url, channels=1) as client:
        client.send(channel_open(1))
        client.expect_connection_close(504)


@pytest.mark.parametrize(
    "unknown", [(60, 99), (99, 10), (0, 0), (50, 12), (0xFFFF, 0xFFFF)], ids=str
)
def test_an_unknown_method_is_not_implemented(url: str, unknown: tuple[int, int]) -> None:
    """C136: 540."""
    with WireClient.connected(url, channels=1) as client:
        client.send(method(1, unknown))
        client.expect_connection_close(540)


def test_an_unknown_method_on_channel_zero_is_not_implemented(url: str) -> None:
    with WireClient.connected(url) as client:
        client.send(method(0, (10, 99)))
        client.expect_connection_close(540)


@pytest.mark.parametrize(
    ("which", "arguments"),
    [
        (BASIC_QOS, b""),
        (BASIC_QOS, bytes(6)),
        (QUEUE_DECLARE, b"\x00\x00\x05abc"),
        (QUEUE_DECLARE, b"\x00\x00\x03abc\x00\x00\x00\x00\x09\x01a"),
        (QUEUE_DECLARE, b"\x00\x00\x03abc\x00\xff\xff\xff\xff"),
        (QUEUE_DECLARE, b"\x00\x00\x03abc\x00" + table(field("key", b"S", b"\x00\x00\x00\x09"))),
    ],
    ids=["none", "one octet", "short string", "table", "huge table", "field in a table"],
)
def test_truncated_arguments_are_a_syntax_error(
    url: str, which: tuple[int, int], arguments: bytes
) -> None:
    """C150: 502."""
    with WireClient.connected(url, channels=1) as client:
        client.send(method(1, which, arguments))
        client.expect_connection_close(502)


def test_an_unknown_field_tag_is_a_syntax_error(url: str) -> None:
    """B12: 502."""
    with WireClient.connected(url, channels=1) as client:
        arguments = b"\x00\x00\x03abc\x00" + table(field("key", b"?", b"\x00"))
        client.send(method(1, QUEUE_DECLARE, arguments))
        client.expect_connection_close(502)


@pytest.mark.parametrize("payload", [b"", b"\x00", b"\x00\x3c\x00"], ids=repr)
def test_a_method_frame_without_a_method_is_a_syntax_error(url: str, payload: bytes) -> None:
    """C150: 502, or 501."""
    with WireClient.connected(url, channels=1) as client:
        client.send(frame(METHOD, 1, payload))
        client.expect_connection_close(501, 502)


@pytest.mark.parametrize(
    ("which", "arguments"),
    [
        (CHANNEL_OPEN_OK, bytes(4)),
        (QUEUE_DECLARE_OK, short_string("q") + bytes(8)),
        (BASIC_QOS_OK, b""),
        (BASIC_CONSUME_OK, short_string("tag")),
        (BASIC_DELIVER, short_string("tag") + bytes(9) + short_string("") + short_string("q")),
        (BASIC_GET_OK, bytes(9) + short_string("") + short_string("q") + bytes(4)),
        (CONFIRM_SELECT_OK, b""),
    ],
    ids=["open-ok", "declare-ok", "qos-ok", "consume-ok", "deliver", "get-ok", "select-ok"],
)
def test_a_method_only_servers_send_is_a_command_error(
    url: str, which: tuple[int, int], arguments: bytes
) -> None:
    """B13: 503."""
    with WireClient.connected(url, channels=1) as client:
        client.send(method(1, which, arguments))
        client.expect_connection_close(503)


def test_open_ok_from_a_client_is_a_command_error(url: str) -> None:
    """B13: 503, on channel 0 as well."""
    with WireClient.connected(url) as client:
        client.send(method(0, CONNECTION_OPEN_OK, b"\x00"))
        client.expect_connection_close(503)


def test_a_header_of_another_class_is_a_frame_error(url: str, name: str) -> None:
    """C151: 501."""
    with WireClient.connected(url, channels=1) as client:
        client.send(publish_method(1, name), header(1, 1, class_id=50))
        client.expect_connection_close(501)


def test_a_body_longer_than_declared_is_an_unexpected_frame(url: str, name: str) -> None:
    """C150: 505. RabbitMQ says 501."""
    with WireClient.connected(url, channels=1) as client:
        client.send(publish_method(1, name), header(1, 3), body(1, b"four"))
        client.expect_connection_close(505)


def test_a_body_longer_than_declared_in_its_second_frame(url: str, name: str) -> None:
    """C150: 505."""
    with WireClient.connected(url, channels=1) as client:
        client.send(publish_method(1, name), header(1, 3), body(1, b"tw"), body(1, b"oo"))
        client.expect_connection_close(505)


@pytest.mark.parametrize("octets", [b"x", b""], ids=["some", "empty"])
def test_a_body_where_none_was_declared_is_an_unexpected_frame(
    url: str, name: str, octets: bytes
) -> None:
    """C150: 505, also in the read that has its method and its header."""
    with WireClient.connected(url, channels=1) as client:
        client.send(publish_method(1, name), header(1, 0), body(1, octets))
        client.expect_connection_close(505)


def test_a_body_without_a_header_is_an_unexpected_frame(url: str, name: str) -> None:
    """C150: 505."""
    with WireClient.connected(url, channels=1) as client:
        client.send(publish_method(1, name), body(1, b"x"))
        client.expect_connection_close(505)


def test_a_second_header_is_an_unexpected_frame(url: str, name: str) -> None:
    """C150: 505."""
    with WireClient.connected(url, channels=1) as client:
        client.send(publish_method(1, name), header(1, 3), header(1, 3))
        client.expect_connection_close(505)


@pytest.mark.parametrize("stray", [header(1, 1), body(1, b"x")], ids=["header", "body"])
def test_content_that_no_method_announced_is_an_unexpected_frame(url: str, stray: bytes) -> None:
    """C150: 505."""
    with WireClient.connected(url, channels=1) as client:
        client.send(stray)
        client.expect_connection_close(505)


@pytest.mark.parametrize("declared", [None, 3], ids=["before the header", "before the body"])
def test_a_method_in_the_middle_of_a_content_is_an_unexpected_frame(
    url: str, name: str, declared: int | None
) -> None:
    """C150: 505."""
    with WireClient.connected(url, channels=1) as client:
        client.send(publish_method(1, name), header(1, declared) if declared else b"")
        client.send(method(1, BASIC_QOS, bytes(7)))
        client.expect_connection_close(505)


def test_content_on_a_channel_that_is_not_open_is_refused(url: str) -> None:
    """C124, C150: 504 for the channel or 505 for the frame; both are so."""
    with WireClient.connected(url) as client:
        client.send(header(1, 1))
        client.expect_connection_close(504, 505)


@pytest.mark.parametrize("body_size", [1 << 34, (1 << 64) - 1])
def test_a_body_above_the_limit_is_refused_by_its_header(
    url: str, name: str, body_size: int
) -> None:
    """B13: 311 on the channel or 501 on the connection, before any of the body came."""
    with WireClient.connected(url, channels=1) as client:
        client.declare_queue(name)
        client.send(publish_method(1, name), header(1, body_size))
        refused = client.next_frame()
        close = Close.decode(refused.arguments)
        assert (refused.method, close.reply_code) in (
            (CHANNEL_CLOSE, 311),
            (CONNECTION_CLOSE, 501),
        )


def test_empty_body_frames_are_no_end(url: str, name: str) -> None:
    """C123: a body may come in any number of frames."""
    with WireClient.connected(url, channels=1) as client:
        client.declare_queue(name)
        client.send(publish_method(1, name), header(1, 3), body(1, b""), body(1, b"ab"))
        client.send(body(1, b""), body(1, b"c"))
        assert client.get(name)[1] == b"abc"


def test_a_body_in_frames_of_one_octet(url: str, name: str) -> None:
    """C123, C153."""
    payload = bytes(range(256)) * 4
    with WireClient.connected(url, channels=1) as client:
        client.declare_queue(name)
        client.send(publish_method(1, name), header(1, len(payload)))
        client.send(b"".join(body(1, bytes([octet])) for octet in payload))
        assert client.get(name)[1] == payload


def test_a_duplicate_consumer_tag_is_not_allowed(url: str, name: str) -> None:
    """C093: 530. pika would refuse to send it."""
    with WireClient.connected(url, channels=1) as client:
        client.declare_queue(name)
        client.send(basic_consume(1, name, "tag"))
        client.expect(BASIC_CONSUME_OK, 1)
        client.send(basic_consume(1, name, "tag"))
        client.expect_connection_close(530)


def test_a_return_comes_before_the_confirm(url: str, name: str) -> None:
    """E04: basic.return 312, then basic.ack."""
    with WireClient.connected(url, channels=1) as client:
        client.send(confirm_select(1))
        client.expect(CONFIRM_SELECT_OK, 1)
        client.send(publish_method(1, name, mandatory=True), header(1, 2), body(1, b"hi"))
        returned = client.expect(BASIC_RETURN, 1).arguments
        assert struct.unpack_from(">H", returned) == (312,)
        assert client.expect_content()[1] == b"hi"
        acked = client.expect(BASIC_ACK, 1).arguments
        assert struct.unpack(">QB", acked) == (1, 0)


def test_no_wait_methods_get_no_answer(url: str, name: str) -> None:
    """C136: the next answer on the channel is the one to the next synchronous method."""
    with WireClient.connected(url, channels=1) as client:
        client.send(queue_declare(1, name, bits=0b10100), method(1, BASIC_QOS, bytes(7)))
        client.expect(BASIC_QOS_OK, 1)
        client.send(method(1, (85, 10), b"\x01"), publish(1, name, b"x"))
        assert client.expect(BASIC_ACK, 1).arguments == struct.pack(">QB", 1, 0)


@pytest.mark.parametrize("active", [b"\x01"], ids=["active"])
def test_channel_flow_is_answered(url: str, active: bytes) -> None:
    """C022: the answer repeats the setting."""
    with WireClient.connected(url, channels=1) as client:
        client.send(method(1, CHANNEL_FLOW, active))
        assert client.expect(CHANNEL_FLOW_OK, 1).arguments == active


EVERY_TAG = table(
    field("bool", b"t", b"\x01"),
    field("int8", b"b", struct.pack(">b", -5)),
    field("uint8", b"B", b"\xfa"),
    field("int16", b"s", struct.pack(">h", -500)),
    field("uint16", b"u", struct.pack(">H", 65000)),
    field("int32", b"I", struct.pack(">i", -70_000)),
    field("uint32", b"i", struct.pack(">I", 4_000_000_000)),
    field("int64", b"l", struct.pack(">q", -(1 << 60))),
    field("float", b"f", struct.pack(">f", 1.5)),
    field("double", b"d", struct.pack(">d", -0.1)),
    field("decimal", b"D", struct.pack(">Bi", 2, 314)),
    field("text", b"S", long_string("text \N{SNOWMAN}")),
    field("not text", b"S", long_string(b"\xff\x00\xfe")),
    field("octets", b"x", long_string(b"\x00\xff")),
    field("array", b"A", long_string(b"t\x00" + b"I\x00\x00\x00\x01" + b"V")),
    field("time", b"T", struct.pack(">Q", 1_700_000_000)),
    field("table", b"F", table(field("nested", b"F", table()))),
    field("void", b"V", b""),
)


def test_properties_come_back_octet_for_octet(url: str, name: str) -> None:
    """C125, B12: all fourteen, and a header of every type."""
    flags = struct.pack(">H", 0b1111_1111_1111_1100)
    properties = flags + b"".join(
        [
            short_string("text/plain"),
            short_string("gzip"),
            EVERY_TAG,
            b"\x02",
            b"\x07",
            short_string("correlation"),
            short_string("reply-to"),
            short_string("600000"),
            short_string("id"),
            struct.pack(">Q", 1_700_000_000),
            short_string("type"),
            short_string("guest"),
            short_string("app"),
            short_string("cluster"),
        ]
    )
    with WireClient.connected(url, channels=1) as client:
        client.declare_queue(name)
        client.send(publish(1, name, b"body", properties))
        assert client.get(name) == (properties, b"body")


@pytest.mark.parametrize("bit", range(2, 16))
def test_each_property_alone_comes_back(url: str, name: str, bit: int) -> None:
    """C125."""
    values = {13: EVERY_TAG, 12: b"\x01", 11: b"\x00", 6: bytes(8), 8: short_string("60000")}
    properties = struct.pack(">H", 1 << bit) + values.get(bit, short_string("guest"))
    with WireClient.connected(url, channels=1) as client:
        client.declare_queue(name)
        client.send(publish(1, name, b"", properties))
        assert client.get(name) == (properties, b"")


def test_truncated_properties_are_a_syntax_error(url: str, name: str) -> None:
    """C150: 502, or 501."""
    with WireClient.connected(url, channels=1) as client:
        client.send(publish_method(1, name), header(1, 0, b"\x80\x00\x20short"))
        client.expect_connection_close(501, 502, 505)


def test_a_get_on_an_exclusive_queue_after_a_reset_is_404(url: str, name: str) -> None:
    """D07: an abrupt end is an end too."""
    owner = WireClient.connected(url, channels=1)
    owner.declare_queue(name)
    owner.abort()
    with WireClient.connected(url, channels=1) as client:
        while True:
            client.send(basic_get(1, name))
            close = Close.decode(client.expect(CHANNEL_CLOSE, 1).arguments)
            if close.reply_code == 404:
                break
            assert close.reply_code == 405
            client.send(method(1, (20, 41)), channel_open(1))
            client.expect(CHANNEL_OPEN_OK, 1)
