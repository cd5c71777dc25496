"""What waits to be sent on one connection, and how much of it there is."""

from __future__ import annotations

from collections.abc import Callable

WRITABLE_BYTES = 1 << 20
"""Above this, deliveries wait: what is not sent yet would only fill memory."""

MAX_UNREAD_BYTES = 4 << 20
"""Above this, what the client asks for waits as well: each answer would only come on top."""

_SENT_AT_ONCE_BYTES = 1 << 20
_KEPT_PARTS = 4096
"""Parts that may have been sent and be there still: a list is cut now and then, not each time."""


class Outbox:
    """Frames in the order in which they go out. `on_output` is called when it stops being empty.

    `parts` and `byte_count` are open to the encoder of deliveries, which adds to both by itself.
    """

    __slots__ = ("_on_output", "_sent_parts", "byte_count", "parts")

    def __init__(self, on_output: Callable[[], None]) -> None:
        self.parts: list[bytes | memoryview] = []
        self.byte_count = 0
        self._on_output = on_output
        self._sent_parts = 0

    def add(self, frame: bytes) -> None:
        """Add one frame, whole."""
        self.begin()
        self.parts.append(frame)
        self.byte_count += len(frame)

    def begin(self) -> None:
        """Say that something is about to be added."""
        if not self.byte_count:
            self._on_output()

    def close(self) -> None:
        """Forget all of it, and whom to tell: nobody will read it."""
        self.parts = []
        self.byte_count = self._sent_parts = 0
        self._on_output = _nobody

    @property
    def is_writable(self) -> bool:
        """Whether deliveries may be added."""
        return self.byte_count < WRITABLE_BYTES

    @property
    def is_unread(self) -> bool:
        """Whether the client leaves so much unread that it has to wait for more."""
        return self.byte_count > MAX_UNREAD_BYTES

    def next_bytes(self) -> bytes | memoryview:
        """The bytes to send next, about 1 MiB at most, off the outbox; none when it is empty."""
        parts = self.parts
        if self.byte_count <= _SENT_AT_ONCE_BYTES and not self._sent_parts:
            self.parts = []
            self.byte_count = 0
            return b"".join(parts)
        size = 0
        first = place = self._sent_parts
        while place < len(parts) and size < _SENT_AT_ONCE_BYTES:
            size += len(parts[place])
            place += 1
        some = parts[first:place]
        self.byte_count -= size
        if place == len(parts):
            self.parts = []
            place = 0
        elif place >= _KEPT_PARTS or place * 2 >= len(parts):
            del parts[:place]
            place = 0
        self._sent_parts = place
        return some[0] if len(some) == 1 else b"".join(some)


def _nobody() -> None:
    """Is told instead of a connection that has ended."""
