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
_KEPT_PARTS = 4096
"""Sent parts that may still be in the list: it is trimmed now and then, not after each send."""


class Outbox:
    """Frames in the order in which they are sent. `on_output` is called when the outbox stops being
    empty.

    The encoder of deliveries adds to `parts` and `byte_count` directly.
    """

    __slots__ = ("_on_output", "_sent_parts", "byte_count", "parts")

    def __init__(self, on_output: Callable[[], None]) -> None:
        self.parts: list[bytes | memoryview] = []
        self.byte_count = 0
        self._on_output = on_output
        self._sent_parts = 0

    def add(self, frame: bytes) -> None:
        """Add one whole frame."""
        self.begin()
        self.parts.append(frame)
        self.byte_count += len(frame)

    def begin(self) -> None:
        """Announce that something is about to be added."""
        if not self.byte_count:
            self._on_output()

    def close(self) -> None:
        """Drop all frames and the `on_output` callback: nobody will read them."""
        self.parts = []
        self.byte_count = self._sent_parts = 0
        self._on_output = _nobody

    @property
    def is_writable(self) -> bool:
        """Whether there is room for more deliveries."""
        return self.byte_count < WRITABLE_BYTES

    @property
    def is_unread(self) -> bool:
        """Whether the client leaves so much unread that its requests have to wait."""
        return self.byte_count > MAX_UNREAD_BYTES

    def next_bytes(self) -> bytes | memoryview:
        """Remove and return the next bytes to send, at most about 1 MiB; empty if there are
        none.
        """
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
    """Do nothing. Replaces `on_output` when the connection has ended."""
