"""Whole publishes: those whose three frames have arrived in one read, and of which most has come
before.

Two ways over a read, one comparison a message. A publish whose method is known, and whose header is
of a known shape, needs no decoding; one that repeats all bytes of the one before but its body is
not even taken apart. They have to agree with `Receiver` on every octet: what is malformed, refused,
incomplete or only rare is left to it, frame by frame.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from amqpstore_server.protocol.contents import Content
from amqpstore_server.protocol.errors import AmqpError, FatalFramingError
from amqpstore_server.protocol.events import (
    MAX_ENTRIES,
    ContentHeader,
    Publishes,
    ReadEvents,
    Target,
    publish_header,
)
from amqpstore_server.protocol.headers import Headers
from amqpstore_server.protocol.spec import FRAME_BODY, FRAME_END, FRAME_HEADER, FRAME_METHOD
from amqpstore_server.protocol.targets import Targets

_FRAME = struct.Struct(">BHI")
_END = bytes([FRAME_END])


class Repeated(NamedTuple):
    """A publish in three frames that is likely to be repeated: all its bytes up to the body."""

    prefix: bytes
    channel: int
    target: Target
    header: ContentHeader


class WholePublishes:
    """Finds whole publishes in the reads of one connection."""

    def __init__(self, targets: Targets, headers: Headers, read: ReadEvents) -> None:
        self.max_bytes = 0
        """The largest body, and payload of a header, that is looked at here."""
        self.repeated: Repeated | None = None
        """The last publish, if `receive_repeated` may find more of it."""
        self._targets = targets
        self._headers = headers
        self._read = read

    def receive(self, content: bytes, offset: int) -> int:
        """Handle publishes in three frames of which nothing is new but their addresses and values,
        as many as follow each other.

        Returns the offset behind them. A body frame without a body is left to the caller as well:
        a header of size 0 ends its message, and no frame of it may follow.
        """
        size = len(content)
        unpack = _FRAME.unpack_from
        target_of = self._targets.get
        from_bytes = int.from_bytes
        largest = self.max_bytes
        shape = self._headers.last_shape
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
            # In an incomplete one the first byte would be at another offset.
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
                header = publish_header(
                    content, method_end + 8, start - 8, body_bytes, shape.plain_at
                )
            elif parsed := self._of_other_shape(content, method_end, channel):
                header, start, end = parsed
                shape = self._headers.last_shape
                is_last = self._read.entry_count > MAX_ENTRIES
            else:
                break
            if publishes is None or publishes.channel != channel:
                publishes = self._read.publishes(channel, target)
            elif target is not publishes.targets[-1]:
                publishes.is_mixed = True
            publishes.targets.append(target)
            publishes.headers.append(header)
            publishes.bodies.append(content[start:end])
            if last is None and end + 1 == size:
                return size  # alone in its read
            this = target, header.body_size, header.properties
            if this == last:
                # Not even the values are new.
                self.repeated = Repeated(content[offset:start], channel, target, header)
                return end + 1
            last = this
            offset = end + 1
            if is_last:
                break
        return offset

    def _of_other_shape(
        self, content: bytes, method_end: int, channel: int
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
            or not header_bytes <= self.max_bytes >= body_bytes > 0
        ):
            return None
        payload = content[method_end + 8 : header_end]
        header = self._headers.of_known_shape(payload)
        if header is None:
            try:
                header = self._headers.learn(payload)
            except (AmqpError, FatalFramingError):
                return None
        return (header, start, end) if header.body_size == body_bytes else None

    def expect_repeats(self, channel: int, content: Content, header: ContentHeader) -> None:
        """Expect that a publish is repeated that arrived frame by frame."""
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
        self.repeated = Repeated(prefix, channel, content.target, header)

    def receive_repeated(self, repeated: Repeated, content: bytes, offset: int) -> tuple[int, bool]:
        """Handle consecutive publishes that differ from the last in nothing but the body.

        Returns the offset after them, and False if the last of them is incomplete.
        Raises: FatalFramingError.
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
            publishes = self._read.publishes(channel, target)
            publishes.targets += [target] * len(bodies)
            publishes.headers += [header] * len(bodies)
            publishes.bodies += bodies
        return offset, is_whole
