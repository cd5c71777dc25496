"""Receiving before a connection is open: the protocol header, the methods of the handshake, and
nothing else.

The client has not logged in here. One method is due at a time (`protocol.states`); the first frame
that cannot be it ends the connection at its first seven bytes, so a stranger can make the server
keep no more than one small frame and the rest of one read.
"""

from __future__ import annotations

import struct

from amqpstore_server.protocol.errors import FatalFramingError
from amqpstore_server.protocol.frames import OVERHEAD_BYTES
from amqpstore_server.protocol.methods import ConnectionOpen, Method, decode_method
from amqpstore_server.protocol.spec import (
    FRAME_END,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    PROTOCOL_HEADER,
    PROTOCOL_HEADERS,
)

HANDSHAKE_FRAME_BYTES = 8192
"""The largest frame before connection.open: twice what the specification asks for, for long
tokens, and what RabbitMQ takes."""

_FRAME = struct.Struct(">BHI")
_METHOD = struct.Struct(">HH")


class Handshake:
    """Receives the protocol header, then method by method.

    `rest` has the bytes after the last method that was taken.
    """

    def __init__(self) -> None:
        self.rest = b""

    def receive(self, read: bytes) -> None:
        """Add received bytes. They are parsed when something is due."""
        self.rest += read

    def take_header(self) -> bytes | None:
        """Return the protocol header once it is complete, or as many bytes as show that it is
        another one.
        """
        header = self.rest[: len(PROTOCOL_HEADER)]
        # Another protocol is known by its first wrong byte: an HTTP or TLS client is answered at
        # once, and does not wait for a timeout.
        if len(header) < len(PROTOCOL_HEADER) and any(
            known.startswith(header) for known in PROTOCOL_HEADERS
        ):
            return None
        self.rest = self.rest[len(PROTOCOL_HEADER) :]
        return header

    def take(self, due: type[Method]) -> Method | None:
        """Return the method that is due, once it is complete.

        Raises: FatalFramingError, for anything else; MalformedError.
        """
        while len(self.rest) >= _FRAME.size:
            frame_type, channel, payload_bytes = _FRAME.unpack_from(self.rest)
            end = _FRAME.size + payload_bytes
            # A heartbeat: its interval was agreed on with connection.tune-ok, so it may be sent
            # from then on.
            is_heartbeat = due is ConnectionOpen and frame_type == FRAME_HEARTBEAT
            # The size is checked before the rest of the frame has arrived: a stranger cannot make
            # the broker keep it.
            if channel or not (frame_type == FRAME_METHOD or is_heartbeat):
                raise FatalFramingError(
                    f"a frame of type {frame_type} on channel {channel} where {due.name} was "
                    "expected"
                )
            if payload_bytes > (0 if is_heartbeat else HANDSHAKE_FRAME_BYTES):
                raise FatalFramingError(
                    f"a frame of {payload_bytes + OVERHEAD_BYTES} bytes where {due.name} was "
                    "expected"
                )
            if not is_heartbeat:
                self._check_ids(due, payload_bytes)
            if len(self.rest) <= end:
                return None
            if self.rest[end] != FRAME_END:
                raise FatalFramingError(f"a frame ends with {self.rest[end]:#04x}, not with 0xce")
            payload, self.rest = self.rest[_FRAME.size : end], self.rest[end + 1 :]
            if not is_heartbeat:
                return decode_method(payload)
        return None

    def _check_ids(self, due: type[Method], payload_bytes: int) -> None:
        """Raises: FatalFramingError, as soon as a frame turns out to be another method."""
        if payload_bytes < _METHOD.size:
            raise FatalFramingError(
                f"a method of {payload_bytes} bytes where {due.name} was expected"
            )
        if len(self.rest) >= _FRAME.size + _METHOD.size:
            ids = _METHOD.unpack_from(self.rest, _FRAME.size)
            if ids != (due.class_id, due.method_id):
                raise FatalFramingError(f"method {ids[0]}, {ids[1]} where {due.name} was expected")
