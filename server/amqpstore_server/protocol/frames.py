"""Frames to send: type, channel, payload size, payload, frame-end (section 4.2.3)."""

from __future__ import annotations

import struct
from typing import Final

from amqpstore_server.protocol.spec import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
)

_FRAME = struct.Struct(">BHI")
_ACK = struct.Struct(">BHIHHQBB")
_END = bytes((FRAME_END,))

OVERHEAD_BYTES: Final = _FRAME.size + len(_END)
"""The bytes of a frame around its payload. The frame-max includes them."""


def method_frame(channel: int, payload: bytes) -> bytes:
    """Encode a whole method frame."""
    return _FRAME.pack(FRAME_METHOD, channel, len(payload)) + payload + _END


def ack_frame(channel: int, delivery_tag: int, *, multiple: bool) -> bytes:
    """Encode a whole basic.ack, the method that publishers get most often."""
    return _ACK.pack(FRAME_METHOD, channel, 13, 60, 80, delivery_tag, multiple, FRAME_END)


def header_frame(channel: int, payload: bytes) -> bytes:
    """Encode a whole content header frame."""
    return _FRAME.pack(FRAME_HEADER, channel, len(payload)) + payload + _END


def body_frames(channel: int, body: bytes, frame_max: int) -> list[bytes | memoryview]:
    """Return the parts that, joined, are a body's frames; empty for an empty body.

    The body is not copied: a body that is split is returned as views of it.

    Args: frame_max, the most bytes of a frame with its overhead; 0 means no limit.
    Raises: ValueError for a frame_max that leaves no room for a body.
    """
    if not body:
        return []
    size = len(body)
    largest = frame_max - OVERHEAD_BYTES if frame_max else size
    if largest <= 0:
        raise ValueError(f"a frame-max of {frame_max} bytes leaves no room for a body")
    if size <= largest:
        return [_FRAME.pack(FRAME_BODY, channel, size), body, _END]
    view = memoryview(body)
    parts: list[bytes | memoryview] = []
    for offset in range(0, size, largest):
        chunk = view[offset : offset + largest]
        parts += (_FRAME.pack(FRAME_BODY, channel, len(chunk)), chunk, _END)
    return parts


HEARTBEAT_FRAME: Final = _FRAME.pack(FRAME_HEARTBEAT, 0, 0) + _END
