"""Methods that reach the server in one read: each finds what those before it have done."""

import struct

import pytest

from tests.conformance.wire_client import (
    BASIC_ACK,
    BASIC_CONSUME_OK,
    BASIC_DELIVER,
    BASIC_GET_EMPTY,
    BASIC_GET_OK,
    BASIC_REJECT,
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    CHANNEL_OPEN_OK,
    CONFIRM_SELECT_OK,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    QUEUE_DELETE,
    QUEUE_DELETE_OK,
    WireClient,
    basic_consume,
    basic_get,
    body,
    channel_close,
    channel_open,
    confirm_select,
    field,
    header,
    method,
    publish,
    publish_method,
    queue_declare,
    short_string,
    table,
)

TRANSIENT, PERSISTENT = b"\x10\x00\x01", b"\x10\x00\x02"


def to_nowhere(channel: int = 1) -> bytes:
    """A publish that ends the channel."""
    exchange = publish_method(channel, "key", exchange="not there")
    return exchange + header(channel, 1) + body(channel, b"x")


def counts(client: WireClient) -> tuple[int, int]:
    """Ready messages and consumers, as the declare-ok that comes next has them."""
    arguments = client.expect(QUEUE_DECLARE_OK, 1).arguments
    return struct.unpack_from(">II", arguments, 1 + arguments[0])


def test_a_consumer_that_waits_is_served_before_a_get_that_comes_later(url: str, name: str) -> None:
    """D16, F06."""
    with WireClient.connected(url, channels=1) as client:
        client.declare_queue(name)
        client.send(basic_consume(1, name, "tag"))
        client.expect(BASIC_CONSUME_OK, 1)
        client.send(publish(1, name, b"one"), basic_get(1, name))
        client.expect(BASIC_DELIVER, 1)
        assert client.expect_content()[1] == b"one"
        client.expect(BASIC_GET_EMPTY, 1)


def test_counts_are_those_behind_the_methods_before(url: str, name: str) -> None:
    """C158: what a waiting consumer took is not counted, nor purged with the rest."""
    passive = queue_declare(1, name, bits=0b00001)
    deleted = method(1, QUEUE_DELETE, bytes(2) + short_string(name) + b"\x00")
    with WireClient.connected(url, channels=1) as client:
        client.declare_queue(name)
        client.send(basic_consume(1, name, "tag"))
        client.expect(BASIC_CONSUME_OK, 1)
        client.send(publish(1, name, b"one"), passive, publish(1, name, b"two"), deleted)
        client.expect(BASIC_DELIVER, 1)
        client.expect_content()
        assert counts(client) == (0, 1)
        client.expect(BASIC_DELIVER, 1)
        client.expect_content()
        assert client.expect(QUEUE_DELETE_OK, 1).arguments == bytes(4)


def test_a_limit_holds_for_what_was_just_given_back(url: str, name: str) -> None:
    """H14: with more ready than the limit, none of them is counted."""
    arguments = table(field("x-max-length", b"I", struct.pack(">i", 1)))
    names = bytes(2) + short_string(name) + bytes([0b100])
    with WireClient.connected(url, channels=1) as client:
        client.send(method(1, QUEUE_DECLARE, names + arguments))
        client.expect(QUEUE_DECLARE_OK, 1)
        client.send(publish(1, name, b"one"), basic_get(1, name, no_ack=False))
        client.expect(BASIC_GET_OK, 1)
        client.expect_content()
        client.send(
            publish(1, name, b"two"),
            method(1, BASIC_REJECT, struct.pack(">QB", 1, 1)),
            queue_declare(1, name, bits=0b00001),
        )
        assert counts(client) == (1, 0)
        assert client.get(name)[1] == b"two"


@pytest.mark.parametrize(
    ("is_there", "properties"),
    [(False, TRANSIENT), (True, TRANSIENT), (True, PERSISTENT)],
    ids=["unroutable", "transient", "persistent"],
)
def test_what_was_published_before_a_fault_is_confirmed(
    url: str, name: str, is_there: bool, properties: bytes
) -> None:
    """C101, O01: before channel.close, also where it is still on its way to the disk."""
    with WireClient.connected(url, channels=2) as client:
        if is_there:
            client.send(queue_declare(2, name, bits=0b00010))
            client.expect(QUEUE_DECLARE_OK, 2)
        client.send(confirm_select(1))
        client.expect(CONFIRM_SELECT_OK, 1)
        client.send(*[publish(1, name, b"x", properties)] * 3, to_nowhere())
        confirmed = 0
        while (received := client.next_frame()).method == BASIC_ACK:
            confirmed = max(confirmed, int.from_bytes(received.arguments[:8], "big"))
        assert (received.method, confirmed) == (CHANNEL_CLOSE, 3)
        client.send(method(1, CHANNEL_CLOSE_OK), channel_open(1))
        client.expect(CHANNEL_OPEN_OK, 1)
        client.send(method(2, QUEUE_DELETE, bytes(2) + short_string(name) + b"\x00"))
        client.expect(QUEUE_DELETE_OK, 2)


def test_a_client_that_closes_a_channel_that_failed_is_answered_once(url: str, name: str) -> None:
    """C124: whichever close came first, the channel can be opened again."""
    with WireClient.connected(url, channels=2) as client:
        client.send(queue_declare(2, name, bits=0b00010))
        client.expect(QUEUE_DECLARE_OK, 2)
        client.send(confirm_select(1))
        client.expect(CONFIRM_SELECT_OK, 1)
        client.send(publish(1, name, b"x", PERSISTENT), to_nowhere(), channel_close(1))
        closes = 0
        while (received := client.next_frame()).method != CHANNEL_CLOSE_OK:
            closes += received.method == CHANNEL_CLOSE
        if closes:  # it was sent before the client's was read
            client.send(method(1, CHANNEL_CLOSE_OK))
        client.send(channel_open(1))
        client.expect(CHANNEL_OPEN_OK, 1)
        client.send(method(2, QUEUE_DELETE, bytes(2) + short_string(name) + b"\x00"))
        client.expect(QUEUE_DELETE_OK, 2)
