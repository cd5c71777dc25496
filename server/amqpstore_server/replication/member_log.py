"""A member's knowledge of its own log, for all threads: the state machine asks without waiting for
the disk.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping

from amqpstore.replica import LOG_START, BatchEnd, LogReader, NamedBatch
from amqpstore.system.filenames import SEGMENTS, segment_numbers
from amqpstore.system.files import Files
from amqpstore.terms import number_of
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
        self._last_lsns: dict[int, int] = {}
        self._checkpoint = 0
        self.confirmed_lsn = 0
        """Up to which batch all is known to be confirmed."""
        self._kept = kept

    # For those who write.

    def begin(self, reader: LogReader) -> None:
        """Take over what there is. Raises: OSError."""
        # Before the lock is taken, as it reads from the disk.
        tail = reader.tail()
        with self._lock:
            self._last.clear()
            self._last.extend(reversed(tail))
            # All but the last one: that one still grows, so this is not where it ends.
            for number, end in [*reader.ends.items()][:-1]:
                self._kept.keep(number, end)
            self._ends = {**self._kept.ends, **reader.ends}
            self._last_lsns.clear()
            self._asked.clear()

    def wrote(self, batch: NamedBatch) -> None:
        """Note a batch that is durable, behind those before."""
        with self._lock:
            before = self._last[-1].end if self._last else LOG_START
            self._last.append(batch)
            # Linked as soon as the next segment is begun: a checkpoint may remove the store's own
            # name of a segment in which nothing is live any more.
            if batch.end.segment > before.segment > 0:
                self._kept.keep(before.segment, before.offset)
            self._ends[batch.end.segment] = batch.end.offset

    def discarded(self, behind: BatchEnd) -> None:
        """Note that the log ends with a batch now."""
        with self._lock:
            while self._last and self._last[-1].end.lsn > behind.lsn:
                self._last.pop()
            self.confirmed_lsn = min(self.confirmed_lsn, behind.lsn)
            self._kept.forget_from(behind.segment)
            self._ends = {one: end for one, end in self._ends.items() if one <= behind.segment}
            if behind.segment:
                self._ends[behind.segment] = behind.offset
            # What was found out before may be about a batch that is gone now.
            self._last_lsns.clear()
            self._asked.clear()

    def covered(self, lsn: int) -> None:
        """Note up to which batch nothing can be taken back."""
        # One number, so no lock is needed: the state machine asks for it under its own.
        self._checkpoint = ReplicaPosition.of_lsn(lsn).number

    def keep(self, max_bytes: int) -> None:
        """Keep at most so much of the log for members that are away."""
        with self._lock:
            self._kept.limit(max_bytes)

    def free_bytes(self) -> int:
        """Return how much is free on the disk; 0 if it does not say."""
        try:
            return self._files.free_bytes(self._directory)
        except OSError:
            return 0

    # For those who send.

    def hold(self, segment: int) -> None:
        """Keep this segment of the log, and those behind it, for a minute from now on."""
        with self._lock:
            self._kept.hold(segment)

    def copies(self, name: str) -> str:
        """Return the path of a directory for what is pinned while a copy is sent."""
        return self._kept.copies(name)

    def reader(self) -> LogReader:
        """Return a reader of all that is durable now, and of what is kept, from the segment on
        behind which none is missing.
        """
        # Before the lock is taken: listing waits for the disk, and the state machine for the lock.
        there = self._there()
        with self._lock:
            number = max(self._ends, default=0)
            # Segments are searched from the newest backwards: a follower can only be sent what is
            # behind its own end without a gap.
            while number - 1 in self._ends and (number - 1 in there or self._kept.has(number - 1)):
                number -= 1
            ends = {one: end for one, end in self._ends.items() if one >= number}
        return self._reader(ends)

    def _reader(self, ends: Mapping[int, int]) -> LogReader:
        with self._lock:
            kept = {one: path for one, path in self._kept.paths().items() if self._kept.has(one)}
        return LogReader(self._files, self._directory, self._seed, ends, kept)

    def _there(self) -> set[int]:
        """Return the numbers of the segments that the store has."""
        return {*segment_numbers(self._files.list_directory(f"{self._directory}/{SEGMENTS}"))}

    def look_up(self, tail: Iterable[HeldBatch]) -> None:
        """Find out which of a follower's batches are here, until one is: `has` knows it then.

        It may take long: not to be called by a thread that others wait for. Raises: OSError.
        """
        for held in tail:
            if self.has(held):
                return
            # Only batches that are older than the last 64 need the disk.
            with self._lock:
                first = self._last[0].end.lsn if self._last else 0
            if held.position.lsn >= first:
                continue  # `has` knows all of these
            found = self._named(held.position.lsn)
            # The same number with another checksum is a batch of another leader.
            if found is None or found.checksum != held.checksum:
                continue
            with self._lock:
                self._asked[held] = found
            return

    def _named(self, lsn: int) -> NamedBatch | None:
        """Return a batch of the log, if none is missing behind it. Few segments are read for it."""
        ends = self.reader().ends
        numbers = [number for number, end in ends.items() if end]
        index = bisect_left(numbers[:-1], lsn, key=lambda number: self._last_lsn(number, ends))
        one = numbers[index] if numbers else 0
        return self._reader({one: ends[one]}).named(lsn) if one else None

    def _last_lsn(self, number: int, ends: Mapping[int, int]) -> int:
        """Return the last batch of a segment to which nothing more is appended."""
        if number not in self._last_lsns:
            self._last_lsns[number] = self._reader({number: ends[number]}).end().lsn
        return self._last_lsns[number]

    def end_of(self, position: ReplicaPosition) -> BatchEnd | None:
        """Return where a batch ends that was looked up; None if it was not found."""
        if position == START:
            return LOG_START
        with self._lock:
            known = [*self._last, *filter(None, self._asked.values())]
        return next((one.end for one in known if one.end.lsn == position.lsn), None)

    def ends_of_batches(self) -> list[BatchEnd]:
        """Return where the last batches end."""
        with self._lock:
            return [one.end for one in self._last]

    def lsn_up_to(self, number: int) -> int:
        """Return the LSN of the last batch up to a number; 0 if that is not known any longer."""
        with self._lock:
            for one in reversed(self._last):
                if number_of(one.end.lsn) <= number:
                    return one.end.lsn
        return 0

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
        index = self.end_of(position)
        if index is None:
            return False
        with self._lock:
            ends = dict(self._ends)
        # A follower that has the whole of a segment needs the next one only.
        is_whole = ends.get(index.segment, 0) <= index.offset
        wanted = range(index.segment + is_whole, max(ends, default=0) + 1)
        # The segments are listed without the lock, as that waits for the disk. A segment that is
        # removed meanwhile ends the catch-up, and the follower comes again.
        missing = set(wanted) - self._there()
        with self._lock:
            return all(map(self._kept.has, missing))

    def checkpoint(self) -> int:
        return self._checkpoint

    def confirmed(self) -> ReplicaPosition:
        return ReplicaPosition.of_lsn(self.confirmed_lsn)


def held_batch(batch: NamedBatch) -> HeldBatch:
    """Return a batch as members name it to each other."""
    return HeldBatch(ReplicaPosition.of_lsn(batch.end.lsn), batch.checksum)
