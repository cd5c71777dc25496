"""What a member knows of its own log, for all threads: the state machine asks without waiting for
the disk.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from amqpstore.filenames import SEGMENTS, segment_numbers
from amqpstore.files import Files
from amqpstore.replica import LOG_START, BatchEnd, LogReader, NamedBatch
from amqpstore_server.cluster.frames import START, HeldBatch, ReplicaPosition
from amqpstore_server.replication.kept_segments import KeptSegments

_KEPT = 64


class MemberLog:
    """The last batches of a log, and those that others have asked about. See `ReplicaLog`.

    Whoever writes the log tells it of each batch that is durable. Args: kept, segments that stay
    for members that are away.
    """

    def __init__(self, files: Files, directory: str, seed: int, kept: KeptSegments) -> None:
        self._files = files
        self._directory = directory
        self._seed = seed
        self._lock = threading.Lock()
        self._last: deque[NamedBatch] = deque(maxlen=_KEPT)
        self._ends: dict[int, int] = {}
        self._asked: dict[HeldBatch, NamedBatch | None] = {}
        self._checkpoint = 0
        self._kept = kept

    # For those who write.

    def begin(self, reader: LogReader) -> None:
        """Take over what there is. Raises: OSError."""
        tail = reader.tail()
        with self._lock:
            self._last.clear()
            self._last.extend(reversed(tail))
            for number, end in [*reader.ends.items()][:-1]:
                self._kept.keep(number, end)
            self._ends = {**self._kept.ends, **reader.ends}
            self._asked.clear()

    def wrote(self, batch: NamedBatch) -> None:
        """Note a batch that is durable, behind those before."""
        with self._lock:
            before = self._last[-1].end if self._last else LOG_START
            self._last.append(batch)
            if batch.end.segment > before.segment > 0:
                self._kept.keep(before.segment, before.offset)
            self._ends[batch.end.segment] = batch.end.offset

    def discarded(self, behind: BatchEnd) -> None:
        """Note that the log ends with a batch now."""
        with self._lock:
            while self._last and self._last[-1].end.lsn > behind.lsn:
                self._last.pop()
            self._kept.forget_from(behind.segment)
            self._ends = {one: end for one, end in self._ends.items() if one <= behind.segment}
            if behind.segment:
                self._ends[behind.segment] = behind.offset
            self._asked.clear()

    def covered(self, lsn: int) -> None:
        """Note up to which batch nothing can be taken back."""
        self._checkpoint = ReplicaPosition.of_lsn(lsn).number

    # For those who send.

    def hold(self, segment: int) -> None:
        """Keep this segment of the log, and those behind it, for a minute from now on."""
        with self._lock:
            self._kept.hold(segment)

    def copies(self, name: str) -> str:
        """Return the path of a directory for what is pinned while a copy is sent."""
        return self._kept.copies(name)

    def reader(self) -> LogReader:
        """Return a reader of all that is durable now, and of what is kept."""
        with self._lock:
            kept = self._kept.paths()
            return LogReader(self._files, self._directory, self._seed, self._ends, kept)

    def look_up(self, tail: Iterable[HeldBatch]) -> None:
        """Find out which of a follower's batches are here, until one is: `has` knows it then.

        It may take long: not to be called by a thread that others wait for. Raises: OSError.
        """
        for held in tail:
            if self.has(held):
                return
            with self._lock:
                first = self._last[0].end.lsn if self._last else 0
            if held.position.lsn >= first:
                continue  # `has` knows all of these
            found = self.reader().named(held.position.lsn)
            if found is None or found.checksum != held.checksum:
                continue
            with self._lock:
                self._asked[held] = found
            return

    def end_of(self, position: ReplicaPosition) -> BatchEnd | None:
        """Return where a batch ends that was looked up; None if it was not found."""
        if position == START:
            return LOG_START
        with self._lock:
            known = [*self._last, *filter(None, self._asked.values())]
        return next((one.end for one in known if one.end.lsn == position.lsn), None)

    def lsn_up_to(self, number: int) -> int:
        """Return the LSN of the last batch up to a number; 0 if that is not known any longer."""
        with self._lock:
            lsns = (one.end.lsn for one in reversed(self._last))
            return next((one for one in lsns if ReplicaPosition.of_lsn(one).number <= number), 0)

    # What the state machine asks: see `ReplicaLog`.

    def tail(self) -> tuple[HeldBatch, ...]:
        with self._lock:
            return tuple(held_batch(one) for one in reversed(self._last))

    def has(self, held: HeldBatch) -> bool:
        with self._lock:
            if held in self._asked:
                return True
            return any(held_batch(one) == held for one in reversed(self._last))

    def last(self) -> ReplicaPosition:
        with self._lock:
            return ReplicaPosition.of_lsn(self._last[-1].end.lsn) if self._last else START

    def keeps_behind(self, position: ReplicaPosition) -> bool:
        place = self.end_of(position)
        if place is None:
            return False
        with self._lock:
            ends, kept = dict(self._ends), set(self._kept.ends)
        is_whole = ends.get(place.segment, 0) <= place.offset
        wanted = range(place.segment + is_whole, max(ends, default=0) + 1)
        names = self._files.list_directory(f"{self._directory}/{SEGMENTS}")
        return kept.issuperset(set(wanted) - set(segment_numbers(names)))

    def checkpoint(self) -> int:
        return self._checkpoint


def held_batch(batch: NamedBatch) -> HeldBatch:
    """Return a batch as members name it to each other."""
    return HeldBatch(ReplicaPosition.of_lsn(batch.end.lsn), batch.checksum)
