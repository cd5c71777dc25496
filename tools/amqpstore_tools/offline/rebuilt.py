"""Rows for recovery when there is no catalog, reconstructed from segments and index files.

Without the catalog it is not known where the last checkpoint was, which entries of an index file
were acked before it, and which files only wait to be removed. So the log is read from its first
remaining segment, and each message counts as live that is in an index file or a sound ENQUEUE, and
in no remaining sound ACK or PURGE. So no live message is missing; messages whose ACK was in a
segment that has been dropped since reappear.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import or_

from amqpstore import tables
from amqpstore.catalog import Value
from amqpstore.descriptors import Descriptors
from amqpstore.index import Bits, Entries, IndexState, contiguous, no_entries
from amqpstore.keys import IndexKey
from amqpstore.records import Gap, Kind, OperationKind, Record
from amqpstore.segment_accounts import SegmentAccount, SegmentAccounts
from amqpstore.segments import Segment
from amqpstore.tables import NextSequenceRow, OffsetTableRow, Position, SegmentRow, StoreRows
from amqpstore_tools.offline.segments import IndexImage, SegmentImage

Tables = dict[str, dict[str, Value]]


class Uncounted(SegmentAccounts):
    """Accounts for which it is unknown how many queues held a message before."""

    def release(self, _ids: Sequence[int], _sizes: Sequence[int]) -> None:
        """Do nothing: live messages are unknown for every segment."""


class Spans:
    """Sequences of one queue, as disjoint ranges."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []

    def add(self, first: int, end: int) -> None:
        """Add those from `first` to before `end`; ranges mostly come in ascending order."""
        if self._spans and self._spans[-1][1] == first:
            first = self._spans.pop()[0]
        self._spans.append((first, end))

    def sort(self) -> None:
        """Sort the ranges before use; overlapping ones, from copies, are merged."""
        disjoint: list[tuple[int, int]] = []
        for first, end in sorted(self._spans):
            if disjoint and first <= disjoint[-1][1]:
                first, end = disjoint[-1][0], max(end, disjoint.pop()[1])
            disjoint.append((first, end))
        self._spans = disjoint

    def flags(self, sequences: Sequence[int]) -> Bits:
        """Return for each of ascending sequences whether it is in a range."""
        flags = Bits(len(sequences))
        place = max(bisect_right(self._spans, (sequences[0], 1 << 64)) - 1, 0)
        for first, end in self._spans[place:]:
            if first > sequences[-1]:
                break
            start, stop = bisect_left(sequences, first), bisect_left(sequences, end)
            flags[start:stop] = b"\1" * (stop - start)
        return flags


def rebuilt_tables(segments: Sequence[SegmentImage], index: Iterable[IndexImage]) -> Tables:
    """Return rows of `store`, `heads`, `index`, `segments` and `marks`. Raises: OSError."""
    log = sorted(one.number for one in segments if not one.is_compacted)
    position = Position(log[0] if log else 0, 0, 1, 1)
    changes = StoreRows(position=position).changes()
    enqueued: dict[int, Spans] = {}
    for segment in segments:
        if segment.is_compacted:
            account, marks = _compacted_rows(segment)
            changes.append(tables.SEGMENTS.put(segment.number, account))
            changes.append(tables.OFFSET_TABLES.put(segment.number, marks))
        else:
            _read_enqueues(segment, enqueued)
    for spans in enqueued.values():
        spans.sort()
    states = dict(_index_states(index, enqueued))
    changes += [tables.INDEX.put(key, state) for key, state in states.items()]
    for queue_id in {*enqueued, *(key.queue_id for key in states)}:
        changes.append(tables.NEXT_SEQUENCES.put(queue_id, NextSequenceRow(1)))
    rebuilt: Tables = {"store": {}, "segments": {}, "marks": {}, "index": {}, "heads": {}}
    for change in changes:
        rebuilt[change.table][change.key] = change.value
    return rebuilt


def _read_enqueues(segment: SegmentImage, enqueued: dict[int, Spans]) -> None:
    for batch in segment.batches():
        for operation in batch.operations:
            if operation.kind == OperationKind.ENQUEUE:
                end = operation.first_sequence + operation.message_count
                enqueued.setdefault(operation.queue_id, Spans()).add(operation.first_sequence, end)


def _compacted_rows(segment: SegmentImage) -> tuple[SegmentRow, OffsetTableRow]:
    """Return rows with the messages in a compacted segment, and their places."""
    table = Segment(Descriptors(segment.files), segment.path, segment.number, segment.seed)
    ids = array("Q")
    for found in segment.scan():
        if isinstance(found, Record) and found.kind == Kind.MESSAGE:
            table.note(found.number, found.offset)
            ids.append(found.number)
    account = SegmentAccount(segment.number, table.first_id)
    account.end_id = table.end_id
    account.end_bytes = segment.size
    if ids:
        account.restrict(ids, array("I", [1]) * len(ids), segment.size)
    return account.row(), table.offset_table_row()


def _index_states(
    index: Iterable[IndexImage], enqueued: dict[int, Spans]
) -> Iterable[tuple[IndexKey, IndexState]]:
    """Yield the state of each index file: of the sound part that the log does not also contain."""
    given: dict[int, Spans] = {}
    for file in sorted(index, key=lambda one: (one.queue_id, one.number)):
        entries, end_bytes = _sound_entries(file)
        if not entries.sequences:
            continue
        sequences = entries.sequences
        acked = Bits(len(sequences))
        for one in (enqueued, given):
            if spans := one.get(file.queue_id):
                acked = Bits(map(or_, acked, spans.flags(sequences)))
        mine = given.setdefault(file.queue_id, Spans())
        if contiguous(sequences, 0, len(sequences)):
            mine.add(sequences[0], sequences[-1] + 1)
        else:
            for sequence in sequences:
                mine.add(sequence, sequence + 1)
        mine.sort()
        state = IndexState(
            number=file.number,
            end_bytes=end_bytes,
            entries=len(entries.sequences),
            first=entries.sequences[0],
            end=entries.sequences[-1] + 1,
            acked=acked.packed(),
            acked_count=acked.count(1),
            delivered={
                place: times
                for place, times in enumerate(entries.delivery_counts)
                if times and not acked[place]
            },
        )
        yield IndexKey(file.queue_id, file.number), state


def _sound_entries(file: IndexImage) -> tuple[Entries, int]:
    """Return the entries before the first damage of an index file, and where they end."""
    entries = no_entries()
    end_bytes = 0
    for found in file.blocks():
        if isinstance(found, Gap):
            break
        record, queue_id, block = found
        if queue_id != file.queue_id:
            break
        entries.extend(block)
        end_bytes = record.end
    return entries, end_bytes
