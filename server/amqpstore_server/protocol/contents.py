"""Unfinished contents: publishes whose header, or the rest of whose body, has not arrived yet."""

from __future__ import annotations

from dataclasses import dataclass

from amqpstore_server.protocol.events import ContentHeader, Target
from amqpstore_server.protocol.partial_body import PartialBody


@dataclass(slots=True)
class Content:
    """A publish that is not complete yet."""

    target: Target
    publish_payload: bytes
    header: ContentHeader | None = None
    header_payload: bytes = b""
    is_header_known: bool = False
    """Whether the same header has come before."""
    body: PartialBody | None = None
    """The bytes of earlier frames, unless the content is refused."""
    received_bytes: int = 0
    """The bytes of the body that have arrived."""
    refused: bool = False
    """Whether the rest is skipped, and costs no memory."""


class UnfinishedContents(dict[int, Content]):
    """The unfinished contents of one connection, by channel."""

    def __init__(self) -> None:
        super().__init__()
        self._bodies_bytes = 0

    @property
    def memory_bytes(self) -> int:
        """The memory that they take, with their headers."""
        if not self:
            return 0
        headers = [len(content.header_payload) for content in self.values()]
        return self._bodies_bytes + 2 * sum(headers)

    def drop(self, channel: int) -> None:
        """Forget the content of a channel, if it has one: its rest does not come."""
        content = self.pop(channel, None)
        if content is not None and content.body is not None:
            self._bodies_bytes -= content.body.memory_bytes

    def refuse_all(self) -> None:
        """Skip the rest of each: they are of no use any more."""
        for content in self.values():
            content.refused = True
            content.header_payload = b""
            content.body = None
        self._bodies_bytes = 0

    def is_expected(self, channel: int, payload_bytes: int) -> bool:
        """Tell whether a body frame with a payload of this size belongs to the channel's
        content.
        """
        content = self.get(channel)
        return (
            content is not None
            and content.header is not None
            # More than was announced is 505: it must not be taken in first (RabbitMQ's
            # CVE-2026-67235).
            and content.received_bytes + payload_bytes <= content.header.body_size
        )

    def collect(self, channel: int, piece: bytes | memoryview) -> None:
        """Keep a piece of a body whose header has arrived, unless the content is refused."""
        content = self[channel]
        content.received_bytes += len(piece)
        # The bytes are counted but not kept, so that the end of the content is found.
        if content.refused or not piece or content.header is None:
            return
        body = content.body
        if body is None:
            body = content.body = PartialBody(content.header.body_size)
        self._bodies_bytes -= body.memory_bytes
        body.add(piece)
        self._bodies_bytes += body.memory_bytes

    def take_collected(self, channel: int) -> bytes | None:
        """Remove a content of which every byte has arrived. Returns its body, or None if the
        content was refused.
        """
        body = self.pop(channel).body
        if body is None:
            return None
        self._bodies_bytes -= body.memory_bytes
        return body.whole()
