"""The size of reads from a client's socket: as much as it sends, but no more than is handled in
some milliseconds.
"""

from __future__ import annotations

from random import randrange

from amqpstore_server.loop.loop_limits import LoopLimits

_MESSAGE_S = 20e-6
_BYTE_S = 2.5e-9
"""More processor time than a message of an ordinary client takes, and a byte of it."""

_LONE_READ_S = 0.00025
"""More processor time than a read of less than was asked for takes beside its messages and bytes:
its client waits, and does not send without a break. Such a read has a message or two, and costs
more than they do, several times as much on a slow machine whose caches are full of others' work.
Twice this is what a costly client has at once (`LoopLimits.long_costly_read_s`).
"""

_REMEMBERED = 0.75
"""Each read counts this much of the one after it."""

LONG_BYTES = 64 << 10
"""A read of no more than this has few enough frames to be handled at once."""

_FRAME_END = b"\xce"
"""Bodies have it too, but only those that are made of little else have more of it than that."""

_SAMPLED_BYTES = 512
_SAMPLED_EACH_BYTES = 16 << 10
"""Frame ends are counted in `_SAMPLED_BYTES` out of each `_SAMPLED_EACH_BYTES`: to count all took a
quarter of the processor time of a client with large bodies. The samples are not always at
the same offset: a client could have its small frames elsewhere.
"""


def first_chunk_bytes(read: bytes, limits: LoopLimits) -> int:
    """Return the size of the first chunk of a read that has too many frames to be handled at once,
    about; 0 if it has not. Wherever in it they are, the chunk has few enough.

    The size of reads follows the time that the last one took, and so comes too late for the first
    small messages after large ones.
    """
    size = len(read)
    first = randrange(_SAMPLED_EACH_BYTES - _SAMPLED_BYTES)  # noqa: S311 - nothing secret
    each = range(0, size, _SAMPLED_EACH_BYTES)
    last = max(size - _SAMPLED_BYTES, 0)
    offsets = [min(offset + first, last) for offset in each]
    ends = [read.count(_FRAME_END, offset, offset + _SAMPLED_BYTES) for offset in offsets]
    ratio = _SAMPLED_EACH_BYTES // _SAMPLED_BYTES
    if sum(ends) * ratio <= limits.max_frames:
        return 0
    left = limits.chunk_frames
    for offset, sampled_ends in zip(each, ends, strict=True):
        if sampled_ends * ratio >= left:
            return offset + _SAMPLED_EACH_BYTES * left // (sampled_ends * ratio)
        left -= sampled_ends * ratio
    return 0


class ReadSize:
    """The size of the next read of one connection, in `byte_count`.

    `is_costly` says whether it has the broker work much longer than others do for as much, such as
    for bodies in frames of one byte, hundreds of routing keys, or thousands of bindings. `is_timed`
    says whether all its reads are to be noted, and not only those that may change the size.
    """

    __slots__ = ("_limits", "_ordinary_s", "_took_s", "byte_count", "is_costly", "is_timed")

    def __init__(self, limits: LoopLimits) -> None:
        self._limits = limits
        self.byte_count = limits.min_read_bytes
        self.is_costly = self.is_timed = False
        self._took_s = 0.0
        self._ordinary_s = 0.0

    def charge(self, took_s: float, size: int = 0, message_count: int = 0) -> None:
        """Add what the last read has led to later on: how long that took, and what was handled."""
        limits = self._limits
        self._took_s += min(took_s, limits.max_charged_s)
        self._ordinary_s += message_count * _MESSAGE_S + size * _BYTE_S
        self.is_timed = self._took_s > limits.suspect_s
        self.is_costly = self._took_s > limits.costly_s and self._took_s > 2 * self._ordinary_s

    def note(self, size: int, message_count: int, took_s: float) -> None:
        """Choose the next size after a read of `size` bytes.

        Args: message_count, methods and messages that it completed; took_s, the time that it took
        to handle them.
        """
        limits = self._limits
        self._took_s *= _REMEMBERED
        self._ordinary_s *= _REMEMBERED
        if size < self.byte_count:
            self._ordinary_s += _LONE_READ_S
        self.charge(took_s, size, message_count)
        if self.is_costly:
            long_s = limits.long_costly_read_s
        elif size > limits.small_read_bytes:
            long_s = limits.long_read_s
        else:
            long_s = limits.long_small_read_s
        if took_s > long_s:
            self.byte_count = max(limits.min_costly_read_bytes, self.byte_count // 2)
        elif size * 4 < self.byte_count and self.byte_count > limits.min_read_bytes:
            self.byte_count //= 2
        elif size == self.byte_count and took_s * 2 < long_s:
            self.byte_count = min(size * 2, limits.max_read_bytes)
