"""Encodes runs of messages as frames. A delivery reuses the bytes of properties and body as they
arrived.
"""

from __future__ import annotations

import struct

from amqpstore import Envelope, Message, Run
from amqpstore_server.amqp.outbox import Outbox
from amqpstore_server.broker.messages.envelope import visible
from amqpstore_server.protocol.frames import body_frames, header_frame, method_frame
from amqpstore_server.protocol.methods import BasicDeliver
from amqpstore_server.protocol.spec import FRAME_BODY, FRAME_END, FRAME_HEADER, FRAME_METHOD

_BASIC = 60
_DELIVER = struct.pack(">HH", BasicDeliver.class_id, BasicDeliver.method_id)
_FRAME = struct.Struct(">BHI")
_CONTENT = struct.Struct(">HHQ")
_END = bytes([FRAME_END])
_TAG = struct.Struct(">Q")


def content_header(message: Message) -> bytes:
    """Return the payload of a message's content header frame."""
    return _CONTENT.pack(_BASIC, 0, len(message.body)) + visible(message.envelope.properties)


def add_content(outbox: Outbox, channel: int, method: bytes, message: Message, limit: int) -> None:
    """Add a method, given as payload, with a message as its content, in frames of at most `limit`
    bytes.
    """
    outbox.add(method_frame(channel, method))
    outbox.add(header_frame(channel, content_header(message)))
    _add_body(outbox, channel, message.body, limit)


def _add_body(outbox: Outbox, channel: int, body: bytes, limit: int) -> None:
    for part in body_frames(channel, body, limit):
        outbox.parts.append(part)
        outbox.byte_count += len(part)


def add_deliveries(
    outbox: Outbox, channel: int, consumer_tag: bytes, first_tag: int, run: Run, limit: int
) -> None:
    """Add a basic.deliver for each message of a run, under ascending tags from `first_tag` on.

    Args: consumer_tag, as short string with its length; limit, the frame-max, 0 for none.
    """
    messages = run.messages
    assert messages is not None  # a run that was taken is in memory
    outbox.begin()
    parts = outbox.parts
    extend = parts.extend
    pack_tag = _TAG.pack
    redelivered = b"\x01" if run.delivery_count else b"\x00"
    largest = limit - 8 if limit else 1 << 62
    envelope: Envelope | None = None
    size = -1
    overhead = 0
    byte_count = 0
    before = after = b""
    tag = first_tag
    for message in messages:
        body = message.body
        if message.envelope is not envelope or len(body) != size:
            envelope = message.envelope
            size = len(body)
            before, after = _around_tag(channel, consumer_tag, redelivered, message, largest)
            overhead = len(before) + 8 + len(after) + 1
        if 0 < size <= largest:
            extend((before, pack_tag(tag), after, body, _END))
            byte_count += overhead + size
        else:
            extend((before, pack_tag(tag), after))
            byte_count += overhead - 1
            _add_body(outbox, channel, body, limit)
        tag += 1
    outbox.byte_count += byte_count


def _around_tag(
    channel: int, consumer_tag: bytes, redelivered: bytes, message: Message, largest: int
) -> tuple[bytes, bytes]:
    """Return the bytes of a delivery before its tag, and those after it up to the end of a body
    that fits in one frame.
    """
    envelope = message.envelope
    exchange = envelope.exchange.encode()
    routing_key = envelope.routing_key.encode()
    size = 4 + len(consumer_tag) + 9 + 1 + len(exchange) + 1 + len(routing_key)
    before = _FRAME.pack(FRAME_METHOD, channel, size) + _DELIVER + consumer_tag
    header = content_header(message)
    after = [
        redelivered,
        bytes([len(exchange)]),
        exchange,
        bytes([len(routing_key)]),
        routing_key,
        _END,
        _FRAME.pack(FRAME_HEADER, channel, len(header)),
        header,
        _END,
    ]
    if 0 < len(message.body) <= largest:
        after.append(_FRAME.pack(FRAME_BODY, channel, len(message.body)))
    return before, b"".join(after)
