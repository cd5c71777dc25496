"""Streams of frames whose meaning once depended on how they were cut into reads."""

from unittest.mock import ANY

import pytest

from amqpstore_server.protocol.errors import UnexpectedFrame
from amqpstore_server.protocol.events import Acks, ReceivedMethod
from amqpstore_server.protocol.methods import BasicPublish, ChannelCloseOk
from amqpstore_server.protocol.receiver import Receiver
from amqpstore_server.protocol.spec import FRAME_BODY, FRAME_HEADER, FRAME_METHOD
from tests.content_header import encode_content_header
from tests.fuzz.test_codec import FRAME_MAX, MAX_MESSAGE_BYTES, ack, frame, published, receive, said

METHOD = BasicPublish(exchange="", routing_key="q")
EMPTY_BODY = frame(FRAME_BODY, 1, b"")


def of_size_0(properties: bytes = b"\0\0", channel: int = 1) -> bytes:
    """A whole message: a method, and a header that announces no body."""
    header = frame(FRAME_HEADER, channel, encode_content_header(60, 0, properties))
    return frame(FRAME_METHOD, channel, METHOD.encode()) + header


BEFORE = {
    "nothing": b"",
    "an empty message": of_size_0(),
    "an empty message of another channel": of_size_0(channel=2),
    "a repeated empty message": of_size_0() * 3,
    "a column": b"".join(map(published, range(5))),
    "a repeated publish": published(1) * 3,
    "an empty message of the shape of a column": b"".join(map(published, range(5)))
    + published(5, b""),
    "acks": ack(1) + ack(2),
}
AFTER = {
    "nothing": b"",
    "the same again": of_size_0() + EMPTY_BODY,
    "a column": b"".join(map(published, range(5))),
    "acks": ack(3) + ack(4),
}


def ways_to_cut(size: int) -> list[list[int]]:
    """Whole, byte by byte, in two, and in pieces of a few bytes."""
    steps = [list(range(step, size, step)) for step in (1, 2, 3, 5, 7, 8, 11)]
    return [[], *steps, *([cut] for cut in range(size))]


@pytest.mark.parametrize("after", AFTER.values(), ids=AFTER)
@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
@pytest.mark.parametrize("properties", [b"\0\0", b"\x10\0\x02"], ids=["plain", "persistent"])
def test_an_empty_body_behind_a_header_of_size_0_is_unexpected(
    properties: bytes, before: bytes, after: bytes
) -> None:
    """The header ends the message, so that there is nothing that the frame could belong to."""
    message = of_size_0(properties)
    kept = said(receive(before + message, []))
    assert kept[-1] == (1, METHOD, properties, b"")
    expected = [*kept, (1, UnexpectedFrame, ANY), *said(receive(after, []))]
    stream = before + message + EMPTY_BODY + after
    for cuts in ways_to_cut(len(stream)):
        assert said(receive(stream, cuts)) == expected, cuts
        assert said(receive(stream, cuts, large_bytes=1)) == expected, cuts


@pytest.mark.parametrize("channel", [1, 0])
@pytest.mark.parametrize("bits", [0, 1, 2, 3])
def test_an_ack_is_the_same_event_whatever_came_before_it_in_its_read(
    bits: int, channel: int
) -> None:
    """An ack is so behind publishes that are taken together too, which go on frame by frame. On
    channel 0, acks are refused like any other method that is not of the connection.
    """
    stream = b"".join(map(published, range(5))) + ack(1, channel=channel, multiple=bits) + ack(2)
    (event,) = receive(ack(1, channel=channel, multiple=bits), [])
    assert type(event) is (Acks if channel else ReceivedMethod)
    for cuts in ways_to_cut(len(stream)):
        *_, found, last = said(receive(stream, cuts))
        assert [found] == said([event]), cuts
        assert last == (1, 2, False)


def test_contents_that_are_discarded_are_no_events_and_no_errors() -> None:
    """Empty contents are not either, nor those that repeat the one before."""
    repeated = published(1) * 3
    receiver = Receiver(FRAME_MAX, MAX_MESSAGE_BYTES)
    assert len(said(receiver.receive(repeated))) == 3
    receiver.discard_contents()
    for stream in (repeated, of_size_0() * 2, b"".join(map(published, range(5)))):
        assert receiver.receive(stream) == []
    close = ChannelCloseOk()
    assert receiver.receive(frame(FRAME_METHOD, 1, close.encode())) == [ReceivedMethod(1, close)]
