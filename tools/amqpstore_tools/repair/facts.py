"""The sound parts of a store, whatever the catalog says of them: segments, batches, index
blocks.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from amqpstore.catalog import tables
from amqpstore.catalog.definitions import COPIED, DefinitionsCopy, read_copy
from amqpstore.catalog.shapes import Rows
from amqpstore.catalog.tables import START, StoreRows
from amqpstore.errors import DamageError, FormatVersionError
from amqpstore.evidence.absence import size_of
from amqpstore.format.compression import Decompressor
from amqpstore.format.records import FORMAT_VERSION, Gap, OperationKind, checksum_seed
from amqpstore.identity.expected_segments import ExpectedSegments
from amqpstore.identity.identity import SegmentHeader
from amqpstore.system.filenames import is_compacted
from amqpstore.system.files import Files
from amqpstore_tools.check.findings import Findings
from amqpstore_tools.check.reading import StoreFile
from amqpstore_tools.check.scanning import Ids, Scanned, ScannedBatch, Scanner
from amqpstore_tools.check.segments import segment_name
from amqpstore_tools.check.store import Checked, ReadableStore
from amqpstore_tools.offline.progress import Progress
from amqpstore_tools.offline.read_only_files import ReadOnlyFiles
from amqpstore_tools.offline.segments import IndexImage
from amqpstore_tools.repair.errors import UnknownStoreError
from amqpstore_tools.repair.files import StoreFiles
from amqpstore_tools.repair.ranges import Ranges
from amqpstore_tools.repair.salvage import salvage


@dataclass
class SegmentFacts:
    """The content of segment `number`, up to `end`, in the file `name`, relative to the store's
    directory, of `size` bytes.

    `is_sound`: everything up to there is as it was written.
    """

    number: int
    name: str
    size: int
    end: int
    scanned: Scanned
    is_sound: bool = False

    @property
    def is_home(self) -> bool:
        """Whether the file has the name of the segment that it is."""
        return self.name == segment_name(self.number)

    @property
    def is_compacted(self) -> bool:
        return is_compacted(self.number)

    @property
    def runs(self) -> list[Ids]:
        """The readable messages of the queue."""
        return self.scanned.runs

    def durable_ids(self) -> Ranges:
        """Return the ids of its messages that were durable: those of batches with a TRANSACTION."""
        ids = Ranges()
        for run in self.runs if self.is_compacted else ():
            ids.add(run.first_id, run.end_id)
        for batch in self.scanned.batches if not self.is_compacted else ():
            for first, end in batch.messages if batch.lsn else ():
                ids.add(first, end)
        return ids

    @property
    def first_id(self) -> int:
        """The first id of its messages; 0 if it has none."""
        return min((run.first_id for run in self.runs), default=0)

    @property
    def end_id(self) -> int:
        """The id after the last."""
        return max((run.end_id for run in self.runs), default=0)


class LogBatch(NamedTuple):
    """A batch of the log with its TRANSACTION."""

    segment: SegmentFacts
    batch: ScannedBatch


@dataclass
class Facts:
    """Everything sound. `rows` are the catalog's, None if it is lost; `damaged_rows` have table and
    key of those that are not sound, with an empty key for a table that may lack rows. `codes` are
    the findings of a check; `copy` is that of the definitions, if there is one of this store;
    `replaced` are the numbers of segments in whose places something other than a file is. `files`
    are those that were read: of a snapshot, if it `is_live`.

    Of a segment, or an index file, there may be several files: those under another name come
    behind the one that has its own.
    """

    store: ReadableStore
    checked: Checked
    store_id: bytes
    segments: list[SegmentFacts]
    index: list[IndexImage]
    copy: DefinitionsCopy | None
    rows: Rows | None
    damaged_rows: set[tuple[str, str]]
    replaced: frozenset[int] = frozenset()

    @property
    def directory(self) -> str:
        return self.store.directory

    @property
    def files(self) -> Files:
        return self.store.files

    @property
    def is_live(self) -> bool:
        return self.store.is_live

    @property
    def seed(self) -> int:
        return checksum_seed(self.store_id)

    @property
    def codes(self) -> set[str]:
        return {finding.code for finding in self.checked.findings}

    @property
    def is_salvaged(self) -> bool:
        """Whether only a part of the catalog can be read."""
        return self.rows is not None and self.checked.rows is None

    def is_lost(self, table: str) -> bool:
        """Tell whether rows of a table may be missing."""
        return self.rows is None or any(one == table for one, _ in self.damaged_rows)

    def table(self, table: str) -> dict[str, Any]:
        """Return the rows of a table; lost rows come from the latest copy."""
        rows = dict(self.rows[table]) if self.rows is not None else {}
        if self.copy and table == "dictionaries":
            # One never changes, and only the copy of it has a checksum.
            rows |= self.copy.tables.get(table, {})
        if self.copy and self.is_lost(table) and table in COPIED:
            damaged = {key for one, key in self.damaged_rows if one == table}
            for key, row in self.copy.tables.get(table, {}).items():
                if self.rows is None or "" in damaged or key in damaged:
                    rows.setdefault(key, row)
        return rows

    def log_files(self) -> Iterator[tuple[int, list[SegmentFacts]]]:
        """Yield each number of a segment of the log with the files that have it, in order."""
        log = [one for one in self.segments if not one.is_compacted]
        for number, files in groupby(log, key=attrgetter("number")):
            yield number, list(files)

    def log(self) -> Iterator[LogBatch]:
        """Yield the batches of the log that have their TRANSACTION, in order.

        Of a batch in several files the one is taken that lacks nothing.
        """
        lsn = 0
        for _, files in self.log_files():
            found: dict[int, LogBatch] = {}
            for segment in files:
                for batch in segment.scanned.batches:
                    known = found.get(batch.lsn)
                    if known is None or (known.batch.gaps and not batch.gaps):
                        found[batch.lsn] = LogBatch(segment, batch)
            for number in sorted(found):
                if number > lsn:
                    lsn = number
                    yield found[number]


def gather(store: ReadableStore, checked: Checked, tell: Progress) -> Facts:
    """Read all segments and index files of a store that a check has examined.

    Raises: UnknownStoreError, FormatVersionError, OSError.
    """
    copy = None
    with contextlib.suppress(DamageError):
        # It is replaced as a whole, so it is read in place.
        copy = read_copy(ReadOnlyFiles(), store.directory)
    store_id = checked.store_id
    if store_id is None:
        raise UnknownStoreError(store.directory)
    # The rows of another store's copy would give these queues the wrong names.
    if copy and copy.store_id != store_id:
        copy = None
    rows, damaged_rows = checked.rows, checked.damaged_rows
    if rows is None and (
        salvaged := salvage(store.catalog, store_id, plain=checked.format_version == 1)
    ):
        rows, damaged_rows = salvaged
    named = store.files, store.directory
    files = StoreFiles.of(*named, store_id, is_catalog_lost=rows is None)
    index = _index_images(*named, files, store_id)
    facts = Facts(store, checked, store_id, [], index, copy, rows, damaged_rows, files.replaced)
    dictionaries = tables.DICTIONARIES.read(facts.table)
    measure = Decompressor(dictionaries).measure
    numbers = {number for number, _ in files.segments}
    ends = tables.SEGMENT_ENDS.read(facts.rows.__getitem__) if facts.rows is not None else {}
    position = StoreRows.read(facts.table).position or START
    rowed = tables.SEGMENTS.read_keys(facts.table)
    expected = ExpectedSegments.of(numbers, position.segment, rowed, {*ends, *files.replaced})
    done = 0
    sizes = [size_of(store.files, f"{store.directory}/{name}") for _, name in files.segments]
    for (number, name), size in zip(files.segments, sizes, strict=True):
        tell(name, done, sum(sizes))
        noted = ends[number].end if number in ends else None
        is_open = number == expected.open
        facts.segments.append(_segment(facts, number, name, measure, noted=noted, is_open=is_open))
        done += size
    tell("", done, done)
    _distrust_what_does_not_ascend(facts)
    return facts


def _distrust_what_does_not_ascend(facts: Facts) -> None:
    """Distrust LSNs, ids and sequences of a queue that do not ascend from segment to segment."""
    lsn = message_id = 0
    sequences: dict[int, int] = {}
    for segment in facts.segments:
        if segment.is_compacted or not segment.is_home:
            continue
        for batch in segment.scanned.batches:
            if batch.lsn and batch.lsn <= lsn:
                segment.is_sound = False
            lsn = max(lsn, batch.lsn)
            for first, end in batch.messages:
                if first <= message_id:
                    segment.is_sound = False
                message_id = max(message_id, end - 1)
            for operation in batch.operations:
                if operation.kind == OperationKind.ENQUEUE:
                    known = sequences.get(operation.queue_id, 0)
                    end = operation.first_sequence + operation.message_count
                    if operation.first_sequence < known:
                        segment.is_sound = False
                    sequences[operation.queue_id] = max(known, end)


def _segment(
    facts: Facts,
    number: int,
    name: str,
    measure: Callable[[bytes], int],
    *,
    noted: int | None,
    is_open: bool,
) -> SegmentFacts:
    """Read a segment. Args: noted, its recorded end, if any; is_open, whether its last batch may be
    torn.
    """
    file = StoreFile(facts.files, facts.directory, name, Findings())
    try:
        scanner = Scanner(file.read, file.size, segment=number, seed=facts.seed, measure=measure)
        segment = SegmentFacts(number, name, file.size, file.size, scanner.run())
    finally:
        file.close()
    batches = segment.scanned.batches
    if is_open and batches and batches[-1].is_blank:
        _drop_last(segment)
    if is_open and batches and not batches[-1].is_whole and not _was_durable(facts, segment):
        _drop_last(segment)
    # The first batch begins with the segment's header, which is before any noted end.
    while noted is not None and batches and batches[-1].end > noted and not batches[-1].is_whole:
        _drop_last(segment, noted)
    _remove_unread(segment)
    segment.is_sound = _is_sound(segment, facts.store_id)
    return segment


def _was_durable(facts: Facts, segment: SegmentFacts) -> bool:
    """Tell whether a checkpoint knew the last batch of the log: then it is damaged, and not
    torn.
    """
    last = segment.scanned.batches[-1]
    position = StoreRows.read(facts.table).position
    if position and position.segment == segment.number and last.start < position.offset:
        return True
    if not last.messages:
        return False
    first = last.messages[0][0]
    return any(
        not isinstance(found, Gap) and found[2].ids and found[2].ids[-1] >= first
        for image in facts.index
        for found in image.blocks()
    )


def _drop_last(segment: SegmentFacts, least: int = 0) -> None:
    """Drop the last batch: nothing from its start on is part of the segment.

    Args: least, the earliest possible end of the segment.
    """
    scanned = segment.scanned
    segment.end = end = max(scanned.batches.pop().start, least)
    scanned.gaps = [gap for gap in scanned.gaps if gap.offset < end]
    scanned.unread = [one for one in scanned.unread if one.offset < end]
    highest = max((stop for batch in scanned.batches for _, stop in batch.messages), default=0)
    for index, run in enumerate(scanned.runs):
        if run.end_id > highest:
            count = max(highest - run.first_id, 0)
            scanned.runs[index] = run._replace(sizes=run.sizes[:count])
    scanned.runs = [run for run in scanned.runs if run.sizes]


def _remove_unread(segment: SegmentFacts) -> None:
    """Remove messages that cannot be read from the runs."""
    for unread in segment.scanned.unread:
        for index, run in enumerate(segment.runs):
            if run.first_id <= unread.message_id < run.end_id:
                count = unread.message_id - run.first_id
                parts = [
                    run._replace(sizes=run.sizes[:count]),
                    Ids(unread.message_id + 1, unread.offset + 1, run.sizes[count + 1 :]),
                ]
                segment.runs[index : index + 1] = [part for part in parts if part.sizes]
                break


def _is_sound(segment: SegmentFacts, store_id: bytes) -> bool:
    scanned = segment.scanned
    headers = scanned.headers
    if scanned.gaps or scanned.unread or len(headers) != 1 or headers[0][:2] != (0, segment.number):
        return False
    try:
        header = SegmentHeader.of_payload(headers[0][2])
    except ValueError:
        return False
    if header.version > FORMAT_VERSION:
        raise FormatVersionError(segment.name, header.version, FORMAT_VERSION)
    if header.why_foreign(store_id):
        return False
    if segment.is_compacted:
        return all(not batch.lsn for batch in scanned.batches)
    lsn = 0
    for batch in scanned.batches:
        keys = [(one.kind, one.queue_id) for one in batch.operations]
        if (
            not batch.lsn
            or (lsn and batch.lsn != lsn + 1)
            or batch.tag != batch.lsn & 0xFFFF
            or batch.enqueued != batch.messages
            or keys != sorted(keys)
            or batch.contradiction
        ):
            return False
        lsn = batch.lsn
    return True


def _index_images(
    files: Files, directory: str, found: StoreFiles, store_id: bytes
) -> list[IndexImage]:
    seed = checksum_seed(store_id)
    images = []
    for queue_id, number, name in found.index:
        path = os.path.join(directory, name)
        size = size_of(files, path)
        images.append(IndexImage(files, path, queue_id, number, seed, size, None))
    return images
