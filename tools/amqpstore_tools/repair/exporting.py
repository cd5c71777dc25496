"""The remains of a damaged store, to be exported: the same messages, under the same names, as a
repair keeps.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from amqpstore.catalog import tables
from amqpstore.format.compression import Decompressor
from amqpstore.format.index import Entries, no_entries
from amqpstore.format.records import Kind, MessageDecoder, Record
from amqpstore.format.runs import Run
from amqpstore.format.windows import scan_file
from amqpstore.log.segments import Segment
from amqpstore.system.descriptors import Descriptors
from amqpstore_tools.check.engine import check_opened
from amqpstore_tools.check.store import Checked, ReadableStore, named
from amqpstore_tools.offline.bulk_reading import Contents, SegmentColumnReader
from amqpstore_tools.offline.progress import Progress
from amqpstore_tools.repair.facts import Facts, SegmentFacts, gather
from amqpstore_tools.repair.ranges import Ranges
from amqpstore_tools.repair.truth.finding import find_truth
from amqpstore_tools.repair.truth.values import QueueTruth, Truth
from amqpstore_tools.transfer.exporting import columns_of
from amqpstore_tools.transfer.lines import MessageColumns, QueueKey

_ENTRIES = 16_384


class Remains(NamedTuple):
    """The parts of a store that a repair would keep. `checked` is the check that it is based on;
    `descriptors` has the files that were read.
    """

    checked: Checked
    facts: Facts
    truth: Truth
    descriptors: Descriptors

    @property
    def queues(self) -> list[RemainingQueue]:
        """The queues that clients see."""
        reader = _Reader(self.facts, self.truth, self.descriptors)
        purged: dict[int, Ranges] = {}
        for row in self.truth.prepared.values():
            for queue_id, first, count in row.locked if row.purged else ():
                purged.setdefault(queue_id, Ranges()).add(first, first + count)
        return [
            RemainingQueue(queue, reader, purged.get(queue.id, Ranges()))
            for queue in self.truth.queues.values()
            if queue.id not in self.truth.prepared
        ]

    @property
    def in_doubt(self) -> int:
        """The number of prepared transactions."""
        return sum(not row.purged for row in self.truth.prepared.values())


@contextlib.contextmanager
def find_remains(store: ReadableStore, tell: Progress) -> Iterator[Remains]:
    """Find what is left of a store, and close its files at the end.

    Raises: NotAStoreError, FormatVersionError, UnknownStoreError, OSError.
    """
    checked = check_opened(store, tell)
    facts = gather(store, checked, tell)
    descriptors = Descriptors(store.files)
    try:
        yield Remains(checked, facts, find_truth(facts), descriptors)
    finally:
        descriptors.close()


class RemainingQueue:
    """The remains of a queue. `again` of its messages may have been acked; `is_recovered`, whether
    its name is lost.
    """

    def __init__(self, queue: QueueTruth, reader: _Reader, purged: Ranges) -> None:
        self._queue = queue
        self._reader = reader
        self._purged = purged
        vhost, name = named(queue.definition) or (None, None)
        level = queue.definition.get("level") if isinstance(queue.definition, dict) else None
        self.key = QueueKey(vhost, name, level if isinstance(level, int) else 0)
        self.definition = queue.definition
        self.again = queue.again
        self.is_recovered = queue.is_recovered
        self.lost = queue.lost_count
        self.count = queue.ready.count + self.lost

    def columns(self) -> Iterator[MessageColumns]:
        """Yield its messages in order. Raises: OSError."""
        for entries in self._entries():
            start = 0
            for contents in self._reader.read(entries.ids):
                stop = start + len(contents.bodies)
                yield columns_of(self.key, contents, entries.slice(start, stop))
                start = stop

    def _entries(self) -> Iterator[Entries]:
        """Yield its messages as columns, in which ids ascend."""
        found = no_entries()
        for run in self._queue.ready:
            for first, count in self._stretches(run):
                first_id = run.first_id + first - run.first_sequence
                if found.ids and (len(found.ids) >= _ENTRIES or first_id <= found.ids[-1]):
                    yield found
                    found = no_entries()
                found.sequences.extend(range(first, first + count))
                found.ids.extend(range(first_id, first_id + count))
                found.expires_ms.extend([run.expires_ms] * count)
                found.delivery_counts.extend([run.delivery_count] * count)
                found.priorities.extend([run.priority] * count)
        if found.ids:
            yield found

    def _stretches(self, run: Run) -> Iterator[tuple[int, int]]:
        """Yield the parts of a run that are not purged: the first sequence, and the count."""
        for first, end in self._purged.missing(run.first_sequence, run.end):
            for start in range(first, end, _ENTRIES):
                yield start, min(_ENTRIES, end - start)


class _Reader:
    """Reads messages by id, from whichever file has them."""

    def __init__(self, facts: Facts, truth: Truth, descriptors: Descriptors) -> None:
        self._facts = facts
        self._descriptors = descriptors
        self._homes = truth.homes
        dictionaries = tables.DICTIONARIES.read(facts.table)
        self._decoder = MessageDecoder({}, Decompressor(dictionaries).decompress)
        self._readers: dict[tuple[int, str], SegmentColumnReader] = {}

    def read(self, ids: array[int]) -> Iterator[Contents]:
        """Yield the contents of messages of ascending ids, in parts."""
        for first, end, facts, _ in self._homes.pieces(ids[0], ids[-1] + 1):
            wanted = ids[bisect_left(ids, first) : bisect_left(ids, end)]
            if not wanted:
                continue
            key = facts.number, facts.name
            if key not in self._readers:
                segment = _segment_of(self._facts, facts, self._descriptors)
                self._readers[key] = SegmentColumnReader(segment, self._decoder, self._facts.seed)
            yield from self._readers[key].read(wanted)


def _segment_of(facts: Facts, of: SegmentFacts, descriptors: Descriptors) -> Segment:
    """Return a segment that knows where its messages are."""
    path = os.path.join(facts.directory, of.name)
    segment = Segment(descriptors, path, of.number, facts.seed)
    file = descriptors.files.open(path)
    try:
        for found in scan_file(file, of.end, of.number, facts.seed):
            if isinstance(found, Record) and found.kind == Kind.MESSAGE:
                segment.note(found.number, found.offset)
    finally:
        file.close()
    segment.size = of.end
    return segment
