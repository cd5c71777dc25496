"""What is left of a damaged store, to be exported: the same messages, under the same names, as a
repair keeps.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from amqpstore import tables
from amqpstore.compression import Decompressor
from amqpstore.descriptors import Descriptors
from amqpstore.evidence import find_misplaced
from amqpstore.message import Message
from amqpstore.records import Kind, MessageDecoder, Record
from amqpstore.segments import Segment
from amqpstore.windows import scan_file
from amqpstore_tools.check.engine import check
from amqpstore_tools.check.store import Checked, named
from amqpstore_tools.offline.bulk_reading import read_run
from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.offline.progress import Progress
from amqpstore_tools.offline.queues import Entry
from amqpstore_tools.offline.reading import ReadOnlyFiles
from amqpstore_tools.repair.facts import Facts, SegmentFacts, gather
from amqpstore_tools.repair.ranges import Ranges
from amqpstore_tools.repair.truth.finding import find_truth
from amqpstore_tools.repair.truth.values import QueueTruth, Truth
from amqpstore_tools.transfer.exporting import line_of
from amqpstore_tools.transfer.lines import MessageLine, QueueKey


class Remains(NamedTuple):
    """What a repair would keep of a store. `checked` is the check that it is based on;
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
        """How many prepared transactions there are."""
        return sum(not row.purged for row in self.truth.prepared.values())


def is_damaged(image: StoreImage) -> bool:
    """Tell whether a store lacks something, as far as is known before its messages are read.

    Reads all index files. Raises: OSError.
    """
    report = image.report
    if image.is_rebuilt or image.marker_reason or report.damage or report.lost:
        return True
    for queue in image.queues:
        for _ in queue.columns():
            pass
        if queue.unreadable:
            return True
    store_id = image.store_id.bytes if image.store_id else b""
    rows = {table: dict(image.rows(table)) for table in ("store", "segments", "index")}
    return any(True for _ in find_misplaced(image.files, image.directory, store_id, rows))


@contextlib.contextmanager
def find_remains(directory: str, tell: Progress) -> Iterator[Remains]:
    """Find what is left of a store that the caller keeps brokers out of, and close its files at the
    end.

    Raises: NotAStoreError, FormatVersionError, UnknownStoreError, OSError.
    """
    checked = check(directory, is_locked=True, tell=tell)
    facts = gather(directory, checked, tell)
    descriptors = Descriptors(ReadOnlyFiles())
    try:
        yield Remains(checked, facts, find_truth(facts), descriptors)
    finally:
        descriptors.close()


class RemainingQueue:
    """What is left of a queue. `again` of its messages may have been acked; `is_recovered`, whether
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

    def lines(self) -> Iterator[MessageLine | None]:
        """Yield its messages in order; None for each that cannot be read. Raises: OSError."""
        for run in self._queue.ready:
            for first, end in self._purged.missing(run.first_sequence, run.end):
                first_id = run.first_id + first - run.first_sequence
                for place, message in enumerate(self._reader.read(first_id, end - first)):
                    entry = Entry(
                        first + place,
                        first_id + place,
                        0,
                        run.expires_ms,
                        run.delivery_count,
                        run.priority,
                    )
                    yield line_of(self.key, entry, message) if message else None
        yield from (None for _ in range(self.lost))


class _Reader:
    """Reads messages by id, from whichever file has them."""

    def __init__(self, facts: Facts, truth: Truth, descriptors: Descriptors) -> None:
        self._facts = facts
        self._descriptors = descriptors
        self._homes = truth.homes
        dictionaries = tables.DICTIONARIES.read(facts.table)
        self._decoder = MessageDecoder({}, Decompressor(dictionaries).decompress)
        self._segments: dict[tuple[int, str], Segment] = {}

    def read(self, first_id: int, count: int) -> Iterator[Message | None]:
        """Yield messages of contiguous ids; None for one that cannot be decoded."""
        for first, end, facts, _ in self._homes.pieces(first_id, first_id + count):
            key = facts.number, facts.name
            if key not in self._segments:
                self._segments[key] = _segment_of(self._facts, facts, self._descriptors)
            yield from read_run(self._segments[key], first, end - first, self._decoder)


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
