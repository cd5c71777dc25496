"""Encodes messages for clients as frames. A delivery reuses the bytes of properties and body as
they arrived.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from amqpstore import Envelope, Message, Run
from amqpstore_server.broker.messages.envelope import BLIND, visible
from amqpstore_server.broker.messages.shortening import shortened
from amqpstore_server.clients.outbox import Outbox
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.frames import body_frames, header_frame, method_frame
from amqpstore_server.protocol.spec import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_METHOD,
    ReplyCode,
)

_BASIC = 60
_DELIVER = struct.pack(">HH", methods.BasicDeliver.class_id, methods.BasicDeliver.method_id)
_FRAME = struct.Struct(">BHI")
_CONTENT = struct.Struct(">HHQ")
_CONTENT_FRAME = struct.Struct(">BHIHHQ")
"""A frame's start, and what the payload of a content header begins with."""
_HEADER_BYTES = 8 + _CONTENT.size
"""The bytes of a frame besides the properties."""
_BODY_FRAME = struct.Struct(">BBHI")
"""The end of the frame before, and a frame's start."""
_END = bytes([FRAME_END])
_TAG = struct.Struct(">Q")


def content_header(message: Message, limit: int) -> bytes:
    """Return the payload of a message's content header frame. Args: limit, as of `add_content`."""
    properties = visible(message.envelope.properties)
    if limit and len(properties) > limit - _HEADER_BYTES:
        properties = shortened(properties, limit - _HEADER_BYTES)
    return _CONTENT.pack(_BASIC, 0, len(message.body)) + properties


def add_content(outbox: Outbox, channel: int, method: bytes, message: Message, limit: int) -> None:
    """Add a method, given as payload, with a message as its content, in frames of at most `limit`
    bytes, 0 for any.
    """
    outbox.add(method_frame(channel, method))
    outbox.add(header_frame(channel, content_header(message, limit)))
    _add_body(outbox, channel, message.body, limit)


def add_returns(
    outbox: Outbox, channel: int, code: ReplyCode, messages: Iterable[Message], limit: int
) -> None:
    """Add a basic.return for each of some messages. Args: limit, as of `add_content`."""
    for message in messages:
        envelope = message.envelope
        method = methods.BasicReturn(
            reply_code=code,
            reply_text=code.name,
            exchange=envelope.exchange,
            routing_key=envelope.routing_key,
        )
        add_content(outbox, channel, method.encode(), message, limit)


def add_fetched(
    outbox: Outbox, channel: int, tag: int, run: Run, message_count: int, limit: int
) -> None:
    """Add the basic.get-ok of the only message of a run.

    Args: message_count, of the messages that are left in its queue; limit, as of `add_content`.
    """
    assert run.messages is not None  # a run that was taken is in memory
    (message,) = run.messages
    method = methods.BasicGetOk(
        delivery_tag=tag,
        redelivered=bool(run.delivery_count),
        exchange=message.envelope.exchange,
        routing_key=message.envelope.routing_key,
        message_count=message_count,
    )
    add_content(outbox, channel, method.encode(), message, limit)


def _add_body(outbox: Outbox, channel: int, body: bytes, limit: int) -> None:
    for frame in body_frames(channel, body, limit):
        outbox.chunks.append(frame)
        outbox.byte_count += len(frame)


def add_deliveries(
    outbox: Outbox, channel: int, consumer_tag: bytes, first_tag: int, run: Run, limit: int
) -> None:
    """Add a basic.deliver for each message of a run, under ascending tags from `first_tag` on.

    Args: consumer_tag, as short string with its length; limit, the frame-max, 0 for none.
    """
    messages = run.messages
    assert messages is not None  # a run that was taken is in memory
    outbox.begin()
    chunks = outbox.chunks
    extend = chunks.extend
    join = b"".join
    pack_tag = _TAG.pack
    pack_content = _CONTENT_FRAME.pack
    pack_body = _BODY_FRAME.pack
    redelivered = b"\x01" if run.delivery_count else b"\x00"
    largest = limit - 8 if limit else 1 << 62
    exchange = routing_key = None
    envelope: Envelope | None = None
    size = -1
    byte_count = overhead = 0
    before = after_tag = after = b""
    for tag, message in enumerate(messages, first_tag):
        body = message.body
        if message.envelope is not envelope or len(body) != size:
            envelope = message.envelope
            size = len(body)
            if envelope.routing_key != routing_key or envelope.exchange != exchange:
                exchange, routing_key = envelope.exchange, envelope.routing_key
                before, after_tag = _around_tag(
                    channel, consumer_tag, redelivered, exchange, routing_key
                )
            properties = envelope.properties
            if BLIND in properties:
                properties = visible(properties)
            content_bytes = _CONTENT.size + len(properties)
            # A content header is one frame (section 4.2.6.1), and this client's frame-max may be
            # smaller than the publisher's.
            if content_bytes > largest:
                properties = shortened(properties, largest - _CONTENT.size)
                content_bytes = _CONTENT.size + len(properties)
            content = pack_content(FRAME_HEADER, channel, content_bytes, _BASIC, 0, size)
            end = pack_body(FRAME_END, FRAME_BODY, channel, size) if 0 < size <= largest else _END
            after = join((after_tag, content, properties, end))
            overhead = len(before) + 8 + len(after) + 1
        if 0 < size <= largest:
            extend((before, pack_tag(tag), after, body, _END))
            byte_count += overhead + size
        else:
            extend((before, pack_tag(tag), after))
            byte_count += overhead - 1
            _add_body(outbox, channel, body, limit)
    outbox.byte_count += byte_count


def _around_tag(
    channel: int, consumer_tag: bytes, redelivered: bytes, exchange: str, routing_key: str
) -> tuple[bytes, bytes]:
    """Return the bytes of a basic.deliver before its tag, and those after it."""
    name, key = exchange.encode(), routing_key.encode()
    names = b"%c%b%c%b" % (len(name), name, len(key), key)
    size = 4 + len(consumer_tag) + 9 + len(names)
    before = _FRAME.pack(FRAME_METHOD, channel, size) + _DELIVER + consumer_tag
    return before, redelivered + names + _END
