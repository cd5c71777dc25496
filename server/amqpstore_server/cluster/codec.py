"""Frames on the wire. A peer's bytes are believed only once length, checksum and type are right.

    offset  size  field
    0       4     bytes of the header, H
    4       4     bytes of the content, C
    8       4     CRC-32C of the first 8 bytes, the header and the content
    12      H     header: MessagePack, an array of the frame's type and its fields; content is empty
    12 + H  C     content: raw, as a leader's log has it

Numbers are unsigned, most significant byte first. On a connection with tags each frame has one of
16 bytes in front of it: see `frame_tags`.
"""

from __future__ import annotations

import struct
from typing import Generic, TypeVar

import msgspec
from crc32c import crc32c

from amqpstore_server.cluster.frame_tags import TAG_BYTES, FrameTags
from amqpstore_server.cluster.frames import (
    Definition,
    DefinitionsSnapshot,
    Frame,
    FromFollower,
    FromLeader,
    ShippedBatch,
    StoreCopy,
    StorePiece,
)

PREFIX = struct.Struct(">III")
_LENGTHS = struct.Struct(">II")
MAX_HEADER_BYTES = 4 << 20
"""Most of a header is a batch's layout, or a follower's tail."""

_encoder = msgspec.msgpack.Encoder()
_F = TypeVar("_F")
_WithContent = ShippedBatch | Definition | DefinitionsSnapshot | StorePiece | StoreCopy


class PeerFrameError(Exception):
    """A peer has sent what is not a frame, or not one that it may send: close the connection."""


class ForgedFrameError(PeerFrameError):
    """A whole frame does not have the tag that is due: the peer has not sent it, or not next."""


def encode(frame: Frame) -> tuple[bytes, bytes]:
    """Return a frame as it is sent: what comes before its content, and the content, uncopied."""
    content = b""
    if isinstance(frame, _WithContent):
        content = frame.content
        frame = msgspec.structs.replace(frame, content=b"")
    header = _encoder.encode(frame)
    lengths = _LENGTHS.pack(len(header), len(content))
    checksum = crc32c(content, crc32c(header, crc32c(lengths)))
    return lengths + checksum.to_bytes(4, "big") + header, content


class FrameReader(Generic[_F]):
    """Takes the bytes of one connection as they come, and gives the frames in them.

    Args: decoder, for the frames that this peer may send. max_content_bytes: of one frame; a peer
    that announces more is refused before any of it is kept. tags, those that its frames have to
    have; None without them.
    """

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[_F],
        max_content_bytes: int,
        tags: FrameTags | None = None,
    ) -> None:
        self._decoder = decoder
        self._max_content_bytes = max_content_bytes
        self._tags = tags
        self._begin = TAG_BYTES if tags is not None else 0
        """The offset of a frame among the bytes that were received."""
        self._received = bytearray()

    def receive(self, received: bytes) -> None:
        """Take bytes behind those before."""
        self._received += received

    @property
    def partial_bytes(self) -> int:
        """The bytes that have come of a frame that is not whole yet."""
        return len(self._received)

    def next_frame(self) -> _F | None:
        """Return the next frame; None if it is not whole yet.

        Raises:
            PeerFrameError: these bytes are not a frame, and no later ones can be.
            ForgedFrameError: they are, and not the one that the peer sent next.
        """
        received, begin = self._received, self._begin
        at = begin + PREFIX.size
        if len(received) < at:
            return None
        header_bytes, content_bytes, checksum = PREFIX.unpack_from(received, begin)
        if header_bytes > MAX_HEADER_BYTES or content_bytes > self._max_content_bytes:
            raise PeerFrameError(
                f"a frame is announced with a header of {header_bytes} bytes and {content_bytes} "
                f"bytes of content; at most {MAX_HEADER_BYTES} and {self._max_content_bytes} are "
                "taken from this peer"
            )
        start = at + header_bytes
        end = start + content_bytes
        if len(received) < end:
            return None
        with memoryview(received) as view:
            head, content = bytes(view[begin:start]), bytes(view[start:end])
        header = head[PREFIX.size :]
        computed = crc32c(content, crc32c(header, crc32c(head[: _LENGTHS.size])))
        # Before the tag: what was damaged on its way is not to be taken for a forgery.
        if computed != checksum:
            raise PeerFrameError(
                f"a frame of {end - begin} bytes has the checksum {computed:08x} and was sent with "
                f"{checksum:08x}: it was damaged on its way"
            )
        if self._tags is not None and not self._tags.is_next(received[:begin], head, content):
            raise ForgedFrameError(
                f"a frame of {end - begin} bytes is not what the other member sent next: somebody "
                "between the two has made it up, or has changed, repeated or held back frames"
            )
        del received[:end]
        return self._decode(header, content)

    def _decode(self, header: bytes, content: bytes) -> _F:
        try:
            frame = self._decoder.decode(header)
        except msgspec.DecodeError as error:
            raise PeerFrameError(f"a frame's header cannot be read: {error}") from error
        if isinstance(frame, _WithContent):
            if frame.content:
                raise PeerFrameError(f"{type(frame).__name__} has content in its header")
            return msgspec.structs.replace(frame, content=content)
        if content:
            raise PeerFrameError(
                f"{type(frame).__name__} has no content, and {len(content)} bytes of it came"
            )
        return frame


def read_follower(tags: FrameTags | None = None) -> FrameReader[FromFollower]:
    """Return a reader for what a follower sends: small frames only."""
    return FrameReader(msgspec.msgpack.Decoder(FromFollower), 0, tags)


def read_leader(max_content_bytes: int, tags: FrameTags | None = None) -> FrameReader[FromLeader]:
    """Return a reader for what a leader sends. Args: max_content_bytes, of the largest batch."""
    return FrameReader(msgspec.msgpack.Decoder(FromLeader), max_content_bytes, tags)
