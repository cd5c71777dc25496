"""Frames: what a server does with octets that break the framing rules (0-9-1 section 4.2)."""

import struct
from collections.abc import Callable

import pytest

from tests.conformance.wire_client import (
    BASIC_GET_EMPTY,
    BASIC_QOS,
    BASIC_QOS_OK,
    BODY,
    CHANNEL_CLOSE_OK,
    CHANNEL_OPEN_OK,
    CONFIRM_SELECT_OK,
    CONNECTION_CLOSE_OK,
    CONNECTION_OPEN_OK,
    CONNECTION_START,
    CONNECTION_TUNE,
    HEADER,
    METHOD,
    PROTOCOL_HEADER,
    QUEUE_DECLARE_OK,
    WireClient,
    basic_get,
    body,
    channel_close,
    channel_open,
    confirm_select,
    connection_close,
    connection_open,
    frame,
    header,
    heartbeat,
    method,
    publish,
    publish_method,
    queue_declare,
    start_ok,
    tune_ok,
)


@pytest.mark.parametrize(
    "opening",
    [
        b"HTTP/1.1",
        b"GET / HTTP/1.1\r\n\r\n",
        b"AMQP\x00\x00\x09\x02",
        b"AMQP\x00\x01\x00\x00",
        b"AMQP\x03\x01\x00\x00",
        b"AMQP\x01\x01\x00\x0a",
        b"\x00" * 8,
        b"amqp\x00\x00\x09\x01",
    ],
    ids=repr,
)
def test_a_bad_protocol_header_is_answered_with_the_right_one(url: str, opening: bytes) -> None:
    """C005, C140: write a valid header, then close."""
    with WireClient(url) as client:
        client.send(opening)
        assert client.read_to_end() == PROTOCOL_HEADER


def test_an_oversized_frame_is_a_frame_error(url: str) -> None:
    """C146: 501. The limit counts the framing; for clients that do not count it, it is as RabbitMQ
    lax by those 8 octets."""
    with WireClient.connected(url, channels=1, frame_max=4096) as client:
        client.send(publish_method(1, "nowhere"), header(1, 10_000))
        client.send(body(1, bytes(4096 - 8)), body(1, bytes(4096)))
        client.expect_alive()
        client.send_to_closing_peer(body(1, bytes(4096 + 1)))
        client.expect_connection_close(501)


def test_the_size_of_an_oversized_frame_is_enough_to_refuse_it(url: str) -> None:
    """C120, C146: no waiting for four gigabytes that may never come."""
    with WireClient.connected(url, channels=1) as client:
        client.send(publish_method(1, "nowhere"), header(1, 10))
        client.send_to_closing_peer(struct.pack(">BHI", BODY, 1, 0xFFFFFFFF) + b"x")
        client.expect_connection_close(501)


def test_a_frame_of_exactly_frame_max_is_accepted(url: str, name: str) -> None:
    """C146."""
    with WireClient.connected(url, channels=1, frame_max=4096) as client:
        client.declare_queue(name)
        client.send(publish(1, name, b"x" * (4096 - 8)))
        assert client.get(name)[1] == b"x" * (4096 - 8)


def test_the_server_keeps_to_the_frame_max_it_agreed(url: str, name: str) -> None:
    """C146: full frames, the last one shorter, none longer."""
    with WireClient.connected(url, channels=1, frame_max=4096) as client:
        client.declare_queue(name)
        client.send(publish_method(1, name), header(1, 10_000))
        client.send(body(1, bytes(4000)), body(1, bytes(4000)), body(1, bytes(2000)))
        client.send(basic_get(1, name))
        client.next_frame()
        client.next_frame()
        sizes = [len(client.next_frame().payload) for _ in range(3)]
    assert sum(sizes) == 10_000
    assert max(sizes) <= 4096 - 8


@pytest.mark.parametrize("end", [0x00, 0xCD, 0xFF])
def test_a_bad_frame_end_closes_with_nothing_more_sent(url: str, end: int) -> None:
    """C143, C144."""
    with WireClient.connected(url, channels=1) as client:
        client.send(frame(METHOD, 1, struct.pack(">HHIHB", *BASIC_QOS, 0, 0, 0), end))
        client.expect_closed()


def test_a_bad_frame_end_is_seen_before_the_payload_is_decoded(url: str) -> None:
    """C144."""
    with WireClient.connected(url) as client:
        client.send(frame(METHOD, 0, b"\xff" * 20, end=0x00))
        client.expect_closed()


@pytest.mark.parametrize("frame_type", [0, 4, 5, 6, 7, 9, 0xCE, 0xFF])
def test_an_unknown_frame_type_closes_with_nothing_more_sent(url: str, frame_type: int) -> None:
    """C144."""
    with WireClient.connected(url) as client:
        client.send(frame(frame_type, 0, b""))
        client.expect_closed()


@pytest.mark.parametrize("channel", [1, 2])
def test_a_heartbeat_on_a_channel_is_a_command_error(url: str, channel: int) -> None:
    """C146, C154: 503, whether the channel is open or not."""
    with WireClient.connected(url, channels=1) as client:
        client.send(heartbeat(channel))
        client.expect_connection_close(503)


def test_a_heartbeat_is_welcome_where_none_were_agreed(url: str) -> None:
    """C155."""
    with WireClient.connected(url, channels=1, heartbeat_s=0) as client:
        client.send(heartbeat(), heartbeat())
        client.expect_alive()


def test_heartbeats_may_come_between_the_frames_of_a_content(url: str, name: str) -> None:
    """C155, C153."""
    with WireClient.connected(url, channels=1) as client:
        client.declare_queue(name)
        client.send(publish_method(1, name), heartbeat(), header(1, 2), heartbeat())
        client.send(body(1, b"a"), heartbeat(), body(1, b"b"))
        assert client.get(name)[1] == b"ab"


@pytest.mark.parametrize("frame_type", [HEADER, BODY])
def test_a_content_frame_on_channel_zero_is_a_channel_error(url: str, frame_type: int) -> None:
    """C152: 504."""
    with WireClient.connected(url, channels=1) as client:
        client.send(header(0, 1) if frame_type == HEADER else body(0, b"x"))
        client.expect_connection_close(504)


def test_a_connection_method_on_a_channel_is_a_command_error(url: str) -> None:
    """C146: 503."""
    with WireClient.connected(url, channels=1) as client:
        arguments = struct.pack(">H", 200) + b"\x00" + bytes(4)
        client.send(method(1, (10, 50), arguments))
        client.expect_connection_close(503)


Stage = tuple[bytes, list[tuple[int, int]]]


def session(name: str) -> list[Stage]:
    """Return what a client sends from the first octet on, and the methods that answer it.

    A client has to wait for start and for tune, as its answers depend on them. From tune-ok on
    it may send without waiting.
    """
    stream = (
        tune_ok(10, 4096, 0)
        + connection_open("/")
        + channel_open(1)
        + confirm_select(1)
        + queue_declare(1, name)
        + publish(1, name, b"split anywhere")
        + publish(1, name, b"")
        + heartbeat()
    )
    return [
        (PROTOCOL_HEADER, [CONNECTION_START]),
        (start_ok(), [CONNECTION_TUNE]),
        (stream, [CONNECTION_OPEN_OK, CHANNEL_OPEN_OK, CONFIRM_SELECT_OK, QUEUE_DECLARE_OK]),
    ]


def run_session(client: WireClient, name: str, send: Callable[[bytes], None]) -> None:
    for stream, answers in session(name):
        send(stream)
        assert [client.next_frame().method for _ in answers] == answers
    confirmed = 0
    while confirmed < 2:
        (confirmed,) = struct.unpack_from(">Q", client.expect((60, 80), 1).arguments)
    assert client.get(name)[1] == b"split anywhere"
    assert client.get(name)[1] == b""
    client.send(basic_get(1, name))
    client.expect(BASIC_GET_EMPTY, 1)
    client.send(connection_close())
    client.expect_close_ok()


def test_a_whole_session_sent_one_octet_at_a_time(url: str, name: str) -> None:
    """C147: a frame may be split anywhere."""
    with WireClient(url) as client:
        run_session(client, name, client.send_bytewise)


def test_a_session_without_waiting_for_replies(url: str, name: str) -> None:
    """C137: a peer may send without waiting for the replies."""
    with WireClient(url) as client:
        run_session(client, name, client.send)


@pytest.mark.parametrize("size", [7, 8, 9, 64, 1460])
def test_a_session_in_writes_that_ignore_frames(url: str, name: str, size: int) -> None:
    with WireClient(url) as client:

        def send(stream: bytes) -> None:
            for start in range(0, len(stream), size):
                client.send(stream[start : start + size])

        run_session(client, name, send)


def test_many_frames_in_one_write(url: str, name: str) -> None:
    """C159: a thousand contents keep their order."""
    with WireClient.connected(url, channels=1) as client:
        client.declare_queue(name)
        client.send(b"".join(publish(1, name, str(number).encode()) for number in range(1000)))
        assert [int(client.get(name)[1]) for _ in range(1000)] == list(range(1000))


def test_contents_of_two_channels_may_interleave(url: str, name: str) -> None:
    """C153, C159: frames of one content follow each other on their channel only."""
    with WireClient.connected(url, channels=2) as client:
        client.declare_queue(name)
        client.send(publish_method(1, name), publish_method(2, name))
        client.send(header(2, 4), header(1, 4), body(1, b"on"), body(2, b"t"), body(2, b"wo2"))
        client.send(body(1, b"e1"), channel_close(2))
        client.expect(CHANNEL_CLOSE_OK, 2)
        assert {client.get(name)[1], client.get(name)[1]} == {b"one1", b"two2"}


def test_octets_after_connection_close_are_ignored(url: str) -> None:
    """C019: everything but close and close-ok is discarded."""
    with WireClient.connected(url, channels=1) as client:
        client.send(connection_close(), method(1, BASIC_QOS, bytes(7)), frame(METHOD, 1, b"\xff"))
        client.expect_close_ok()


def test_who_goes_on_writing_after_connection_close_is_not_reset(url: str) -> None:
    """C019: amqplib, for one, puts its close in front of publishes that still wait to be written.

    They are read. A client that never closes its socket sees the end of it some seconds later.
    """
    with WireClient.connected(url, channels=1) as client:
        client.send(connection_close())
        client.expect(CONNECTION_CLOSE_OK)
        for _ in range(20):
            client.send(publish(1, "nowhere", bytes(10_000)) * 10)
        client.expect_closed()


def test_who_has_closed_the_connection_closes_its_socket_first(url: str) -> None:
    """C019: to a client whose threads all close it, the end of the socket would be a failure."""
    with WireClient.connected(url, channels=1) as client:
        client.send(connection_close())
        client.expect(CONNECTION_CLOSE_OK)
        assert not client.has_frame(0.2)
        client.finish()


def test_who_closes_at_the_servers_request_is_not_reset_either(url: str) -> None:
    """C019."""
    with WireClient.connected(url, channels=1) as client:
        client.send(channel_open(1))
        client.expect_connection_close(504)
        for _ in range(20):
            client.send(publish(1, "nowhere", bytes(10_000)) * 10)
        client.finish()


def test_frames_after_the_servers_connection_close_are_discarded(url: str) -> None:
    """C019: until close-ok, and without a second close."""
    with WireClient.connected(url, channels=2) as client:
        client.send(channel_open(1), method(2, BASIC_QOS, bytes(7)), channel_open(1))
        client.expect_connection_close(504)


def test_a_client_close_that_crosses_the_servers_is_answered(url: str) -> None:
    """C019: the response to a close after sending close is close-ok."""
    with WireClient.connected(url, channels=1) as client:
        client.send(channel_open(1), connection_close())
        closing = client.next_frame()
        assert closing.method == (10, 50)
        client.expect(CONNECTION_CLOSE_OK)
        client.send_to_closing_peer(method(0, CONNECTION_CLOSE_OK))
        client.finish()


def test_after_a_channel_error_its_frames_are_ignored_until_close_ok(url: str, name: str) -> None:
    """C026: whatever they are, a content cut in two among them."""
    with WireClient.connected(url, channels=2) as client:
        client.send(queue_declare(1, name, bits=0b1))
        client.send(publish_method(1, name), header(1, 5), queue_declare(1, name))
        client.send(basic_get(1, name), channel_open(1), publish(1, name, b"x"))
        client.expect_channel_close(1, 404)
        client.send(method(2, BASIC_QOS, bytes(7)))
        client.expect(BASIC_QOS_OK, 2)


def test_a_channel_closed_by_an_error_can_be_opened_again(url: str, name: str) -> None:
    """C124."""
    with WireClient.connected(url, channels=1) as client:
        for _ in range(5):
            client.send(queue_declare(1, name, bits=0b1))
            client.expect_channel_close(1, 404)
            client.send(method(1, CHANNEL_CLOSE_OK), channel_open(1))
            client.expect(CHANNEL_OPEN_OK, 1)
        client.declare_queue(name)


def test_a_channel_close_that_crosses_the_servers_is_answered(url: str, name: str) -> None:
    """C026."""
    with WireClient.connected(url, channels=1) as client:
        client.send(queue_declare(1, name, bits=0b1), channel_close(1))
        client.expect_channel_close(1, 404)
        client.expect(CHANNEL_CLOSE_OK, 1)
        client.send(method(1, CHANNEL_CLOSE_OK), channel_open(1))
        client.expect(CHANNEL_OPEN_OK, 1)


def test_a_channel_close_names_the_failing_method(url: str, name: str) -> None:
    """C124: class and method id of what failed."""
    with WireClient.connected(url, channels=1) as client:
        client.send(queue_declare(1, name, bits=0b1))
        close = client.expect_channel_close(1, 404)
        assert close.failing_method == (50, 10)
        assert name in close.reply_text


def test_a_reset_by_the_client_leaves_the_server_to_others(url: str) -> None:
    """C020."""
    for _ in range(5):
        client = WireClient.connected(url, channels=1)
        client.send(publish_method(1, "nowhere"), header(1, 100), body(1, b"half"))
        client.abort()
    with WireClient.connected(url, channels=1) as client:
        client.send(channel_close(1))
        assert client.next_frame().method == CHANNEL_CLOSE_OK
        assert client.tune.frame_max >= 4096
