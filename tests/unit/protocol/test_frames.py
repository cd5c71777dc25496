"""Frames to send, and how a body is split."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpstore_server.protocol.frames import (
    HEARTBEAT_FRAME,
    OVERHEAD_BYTES,
    body_frames,
    header_frame,
    method_frame,
)


def test_frames_byte_for_byte() -> None:
    assert method_frame(258, b"ab") == b"\x01\x01\x02\x00\x00\x00\x02ab\xce"
    assert header_frame(1, b"ab") == b"\x02\x00\x01\x00\x00\x00\x02ab\xce"
    assert b"".join(body_frames(1, b"ab", 0)) == b"\x03\x00\x01\x00\x00\x00\x02ab\xce"
    assert HEARTBEAT_FRAME == b"\x08\x00\x00\x00\x00\x00\x00\xce"


def test_an_empty_body_has_no_frames() -> None:
    assert body_frames(1, b"", 4096) == []
    assert body_frames(1, b"", 0) == []


def test_a_body_that_fills_its_frame_is_not_split() -> None:
    body = bytes(4096 - OVERHEAD_BYTES)
    frames = b"".join(body_frames(1, body, 4096))
    assert len(frames) == 4096
    split = b"".join(body_frames(1, body + b"x", 4096))
    assert split == frames + b"\x03\x00\x01\x00\x00\x00\x01x\xce"


@pytest.mark.parametrize("frame_max", [1, OVERHEAD_BYTES])
def test_a_frame_max_without_room_is_a_value_error(frame_max: int) -> None:
    with pytest.raises(ValueError, match="no room"):
        body_frames(1, b"a", frame_max)


@given(
    st.binary(max_size=200),
    st.just(0) | st.integers(OVERHEAD_BYTES + 1, 60),
    st.integers(0, 65535),
)
def test_the_frames_of_a_body_join_to_the_body(body: bytes, frame_max: int, channel: int) -> None:
    stream = b"".join(body_frames(channel, body, frame_max))
    joined = b""
    while stream:
        frame_type, of_channel, size = struct.unpack_from(">BHI", stream)
        assert (frame_type, of_channel) == (3, channel)
        assert size > 0
        assert not frame_max or size + OVERHEAD_BYTES <= frame_max
        joined += stream[7 : 7 + size]
        assert stream[7 + size] == 0xCE
        stream = stream[size + OVERHEAD_BYTES :]
    assert joined == body
