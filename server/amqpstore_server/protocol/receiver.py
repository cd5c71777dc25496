"""Receiving: takes the bytes of one read, returns what they contain, in batches.

The hot path of the whole broker starts here, so it works on reads, not on frames: `WholePublishes`
recognises publishes that repeat most of what came before, and `receive_acks` acks that follow each
other; what was decoded once is not decoded again; consecutive publishes of a channel, and acks of
contiguous tags, are returned as one event each. All else is handled frame by frame.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from amqpstore_server.protocol.acks import ACK, receive_acks
from amqpstore_server.protocol.contents import Content, UnfinishedContents
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
    MAX_ENTRIES,
    Acks,
    ContentHeader,
    Event,
    Failed,
    MoreFrames,
    ReadEvents,
    ReceivedMethod,
)
from amqpstore_server.protocol.headers import BODY_SIZE, Headers
from amqpstore_server.protocol.methods import (
    BasicAck,
    BasicPublish,
    ChannelClose,
    ChannelCloseOk,
    decode_method,
)
from amqpstore_server.protocol.spec import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
)
from amqpstore_server.protocol.targets import Targets
from amqpstore_server.protocol.whole_publishes import WholePublishes

_FRAME = struct.Struct(">BHI")

_PUBLISH = struct.pack(">HH", BasicPublish.class_id, BasicPublish.method_id)
_CLOSES = {
    struct.pack(">HH", method.class_id, method.method_id)
    for method in (ChannelClose, ChannelCloseOk)
}
"""Methods that may come in the middle of a content, whose rest then never comes."""

_LARGE_BYTES = 16 << 10

_SMALL_METHOD_BYTES = 512
"""A method of more may have as many entries as it has bytes, and so may what is refused."""


@dataclass(slots=True)
class _OpenFrame:
    """A body frame of which some bytes of the payload, or only the frame-end, have not arrived."""

    channel: int
    missing_bytes: int


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
        self.received = ReadEvents()
        """The events of the last read."""
        self.contents = UnfinishedContents()
        self.is_lost = False
        """Whether the frame boundaries are lost: nothing is received any more."""
        self._max_message_bytes = max_message_bytes
        self._large_bytes = large_bytes
        self._rest = b""
        self._open_frame: _OpenFrame | None = None
        self._targets = Targets()
        self._headers = Headers(self.received)
        self._publishes = WholePublishes(self._targets, self._headers, self.received)
        self._is_discarding = False
        self.tune(frame_max)

    def tune(self, frame_max: int) -> None:
        """Change the frame-max to that of the tune handshake."""
        self._frame_max = frame_max
        self._publishes.max_bytes = min(frame_max, self._max_message_bytes)

    def free_caches(self) -> None:
        """Forget what only saves time."""
        self._targets.clear()
        self._headers.free()
        self._publishes.repeated = None

    def discard_contents(self) -> None:
        """Skip all contents from now on, unfinished ones too: they are of no use any more."""
        self._is_discarding = True
        self._publishes.repeated = None
        self.contents.refuse_all()

    def receive(self, read: bytes) -> list[Event | MoreFrames]:
        """Return the events that these bytes complete, in order. Nothing, once `is_lost`.

        The last is MoreFrames if there are too many for one call: the next may be without bytes.
        """
        received = self.received
        received.events = []
        received.entry_count = 0
        if self.is_lost:
            return received.events
        content = self._rest + read if self._rest else read
        try:
            offset = self._frames(content, self._continued(content) if self._open_frame else 0)
        except (FrameError, FatalFramingError) as error:
            # Where the next frame begins cannot be known: any byte could be read as a method.
            self.is_lost = True
            received.add_failed(0, error)
            return received.events
        self._rest = content[offset:]
        return received.events

    def _frames(self, content: bytes, offset: int) -> int:
        """Handle every whole frame from an offset on, and the beginning of a large body frame.

        Returns the offset of the first byte that was not handled.
        """
        size = len(content)
        received = self.received
        contents = self.contents
        publishes = self._publishes
        while size - offset >= _FRAME.size:
            if received.entry_count > MAX_ENTRIES:
                received.events.append(MoreFrames())
                break
            repeated = publishes.repeated
            if repeated and content.startswith(repeated.prefix, offset) and not contents:
                offset, is_whole = publishes.receive_repeated(repeated, content, offset)
                if is_whole:
                    continue
                if repeated.header.body_size < self._large_bytes:
                    break
            if content.startswith(ACK, offset + _FRAME.size):
                offset = receive_acks(content, offset, received.events, contents)
            elif not contents and not self._is_discarding:
                offset = publishes.receive(content, offset)
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
                    # Nothing beyond the announced size of the body is taken in.
                    and contents.is_expected(channel, payload_bytes)
                ):
                    self._open_frame = _OpenFrame(channel, end - size)
                    contents.collect(channel, memoryview(content)[payload_offset:])
                    return size
                break
            # Before the payload is decoded: section 4.2.3 asks for that order.
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
        if payload_bytes > self._frame_max:
            raise FrameError(
                f"a frame with a payload of {payload_bytes} bytes is larger than the agreed "
                f"frame-max, {self._frame_max}"
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
            self.contents.collect(frame.channel, content)
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
            # Section 4.2.3: 503 for a heartbeat on another channel than 0.
            elif channel:
                raise CommandInvalid(f"a heartbeat frame on channel {channel}")
        except AmqpError as error:
            # The rest of a content that was wrong belongs to nothing.
            self.contents.drop(channel)
            self.received.add_failed(0 if frame_type == FRAME_HEARTBEAT else channel, error)

    def _method(self, channel: int, payload: bytes) -> None:
        start = payload[:4]
        if channel in self.contents:
            # Section 4.2.6: 505 for a content that is not complete.
            if start not in _CLOSES:
                raise UnexpectedFrame(f"a method on channel {channel} in the middle of a content")
            self.contents.drop(channel)
        if start == _PUBLISH and channel:
            target = self._targets.get(payload)
            if target is None:
                publish = decode_method(payload)
                assert isinstance(publish, BasicPublish)  # narrows the type; the ids say so
                target = self._targets.remember(payload, publish)
            self.contents[channel] = Content(target, payload)
            return
        if payload[_SMALL_METHOD_BYTES:]:  # without a call
            self.received.entry_count += len(payload)
        method = decode_method(payload)
        if isinstance(method, BasicAck) and channel:
            tag = method.delivery_tag
            self.received.events.append(Acks(channel, tag, tag, multiple=method.multiple))
        else:
            self.received.events.append(ReceivedMethod(channel, method))

    def _header(self, channel: int, payload: bytes) -> None:
        # Section 4.2.6.1: 504.
        if not channel:
            raise ChannelError("a content header on channel 0")
        content = self.contents.get(channel)
        if content is None or content.header is not None:
            raise UnexpectedFrame(f"a content header on channel {channel} that no method announced")
        header = self._headers.get(payload)
        if header is not None:
            content.is_header_known = True
        elif (header := self._headers.of_known_shape(payload)) is None:
            try:
                header = self._headers.learn(payload)
            except PreconditionFailed as too_large:
                self._refuse(channel, content, payload, too_large)
                return
        content.header = header
        content.header_payload = payload
        if self._is_discarding:
            content.refused = True
            if not header.body_size:
                del self.contents[channel]
        elif header.body_size > self._max_message_bytes:
            # The client has sent the body before it hears of this, so that is skipped and not an
            # error.
            content.refused = True
            error = ContentTooLarge(
                f"a body of {header.body_size} bytes is larger than the limit, "
                f"{self._max_message_bytes} bytes"
            )
            error.at(BasicPublish.class_id, BasicPublish.method_id)
            self.received.events.append(Failed(channel, error))
        elif not header.body_size:
            del self.contents[channel]
            self.received.add_publish(channel, content.target, header, b"")

    def _refuse(
        self, channel: int, content: Content, payload: bytes, error: PreconditionFailed
    ) -> None:
        """Skip a content whose properties are well-formed and too large."""
        (body_size,) = BODY_SIZE.unpack_from(payload)
        content.header = ContentHeader(BasicPublish.class_id, body_size, b"", None)
        content.refused = True
        if not body_size:
            del self.contents[channel]
        if not self._is_discarding:
            self.received.add_failed(
                channel, error.at(BasicPublish.class_id, BasicPublish.method_id)
            )

    def _body(self, channel: int, payload: memoryview) -> None:
        """Handle a whole body frame, or the end of one that was open."""
        # Section 4.2.6.1: 504.
        if not channel:
            raise ChannelError("a content body on channel 0")
        contents = self.contents
        content = contents.get(channel)
        if content is None or content.header is None:
            raise UnexpectedFrame(f"a content body on channel {channel} that no header announced")
        header = content.header
        missing_bytes = header.body_size - content.received_bytes - len(payload)
        # Section 4.2.6: 505.
        if missing_bytes < 0:
            raise UnexpectedFrame(
                f"a content body of {header.body_size - missing_bytes} bytes, announced with "
                f"{header.body_size}"
            )
        if missing_bytes or content.received_bytes:
            contents.collect(channel, payload)
            if not missing_bytes and (body := contents.take_collected(channel)) is not None:
                self.received.add_publish(channel, content.target, header, body)
            return
        del contents[channel]
        if not content.refused:
            self.received.add_publish(channel, content.target, header, bytes(payload))
            if content.is_header_known:
                self._publishes.expect_repeats(channel, content, header)
