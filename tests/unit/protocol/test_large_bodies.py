"""Bodies that arrive in pieces: however the reads cut them, and what memory they take."""

import itertools

import pytest

from amqpstore_server.protocol.errors import ContentTooLarge, FatalFramingError
from amqpstore_server.protocol.events import Failed, Publishes, ReceivedMethod
from amqpstore_server.protocol.frames import body_frames, header_frame, method_frame
from amqpstore_server.protocol.methods import BasicPublish, ChannelClose
from amqpstore_server.protocol.partial_body import PartialBody
from amqpstore_server.protocol.receiver import Receiver
from tests.content_header import encode_content_header

FRAME_MAX = 131_072
CLOSE = ChannelClose(reply_code=200, reply_text="", failing_class_id=0, failing_method_id=0)


def frames_of(body: bytes, channel: int = 1, frame_bytes: int = FRAME_MAX) -> list[bytes]:
    """A publish: its method, its header, and a frame for each part of its body."""
    parts = body_frames(channel, body, frame_bytes)
    return [
        method_frame(channel, BasicPublish(exchange="", routing_key="q").encode()),
        header_frame(channel, encode_content_header(60, len(body), b"\0\0")),
        *(b"".join(parts[at : at + 3]) for at in range(0, len(parts), 3)),
    ]


def received(receiver: Receiver, *reads: bytes) -> list[tuple[int, bytes]]:
    """Channels and bodies of what the reads complete."""
    found = []
    for read in reads:
        for event in receiver.receive(read):
            assert isinstance(event, Publishes)
            assert all(type(body) is bytes for body in event.bodies)
            found += [(event.channel, body) for body in event.bodies]
    return found


def left(receiver: Receiver) -> int:
    """Return what counts as unfinished after a content without a body began on another channel."""
    *start, body = frames_of(b"small", 9)
    receiver.receive(b"".join(start))
    unfinished_bytes = receiver.contents.memory_bytes
    receiver.receive(body)
    return unfinished_bytes


def test_a_body_is_the_same_wherever_the_reads_cut_it() -> None:
    """Two channels send theirs in turns."""
    one, two = (
        frames_of(body, channel, 12) for channel, body in ((1, b"abcdefg"), (2, b"tuvwxyz"))
    )
    stream = b"".join(itertools.chain(*zip(one, two, strict=True)))
    for cuts in itertools.combinations_with_replacement(range(len(stream) + 1), 2):
        places = [0, *cuts, len(stream)]
        reads = [stream[start:end] for start, end in itertools.pairwise(places)]
        receiver = Receiver(FRAME_MAX, FRAME_MAX, large_bytes=1)
        assert received(receiver, *reads) == [(1, b"abcdefg"), (2, b"tuvwxyz")]
        assert receiver.contents.memory_bytes == 0


def test_a_body_is_not_there_before_the_frame_end() -> None:
    """The byte after the payload says whether the frames are still told apart."""
    stream = b"".join(frames_of(bytes(40_000)))
    receiver = Receiver(FRAME_MAX, FRAME_MAX)
    assert received(receiver, stream[:20_000], stream[20_000:-1]) == []
    [failed] = receiver.receive(b"\x00")
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, FatalFramingError)
    assert receiver.is_lost


@pytest.mark.parametrize("size", [1 << 20, 20 << 20, 40 << 20])
def test_a_body_that_has_not_arrived_takes_no_memory(size: int) -> None:
    body = bytes(size)
    stream = b"".join(frames_of(body))
    receiver = Receiver(FRAME_MAX, size)
    for start in range(0, len(stream), 300_000):
        arrived = received(receiver, stream[start : start + 300_000])
        assert receiver.contents.memory_bytes <= 4 * (start + 300_000)
        assert receiver.contents.memory_bytes <= start + 300_000 + (8 << 20)
    assert arrived == [(1, body)]
    assert left(receiver) < 100


def test_the_memory_of_a_body_counts_until_its_channel_is_closed() -> None:
    stream = b"".join(frames_of(bytes(300_000))[:-1])
    receiver = Receiver(FRAME_MAX, 300_000)
    assert received(receiver, stream[:200_000], stream[200_000:]) == []
    assert receiver.contents.memory_bytes >= 250_000
    [closed] = receiver.receive(method_frame(1, CLOSE.encode()))
    assert isinstance(closed, ReceivedMethod)
    assert left(receiver) < 100


def test_a_refused_body_takes_no_memory() -> None:
    stream = b"".join(frames_of(bytes(500_000)) + frames_of(b"next"))
    receiver = Receiver(FRAME_MAX, 400_000)
    [failed] = receiver.receive(stream[:300_000])
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, ContentTooLarge)
    assert receiver.contents.memory_bytes < 1000
    assert received(receiver, stream[300_000:]) == [(1, b"next")]


def test_contents_may_be_discarded_within_a_frame() -> None:
    stream = b"".join(frames_of(bytes(100_000)))
    receiver = Receiver(FRAME_MAX, 400_000)
    assert received(receiver, stream[:50_000]) == []
    receiver.discard_contents()
    assert receiver.contents.memory_bytes < 100
    assert received(receiver, stream[50_000:]) == []
    assert left(receiver) < 100


def test_a_body_of_many_small_pieces_is_not_moved_for_each() -> None:
    """A client may send 64 MiB in frames of one byte."""
    body = PartialBody(1 << 20)
    steps = set()
    for _ in range(1 << 20):
        body.add(b"x")
        steps.add(body.memory_bytes)
    assert len(steps) <= 20
    assert body.whole() == b"x" * (1 << 20)
