"""A body that arrives in pieces: each byte is copied once, and none when the body is whole."""

from __future__ import annotations

import io

_FIRST_STEP_BYTES = 1 << 20
_MAX_STEP_BYTES = 8 << 20
"""The most memory that is reserved beyond what has arrived: a client may announce more than it
sends, and filling it with zeros takes time.
"""

_MAPPED_BYTES = 32 << 20
"""Above this size the C library maps zeroed pages, which take memory and time only when they are
written to. Smaller blocks may be memory that was used before, and moved when they grow.
"""


class PartialBody:
    """The beginning of a body of `size` bytes, in memory of its own that grows with it.

    Pieces joined at the end would hold up everybody else: for 64 MiB that takes some 40 ms. A
    `BytesIO` gives away its buffer as `bytes` without a copy, once that is filled.
    """

    __slots__ = ("_buffer", "_received_bytes", "_reserved_bytes", "_size")

    def __init__(self, size: int) -> None:
        is_mapped = size > _MAPPED_BYTES
        self._buffer = io.BytesIO(bytes(size) if is_mapped else b"")
        self._size = size
        self._received_bytes = 0
        self._reserved_bytes = size if is_mapped else 0

    @property
    def memory_bytes(self) -> int:
        """The memory that it takes: at most four times what has arrived."""
        if self._size > _MAPPED_BYTES:
            return self._received_bytes
        return self._reserved_bytes

    def add(self, piece: bytes | memoryview) -> None:
        """Append a piece, which is copied."""
        received_bytes = self._received_bytes = self._received_bytes + len(piece)
        if received_bytes > self._reserved_bytes:
            self._reserve(received_bytes)
        self._buffer.write(piece)

    def _reserve(self, least_bytes: int) -> None:
        """Reserve memory in steps that grow with the body, so that many small pieces do not move it
        again and again.
        """
        first_step_bytes = min(3 * least_bytes, _FIRST_STEP_BYTES)
        step_bytes = max(first_step_bytes, min(least_bytes, _MAX_STEP_BYTES))
        reserved_bytes = self._reserved_bytes = min(self._size, least_bytes + step_bytes)
        buffer = self._buffer
        offset = buffer.tell()
        buffer.seek(reserved_bytes - 1)
        buffer.write(b"\0")
        buffer.seek(offset)

    def whole(self) -> bytes:
        """Return the body, all of which has arrived."""
        return self._buffer.getvalue()
