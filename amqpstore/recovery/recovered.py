"""The result of recovery: a report for people and machines, and what the store continues from."""

from __future__ import annotations

from dataclasses import dataclass, field

from amqpstore.catalog.catalog import Change
from amqpstore.catalog.tables import START, Position
from amqpstore.checkpoints.checkpoint_state import CheckpointState
from amqpstore.evidence.absence import AbsentMessages
from amqpstore.evidence.shortfall import Shortfall
from amqpstore.log.batch import BatchSummary
from amqpstore.log.segments import Segment
from amqpstore.system.filenames import FIRST_COMPACTED


@dataclass
class RecoveryReport:
    """The result of recovery, for people and machines: `dataclasses.asdict` is plain JSON.

    `kept` and `redelivered` count messages by queue id; `lost` names messages that were durable and
    cannot be read, as (queue id, sequence, message id); `orphaned` are the ids of messages whose
    record is sound and whose TRANSACTION, which said where they belong, is damaged. `absent` counts
    messages that `kept` has and the files of their segments do not; `unindexed` messages are in
    index files that are missing or cannot be read, and `kept` does not have them; `shortfall` is
    what was durable and is missing in the log or behind its end, `passed_over` what earlier starts
    have left to a repair, as text. `torn_bytes` were rolled back at the end of the log, with
    `rolled_back` messages; `damage` is (path, offset, bytes, reason); `unknown_files` were left
    alone.
    """

    kept: dict[int, int] = field(default_factory=dict)
    redelivered: dict[int, int] = field(default_factory=dict)
    lost: list[tuple[int, int, int]] = field(default_factory=list)
    orphaned: list[int] = field(default_factory=list)
    absent: list[AbsentMessages] = field(default_factory=list)
    unindexed: int = 0
    shortfall: Shortfall = field(default_factory=Shortfall)
    passed_over: str = ""
    torn_bytes: int = 0
    rolled_back: int = 0
    damage: list[tuple[str, int, int, str]] = field(default_factory=list)
    unknown_files: list[str] = field(default_factory=list)
    segments: int = 0
    scanned_bytes: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether nothing was torn and nothing is damaged."""
        is_torn = self.torn_bytes or self.rolled_back
        return not (is_torn or self.damage or self.lost or self.shortfall or self.passed_over)

    @property
    def lost_count(self) -> int:
        """The number of durable messages that cannot be read, at least, as far as is known."""
        # A message whose index file cannot be read may be an absent one, too.
        absent = max(sum(one.at_least for one in self.absent), self.unindexed)
        # Whatever is named as lost is missing in the log, too.
        return absent + max(len(self.lost), self.shortfall.lost)


@dataclass
class Recovered:
    """The state from which the store continues.

    The last checkpoint was at `start`, the log ends at `position`, and `batches` are those between;
    `changes` are for the catalog, and `leftovers` are files that a crash left: both must be dealt
    with before the log continues. `copies` are index files of which quarantine gets a copy, as they
    have more than their rows count. `passed_over` are changes that note what the next checkpoint
    covers without having seen it: they are committed with it. `next_queue_id`, if that of the
    catalog has changed.
    `quarantined` are numbers of segments that it kept from being
    moved away, and `to_quarantine` of those to move instead of removing, once nothing in them is
    live; so are `kept_segments`, while anything is missing.
    `is_unread`: the disk could not read all of the log, and the next start should try again.
    `open_segment`: the segment that a crash may have torn, 0 if there is none.
    """

    report: RecoveryReport
    checkpoint_state: CheckpointState
    segments: list[Segment] = field(default_factory=list)
    batches: list[BatchSummary] = field(default_factory=list)
    deleted: list[int] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    passed_over: list[Change] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)
    quarantined: list[int] = field(default_factory=list)
    to_quarantine: set[int] = field(default_factory=set)
    kept_segments: set[int] = field(default_factory=set)
    is_unread: bool = False
    open_segment: int = 0
    next_queue_id: int | None = None
    next_segment: int = 1
    next_compacted: int = FIRST_COMPACTED
    start: Position = START
    position: Position = START
