"""The parts of a check: arguments of each step, and results for a segment or for index files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from amqpstore.catalog.keys import IndexKey
from amqpstore.catalog.shapes import Rows
from amqpstore.catalog.tables import OffsetTableRow, SegmentRow
from amqpstore.format.index import IndexState
from amqpstore.format.records import Operation
from amqpstore.system.files import Files
from amqpstore_tools.check.findings import Finding
from amqpstore_tools.check.history import LogHistory, LogState
from amqpstore_tools.check.index import Live
from amqpstore_tools.check.segments import CheckedSegment
from amqpstore_tools.check.store import SegmentJob

Range = tuple[int, int]
"""The first number and the one after the last."""

Key = tuple[int, int]
"""The number of the store among those that are checked, and the segment."""

ONE_BY_ONE = ("index", "segments", "marks")
"""Tables with a row for each part."""


@dataclass(frozen=True)
class StoreContext:
    """The context of one store that all steps share; `rows` are None without a catalog.

    A step gets rows of `ONE_BY_ONE` with its job; they may be missing here. `ranges` are the ids of
    accounts by segment; `names` are those of queues by id.
    """

    directory: str
    files: Files
    store_id: bytes | None
    seed: int
    rows: Rows | None
    names: dict[int, str]
    position_segment: int
    ranges: dict[int, Range] = field(default_factory=dict)


class ReadJob(NamedTuple):
    """A segment to read, of the store with this number among those that are checked."""

    store: int
    segment: SegmentJob


class IndexJob(NamedTuple):
    """Keys and states of index files of one store, from number `start` on.

    `last_end`: where the file before them ends, of the same queue.
    """

    store: int
    start: int
    files: list[tuple[IndexKey, IndexState]]
    last_end: int


@dataclass
class Read:
    """A segment that was read, None if it is missing, and the findings in it."""

    segment: CheckedSegment | None
    findings: list[Finding]


@dataclass
class Summary:
    """The facts about a segment that the other steps need.

    `segment` is without records, except that the one with the checkpoint position has its batches.
    `log` has the findings in the log, None if the state before it was unknown; then `after` is the
    state of the log behind it, starting from nothing, and `queues` are those that it mentions.
    `history` is without its `fresh`, but has the operations for it. `homeless` are ids of messages
    that no account has. `lsns` and `ids` are ranges of those of its batches, ascending.
    """

    number: int
    segment: CheckedSegment | None
    findings: list[Finding]
    log: list[Finding] | None = None
    after: LogState | None = None
    queues: set[int] = field(default_factory=set)
    fresh: list[Operation] = field(default_factory=list)
    history: LogHistory = field(default_factory=LogHistory)
    homeless: list[Range] = field(default_factory=list)
    lsns: list[Range] = field(default_factory=list)
    ids: list[Range] = field(default_factory=list)


class LiveSlice(NamedTuple):
    """Live messages of a segment, in the order of the whole they are part of."""

    order: tuple[int, int, int]
    live: Live


@dataclass
class IndexResult:
    """The result for some index files. `held` is how many messages each queue holds, without those
    that have left since; `hidden` are entries of prepared transactions, and `homeless` those
    outside of all accounts.
    """

    store: int
    start: int
    findings: list[Finding]
    is_whole: bool
    held: dict[int, int]
    hidden: list[Live]
    homeless: list[Live]


@dataclass(frozen=True)
class Known:
    """The facts that are known of a store when all files were read: see `ReferenceChecker`."""

    is_whole: bool
    removed: dict[int, list[Range]]


@dataclass(frozen=True)
class CompareJob:
    """The facts that a segment is compared with: the log before it, its rows, and what came after
    the checkpoint position; None if there is none.
    """

    before: LogState | None
    account: SegmentRow | None = None
    offset_table: OffsetTableRow | None = None
    fresh: Sequence[Operation] = ()


@dataclass
class Compared:
    """The findings, by what was compared."""

    log: list[Finding] = field(default_factory=list)
    account: list[Finding] = field(default_factory=list)
    fresh: list[Finding] = field(default_factory=list)
    offset_table: list[Finding] = field(default_factory=list)
