"""Finds which publishes the broker has confirmed, in the octets of a publishing connection."""

import struct
from collections.abc import Callable

from amqpstore_tools.client import frames, wire
from amqpstore_tools.client.errors import PeerError

_ack_frame = struct.Struct(">BHIHHQBB")  # a whole basic.ack: 21 octets
_ACK_PAYLOAD_BYTES = 13
_tag_and_flag = struct.Struct(">QB")


class ConfirmLedger:
    """Counts confirms exactly, in whatever order they arrive, in what a producer's socket receives.

    `settled(first, last)`, if given, is called for each newly confirmed range of delivery tags.
    """

    def __init__(self, settled: Callable[[int, int], None] | None = None) -> None:
        self.nacked = 0
        self.paused = False  # by channel.flow; new publishes must wait
        self.blocked = 0  # times the broker sent connection.blocked
        self.answer = b""  # to be sent by the caller, then emptied
        self._unparsed = b""
        self._settled = settled
        self._low = 0  # everything up to here is confirmed
        self._above: set[int] = set()  # confirmed alone, above `_low + 1`

    @property
    def confirmed(self) -> int:
        """Publishes acked or nacked."""
        return self._low + len(self._above)

    def received(self, octets: bytes) -> None:
        """Process octets from the socket, cut anywhere.

        Raises:
            PeerError: the broker closed or returned a message.
        """
        if self._unparsed:
            octets = self._unparsed + octets
        whole = len(octets) - len(octets) % _ack_frame.size
        at = 0
        for kind, _, length, class_id, method_id, tag, flag, end in _ack_frame.iter_unpack(
            memoryview(octets)[:whole]
        ):
            if (
                kind != wire.METHOD
                or length != _ACK_PAYLOAD_BYTES
                or (class_id, method_id) != wire.BASIC_ACK
                or end != wire.FRAME_END
            ):
                at = self._read_frames(octets, at)
                break
            self._settle(tag, multiple=bool(flag & 1))
            at += _ack_frame.size
        else:
            if at < len(octets):  # a close that is shorter than an ack must not wait for more
                at = self._read_frames(octets, at)
        self._unparsed = octets[at:]

    def _read_frames(self, octets: bytes, at: int) -> int:
        for frame in frames.whole_frames(octets, at, len(octets)):
            at = frame.end
            frames.raise_if_fatal(octets, frame)
            method = frames.method_of(octets, frame)
            if method in (wire.BASIC_ACK, wire.BASIC_NACK):
                tag, flags = _tag_and_flag.unpack_from(octets, frame.payload + 4)
                before = self.confirmed
                self._settle(tag, multiple=bool(flags & 1))
                if method == wire.BASIC_NACK:
                    self.nacked += self.confirmed - before
            elif method == wire.CHANNEL_FLOW:
                active = octets[frame.payload + 4 : frame.payload + 5]
                self.paused = active == b"\0"
                self.answer += wire.method(frame.channel, wire.CHANNEL_FLOW_OK, active)
            elif method == wire.CONNECTION_BLOCKED:
                self.blocked += 1
            elif method != wire.CONNECTION_UNBLOCKED and frame.kind != wire.HEARTBEAT:
                raise PeerError(
                    f"the broker sent an unexpected frame of type {frame.kind} (method {method}) "
                    "to a producer"
                )
        return at

    def _settle(self, tag: int, *, multiple: bool) -> None:
        first = self._low + 1
        if tag < first or (tag in self._above and not multiple):
            return
        if multiple:
            fresh = [(first, tag)] if not self._above else self._gaps(first, tag)
            self._above = {above for above in self._above if above > tag} if self._above else set()
            self._low = tag
        elif tag == first:
            fresh = [(tag, tag)]
            self._low = tag
        else:
            fresh = [(tag, tag)]
            self._above.add(tag)
        while self._above and self._low + 1 in self._above:
            self._low += 1
            self._above.remove(self._low)
        if self._settled is not None:
            for start, last in fresh:
                self._settled(start, last)

    def _gaps(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the ranges in `first..last` that were not confirmed alone before."""
        return [(tag, tag) for tag in range(first, last + 1) if tag not in self._above]

    def unparsed(self) -> bytes:
        """Return the octets of an incomplete frame."""
        return self._unparsed
