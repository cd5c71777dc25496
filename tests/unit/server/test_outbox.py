"""The outbox: what it joins, what it leaves where it is, and how much it gives at a time."""

import pytest

from amqpstore_server.clients.outbox import Outbox

MAX_BUFFERS = 1024
"""The most buffers that sendmsg(2) takes."""


def filled(parts: list[bytes]) -> Outbox:
    outbox = Outbox(lambda: None)
    outbox.begin()
    outbox.chunks += parts
    outbox.byte_count += sum(map(len, parts))
    return outbox


def test_large_bodies_are_not_copied() -> None:
    bodies = [bytes(65_536) for _ in range(4)]
    parts = [part for body in bodies for part in (b"before", b"12345678", b"after", body, b"\xce")]
    [*buffers] = filled(parts).next_buffers()
    assert [buffer for buffer in buffers if len(buffer) > 8] == bodies
    assert {id(body) for body in bodies} <= {id(buffer) for buffer in buffers}


def test_small_parts_are_joined() -> None:
    parts = [b"before", b"12345678", b"after", bytes(1024), b"\xce"] * 100
    assert filled(parts).next_buffers() == [b"".join(parts)]


@pytest.mark.parametrize(
    "parts",
    [
        [b"x"] * 5000 + [bytes(64 << 20)],
        [b"x" * 100, bytes(100_000)] * 100,
        [b"x" * 2048] * 5000,
        [b"x" * 10] * 200_000,
    ],
)
def test_everything_is_sent_in_order_in_as_many_buffers_as_linux_takes(parts: list[bytes]) -> None:
    outbox = filled(parts)
    sent = []
    while outbox.byte_count:
        buffers = outbox.next_buffers()
        assert 0 < len(buffers) <= MAX_BUFFERS
        assert sum(map(len, buffers[:-1])) <= 1 << 20
        sent += buffers
    assert b"".join(sent) == b"".join(parts)
