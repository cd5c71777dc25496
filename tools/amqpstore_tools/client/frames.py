"""Reads frame by frame, for everything but the hot path, and finds frames that end a run."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from amqpstore_tools.client import wire
from amqpstore_tools.client.errors import PeerError


class Frame(NamedTuple):
    """One frame in a buffer; offsets are in bytes from the buffer's start."""

    kind: int
    channel: int
    start: int
    payload: int
    end: int  # of the whole frame, one past its end octet


def whole_frames(buffer: bytes | bytearray, at: int, limit: int) -> Iterator[Frame]:
    """Yield the whole frames in `buffer[at:limit]`; stop silently at an incomplete frame.

    Raises:
        PeerError: what lies there is not a frame.
    """
    while at + 7 <= limit:
        kind, channel, length = wire.type_channel_length.unpack_from(buffer, at)
        end = at + length + wire.FRAME_OVERHEAD_BYTES
        if kind not in (wire.METHOD, wire.HEADER, wire.BODY, wire.HEARTBEAT):
            raise PeerError(f"the broker sent a frame of unknown type {kind}")
        if end > limit:
            return
        if buffer[end - 1] != wire.FRAME_END:
            raise PeerError(f"the broker sent a frame of type {kind} without its end octet 0xCE")
        yield Frame(kind, channel, at, at + 7, end)
        at = end


def method_of(buffer: bytes | bytearray, frame: Frame) -> wire.MethodId | None:
    """Return class and method of a method frame, None for any other frame."""
    if frame.kind != wire.METHOD:
        return None
    class_id, method_id = struct.unpack_from(">HH", buffer, frame.payload)
    return class_id, method_id


def arguments_of(buffer: bytes | bytearray, frame: Frame) -> bytes:
    """Return the encoded arguments of a method frame."""
    return bytes(buffer[frame.payload + 4 : frame.end - 1])


def raise_if_fatal(buffer: bytes | bytearray, frame: Frame) -> None:
    """Raise if the frame is a close, a return or a consumer cancel of the broker.

    Raises:
        PeerError: it is; with the broker's own reply code and text.
    """
    found = method_of(buffer, frame)
    if found in (wire.CONNECTION_CLOSE, wire.CHANNEL_CLOSE, wire.BASIC_RETURN):
        arguments = arguments_of(buffer, frame)
        code = int.from_bytes(arguments[:2], "big")
        text, _ = wire.read_short_string(arguments, 2)
        what = {
            wire.CONNECTION_CLOSE: "closed the connection",
            wire.CHANNEL_CLOSE: "closed the channel",
            wire.BASIC_RETURN: "returned a message as unroutable",
        }[found]
        raise PeerError(f"the broker {what}: {code} {text}")
    if found == wire.BASIC_CANCEL:
        raise PeerError("the broker cancelled the consumer; its queue may have been deleted")
