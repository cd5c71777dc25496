"""Decides for each segment: it stays as it is, is rewritten, or is not needed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from amqpstore.catalog import tables
from amqpstore.catalog.tables import StoreRows
from amqpstore.identity.expected_segments import next_numbers
from amqpstore.system.filenames import is_compacted
from amqpstore_tools.repair.facts import Facts, SegmentFacts
from amqpstore_tools.repair.ranges import Ranges
from amqpstore_tools.repair.truth.values import Truth

_MAX_AHEAD = 1024
"""A number in the catalog that is further ahead of those of files counts as damaged."""

_NUMBERS = 1 << 32
"""A number has 32 bits."""


class Rewrite(NamedTuple):
    """Segments whose live messages are copied to the new segment `number`."""

    number: int
    sources: list[SegmentFacts]


@dataclass
class Layout:
    """`kept` segments stay, `rewrites` are made, `gone` ones have nothing live. The log continues
    after `log_segment`, a new one that has only its header.
    """

    kept: list[SegmentFacts]
    rewrites: list[Rewrite]
    gone: list[SegmentFacts]
    log_segment: int

    @property
    def replaced(self) -> list[SegmentFacts]:
        """The segments that are read and not kept."""
        return [source for rewrite in self.rewrites for source in rewrite.sources]


def lay_out(facts: Facts, truth: Truth) -> Layout:
    """Decide for each segment."""
    live = live_ids(truth)
    used: dict[tuple[int, str], SegmentFacts] = {}
    for first, end in live:
        for _, _, segment, _ in truth.homes.pieces(first, end):
            used[segment.number, segment.name] = segment
    # Not the number of a last segment that is missing, either: it may be put back.
    known = {*_known_numbers(facts), truth.shortfall.segment}
    log_segment, compacted = next_numbers(known, None)
    kept, rewrites = [], []
    for group in _overlapping(used.values()):
        if len(group) == 1 and group[0].is_sound and group[0].is_home:
            kept += group
        else:
            rewrites.append(Rewrite(compacted, group))
            compacted += 1
    gone = [one for one in facts.segments if one.is_home and (one.number, one.name) not in used]
    return Layout(kept, rewrites, gone, log_segment)


def live_ids(truth: Truth) -> Ranges:
    """Return the ids of all messages that any queue holds."""
    live = Ranges()
    runs = [
        (run.first_id, run.first_id + run.count)
        for queue in truth.queues.values()
        for run in queue.ready
    ]
    for first, end in sorted(runs):
        live.add(first, end)
    return live


def _overlapping(segments: Iterable[SegmentFacts]) -> list[list[SegmentFacts]]:
    """Return groups of segments whose ranges of ids overlap: each id must be looked up in one
    segment only.
    """
    groups: list[list[SegmentFacts]] = []
    end = 0
    for segment in sorted(segments, key=lambda one: (one.first_id, one.number, one.name)):
        if groups and segment.first_id < end:
            groups[-1].append(segment)
        else:
            groups.append([segment])
        end = max(end, segment.end_id)
    return groups


def _known_numbers(facts: Facts) -> set[int]:
    """Return the numbers of segments that exist or, if the catalog is plausible, existed."""
    known = {one.number for one in facts.segments if one.number < _NUMBERS}
    known |= {number for number in facts.replaced if number < _NUMBERS}
    rows = facts.rows
    if rows is None:
        return known
    noted: set[int] = set()
    for table in (tables.SEGMENTS, tables.SEGMENT_ENDS, tables.QUARANTINE):
        noted |= table.read_keys(rows.__getitem__)
    of_store = StoreRows.read(rows.__getitem__)
    if of_store.position:
        noted.add(of_store.position.segment)
    if of_store.next_compacted:
        noted.add(of_store.next_compacted - 1)
    of_log, compacted = next_numbers(known, None)
    for number in noted:
        following = compacted if is_compacted(number) else of_log
        if number < min(following + _MAX_AHEAD, _NUMBERS):
            known.add(number)
    return known
