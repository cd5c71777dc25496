"""How much is read at once."""

import struct

import pytest

from amqpstore_server.protocol import methods
from amqpstore_server.protocol.frames import method_frame
from amqpstore_server.read_size import LARGEST_BYTES, LEAST_BYTES, SMALLEST_BYTES, ReadSize, part_of

FAST_S, SLOW_S = 0.001, 0.1
MANY = 1_000_000
"""Messages of a read: so many that no time is too long for them."""


def after(*reads: tuple[int, float]) -> int:
    """The next size, after so many reads that were full, or not, and how long each took."""
    size = ReadSize()
    for count, took_s in reads:
        for _ in range(count):
            size.note(size.byte_count, MANY, took_s)
    return size.byte_count


def test_it_grows_with_what_a_client_sends() -> None:
    assert after((1, FAST_S)) == 2 * SMALLEST_BYTES
    assert after((100, FAST_S)) == LARGEST_BYTES


def test_it_shrinks_when_a_client_sends_less() -> None:
    size = ReadSize()
    for _ in range(10):
        size.note(size.byte_count, MANY, FAST_S)
    for _ in range(10):
        size.note(100, MANY, FAST_S)
    assert size.byte_count == SMALLEST_BYTES


def test_what_takes_long_is_read_in_smaller_pieces() -> None:
    """Such as body frames of one byte: a client that sends nothing else holds up nobody."""
    assert after((10, FAST_S), (2, SLOW_S)) == LARGEST_BYTES // 4
    assert after((10, FAST_S), (20, SLOW_S)) == LEAST_BYTES


def test_it_does_not_grow_to_where_it_would_take_long() -> None:
    size = ReadSize()
    for _ in range(100):
        size.note(size.byte_count, MANY, size.byte_count * 1e-7)
        assert size.byte_count * 1e-7 < 0.01


def test_what_is_costly_is_read_in_the_smallest_pieces() -> None:
    """A byte that costs twenty times as much as one of a message: for others it is as if it were
    one of them.
    """
    size = ReadSize()
    for _ in range(100):
        size.note(size.byte_count, MANY, size.byte_count * 2e-7)
    assert size.byte_count == SMALLEST_BYTES


@pytest.mark.parametrize(
    ("what", "byte_count", "message_count", "took_s"),
    [
        ("acks", 21, 1, 1e-6),
        ("messages of 100 bytes", 300, 1, 8e-6),
        ("messages of 1 KiB for three queues of a topic exchange", 1200, 1, 25e-6),
        ("bodies of 1 MiB", 1 << 20, 1, 1.5e-3),
    ],
)
def test_ordinary_clients_are_not_costly(
    what: str, byte_count: int, message_count: int, took_s: float
) -> None:
    assert not costly(byte_count, message_count, took_s), what


@pytest.mark.parametrize(
    ("what", "byte_count", "message_count", "took_s"),
    [
        ("body frames of two bytes", 10, 0, 1e-6),
        ("240 routing keys of 240 bytes", 60_000, 1, 0.5e-3),
        ("a message for a thousand bindings of wildcards", 170, 1, 0.4e-3),
        ("declares", 50, 1, 0.15e-3),
    ],
)
def test_who_has_the_broker_work_long_for_little_is_costly(
    what: str, byte_count: int, message_count: int, took_s: float
) -> None:
    assert costly(byte_count, message_count, took_s), what


def costly(byte_count: int, message_count: int, took_s: float) -> bool:
    """Whether a client is costly that sends that again and again."""
    size = ReadSize()
    for _ in range(100):
        times = size.byte_count / byte_count
        size.note(size.byte_count, int(times) * message_count, times * took_s)
    return size.is_costly


def test_one_long_read_is_costly_and_forgotten_after_some_ordinary_ones() -> None:
    size = ReadSize()
    size.note(100, 1, SLOW_S)
    was_costly = size.is_costly
    assert was_costly
    assert size.byte_count < SMALLEST_BYTES
    for _ in range(20):
        size.note(size.byte_count, 100, 0.0005)
    assert size.is_costly != was_costly
    for _ in range(20):
        size.note(size.byte_count, 100, 0.0001)
    assert size.byte_count == LARGEST_BYTES


def test_short_reads_are_not_costly() -> None:
    """Such as those of a client that declares a queue now and then."""
    size = ReadSize()
    for _ in range(100):
        size.note(50, 1, 0.0002)
    assert not size.is_costly


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
