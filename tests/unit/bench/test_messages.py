"""Blocks of encoded messages: what they contain, and that varied ones all differ."""

from typing import Any

import pytest

from amqpstore_server.protocol.content import decode_properties
from amqpstore_tools.bench.messages import AlikeBlock, MessageBlock, VariedBlock, block_of
from amqpstore_tools.client import frames

OPTIONS: Any = {"size": 40, "persistent": True, "frame_max": 4096}
ROUTES = [("", "q-0"), ("", "q-1"), ("", "q-2")]


def split(octets: bytes, block: MessageBlock) -> list[bytes]:
    """Return the messages in what was taken."""
    size = block.message_bytes
    return [octets[at : at + size] for at in range(0, len(octets), size)]


def frames_of(message: bytes) -> list[bytes]:
    """The payloads of a message: method, header, body."""
    found = list(frames.whole_frames(message, 0, len(message)))
    return [message[frame.payload : frame.end - 1] for frame in found]


@pytest.mark.parametrize("vary", [False, True])
def test_a_block_takes_its_routes_in_turn(vary: bool) -> None:
    block = block_of(ROUTES, vary=vary, **OPTIONS)
    assert block.messages % 3 == 0
    assert len(block.octets) == block.messages * block.message_bytes
    for index, message in enumerate(split(bytes(block.octets), block)):
        assert f"q-{index % 3}".encode() in message


def test_a_block_of_large_messages_holds_one() -> None:
    block = AlikeBlock([("", "q")], size=1 << 20, persistent=True, frame_max=131072)
    assert block.messages == 1


@pytest.mark.parametrize("vary", [False, True])
def test_a_block_refuses_routes_of_different_length(vary: bool) -> None:
    with pytest.raises(ValueError, match="equally long"):
        block_of([("", "a"), ("", "ab")], vary=vary, **OPTIONS)


def test_messages_alike_differ_in_their_route_alone() -> None:
    block = AlikeBlock([("", "q")], **OPTIONS)
    assert len(set(split(block.take(3 * block.messages), block))) == 1


def test_varied_messages_never_repeat_in_id_trace_or_body() -> None:
    block = VariedBlock(ROUTES, **OPTIONS)
    total = 40 * block.messages + 1  # so that two digits of the round change
    messages = [frames_of(message) for message in split(block.take(total), block)]
    assert len(messages) == total
    assert len({body for _, _, body in messages}) == total
    headers = [decode_properties(header[12:]) for _, header, _ in messages[:: block.messages // 7]]
    assert len({properties.message_id for properties in headers}) == len(headers)
    traces = {str((properties.headers or {})["traceparent"]) for properties in headers}
    assert len(traces) == len(headers)
    assert {len(trace) for trace in traces} == {55}
    assert {(properties.headers or {})["attempt"] for properties in headers} == set(range(7))
    assert {properties.delivery_mode for properties in headers} == {2}


def test_a_message_of_each_size_is_whole_and_varied() -> None:
    for size in (0, 1, 7, 24, 100, 300_000):
        block = VariedBlock([("", "q")], size=size, persistent=False, frame_max=131_072)
        for message in split(block.take(block.messages + 1), block)[-1:]:
            _, header, *bodies = frames_of(message)
            assert sum(map(len, bodies)) == size
            assert decode_properties(header[12:]).delivery_mode == 1


def test_the_timestamp_is_that_of_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    times_s = [1_800_000_000.9]
    monkeypatch.setattr("time.time", lambda: times_s[-1])
    block = VariedBlock([("", "q")], **OPTIONS)
    found = []
    for time_s in (1_800_000_000.9, 1_800_000_001.1, 1_800_000_256.0):
        times_s.append(time_s)
        block.take(block.messages)
        found.append(decode_properties(frames_of(block.take(1))[1][12:]).timestamp)
        block.take(block.messages - 1)
    assert found == [1_800_000_000, 1_800_000_001, 1_800_000_256]


def test_producers_tell_their_messages_apart() -> None:
    one, other = VariedBlock([("", "q")], **OPTIONS), VariedBlock([("", "q")], **OPTIONS)
    ids = {decode_properties(frames_of(block.take(1))[1][12:]).message_id for block in (one, other)}
    assert len(ids) == 2
