"""The outbox: bytes that wait to be sent on one connection."""

from __future__ import annotations

from collections.abc import Callable

WRITABLE_BYTES = 1 << 20
"""Above this, deliveries wait: more of them would only fill memory."""

MAX_UNREAD_BYTES = 4 << 20
"""Above this, the client's requests wait as well: each answer would add to what it leaves
unread.
"""

_SENT_AT_ONCE_BYTES = 1 << 20
_LARGE_CHUNK_BYTES = 2048
"""Parts of this size on average are sent from where they are; joining smaller ones costs less than
many buffers for the system call.
"""
_MAX_BUFFERS = 1024
"""Linux takes no more of them in one call (IOV_MAX)."""

_KEPT_CHUNKS = 4096
"""Sent parts that may still be in the list: it is trimmed now and then, not after each send."""


class Outbox:
    """Frames in the order in which they are sent. `on_output` is called when the outbox stops being
    empty, or may be sent again.

    The encoder of deliveries adds to `chunks` and `byte_count` directly.
    """

    __slots__ = (
        "_sent_chunks",
        "byte_count",
        "chunks",
        "on_output",
        "withheld_count",
        "writable_bytes",
    )

    def __init__(self, on_output: Callable[[], None] | None = None) -> None:
        self.chunks: list[bytes | memoryview] = []
        self.byte_count = 0
        self.on_output = on_output or _nobody
        self._sent_chunks = 0
        self.withheld_count = 0
        """How many reasons there are to send nothing: see `withhold`."""
        self.writable_bytes = WRITABLE_BYTES
        """Above this, there is no room for deliveries."""

    def add(self, frame: bytes) -> None:
        """Add one whole frame."""
        if not self.byte_count:
            self.on_output()
        self.chunks.append(frame)
        self.byte_count += len(frame)

    def begin(self) -> None:
        """Announce that something is about to be added."""
        if not self.byte_count:
            self.on_output()

    def close(self) -> None:
        """Drop all frames and the `on_output` callback: the client will not read them."""
        self.chunks = []
        self.byte_count = self._sent_chunks = 0
        self.on_output = _nobody

    def withhold(self) -> Callable[[], None]:
        """Have nothing sent until the result is called: what was answered is not certain yet."""
        self.withheld_count += 1

        def release() -> None:
            self.withheld_count -= 1
            if not self.withheld_count and self.byte_count:
                self.on_output()

        return release

    def stop_deliveries(self) -> None:
        """Have no room for deliveries from now on."""
        self.writable_bytes = 0

    @property
    def is_writable(self) -> bool:
        """Whether there is room for more deliveries."""
        return self.byte_count < self.writable_bytes

    @property
    def is_unread(self) -> bool:
        """Whether the client leaves so much unread that its requests have to wait."""
        return self.byte_count > MAX_UNREAD_BYTES

    def next_buffers(self) -> list[bytes | memoryview]:
        """Remove and return the next bytes to send, about 1 MiB at most. Large bodies among them
        are not copied.
        """
        chunks = some = self.chunks
        if self.byte_count <= _SENT_AT_ONCE_BYTES and not self._sent_chunks:
            size = self.byte_count
            self.chunks = []
            self.byte_count = 0
        else:
            size = 0
            first = index = self._sent_chunks
            while index < len(chunks) and size < _SENT_AT_ONCE_BYTES:
                size += len(chunks[index])
                index += 1
            some = chunks[first:index]
            self.byte_count -= size
            if index == len(chunks):
                self.chunks = []
                index = 0
            elif index >= _KEPT_CHUNKS or index * 2 >= len(chunks):
                del chunks[:index]
                index = 0
            self._sent_chunks = index
        if size < _LARGE_CHUNK_BYTES or size < _LARGE_CHUNK_BYTES * len(some):
            return [b"".join(some)]
        if len(some) > _MAX_BUFFERS:
            # The last one is larger than all others together, whatever the frame-max is.
            return [b"".join(some[:-1]), some[-1]]
        return some


def _nobody() -> None:
    """Do nothing. The `on_output` of a connection that has ended, or not begun."""


def without(buffers: list[bytes | memoryview], sent_bytes: int) -> list[bytes | memoryview]:
    """Return the buffers without the first `sent_bytes` of them."""
    for index, buffer in enumerate(buffers):
        if sent_bytes < len(buffer):
            return [memoryview(buffer)[sent_bytes:], *buffers[index + 1 :]]
        sent_bytes -= len(buffer)
    return []
