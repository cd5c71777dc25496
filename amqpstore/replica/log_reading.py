"""Reads the log of one member for another: which batches it has, and the bytes behind one."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from amqpstore.errors import DamageError
from amqpstore.format.batches import StoredBatch, in_segment
from amqpstore.format.index import UNKNOWN_SIZE
from amqpstore.format.records import Gap, Record, logical_bytes, scan, size_of_body
from amqpstore.log.log import Log
from amqpstore.replica.sealed_batch import SealedBatch, transaction_checksum
from amqpstore.system.filenames import is_compacted, segment_path
from amqpstore.system.files import Files

_NAMED_SEGMENTS = 2
_NAMED_BATCHES = 16
"""A follower names batches of this many of its last segments to a leader, and this many of each
segment. No more than one batch can be uncommitted, so the leader has the first or the second, or
would have to send everything anyway.
"""


class BatchEnd(NamedTuple):
    """The end of batch `lsn`: at `offset` of segment `segment`. Later messages have ids from
    `message_id` on; 0 if that is not known. All zeros: where the log begins.
    """

    lsn: int
    segment: int
    offset: int
    message_id: int


LOG_START = BatchEnd(0, 0, 0, 0)


class NamedBatch(NamedTuple):
    """A batch in the log: where it ends, and the checksum of its TRANSACTION."""

    end: BatchEnd
    checksum: int


def log_ends(log: Log) -> dict[int, int]:
    """Return where each segment of a store's log ends, by number, as far as it is durable and
    committed.
    """
    position = log.position
    ends = {one.number: one.size for one in log.segments if not is_compacted(one.number)}
    ends = {number: end for number, end in ends.items() if number <= position.segment}
    if position.segment in ends:
        ends[position.segment] = position.offset
    return ends


class LogReader:
    """Reads segments of a log. Args: seed, of the store's checksums; ends, of its segments: what is
    behind them is not read; kept, the paths of those that are not in their place any longer.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        seed: int,
        ends: Mapping[int, int],
        kept: Mapping[int, str] | None = None,
    ) -> None:
        self._kept = kept or {}
        self._files = files
        self._directory = directory
        self._seed = seed
        self._ends = dict(sorted(ends.items()))

    @property
    def ends(self) -> Mapping[int, int]:
        """The ends of the segments, by number."""
        return self._ends

    @property
    def last(self) -> int:
        """The number of the last segment; 0 if there is none."""
        return next(reversed(self._ends), 0)

    def tail(self) -> list[NamedBatch]:
        """Return batches of this log, newest first: enough to find one that another member has too.

        Raises: OSError.
        """
        found: list[NamedBatch] = []
        # A process that was killed in between leaves a segment without a batch.
        of_segments = filter(None, ([*self._batches(one)] for one in reversed(self._ends)))
        for batches in islice(of_segments, _NAMED_SEGMENTS):
            found += batches[: -_NAMED_BATCHES - 1 : -1]
        return found

    def lsns(self) -> list[int]:
        """Return the LSNs of `tail`. Raises: OSError."""
        return [one.end.lsn for one in self.tail()]

    def named(self, lsn: int) -> NamedBatch | None:
        """Return a batch of the log; None if this log does not have it. Raises: OSError."""
        for number in reversed(self._ends):
            found = {one.end.lsn: one for one in self._batches(number)}
            # A segment that begins before the batch and does not have it: no earlier one can.
            if lsn in found or (found and lsn > min(found)):
                return found.get(lsn)
        return None

    def find(self, lsn: int) -> BatchEnd | None:
        """Return where a batch ends; None if this log does not have it. Raises: OSError."""
        if not lsn:
            return LOG_START
        found = self.named(lsn)
        return found.end if found else None

    def end(self) -> BatchEnd:
        """Return where the last batch ends. Raises: OSError."""
        for number in reversed(self._ends):
            if ends := list(self._batch_ends(number)):
                return ends[-1]
        return LOG_START

    def behind(self, end: BatchEnd) -> list[BatchEnd]:
        """Return the batches that end behind a place. Raises: OSError."""
        return [
            one
            for number in self.segments_from(end.segment)
            for one in self._batch_ends(number)
            if one.lsn > end.lsn
        ]

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Read part of a segment; fewer bytes only at its end. Raises: OSError."""
        file = self._files.open(self._path(number))
        try:
            return file.read(offset, max(min(size, self._ends[number] - offset), 0))
        finally:
            file.close()

    def _path(self, number: int) -> str:
        return self._kept.get(number) or segment_path(self._directory, number)

    def segments_from(self, number: int) -> Iterator[int]:
        """Yield the numbers of segments, from one on."""
        return (one for one in self._ends if one >= number)

    def _batch_ends(self, number: int) -> Iterator[BatchEnd]:
        """Yield where the batches of a segment end; damaged ones have no place of their own."""
        return (one.end for one in self._batches(number))

    def _batches(self, number: int) -> Iterator[NamedBatch]:
        content = self.read(number, 0, self._ends[number])
        message_id = 0
        for batch in in_segment(content, scan(content, number, self._seed)):
            if batch.messages:
                message_id = batch.messages[-1].number + 1
            if batch.transaction:
                checksum = transaction_checksum(content, batch.transaction.offset)
                yield NamedBatch(BatchEnd(batch.lsn, number, batch.end, message_id), checksum)

    def sealed(self, end: BatchEnd) -> Iterator[SealedBatch]:
        """Yield the batches behind a place, as their leader sealed them.

        Raises: DamageError, OSError.
        """
        for number in self.segments_from(max(end.segment, 1)):
            # Nothing of it is behind the place, so it is not read: it may be 16 MiB.
            if number == end.segment and end.offset >= self._ends[number]:
                continue
            content = self.read(number, 0, self._ends[number])
            start = end.offset if number == end.segment else 0
            path = self._path(number)
            yield from sealed_batches(content, number, self._seed, start, path)


def named_batch(sealed: SealedBatch, message_id: int) -> NamedBatch:
    """Return a batch of a log as `LogReader` does. Args: message_id, of the next message."""
    return NamedBatch(BatchEnd(sealed.lsn, sealed.segment, sealed.end, message_id), sealed.checksum)


def sealed_batches(
    content: bytes, number: int, seed: int, start: int, path: str
) -> Iterator[SealedBatch]:
    """Yield the batches of a segment from an offset on, as its leader sealed them.

    Raises: DamageError, if one is not whole; `path` is named in it.
    """
    for batch in in_segment(content, scan(content, number, seed, start), start):
        if batch.gaps or not batch.is_whole():
            # Damage in the middle of a segment cannot be skipped here: the follower would have a
            # log with a hole that its own recovery calls damage.
            gap = batch.gaps[0] if batch.gaps else Gap(batch.start, batch.end, "it is not whole")
            raise DamageError(path, gap.offset, f"a batch from another member: {gap.reason}")
        yield _sealed(content, number, batch)


def _sealed(content: bytes, number: int, batch: StoredBatch) -> SealedBatch:
    records = batch.messages
    return SealedBatch(
        batch.lsn,
        number,
        batch.start,
        records[0].number if records else 0,
        array("I", [record.end - record.offset for record in records]),
        array("I", [logical_bytes(content, record) for record in records]),
        array("I", [_body_size(content, record) for record in records]),
        content[batch.start : batch.end],
    )


def _body_size(content: bytes, record: Record) -> int:
    try:
        return size_of_body(content, record)
    except ValueError:
        return UNKNOWN_SIZE
