"""Receiving: takes the bytes of one read, returns what they contain, in batches.

The hot path of the whole broker starts here, so it works on reads, not on frames: publishes that
repeat the bytes of the one before, except the body, are recognised by one comparison; what was
decoded once is not decoded again; consecutive publishes of a channel, and acks of contiguous tags,
are returned as one event each.

Past 600 lines because the ways over whole reads and the one frame by frame have to agree on every
octet, and share what is unfinished.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from amqpstore_server.protocol.content import ContentHeader, decode_counted_header
from amqpstore_server.protocol.errors import (
    AmqpError,
    ChannelError,
    CommandInvalid,
    ContentTooLarge,
    FatalFramingError,
    FrameError,
    PreconditionFailed,
    UnexpectedFrame,
)
from amqpstore_server.protocol.events import (
    Acks,
    Event,
    Failed,
    MoreFrames,
    Publishes,
    ReceivedMethod,
    Target,
)
from amqpstore_server.protocol.methods import (
    BasicAck,
    BasicPublish,
    ChannelClose,
    ChannelCloseOk,
    decode_method,
)
from amqpstore_server.protocol.partial_body import PartialBody
from amqpstore_server.protocol.shapes import NO_SHAPE, Shapes
from amqpstore_server.protocol.spec import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
)
from amqpstore_server.protocol.targets import Targets

_FRAME = struct.Struct(">BHI")
_TAG = struct.Struct(">Q")

_ACK = struct.pack(">HH", BasicAck.class_id, BasicAck.method_id)
_PUBLISH = struct.pack(">HH", BasicPublish.class_id, BasicPublish.method_id)
_ACK_FRAME = struct.Struct(">BH8sQBB")
"""Kind and channel, what is the same in all of them, the tag, `multiple`, and the frame-end."""
_ACK_START = struct.pack(">I", 13) + _ACK
_CLOSES = {
    struct.pack(">HH", method.class_id, method.method_id)
    for method in (ChannelClose, ChannelCloseOk)
}
"""Methods that may come in the middle of a content, whose rest then never comes."""

_CACHED_HEADERS = 1024
_CACHED_HEADERS_BYTES = 256 << 10
"""The number and size of remembered headers of each connection; beyond them they are cleared."""

_LARGE_BYTES = 16 << 10

_SMALL_METHOD_BYTES = 512
"""A method of more may have as many entries as it has bytes, and so may what is refused."""

_MAX_ENTRIES = 8192
"""The number of entries of tables after which the rest of a read is left to the next call, as it
may have hundreds of thousands: to check this number takes a millisecond. What was recognised by its
shape does not count.
"""


@dataclass(slots=True)
class _Content:
    """A publish whose header, or the rest of whose body, has not arrived yet."""

    target: Target
    publish_payload: bytes
    header: ContentHeader | None = None
    header_payload: bytes = b""
    is_header_known: bool = False
    received_bytes: int = 0
    refused: bool = False


@dataclass(slots=True)
class _OpenFrame:
    """A body frame of which some bytes of the payload, or only the frame-end, have not arrived."""

    channel: int
    missing_bytes: int


class _Repeated(NamedTuple):
    """A publish in three frames that is likely to be repeated: all its bytes up to the body."""

    prefix: bytes
    channel: int
    target: Target
    header: ContentHeader


class Receiver:
    """The receiving half of an open connection.

    Args: frame_max, bytes of the largest payload the peer may send; max_message_bytes, the
    largest body accepted: a larger one is refused (311), skipped and costs no memory; large_bytes,
    the payload from which on a body frame is taken in as it arrives. Any other frame waits until it
    is whole, as little is copied to join it to the next read.
    """

    def __init__(
        self, frame_max: int, max_message_bytes: int, large_bytes: int = _LARGE_BYTES
    ) -> None:
        self.frame_max = frame_max
        """Changes with the tune handshake."""
        self._max_message_bytes = max_message_bytes
        self._large_bytes = large_bytes
        self._rest = b""
        self.contents: dict[int, _Content] = {}
        self._bodies: dict[int, PartialBody] = {}
        self._bodies_bytes = 0
        self._open_frame: _OpenFrame | None = None
        self._targets = Targets()
        self._headers: dict[bytes, ContentHeader] = {}
        self._headers_bytes = 0
        self._shapes = Shapes()
        self._last_shape = NO_SHAPE
        self._discards = False
        self._repeated: _Repeated | None = None
        self.entry_count = 0
        """Entries of tables that the last call has looked at, about."""
        self.is_lost = False
        """Whether the frame boundaries are lost: nothing is received any more."""
        self._events: list[Event | MoreFrames] = []

    @property
    def unfinished_bytes(self) -> int:
        """Memory of contents that are not complete yet, with their headers."""
        if not self.contents:
            return 0
        headers = [len(content.header_payload) for content in self.contents.values()]
        return self._bodies_bytes + 2 * sum(headers)

    def free_caches(self) -> None:
        """Forget what only saves time."""
        self._targets = Targets()
        self._headers = {}
        self._headers_bytes = 0
        self._shapes = Shapes()
        self._repeated = None

    def receive(self, read: bytes) -> list[Event | MoreFrames]:
        """Return the events that these bytes complete, in order. Nothing, once `is_lost`.

        The last is MoreFrames if there are too many for one call: the next may be without bytes.
        """
        self._events = []
        self.entry_count = 0
        if self.is_lost:
            return self._events
        content = self._rest + read if self._rest else read
        try:
            offset = self._frames(content, self._continued(content) if self._open_frame else 0)
        except (FrameError, FatalFramingError) as error:
            self.is_lost = True
            self._fail(0, error)
            return self._events
        self._rest = content[offset:]
        return self._events

    def _frames(self, content: bytes, offset: int) -> int:
        """Handle every whole frame from an offset on, and the beginning of a large body frame.

        Returns the offset of the first byte that was not handled.
        """
        size = len(content)
        while size - offset >= _FRAME.size:
            if self.entry_count > _MAX_ENTRIES:
                self._events.append(MoreFrames())
                break
            repeated = self._repeated
            if repeated and content.startswith(repeated.prefix, offset) and not self.contents:
                offset, is_whole = self._repeats(repeated, content, offset)
                if is_whole:
                    continue
                if repeated.header.body_size < self._large_bytes:
                    break
            if content.startswith(_ACK, offset + _FRAME.size):
                offset = self._acks(content, offset)
            elif not self.contents:
                offset = self._whole_publishes(content, offset)
            if size - offset < _FRAME.size:
                break
            frame_type, channel, payload_bytes = _FRAME.unpack_from(content, offset)
            self._check(frame_type, payload_bytes)
            payload_offset = offset + 7
            end = payload_offset + payload_bytes
            if end >= size:
                if (
                    frame_type == FRAME_BODY
                    and payload_bytes >= self._large_bytes
                    and self._is_expected(channel, payload_bytes)
                ):
                    self._open_frame = _OpenFrame(channel, end - size)
                    self._collect(channel, memoryview(content)[payload_offset:])
                    return size
                break
            if content[end] != FRAME_END:
                raise FatalFramingError(f"a frame ends with {content[end]:#04x}, not with 0xce")
            self._frame(frame_type, channel, content, payload_offset, end)
            offset = end + 1
        return offset

    def _check(self, frame_type: int, payload_bytes: int) -> None:
        """Check the start of a frame. Raises: FatalFramingError, FrameError."""
        if not FRAME_METHOD <= frame_type <= FRAME_BODY and frame_type != FRAME_HEARTBEAT:
            raise FatalFramingError(f"frame type {frame_type} does not exist")
        # The frame-max includes the 8 bytes around a payload; clients that exclude them are
        # tolerated.
        if payload_bytes > self.frame_max:
            raise FrameError(
                f"a frame with a payload of {payload_bytes} bytes is larger than the agreed "
                f"frame-max, {self.frame_max}"
            )

    def _acks(self, content: bytes, offset: int) -> int:
        """Handle basic.acks, as many as follow each other: clients ack each delivery with a frame
        of its own.

        Returns the offset behind them. Whatever is wrong or only rare is left to the caller.
        """
        events, contents = self._events, self.contents
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

    def _is_expected(self, channel: int, payload_bytes: int) -> bool:
        """Tell whether a body frame is a part of the channel's content."""
        content = self.contents.get(channel)
        return (
            content is not None
            and content.header is not None
            and content.received_bytes + payload_bytes <= content.header.body_size
        )

    def _continued(self, content: bytes) -> int:
        """Take in more of the open frame. Returns the offset behind it, or the end of the content
        if it is still incomplete.
        """
        frame = self._open_frame
        assert frame is not None  # the caller says so
        end = frame.missing_bytes
        if end >= len(content):
            frame.missing_bytes -= len(content)
            self._collect(frame.channel, content)
            return len(content)
        if content[end] != FRAME_END:
            raise FatalFramingError(f"a frame ends with {content[end]:#04x}, not with 0xce")
        self._open_frame = None
        self._body(frame.channel, memoryview(content)[:end])
        return end + 1

    def _frame(self, frame_type: int, channel: int, content: bytes, start: int, end: int) -> None:
        """Handle one frame, whole and of a known type, whose payload is from `start` to `end`."""
        try:
            if frame_type == FRAME_METHOD:
                self._method(channel, content[start:end])
            elif frame_type == FRAME_HEADER:
                self._header(channel, content[start:end])
            elif frame_type == FRAME_BODY:
                self._body(channel, memoryview(content)[start:end])
            elif channel:
                raise CommandInvalid(f"a heartbeat frame on channel {channel}")
        except AmqpError as error:
            self._abandon(channel)
            self._fail(0 if frame_type == FRAME_HEARTBEAT else channel, error)

    def _fail(self, channel: int, error: AmqpError | FatalFramingError) -> None:
        # Without its traceback, which refers to this receiver: it would never be freed.
        self._events.append(Failed(channel, error.with_traceback(None)))

    def _abandon(self, channel: int) -> None:
        """Drop the unfinished content of a channel."""
        self.contents.pop(channel, None)
        if body := self._bodies.pop(channel, None):
            self._bodies_bytes -= body.memory_bytes

    def discard_contents(self) -> None:
        """Skip all contents from now on, unfinished ones too: no one will use them."""
        self._discards = True
        self._repeated = None
        self._bodies.clear()
        self._bodies_bytes = 0
        for content in self.contents.values():
            content.refused = True
            content.header_payload = b""

    def _repeats(self, repeated: _Repeated, content: bytes, offset: int) -> tuple[int, bool]:
        """Handle consecutive publishes that differ from the last in nothing but the body.

        Returns the offset after them, and False if the last of them is incomplete.
        """
        prefix, channel, target, header = repeated
        before = len(prefix)
        body_bytes = header.body_size
        size = len(content)
        bodies: list[bytes] = []
        append = bodies.append
        startswith = content.startswith
        is_whole = True
        while startswith(prefix, offset):
            start = offset + before
            end = start + body_bytes
            if end >= size:
                is_whole = False
                break
            if content[end] != FRAME_END:
                raise FatalFramingError(f"a frame ends with {content[end]:#04x}, not with 0xce")
            append(content[start:end])
            offset = end + 1
        if bodies:
            publishes = self._column(channel, target)
            publishes.targets += [target] * len(bodies)
            publishes.headers += [header] * len(bodies)
            publishes.bodies += bodies
        return offset, is_whole

    def _whole_publishes(  # noqa: C901 - each call counts here
        self, content: bytes, offset: int
    ) -> int:
        """Handle publishes in three frames of which nothing is new but their addresses and values,
        as many as follow each other.

        Returns the offset behind them. Whatever else there is, wrong or only rare, is left to the
        caller, frame by frame. So is a body frame without a body: a header of size 0 ends its
        message, and no frame of it may follow.
        """
        if self._discards:
            return offset
        size = len(content)
        unpack = _FRAME.unpack_from
        target_of = self._targets.get
        from_bytes = int.from_bytes
        largest = min(self.frame_max, self._max_message_bytes)
        shape = self._last_shape
        is_last = False
        publishes: Publishes | None = None
        last: tuple[Target, int, bytes] | None = None
        end: int
        while offset + _FRAME.size <= size:
            kind, channel, method_bytes = unpack(content, offset)
            method_end = offset + 7 + method_bytes
            if kind != FRAME_METHOD or method_end + 8 > size:
                break
            payload = content[offset + 7 : method_end]
            target = target_of(payload) or self._targets.learn(payload)
            if target is None or not channel:
                break
            start = method_end + shape.middle_bytes
            # Of a part of it the first byte would be at another place.
            middle = from_bytes(content[method_end:start], "big")
            if middle & shape.middle_mask == shape.middle_bits:
                header_channel, body_bytes, body_channel, frame_bytes = shape.middle.unpack_from(
                    content, method_end
                )
                end = start + body_bytes
                if (
                    end >= size
                    or body_bytes != frame_bytes
                    or not channel == header_channel == body_channel
                    or content[end] != FRAME_END
                    or not 0 < body_bytes <= largest
                ):
                    break
                header = shape.header(content, method_end + 8, start - 8, body_bytes)
            elif parsed := self._of_other_shape(content, method_end, channel, largest):
                header, start, end = parsed
                shape = self._last_shape
                is_last = self.entry_count > _MAX_ENTRIES
            else:
                break
            if publishes is None or publishes.channel != channel:
                publishes = self._column(channel, target)
            elif target is not publishes.targets[-1]:
                publishes.is_mixed = True
            publishes.targets.append(target)
            publishes.headers.append(header)
            publishes.bodies.append(content[start:end])
            if last is None and end + 1 == size:
                return size  # alone in its read
            this = target, header.body_size, header.properties
            if this == last:
                # Not even the values are new: see `_repeats`.
                self._repeated = _Repeated(content[offset:start], channel, target, header)
                return end + 1
            last = this
            offset = end + 1
            if is_last:
                break
        return offset

    def _of_other_shape(
        self, content: bytes, method_end: int, channel: int, largest: int
    ) -> tuple[ContentHeader, int, int] | None:
        """Return the header behind a method, and where the body, whole in one frame, starts and
        ends; None if that is not what follows.
        """
        size = len(content)
        unpack = _FRAME.unpack_from
        kind, header_channel, header_bytes = unpack(content, method_end + 1)
        header_end = method_end + 8 + header_bytes
        if kind != FRAME_HEADER or header_end + 8 > size:
            return None
        kind, body_channel, body_bytes = unpack(content, header_end + 1)
        start = header_end + 8
        end = start + body_bytes
        if (
            kind != FRAME_BODY
            or end >= size
            or not channel == header_channel == body_channel
            or not content[method_end] == content[header_end] == content[end] == FRAME_END
            or not header_bytes <= largest >= body_bytes > 0
        ):
            return None
        payload = content[method_end + 8 : header_end]
        header = self._known_header(payload)
        if header is None:
            try:
                header = self._new_header(payload)
            except (AmqpError, FatalFramingError):
                return None
        return (header, start, end) if header.body_size == body_bytes else None

    def _known_header(self, payload: bytes) -> ContentHeader | None:
        """Return a header that is new in nothing but its values; None for any other."""
        shape = self._shapes.find(payload)
        if shape is None:
            return None
        self._last_shape = shape
        (body_size,) = _TAG.unpack_from(payload, 4)
        return shape.header(payload, 0, len(payload), body_size)

    def _new_header(self, payload: bytes) -> ContentHeader:
        """Decode a header, and remember its shape. Raises: AmqpError."""
        try:
            header, count = decode_counted_header(payload)
        except AmqpError:
            self.entry_count += len(payload)
            raise
        self.entry_count += count
        if header.class_id != BasicPublish.class_id:
            raise FrameError(
                f"a content header of class {header.class_id} behind a method of class "
                f"{BasicPublish.class_id}"
            )
        self._shapes.learn(payload)
        self._headers_bytes += len(payload)
        if len(self._headers) >= _CACHED_HEADERS or self._headers_bytes > _CACHED_HEADERS_BYTES:
            self._headers.clear()
            self._headers_bytes = len(payload)
        self._headers[payload] = header
        return header

    def _column(self, channel: int, target: Target) -> Publishes:
        """Return the event that a message of a channel belongs to: the last one, if that is of the
        same channel.
        """
        events = self._events
        if events:
            last = events[-1]
            if type(last) is Publishes and last.channel == channel:
                if last.targets[-1] is not target:
                    last.is_mixed = True
                return last
        publishes = Publishes(channel)
        events.append(publishes)
        return publishes

    def _method(self, channel: int, payload: bytes) -> None:
        start = payload[:4]
        if channel in self.contents:
            if start not in _CLOSES:
                raise UnexpectedFrame(f"a method on channel {channel} in the middle of a content")
            self._abandon(channel)
        if start == _PUBLISH and channel:
            target = self._targets.get(payload)
            if target is None:
                publish = decode_method(payload)
                assert isinstance(publish, BasicPublish)  # narrows the type; the ids say so
                target = self._targets.remember(payload, publish)
            self.contents[channel] = _Content(target, payload)
            return
        if payload[_SMALL_METHOD_BYTES:]:  # without a call
            self.entry_count += len(payload)
        method = decode_method(payload)
        if isinstance(method, BasicAck) and channel:
            tag = method.delivery_tag
            self._events.append(Acks(channel, tag, tag, multiple=method.multiple))
        else:
            self._events.append(ReceivedMethod(channel, method))

    def _header(self, channel: int, payload: bytes) -> None:
        if not channel:
            raise ChannelError("a content header on channel 0")
        content = self.contents.get(channel)
        if content is None or content.header is not None:
            raise UnexpectedFrame(f"a content header on channel {channel} that no method announced")
        header = self._headers.get(payload)
        if header is not None:
            content.is_header_known = True
        elif (header := self._known_header(payload)) is None:
            try:
                header = self._new_header(payload)
            except PreconditionFailed as too_large:
                self._refuse(channel, content, payload, too_large)
                return
        content.header = header
        content.header_payload = payload
        if self._discards:
            content.refused = True
            if not header.body_size:
                del self.contents[channel]
        elif header.body_size > self._max_message_bytes:
            content.refused = True
            error = ContentTooLarge(
                f"a body of {header.body_size} bytes is larger than the limit, "
                f"{self._max_message_bytes} bytes"
            )
            error.at(BasicPublish.class_id, BasicPublish.method_id)
            self._events.append(Failed(channel, error))
        elif not header.body_size:
            self._complete(channel, content, header, b"")

    def _refuse(
        self, channel: int, content: _Content, payload: bytes, error: PreconditionFailed
    ) -> None:
        """Skip a content whose properties are well-formed and too large."""
        (body_size,) = _TAG.unpack_from(payload, 4)
        content.header = ContentHeader(BasicPublish.class_id, body_size, b"", None)
        content.refused = True
        if not body_size:
            del self.contents[channel]
        if not self._discards:
            self._fail(channel, error.at(BasicPublish.class_id, BasicPublish.method_id))

    def _body(self, channel: int, payload: memoryview) -> None:
        """Handle a whole body frame, or the last part of one that was open."""
        if not channel:
            raise ChannelError("a content body on channel 0")
        content = self.contents.get(channel)
        if content is None or content.header is None:
            raise UnexpectedFrame(f"a content body on channel {channel} that no header announced")
        header = content.header
        missing_bytes = header.body_size - content.received_bytes - len(payload)
        if missing_bytes < 0:
            raise UnexpectedFrame(
                f"a content body of {header.body_size - missing_bytes} bytes, announced with "
                f"{header.body_size}"
            )
        if missing_bytes or content.received_bytes:
            self._collect(channel, payload)
            if missing_bytes:
                return
            body = self._bodies.pop(channel, None)
            if body is None:
                del self.contents[channel]  # it was refused
                return
            self._bodies_bytes -= body.memory_bytes
            self._complete(channel, content, header, body.whole())
        elif content.refused:
            del self.contents[channel]
        else:
            self._complete(channel, content, header, bytes(payload))
            if content.is_header_known:
                self._expect_repeats(channel, content, header)

    def _collect(self, channel: int, piece: bytes | memoryview) -> None:
        """Keep a piece of an incomplete body, unless the body was refused."""
        content = self.contents[channel]
        content.received_bytes += len(piece)
        if content.refused or not piece or content.header is None:
            return
        body = self._bodies.get(channel)
        if body is None:
            body = self._bodies[channel] = PartialBody(content.header.body_size)
        self._bodies_bytes -= body.memory_bytes
        body.add(piece)
        self._bodies_bytes += body.memory_bytes

    def _expect_repeats(self, channel: int, content: _Content, header: ContentHeader) -> None:
        prefix = b"".join(
            (
                _FRAME.pack(FRAME_METHOD, channel, len(content.publish_payload)),
                content.publish_payload,
                _END,
                _FRAME.pack(FRAME_HEADER, channel, len(content.header_payload)),
                content.header_payload,
                _END,
                _FRAME.pack(FRAME_BODY, channel, header.body_size),
            )
        )
        self._repeated = _Repeated(prefix, channel, content.target, header)

    def _complete(
        self, channel: int, content: _Content, header: ContentHeader, body: bytes
    ) -> None:
        del self.contents[channel]
        publishes = self._column(channel, content.target)
        publishes.targets.append(content.target)
        publishes.headers.append(header)
        publishes.bodies.append(body)


_END = bytes([FRAME_END])
