"""The remains of a store, in the form that an image of a store has."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

from amqpstore import RecoveryReport
from amqpstore.catalog import tables
from amqpstore.catalog.catalog import Change
from amqpstore.catalog.tables import START, Position, StoreRows
from amqpstore.checkpoints.checkpoint_state import CheckpointState, QueueIndex, Sizes
from amqpstore.format.index import UNKNOWN_SIZE, IndexReader
from amqpstore.format.runs import Run
from amqpstore.log.segment_accounts import SegmentAccounts
from amqpstore.recovery.recovered import Recovered
from amqpstore.system.filenames import INDEX, SEGMENTS, is_compacted, segment_path
from amqpstore_tools.check.findings import Severity
from amqpstore_tools.offline.image import LogTail
from amqpstore_tools.offline.queues import QueueImage, Unreadable
from amqpstore_tools.offline.segments import SegmentImage, SegmentState
from amqpstore_tools.repair.exporting import Remains
from amqpstore_tools.repair.facts import SegmentFacts
from amqpstore_tools.repair.homes import Homes

_NO_RECORD = "no sound record of these messages exists"
_NO_ENTRY = "rows of the catalog count these messages, and no file has them"


class Remaining:
    """The remains of a store. `segments` come in the order of their ids, those under another name
    too; `recovered` has every queue with its messages, and the positions behind the log.
    """

    def __init__(self, remains: Remains) -> None:
        self.remains = remains
        self._facts = remains.facts
        self._truth = remains.truth
        self._images = {(one.number, one.name): self._image(one) for one in self._facts.segments}
        missing = [self._missing(one) for one in self._expected() - self._present()]
        self.segments = sorted(
            [*self._images.values(), *missing],
            key=lambda one: (one.first_id or 1 << 64, one.number),
        )
        self.recovered = self._recovered()
        self._rows: dict[str, dict[str, Any]] = {}

    def rows(self, table: str) -> Mapping[str, Any]:
        """Return the rows of a table, as a repair would write them."""
        if table not in self._rows:
            self._rows[table] = self._found_rows(table)
        return self._rows[table]

    @property
    def tail(self) -> LogTail:
        """The log behind the last checkpoint; all of it, if that is not known."""
        start = self.recovered.start
        log = [one for one in self._facts.log() if one.batch.lsn >= start.lsn]
        batches = [one.batch for one in log]
        torn = [one for one in self._facts.segments if one.is_home and not one.is_compacted][-1:]
        return LogTail(
            start=start,
            end=self.recovered.position,
            segments=len({one.segment.number for one in log}),
            bytes=sum(one.end - one.start for one in batches),
            batches=len(batches),
            messages=sum(end - first for one in batches for first, end in one.messages),
            operations=sum(len(one.operations) for one in batches),
            torn_bytes=sum(one.size - one.end for one in torn),
            rolled_back=0,
        )

    @property
    def lost_count(self) -> int:
        """The number of messages that are lost, at least: see `RepairPlan`."""
        of_queues = sum(one.lost_count for one in self._truth.queues.values())
        return of_queues + self._truth.shortfall.lost

    def add_losses(self, image: QueueImage) -> None:
        """Add to a queue what is known of its losses."""
        queue = self._truth.queues[image.id]
        if count := sum(one.message_count for one in queue.lost):
            image.missing.append(Unreadable(self._path(SEGMENTS), _NO_RECORD, count))
        if queue.absent:
            image.missing.append(Unreadable(self._path(INDEX), _NO_ENTRY, queue.absent))
        image.again_count = queue.again
        image.is_recovered = queue.is_recovered

    def segment_of(self, message_id: int) -> SegmentImage | None:
        """Return the file that a repair would take a message from; None if there is none."""
        for _, _, found, _ in self._truth.homes.pieces(message_id, message_id + 1):
            return self._images[found.number, found.name]
        return None

    def _path(self, name: str) -> str:
        return os.path.join(self._facts.directory, name)

    def _image(self, found: SegmentFacts) -> SegmentImage:
        state = SegmentState.COMPACTED if found.is_compacted else SegmentState.SEALED
        image = SegmentImage(
            self._facts.files,
            self._path(found.name),
            found.number,
            self._facts.seed,
            found.size,
            state,
            end=found.end,
            first_id=found.first_id,
            end_id=found.end_id,
        )
        runs = sorted((run.first_id, run.offset) for run in found.runs)
        image.table_ids = [first_id for first_id, _ in runs]
        image.table_offsets = [offset for _, offset in runs]
        return image

    def _present(self) -> set[int]:
        return {one.number for one in self._facts.segments}

    def _expected(self) -> set[int]:
        """Return the numbers of segments that should be there, as far as anything tells."""
        rows = self._facts.rows
        of_rows = tables.SEGMENTS.read_keys(rows.__getitem__) if rows is not None else set()
        return of_rows | self._facts.replaced

    def _missing(self, number: int) -> SegmentImage:
        path = segment_path(self._facts.directory, number)
        return SegmentImage(
            self._facts.files, path, number, self._facts.seed, 0, SegmentState.MISSING
        )

    def _found_rows(self, table: str) -> dict[str, Any]:
        truth = self._truth
        if table == "vhosts":
            return truth.vhosts
        changes: list[Change] = []
        if table == "queues":
            changes += [tables.QUEUES.put(one.id, one.definition) for one in truth.queues.values()]
        elif table == "prepared":
            changes += [tables.PREPARED.put(key, row) for key, row in truth.prepared.items()]
        else:
            return self._facts.table(table)
        return {change.key: change.value for change in changes}

    def _recovered(self) -> Recovered:
        facts, truth = self._facts, self._truth
        reader = IndexReader(facts.files, facts.directory, facts.seed)
        indexes = []
        for queue in truth.queues.values():
            index = QueueIndex(queue.id, queue.next_sequence, (), reader)
            index.fresh = queue.ready
            indexes.append(index)
        # Which messages of each segment are live is known of the queues only.
        state = CheckpointState(SegmentAccounts(()), indexes, reader)
        state.sizes = _SizesAtHome(truth.homes)
        report = RecoveryReport(
            shortfall=truth.shortfall,
            damage=list(self._damage()),
            unknown_files=[one.file for one in self._findings("file-unknown")],
            segments=len(facts.segments),
            scanned_bytes=sum(one.size for one in facts.segments),
        )
        start = START
        if facts.rows is not None and "position-wrong" not in facts.codes:
            start = StoreRows.read(facts.rows.__getitem__).position or START
        last = [one for one in self.segments if not is_compacted(one.number)][-1:]
        segment, end = (last[0].number, last[0].sound_size) if last else (0, 0)
        position = Position(segment, end, truth.next_lsn, truth.next_message_id)
        return Recovered(report, state, start=start, position=position)

    def _findings(self, *codes: str) -> Iterator[Any]:
        return (one for one in self.remains.checked.findings if one.code in codes)

    def _damage(self) -> Iterator[tuple[str, int, int, str]]:
        for one in self.remains.checked.findings.of(Severity.ERROR):
            if one.code != "message-lost":
                yield self._path(one.file), max(one.offset, 0), 0, one.text


class _SizesAtHome(Sizes):
    """Sizes of messages in whatever segments they are; those of their bodies are not known."""

    def __init__(self, homes: Homes) -> None:
        super().__init__()
        self._homes = homes

    def of(self, run: Run) -> tuple[array[int], array[int]]:
        """Return the sizes of a run, all of whose messages exist, and of its bodies."""
        sizes = self._homes.sizes(run.first_id, run.count)
        return sizes, array("I", [UNKNOWN_SIZE]) * run.count
