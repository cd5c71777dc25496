"""How much is read at once."""

import struct

import pytest

from amqpstore_server.protocol import methods
from amqpstore_server.protocol.frames import method_frame
from amqpstore_server.read_size import LARGEST_BYTES, LEAST_BYTES, SMALLEST_BYTES, ReadSize, part_of

FAST_S, SLOW_S = 0.001, 0.1


def after(*reads: tuple[int, float]) -> int:
    """The next size, after so many reads that were full, or not, and how long each took."""
    size = ReadSize()
    for count, took_s in reads:
        for _ in range(count):
            size.note(size.byte_count, took_s)
    return size.byte_count


def test_it_grows_with_what_a_client_sends() -> None:
    assert after((1, FAST_S)) == 2 * SMALLEST_BYTES
    assert after((100, FAST_S)) == LARGEST_BYTES


def test_it_shrinks_when_a_client_sends_less() -> None:
    size = ReadSize()
    for _ in range(10):
        size.note(size.byte_count, FAST_S)
    for _ in range(10):
        size.note(100, FAST_S)
    assert size.byte_count == SMALLEST_BYTES


def test_what_takes_long_is_read_in_smaller_pieces() -> None:
    """Such as body frames of one byte: a client that sends nothing else holds up nobody."""
    assert after((10, FAST_S), (2, SLOW_S)) == LARGEST_BYTES // 4
    assert after((10, FAST_S), (20, SLOW_S)) == LEAST_BYTES


def test_it_does_not_grow_to_where_it_would_take_long() -> None:
    size = ReadSize()
    for _ in range(100):
        size.note(size.byte_count, size.byte_count * 1e-7)
        assert size.byte_count * 1e-7 < 0.01


def test_what_is_costly_is_read_in_the_smallest_pieces() -> None:
    """A byte that costs twenty times as much as one of a message: for others it is as if it were
    one of them.
    """
    size = ReadSize()
    for _ in range(100):
        size.note(size.byte_count, size.byte_count * 2e-7)
    assert size.byte_count == SMALLEST_BYTES


def frames(body: bytes, count: int) -> bytes:
    """Publishes of one body."""
    one = method_frame(1, methods.BasicPublish(exchange="", routing_key="q").encode())
    header = struct.pack(">HHQH", 60, 0, len(body), 0)
    one += struct.pack(">BHI", 2, 1, len(header)) + header + b"\xce"
    if body:
        one += struct.pack(">BHI", 3, 1, len(body)) + body + b"\xce"
    return one * count


@pytest.mark.parametrize(("count", "body_bytes"), [(1000, 60), (300, 2000), (1, 512 << 10)])
def test_a_read_of_ordinary_messages_is_handled_whole(count: int, body_bytes: int) -> None:
    assert part_of(frames(b"x" * body_bytes, count)) == 0


def test_a_read_of_very_many_messages_is_handled_in_parts() -> None:
    size = len(frames(b"", 1))
    left = frames(b"", 20_000)
    parts = []
    while part := part_of(left):
        parts.append(part // size)
        left = left[part:]
    assert len(left) // size <= 6200
    assert len(parts) > 3
    assert max(parts) <= 3100
