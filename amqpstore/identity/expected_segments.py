"""The segments that a store should have, and the one that the log ends in.

The log is read from the last checkpoint's position on, so all its numbers from there to the highest
known one should exist: that of the position, of a file, or of a noted end. The log removes none of
these, and assigns them one after another. Of the others those should exist that have a row in
`segments`: those before the position, and compacted ones. Any other file is left over from a
checkpoint or a compaction that was followed by a crash.

Recovery, check, repair, copies, the offline tools and Spark all use this module; FORMAT.md, "Which
segments there are", describes the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from amqpstore.system.filenames import FIRST_COMPACTED, is_compacted, segment_numbers

MISSING = "the file is missing"

_MAX_NAMED = 1000
"""How many consecutive missing segments of the log are named one by one."""


class MissingSegments(NamedTuple):
    """Segment `number` is missing, and so are `others` more segments of the log after it."""

    number: int
    others: int

    @property
    def reason(self) -> str:
        """The reason, as text for people."""
        return f"{MISSING}, and so are the {self.others} after it" if self.others else MISSING


class ExpectedSegments(NamedTuple):
    """The segments that a store has and should have, by number. Created by `of`.

    `log` are the existing ones of the log from the position on, ascending: they are to be read.
    `rowed` are all others with a row, existing or not; `left_over` are files that nothing needs.
    `gaps` are missing numbers of the log from the position on, `lost` missing ones with a row that
    are in no gap. `open` is the segment of the log that a crash may have torn, 0 if there is none:
    the last one, if its end is not noted.
    """

    log: list[int]
    rowed: list[int]
    left_over: list[int]
    gaps: list[range]
    lost: list[int]
    open: int

    @classmethod
    def of(
        cls, files: Iterable[int], position: int, rows: Collection[int], ends: Collection[int]
    ) -> ExpectedSegments:
        """Find which segments should exist.

        Args: files, the numbers of existing ones; position, the number of the segment in which the
        log continues after the last checkpoint, 0 if there was none; rows and ends, the numbers in
        the tables `segments` and `ends`.
        """
        there = set(files)
        log = sorted(one for one in there if is_of_log(one, position))
        # A noted end counts as a file: it shows that the segment existed, also if it is gone.
        last = max([position, *log, *(one for one in ends if not is_compacted(one))])
        gaps = []
        following = max(position, 1)
        # One more than the last, so that a gap right before the end is found.
        for number in [*log, last + 1]:
            if following < number:
                gaps.append(range(following, number))
            following = number + 1
        expected = range(max(position, 1), last + 1)
        return cls(
            log,
            sorted(set(rows).difference(log)),
            sorted(one for one in there.difference(rows) if not is_of_log(one, position)),
            gaps,
            sorted(one for one in set(rows) - there if one not in expected),
            # The log had continued after a missing one: so the segment before it was durable.
            last if log and log[-1] == last and last not in ends else 0,
        )

    @property
    def is_complete(self) -> bool:
        """Whether none is missing."""
        return not (self.gaps or self.lost)

    def missing(self) -> Iterator[MissingSegments]:
        """Yield what is missing.

        A row of a catalog without checksums may have any number, so a gap may have 2^31.
        """
        for gap in self.gaps:
            for number in gap[:_MAX_NAMED]:
                yield MissingSegments(number, 0)
            if others := gap[_MAX_NAMED:]:
                yield MissingSegments(others[0], len(others) - 1)
        for number in self.lost:
            yield MissingSegments(number, 0)


def is_of_log(number: int, position: int) -> bool:
    """Tell whether a segment is of the log, from the position's segment on."""
    return number >= max(position, 1) and not is_compacted(number)


def log_segments(names: Iterable[str], position: int = 0) -> list[int]:
    """Return the numbers of the log's segments among file names, from the position's segment on,
    ascending.
    """
    return [number for number in segment_numbers(names) if is_of_log(number, position)]


def next_numbers(known: Collection[int], next_compacted: int | None) -> tuple[int, int]:
    """Return the first number that no segment of the log, and no compacted one, ever had.

    Args: known, the numbers of all segments that exist or existed; next_compacted, that of the
    catalog.
    """
    of_log = max((one for one in known if not is_compacted(one)), default=0)
    return of_log + 1, max(next_compacted or FIRST_COMPACTED, *(one + 1 for one in known), 0)
