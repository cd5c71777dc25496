"""The parts of a check: what each step is told of the store, and what it says of a segment or of
index files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from amqpstore.files import Files
from amqpstore.index import IndexState
from amqpstore.keys import IndexKey
from amqpstore.records import Operation
from amqpstore.shapes import Rows
from amqpstore.tables import OffsetTableRow, SegmentRow
from amqpstore_tools.check.findings import Finding
from amqpstore_tools.check.history import History, LogPlace
from amqpstore_tools.check.index import Live
from amqpstore_tools.check.segments import Segment
from amqpstore_tools.check.store import SegmentJob

Range = tuple[int, int]
"""The first number and the one after the last."""

Key = tuple[int, int]
"""The store among those that are checked, and the segment."""

ONE_BY_ONE = ("index", "segments", "marks")
"""Tables with a row for each part."""


@dataclass(frozen=True)
class Shared:
    """What all steps know of one store; `rows` are None where there is no catalog.

    A step gets rows of `ONE_BY_ONE` with its job, and may find none of them here.
    `ranges` are the ids of accounts by segment; `names` of queues by id.
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
    """A segment of the store with this number among those that are checked."""

    store: int
    segment: SegmentJob


class IndexJob(NamedTuple):
    """Keys and states of index files of one store, the ones from a `place` on.

    `last_end`: where the one before them ends, of the same queue.
    """

    store: int
    place: int
    files: list[tuple[IndexKey, IndexState]]
    last_end: int


@dataclass
class Read:
    """A segment that was read, None where it is missing, and what was found in it."""

    segment: Segment | None
    findings: list[Finding]


@dataclass
class Summary:
    """Of a segment, what has to be known for the other steps.

    `segment` is without records, but that the one of the position has its batches. `log` is what
    was found in the log, None where what came before was not known; `after` then is what the log
    came to behind it, with nothing before it, and `queues` are those that it speaks of. `history`
    is without its `fresh`, of which there are the operations. `homeless` are ids of messages that
    no account has.
    """

    number: int
    segment: Segment | None
    findings: list[Finding]
    log: list[Finding] | None = None
    after: LogPlace | None = None
    queues: set[int] = field(default_factory=set)
    fresh: list[Operation] = field(default_factory=list)
    history: History = field(default_factory=History)
    homeless: list[Range] = field(default_factory=list)


class LivePart(NamedTuple):
    """What is live of a segment, in the order of what it is a part of."""

    order: tuple[int, int, int]
    live: Live


@dataclass
class IndexResult:
    """What a task found in some index files; `held` is how many messages queues hold by queue,
    without those that have left since; `hidden` are entries of prepared transactions, and
    `homeless` those that reach beyond all accounts."""

    store: int
    place: int
    findings: list[Finding]
    is_whole: bool
    held: dict[int, int]
    hidden: list[Live]
    homeless: list[Live]


@dataclass(frozen=True)
class Known:
    """What is known of a store when all files were read: see `ReferenceChecker`."""

    is_whole: bool
    removed: dict[int, list[Range]]


@dataclass(frozen=True)
class CompareJob:
    """What a segment is held against: the log before it, its rows, and what came behind the
    position; None where there is none."""

    place: LogPlace | None
    account: SegmentRow | None = None
    marks: OffsetTableRow | None = None
    fresh: Sequence[Operation] = ()


@dataclass
class Compared:
    """What was found, by what was compared."""

    log: list[Finding] = field(default_factory=list)
    account: list[Finding] = field(default_factory=list)
    fresh: list[Finding] = field(default_factory=list)
    marks: list[Finding] = field(default_factory=list)
