"""Counting deliveries without parsing them.

All messages of a run are equally long and so are the consumer tags, so each delivery (deliver
method, content header, bodies) takes the same number of octets: a chunk that begins at a message
boundary holds `length // delivery` messages. The assumption is checked where that costs nothing:
the first and the last delivery counted must begin like a delivery, end in 0xCE, have the known body
size and carry the delivery tag that the count says. Anything else in the stream shifts the last
one, and the chunk is then read frame by frame.
"""

import struct

from amqpstore_tools.client import frames, wire
from amqpstore_tools.client.errors import PeerError

_DELIVER_START = struct.pack(">HH", *wire.BASIC_DELIVER)
_PAYLOAD_AT, _CONSUMER_TAG_AT = 7, 11
_u64 = struct.Struct(">Q")
_BODY_SIZE_AT = 4  # of a content header's payload, after class and weight


class DeliveryCounter:
    """Counts the deliveries in what a consumer's socket receives.

    Read into `room()`, then pass the number of octets to `received()`. The buffer always begins at
    a message boundary. With `stamped`, the first 8 octets of every body are collected as u64 in
    `stamps`, which the caller empties.
    """

    def __init__(self, *, stamped: bool = False, capacity_bytes: int = 1 << 20) -> None:
        self.delivered = 0
        self.stamps: list[int] = []
        self._stamped = stamped
        self._buffer = bytearray(capacity_bytes)
        self._filled = 0
        self._delivery_bytes = 0  # 0 until the first delivery was read frame by frame
        self._tag_at = 0
        self._size_at = 0
        self._body_size = b""  # as in the content header: u64
        self._stamp_at = 0

    def room(self) -> memoryview:
        """Return the free end of the buffer, never empty."""
        if self._filled == len(self._buffer):
            # Three times a delivery, so that few are cut by the end of the buffer and moved.
            self._buffer = self._buffer + bytes(max(len(self._buffer), 3 * self._delivery_bytes))
        return memoryview(self._buffer)[self._filled :]

    def unread(self) -> bytes:
        """Return what is in the buffer and not counted."""
        return bytes(self._buffer[: self._filled])

    def received(self, length: int) -> int:
        """Count after `length` octets were put into `room()`; returns how many were new.

        Raises:
            PeerError: the broker closed, cancelled, or skipped a delivery tag.
        """
        self._filled += length
        count = self._filled // self._delivery_bytes if self._delivery_bytes else 0
        if not count:
            if self._delivery_bytes and self._begins_at(0, self.delivered + 1):
                return 0  # a part of one like those before
            return self.settle()  # the first delivery, or another one
        last = (count - 1) * self._delivery_bytes
        if not (
            self._delivery_at(0, self.delivered + 1)
            and self._delivery_at(last, self.delivered + count)
        ):
            return self.settle()
        if self._stamped:
            stamp_offsets = range(self._stamp_at, self._filled, self._delivery_bytes)
            unpack = _u64.unpack_from
            self.stamps += [unpack(self._buffer, at)[0] for at in stamp_offsets[:count]]
        self.delivered += count
        self._drop(last + self._delivery_bytes)
        return count

    def settle(self) -> int:
        """Read everything frame by frame; returns how many deliveries it completed.

        Also call it when nothing has arrived for a while: the bytes after the last whole delivery
        of a chunk may be a close, which `received` alone would notice only with the next chunk.

        Raises:
            PeerError: as `received`.
        """
        before = self.delivered
        boundary = size_at = stamp_at = 0
        deliver: frames.Frame | None = None
        is_alone = True  # whether no frame of channel 0 is between those of the delivery
        missing_bytes = -1  # of the body; below 0 until the content header is read
        for frame in frames.whole_frames(self._buffer, 0, self._filled):
            frames.raise_if_fatal(self._buffer, frame)
            if frame.channel == 0:
                if deliver is None:
                    boundary = frame.end
                is_alone = False
                continue
            if deliver is None:
                self._expect(frame, wire.METHOD, "a delivery")
                deliver, is_alone = frame, True
                continue
            if missing_bytes < 0:
                self._expect(frame, wire.HEADER, "a content header")
                size_at = frame.payload + _BODY_SIZE_AT
                (missing_bytes,) = _u64.unpack_from(self._buffer, size_at)
                stamp_at = frame.end + _PAYLOAD_AT
            else:
                self._expect(frame, wire.BODY, "a body")
                missing_bytes -= frame.end - frame.start - wire.FRAME_OVERHEAD_BYTES
            if missing_bytes <= 0:
                self._count_one(deliver, stamp_at)
                if is_alone:
                    self._learn(deliver, frame.end, size_at, stamp_at)
                boundary, deliver, missing_bytes = frame.end, None, -1
        self._drop(boundary)
        return self.delivered - before

    def _count_one(self, deliver: frames.Frame, stamp_at: int) -> None:
        (tag,) = _u64.unpack_from(self._buffer, self._tag_of(deliver))
        if tag != self.delivered + 1:
            raise PeerError(f"the broker sent delivery tag {tag} after {self.delivered}")
        self.delivered = tag
        if self._stamped:
            self.stamps.append(_u64.unpack_from(self._buffer, stamp_at)[0])

    def _learn(self, deliver: frames.Frame, end: int, size_at: int, stamp_at: int) -> None:
        """Expect that the next deliveries have the form of this one."""
        self._delivery_bytes = end - deliver.start
        self._tag_at = self._tag_of(deliver) - deliver.start
        self._size_at = size_at - deliver.start
        self._body_size = bytes(self._buffer[size_at : size_at + 8])
        self._stamp_at = stamp_at - deliver.start

    def _tag_of(self, deliver: frames.Frame) -> int:
        """Return where its delivery tag is."""
        consumer_tag_at = deliver.start + _CONSUMER_TAG_AT
        return consumer_tag_at + 1 + self._buffer[consumer_tag_at]

    def _expect(self, frame: frames.Frame, kind: int, what: str) -> None:
        found = frames.method_of(self._buffer, frame)
        if frame.kind != kind or (kind == wire.METHOD and found != wire.BASIC_DELIVER):
            raise PeerError(
                f"the broker sent a frame of type {frame.kind} (method {found}) "
                f"on channel {frame.channel} instead of {what}"
            )

    def _delivery_at(self, at: int, tag: int) -> bool:
        """Tell whether a delivery of the known length is at `at` and carries `tag`."""
        return (
            self._begins_at(at, tag)
            and self._buffer[at + self._delivery_bytes - 1] == wire.FRAME_END
        )

    def _begins_at(self, at: int, tag: int) -> bool:
        """Tell whether one begins there: its method and its content header."""
        buffer = self._buffer
        method_at = at + _PAYLOAD_AT
        tag_at = at + self._tag_at
        size_at = at + self._size_at
        return (
            size_at + 8 <= self._filled
            and buffer[at] == wire.METHOD
            and buffer[method_at : method_at + 4] == _DELIVER_START
            and buffer[tag_at : tag_at + 8] == _u64.pack(tag)
            and buffer[size_at : size_at + 8] == self._body_size
        )

    def _drop(self, end: int) -> None:
        """Move what follows `end` to the front of the buffer."""
        if not end:
            return
        left = self._filled - end
        view = memoryview(self._buffer)
        view[:left] = view[end : self._filled]
        self._filled = left
