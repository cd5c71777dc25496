"""Acks of one read: clients ack each delivery with a frame of its own, and most often with the next
tag. A run of such frames is unpacked in one go, and becomes one event.
"""

from __future__ import annotations

import struct

from amqpstore_server.protocol.contents import UnfinishedContents
from amqpstore_server.protocol.events import Acks, Event, MoreFrames
from amqpstore_server.protocol.methods import BasicAck
from amqpstore_server.protocol.spec import FRAME_END, FRAME_METHOD

ACK = struct.pack(">HH", BasicAck.class_id, BasicAck.method_id)
"""The beginning of each basic.ack's payload."""

_ACK_FRAME = struct.Struct(">BH8sQBB")
"""Kind and channel, what is the same in all of them, the tag, `multiple`, and the frame-end."""
_ACK_START = struct.pack(">I", 13) + ACK


def receive_acks(
    content: bytes, offset: int, events: list[Event | MoreFrames], contents: UnfinishedContents
) -> int:
    """Add the basic.acks that follow each other from an offset on to the events.

    Returns the offset behind them. Whatever is wrong or only rare is left to the caller.
    """
    last = events[-1] if events else None
    acks = last if type(last) is Acks else None
    whole = (len(content) - offset) // _ACK_FRAME.size * _ACK_FRAME.size
    frames = _ACK_FRAME.iter_unpack(memoryview(content)[offset : offset + whole])
    for kind, channel, start, tag, multiple, end in frames:
        if kind != FRAME_METHOD or start != _ACK_START or end != FRAME_END or multiple > 1:
            break
        if contents and channel in contents:
            break
        if (
            acks is not None
            and acks.last + 1 == tag
            and acks.channel == channel
            and not (multiple or acks.multiple)
        ):
            acks.last = tag
        elif not channel:
            break
        else:
            acks = Acks(channel, tag, tag, multiple=multiple == 1)
            events.append(acks)
        offset += _ACK_FRAME.size
    return offset
