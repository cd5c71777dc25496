"""Fills the log's last segment with zeros ahead of use.

A file that grows makes the file system commit its journal with each fdatasync. Writing where
something was written before, and syncing that, takes a third less time. So before a small batch
that would make the segment grow, zeros are written where this batch and the next ones will be.

Every byte is written twice then, but the journal was written for each batch as well. With large
batches that is not worth it.

The zeros are durable before a batch is written over them. So whatever a crash leaves of that batch,
behind it are zeros, which `batches` does not take for the start of a later one.
"""

from __future__ import annotations

from amqpstore.format.limits import StoreLimits
from amqpstore.log.segments import Segment
from amqpstore.log.space import Space, is_no_space

_MAX_BATCH_BYTES = 32 << 10
"""The largest batch before which a segment is filled: with larger ones filling takes as long as it
saves.
"""


class Filling:
    """Fills the segments of one log, which continues in another from `segment_bytes` on."""

    def __init__(self, segment_bytes: int, limits: StoreLimits, space: Space | None) -> None:
        self._segment_bytes = segment_bytes
        self._limits = limits
        self._space = space

    def is_due(self, segment: Segment, start: int) -> bool:
        """Tell whether to fill a segment before a batch is written, which starts at an offset and
        ends at the segment's size, behind all that the segment was filled with.
        """
        return (
            segment.size < self._segment_bytes
            and self._limits.fill_from_bytes <= start
            and segment.size - start <= _MAX_BATCH_BYTES
            and not (self._space and self._space.is_low)
        )

    def fill(self, segment: Segment) -> None:
        """Fill a segment from the end of what was appended on; durable on return. Raises: OSError,
        but not if the disk is full.
        """
        file = segment.writer
        start = file.end()
        # Never more than was written so far: where little happens, little is filled. And not beyond
        # the size at which the log continues in another segment: after a crash only the last one
        # has zeros behind its last batch, and in any other they are damage.
        count = min(start, self._limits.max_fill_bytes, self._segment_bytes - start)
        segment.filled_end = start + count
        try:
            file.fill(start, start + count)
        except OSError as error:
            if not is_no_space(error):
                raise
        # A crash before this returns leaves anything there; the batch before it was durable.
        file.datasync()
