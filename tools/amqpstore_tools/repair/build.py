"""Builds the new files of the repaired store beside it; durable on return."""

from __future__ import annotations

import os
import uuid
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from operator import attrgetter

from amqpstore.catalog import tables
from amqpstore.catalog.catalog import Change, LmdbCatalog
from amqpstore.catalog.definitions import copy_of, write_copy
from amqpstore.catalog.keys import IndexKey
from amqpstore.catalog.tables import NextSequenceRow, Position, SegmentEndRow, StoreRows
from amqpstore.format.index import (
    ENTRIES_A_FILE,
    Entries,
    IndexState,
    encode_block,
    entries_of,
    no_entries,
)
from amqpstore.format.records import (
    FORMAT_VERSION,
    Kind,
    Record,
    encode_record,
    encode_segment_header,
    logical_bytes,
)
from amqpstore.format.runs import Run
from amqpstore.format.windows import read_around, scan_file
from amqpstore.identity import marker
from amqpstore.log.segment_accounts import AscendingIds, SegmentAccount
from amqpstore.log.segments import Segment
from amqpstore.queues.expiry import earliest
from amqpstore.system.descriptors import Descriptors
from amqpstore.system.filenames import (
    CATALOG,
    INDEX,
    SEGMENTS,
    index_path,
    segment_path,
)
from amqpstore.system.files import OsFiles
from amqpstore_tools.offline.progress import Progress
from amqpstore_tools.offline.read_only_files import ReadOnlyFiles
from amqpstore_tools.repair.facts import Facts, SegmentFacts
from amqpstore_tools.repair.layout import Layout, Rewrite
from amqpstore_tools.repair.ranges import Ranges
from amqpstore_tools.repair.truth.values import QueueTruth, Truth

_PIECE_BYTES = 1 << 20

_KEPT_TABLES = ("users", "exchanges", "bindings", "permissions", "policies", "dictionaries")


def build_marker(facts: Facts, to: str) -> None:
    """Write the marker into an existing directory, with the version of the catalog there.

    If there is no catalog, the store keeps its own.
    """
    is_new = os.path.exists(os.path.join(to, CATALOG))
    version = FORMAT_VERSION if is_new else facts.checked.format_version
    marker.write(OsFiles(), to, uuid.UUID(bytes=facts.store_id), version)


class Builder:
    """Builds in the directory `to`. Args: quarantined, the numbers of the segments that stay in
    quarantine; made_ms, since 1970, when the plan was made.
    """

    def __init__(
        self,
        facts: Facts,
        truth: Truth,
        layout: Layout,
        quarantined: Collection[int],
        to: str,
        made_ms: int,
        tell: Progress,
    ) -> None:
        self._facts = facts
        self._truth = truth
        self._layout = layout
        self._quarantined = quarantined
        self._to = to
        self._made_ms = made_ms
        self._tell = tell
        self._files = OsFiles()
        self._changes: list[Change] = []
        runs = [run for queue in truth.queues.values() for run in queue.ready]
        self._held = sorted(runs, key=attrgetter("first_id"))
        self._held_starts = [run.first_id for run in self._held]
        self._longest = max((run.count for run in runs), default=0)

    def run(self) -> None:
        """Write everything. Raises: OSError, DurabilityError."""
        for name in (SEGMENTS, INDEX, CATALOG):
            self._files.make_directory(os.path.join(self._to, name))
        layout = self._layout
        work: list[SegmentFacts | Rewrite] = [*layout.kept, *layout.rewrites]
        total = sum(map(_read_bytes, work))
        done = 0
        for segment in work:
            self._tell(f"segment {segment.number}", done, total)
            if isinstance(segment, Rewrite):
                self._rewrite(segment)
            else:
                self._keep(segment)
            done += _read_bytes(segment)
        header_bytes = self._start_log()
        for queue in self._truth.queues.values():
            self._tell(f"queue {queue.id}", total, total)
            self._index(queue)
        for name in (SEGMENTS, INDEX):
            self._files.sync_directory(os.path.join(self._to, name))
        self._define(header_bytes)
        self._write_catalog()

    # Segments.

    def _keep(self, segment: SegmentFacts) -> None:
        """Write the rows of a segment that stays as it is."""
        path = os.path.join(self._facts.directory, segment.name)
        table = Segment(Descriptors(ReadOnlyFiles()), path, segment.number, self._facts.seed)
        file = ReadOnlyFiles().open(path)
        try:
            for found in scan_file(file, segment.end, segment.number, self._facts.seed):
                if isinstance(found, Record) and found.kind == Kind.MESSAGE:
                    table.note(found.number, found.offset)
        finally:
            file.close()
        ids, sizes = array("Q"), array("I")
        for run in sorted(segment.runs, key=attrgetter("first_id")):
            ids.extend(range(run.first_id, run.end_id))
            sizes.extend(run.sizes)
        self._account(table, ids, sizes, segment.end)
        if not segment.is_compacted:
            self._changes.append(
                tables.SEGMENT_ENDS.put(segment.number, SegmentEndRow(segment.end))
            )

    def _rewrite(self, rewrite: Rewrite) -> None:
        """Write a new segment with the live messages of others."""
        path = segment_path(self._to, rewrite.number)
        table = Segment(Descriptors(self._files), path, rewrite.number, self._facts.seed)
        table.create()
        file = table.writer
        buffers = [self._header(rewrite.number)]
        waiting_bytes = size = len(buffers[0])
        ids, sizes = array("Q"), array("I")
        for message_id, logical, payload, flags in self._merged(rewrite.sources):
            record = encode_record(
                Kind.MESSAGE,
                message_id,
                rewrite.number,
                payload,
                seed=self._facts.seed,
                flags=flags,
            )
            table.note(message_id, size)
            ids.append(message_id)
            sizes.append(logical)
            buffers.append(record)
            size += len(record)
            waiting_bytes += len(record)
            if waiting_bytes >= _PIECE_BYTES:
                file.append(buffers)
                buffers.clear()
                waiting_bytes = 0
        file.append(buffers)
        file.datasync()
        table.close()
        self._account(table, ids, sizes, size)

    def _merged(self, sources: Sequence[SegmentFacts]) -> Iterator[tuple[int, int, bytes, int]]:
        """Yield id, uncompressed size, payload and flags of live messages, by ascending id."""
        wanted: dict[str, list[tuple[int, int]]] = {source.name: [] for source in sources}
        live = Ranges()
        for run in self._held:
            live.add(run.first_id, run.first_id + run.count)
        first = min(source.first_id for source in sources)
        end = max(source.end_id for source in sources)
        for start, stop in live.within(first, end):
            for low, high, segment, _ in self._truth.homes.pieces(start, stop):
                wanted[segment.name].append((low, high))
        if len(sources) == 1:
            yield from self._live(sources[0], wanted[sources[0].name])
            return
        # Several copies of some messages are rare: their live messages fit in memory.
        found = [one for source in sources for one in self._live(source, wanted[source.name])]
        yield from sorted(found)

    def _live(
        self, source: SegmentFacts, wanted: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[int, int, bytes, int]]:
        ranges = Ranges()
        for first, end in wanted:
            ranges.add(first, end)
        file = ReadOnlyFiles().open(os.path.join(self._facts.directory, source.name))
        try:
            for found in scan_file(file, source.end, source.number, self._facts.seed):
                if isinstance(found, Record) and found.kind == Kind.MESSAGE:
                    if found.number not in ranges:
                        continue
                    content = read_around(file, found.offset, found.end - found.offset)
                    index = found.payload_offset - found.offset
                    moved = found._replace(offset=0, payload_offset=index, end=len(content))
                    yield found.number, logical_bytes(content, moved), content[index:], found.flags
        finally:
            file.close()

    def _start_log(self) -> int:
        """Create the segment after which the log continues. Returns its size."""
        # The segment is a new one: nothing is appended where a batch may be torn.
        number = self._layout.log_segment
        header = self._header(number)
        file = self._files.create(segment_path(self._to, number))
        try:
            file.append([header])
            file.datasync()
        finally:
            file.close()
        account = SegmentAccount(number, self._truth.next_message_id)
        account.end_bytes = len(header)
        self._changes.append(tables.SEGMENTS.put(number, account.row()))
        self._changes.append(tables.SEGMENT_ENDS.put(number, SegmentEndRow(len(header))))
        return len(header)

    def _header(self, number: int) -> bytes:
        return encode_segment_header(number, FORMAT_VERSION, self._facts.store_id, self._made_ms)

    def _account(self, table: Segment, ids: array[int], sizes: array[int], end_bytes: int) -> None:
        """Write the rows of a segment with messages of these ids, ascending, and sizes."""
        references = self._references(ids)
        account = SegmentAccount(table.number, ids[0])
        account.end_id = ids[-1] + 1
        account.end_bytes = end_bytes
        account.count = len(ids)
        account.total_bytes = sum(sizes)
        account.live_count = len(ids) - references.count(0)
        account.live_bytes = sum(
            size for size, count in zip(sizes, references, strict=True) if count
        )
        if account.end_id - account.first_id != len(ids):
            account.ids = AscendingIds(ids)
        if references.count(1) != len(ids):
            account.references = references
        self._changes.append(tables.SEGMENTS.put(table.number, account.row()))
        self._changes.append(tables.OFFSET_TABLES.put(table.number, table.offset_table_row()))

    def _references(self, ids: array[int]) -> array[int]:
        """Return how many queues hold each of some messages, whose ids ascend."""
        changes = [0] * (len(ids) + 1)
        low = bisect_left(self._held_starts, ids[0] - self._longest)
        high = bisect_left(self._held_starts, ids[-1] + 1)
        for run in self._held[low:high]:
            start = bisect_left(ids, run.first_id)
            stop = bisect_left(ids, run.first_id + run.count)
            if start < stop:
                changes[start] += 1
                changes[stop] -= 1
        return array("I", list(accumulate(changes))[:-1])

    # Index files.

    def _index(self, queue: QueueTruth) -> None:
        """Write new index files of a queue, and their rows."""
        number = self._next_index_number(queue.id)
        for entries in _files(queue.ready, self._truth):
            block = encode_block(queue.id, number, entries, self._facts.seed)
            file = self._files.create(index_path(self._to, queue.id, number))
            try:
                file.append([block])
                file.datasync()
            finally:
                file.close()
            counts = entries.delivery_counts
            state = IndexState(
                number,
                len(block),
                len(entries.ids),
                entries.sequences[0],
                entries.sequences[-1] + 1,
                delivered={index: times for index, times in enumerate(counts) if times},
                expires_ms=earliest(entries.expires_ms),
            )
            self._changes.append(tables.INDEX.put(IndexKey(queue.id, state.number), state))
            number += 1

    def _next_index_number(self, queue_id: int) -> int:
        """Return a number that none of its index files had, so that no name stands for two
        files.
        """
        numbers = [one.number for one in self._facts.index if one.queue_id == queue_id]
        rowed = tables.INDEX.read_keys(self._facts.table)
        numbers += [key.number for key in rowed if key.queue_id == queue_id]
        return max(numbers, default=0) + 1

    # The catalog.

    def _define(self, header_bytes: int) -> None:
        truth, facts = self._truth, self._facts
        position = Position(
            self._layout.log_segment, header_bytes, truth.next_lsn, truth.next_message_id
        )
        next_compacted = StoreRows.read(facts.table).next_compacted
        of_store = StoreRows(facts.store_id, truth.next_queue_id, position, next_compacted)
        changes = of_store.changes()
        for queue in truth.queues.values():
            changes.append(tables.QUEUES.put(queue.id, queue.definition))
            changes.append(
                tables.NEXT_SEQUENCES.put(queue.id, NextSequenceRow(queue.next_sequence))
            )
        changes += [tables.PREPARED.put(key, row) for key, row in truth.prepared.items()]
        changes += [Change("vhosts", key, row) for key, row in truth.vhosts.items()]
        for table in _KEPT_TABLES:
            changes += [Change(table, key, row) for key, row in facts.table(table).items()]
        changes += [
            tables.QUARANTINE.put(number, damage)
            for number, damage in tables.QUARANTINE.read(facts.table).items()
            if number in self._quarantined
        ]
        if any(truth.given_up):
            changes.append(tables.GIVEN_UP.put(truth.next_lsn, truth.given_up))
        self._changes += changes

    def _write_catalog(self) -> None:
        path = os.path.join(self._to, CATALOG)
        catalog = LmdbCatalog(path, create=True)
        try:
            catalog.commit(self._changes)
            write_copy(self._files, self._to, copy_of(self._facts.store_id, catalog))
        finally:
            catalog.close()
        # LMDB makes a lock where the catalog is opened. The one of this directory must not come
        # with it.
        os.unlink(os.path.join(path, "lock.mdb"))
        self._files.sync_directory(path)


def _read_bytes(one: SegmentFacts | Rewrite) -> int:
    """Return how many bytes have to be read to keep a segment, or to rewrite one."""
    return sum(source.end for source in one.sources) if isinstance(one, Rewrite) else one.end


def _files(runs: Iterable[Run], truth: Truth) -> Iterator[Entries]:
    """Yield the entries of each index file of a queue: sequences and ids ascend in it."""
    entries = no_entries()
    for run in runs:
        done = 0
        while done < run.count:
            room = ENTRIES_A_FILE - len(entries.ids)
            is_behind = entries.ids and run.first_id + done <= entries.ids[-1]
            if not room or is_behind:
                yield entries
                entries = no_entries()
                room = ENTRIES_A_FILE
            count = min(room, run.count - done)
            part = Run(
                run.first_sequence + done,
                count,
                first_id=run.first_id + done,
                delivery_count=run.delivery_count,
                expires_ms=run.expires_ms,
                priority=run.priority,
            )
            entries.extend(entries_of(part, truth.homes.sizes(part.first_id, count)))
            done += count
    if entries.ids:
        yield entries
