"""Tests of how much is read at once."""

import struct
from bisect import bisect_right
from itertools import accumulate

import pytest

import amqpstore_server.loop.read_size
from amqpstore_server.loop.loop_limits import LOOP_LIMITS
from amqpstore_server.loop.read_size import ReadSize, first_chunk_bytes
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.frames import method_frame

FAST_S, SLOW_S = 0.001, 0.1
MANY = 1_000_000
"""Number of messages of a read, for which no time is too long."""


def after(*reads: tuple[int, float]) -> int:
    """Return the next size after full reads. Args: reads, each how many, and seconds of each."""
    size = ReadSize(LOOP_LIMITS)
    for count, took_s in reads:
        for _ in range(count):
            size.note(size.byte_count, MANY, took_s)
    return size.byte_count


def test_it_grows_with_what_a_client_sends() -> None:
    assert after((1, FAST_S)) == 2 * LOOP_LIMITS.min_read_bytes
    assert after((100, FAST_S)) == LOOP_LIMITS.max_read_bytes


def test_it_shrinks_when_a_client_sends_less() -> None:
    size = ReadSize(LOOP_LIMITS)
    for _ in range(10):
        size.note(size.byte_count, MANY, FAST_S)
    for _ in range(10):
        size.note(100, MANY, FAST_S)
    assert size.byte_count == LOOP_LIMITS.min_read_bytes


def test_what_takes_long_is_read_in_smaller_pieces() -> None:
    """Body frames of one byte take long: a client that sends nothing else holds up no other."""
    assert after((10, FAST_S), (2, SLOW_S)) == LOOP_LIMITS.max_read_bytes // 4
    assert after((10, FAST_S), (20, SLOW_S)) == LOOP_LIMITS.min_costly_read_bytes


def test_it_does_not_grow_to_where_it_would_take_long() -> None:
    size = ReadSize(LOOP_LIMITS)
    for _ in range(100):
        size.note(size.byte_count, MANY, size.byte_count * 1e-7)
        assert size.byte_count * 1e-7 < 0.01


def test_what_is_costly_is_read_in_the_smallest_pieces() -> None:
    """A byte that costs twenty times as much as one of a message: for others it is as if it were
    one of them.
    """
    size = ReadSize(LOOP_LIMITS)
    for _ in range(100):
        size.note(size.byte_count, MANY, size.byte_count * 2e-7)
    assert size.byte_count == LOOP_LIMITS.min_read_bytes


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
    size = ReadSize(LOOP_LIMITS)
    for _ in range(100):
        times = size.byte_count / byte_count
        size.note(size.byte_count, int(times) * message_count, times * took_s)
    return size.is_costly


def test_one_long_read_is_costly_and_forgotten_after_some_ordinary_ones() -> None:
    size = ReadSize(LOOP_LIMITS)
    size.note(100, 1, SLOW_S)
    was_costly = size.is_costly
    assert was_costly
    assert size.byte_count < LOOP_LIMITS.min_read_bytes
    for _ in range(20):
        size.note(size.byte_count, 100, 0.0005)
    assert size.is_costly != was_costly
    for _ in range(20):
        size.note(size.byte_count, 100, 0.0001)
    assert size.byte_count == LOOP_LIMITS.max_read_bytes


def test_short_reads_are_not_costly() -> None:
    """A client that declares a queue now and then has such reads."""
    size = ReadSize(LOOP_LIMITS)
    for _ in range(100):
        size.note(50, 1, 0.0002)
    assert not size.is_costly


def test_who_waits_between_short_reads_is_not_costly_on_a_slow_machine() -> None:
    """Unlike a client that sends as much of it as is read."""
    waiting, flooding = ReadSize(LOOP_LIMITS), ReadSize(LOOP_LIMITS)
    for _ in range(100):
        waiting.note(50, 1, 0.00045)
        flooding.note(flooding.byte_count, 1, 0.00045)
    assert not waiting.is_costly
    assert flooding.is_costly


def test_a_declare_that_waited_for_the_disk_is_forgotten_after_some_reads() -> None:
    size = ReadSize(LOOP_LIMITS)
    found = []
    for took_s, times in ((0.5, 1), (0.0, 8), (0.5, 8)):
        for _ in range(times):
            size.note(100, 1, 0.0001)
            size.charge(took_s)
        found.append(size.is_costly)
    assert found == [True, False, True]


def test_who_waits_after_what_takes_long_is_costly() -> None:
    """A message for thousands of queues takes long."""
    size = ReadSize(LOOP_LIMITS)
    for _ in range(10):
        size.note(200, 1, 0.002)
    assert size.is_costly


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
    assert first_chunk_bytes(frames(b"x" * body_bytes, count), LOOP_LIMITS) == 0


def test_a_read_of_very_many_messages_is_handled_in_parts() -> None:
    size = len(frames(b"", 1))
    left = frames(b"", 20_000)
    parts = []
    while part := first_chunk_bytes(left, LOOP_LIMITS):
        parts.append(part // size)
        left = left[part:]
    assert len(left) // size <= 6200
    assert len(parts) > 3
    assert max(parts) <= 3100


SMALL, LARGE = (b"", 2), (b"x" * 100_000, 3)
"""A body, and how many frames a message of it has."""

UNEVEN = {
    "the first": [(SMALL, 9_000), (LARGE, 3)],
    "the last": [(LARGE, 3), (SMALL, 9_000)],
    "in the middle": [(LARGE, 2), (SMALL, 9_000), (LARGE, 1)],
    "many of them last": [(LARGE, 1), (SMALL, 11_000)],
    "in some places": [((b"x" * 20_000, 3), 1), (SMALL, 1_400)] * 8,
    "in each place": [((b"x" * 4_000, 3), 1), (SMALL, 350)] * 32,
}
"""Shapes of reads, by where the small messages are: messages, and how many of them."""


@pytest.mark.parametrize("shape", UNEVEN)
@pytest.mark.parametrize("first", [0, 1_000, 5_000, 9_000, 12_000, 15_872])
def test_a_part_has_few_frames_wherever_in_a_read_they_are(
    shape: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more than 8,192: the 6,144 that a part has, and those of the 16 KiB where it ends.

    Args: first, the place in each of these that is looked at.
    """
    monkeypatch.setattr(amqpstore_server.loop.read_size, "randrange", lambda _end: first)
    read = b"".join(frames(body, count) for (body, _), count in UNEVEN[shape])
    sizes: list[int] = []
    for (body, frame_count), count in UNEVEN[shape]:
        frame_bytes = len(frames(body, 1)) // frame_count
        sizes += [frame_bytes] * frame_count * count
    ends = list(accumulate(sizes))
    start = 0
    handled = []
    while start < len(read):
        end = start + (first_chunk_bytes(read[start:], LOOP_LIMITS) or len(read) - start)
        handled.append(bisect_right(ends, end) - bisect_right(ends, start))
        start = end
    assert sum(handled) == len(ends)
    assert all(count <= 8_192 for count in handled[:-1]), handled
    assert handled[-1] <= 12_288 + 2_048, handled
