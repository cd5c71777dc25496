"""A body that arrives in pieces: each byte is copied once, and none when the body is whole."""

from __future__ import annotations

import io

_MAX_STEP_BYTES = 2 << 20
"""The most memory that is reserved beyond what has arrived: a client may announce more than it
sends.
"""


class PartialBody:
    """The beginning of a body of `size` bytes, in memory of its own that grows with it.

    Pieces joined at the end would hold up everybody else: for 64 MiB that takes some 40 ms. A
    `BytesIO` gives away its buffer as `bytes` without a copy, once that is filled.
    """

    __slots__ = ("_buffer", "_received_bytes", "_size", "reserved_bytes")

    def __init__(self, size: int) -> None:
        self._buffer = io.BytesIO()
        self._size = size
        self._received_bytes = 0
        self.reserved_bytes = 0
        """The memory that it takes: at most twice of what has arrived."""

    def add(self, piece: bytes | memoryview) -> None:
        """Append a piece, which is copied."""
        received_bytes = self._received_bytes = self._received_bytes + len(piece)
        if received_bytes > self.reserved_bytes:
            self._reserve(received_bytes)
        self._buffer.write(piece)

    def _reserve(self, least_bytes: int) -> None:
        """Reserve memory in steps that grow with the body, so that many small pieces do not move it
        again and again.
        """
        step_bytes = min(least_bytes, _MAX_STEP_BYTES)
        reserved_bytes = self.reserved_bytes = min(self._size, least_bytes + step_bytes)
        buffer = self._buffer
        place = buffer.tell()
        buffer.seek(reserved_bytes - 1)
        buffer.write(b"\0")
        buffer.seek(place)

    def whole(self) -> bytes:
        """Return the body, all of which has arrived."""
        return self._buffer.getvalue()
