"""Content headers of one connection: what was decoded once is not decoded again."""

from __future__ import annotations

import struct

from amqpstore_server.protocol.content import decode_counted_header
from amqpstore_server.protocol.errors import AmqpError, FrameError
from amqpstore_server.protocol.events import ContentHeader, ReadEvents, publish_header
from amqpstore_server.protocol.methods import BasicPublish
from amqpstore_server.protocol.shapes import NO_SHAPE, Shapes

BODY_SIZE = struct.Struct(">4xQ")
"""The size of the body, in bytes, that the payload of a header announces."""

_MAX_HEADERS = 1024
_MAX_BYTES = 256 << 10
"""The number and size of remembered headers of each connection; beyond them they are cleared."""


class Headers(dict[bytes, ContentHeader]):
    """The headers that have come more than once, or may, by their payload.

    Args: read, which counts the entries of tables that are looked at.
    """

    def __init__(self, read: ReadEvents) -> None:
        super().__init__()
        self._read = read
        self._byte_count = 0
        self._shapes = Shapes()
        self.last_shape = NO_SHAPE
        """The shape that the last header had which was recognised by its shape."""

    def free(self) -> None:
        """Forget all headers and their shapes."""
        self.clear()
        self._byte_count = 0
        self._shapes = Shapes()

    def of_known_shape(self, payload: bytes) -> ContentHeader | None:
        """Return a header that is new in nothing but its values; None for any other."""
        shape = self._shapes.find(payload)
        if shape is None:
            return None
        self.last_shape = shape
        (body_size,) = BODY_SIZE.unpack_from(payload)
        return publish_header(payload, 0, len(payload), body_size, shape.plain_at)

    def learn(self, payload: bytes) -> ContentHeader:
        """Decode a header, and remember it and its shape. Raises: AmqpError."""
        try:
            header, count = decode_counted_header(payload)
        except AmqpError:
            # How many entries it had is not known: at most one for each byte.
            self._read.entry_count += len(payload)
            raise
        self._read.entry_count += count
        # Section 4.2.6.1: 501.
        if header.class_id != BasicPublish.class_id:
            raise FrameError(
                f"a content header of class {header.class_id} behind a method of class "
                f"{BasicPublish.class_id}"
            )
        self._shapes.learn(payload)
        self._byte_count += len(payload)
        # The cache is cleared as a whole: message-ids differ in every message, and none of those
        # headers comes again.
        if len(self) >= _MAX_HEADERS or self._byte_count > _MAX_BYTES:
            self.clear()
            self._byte_count = len(payload)
        self[payload] = header
        return header
