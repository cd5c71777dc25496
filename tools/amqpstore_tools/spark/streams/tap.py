"""The log of a store as a stream of changes: publishes, deliveries, acks and removals.

An offset is a position in the log: a segment, a byte in it where a batch begins, and the LSN of the
batch before. Between two of them the log never changes, so a batch that Spark requests again is the
same. Queues are not changed: the files are read, even those of a running broker.

An end that is returned is durable: the segment is `fdatasync`ed, as recovery does, so a crash of
the broker cannot undo what was read. An incomplete batch is not returned.

From the first batch on there is a lease on the segments (see `leases`), and its watcher links new
ones as they appear, so compaction removes nothing that was not read. When the stream starts again,
the store must still have the segment that its checkpoint names.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from amqpstore.catalog import tables
from amqpstore.errors import StoreError
from amqpstore.format.batches import written_end
from amqpstore.format.limits import PAGE_BYTES
from amqpstore.format.records import OperationKind
from amqpstore.identity import marker
from amqpstore.identity.expected_segments import log_segments
from amqpstore.system.filenames import (
    SEGMENTS,
    segment_name,
    segment_numbers,
    segment_path,
)
from amqpstore_tools.offline.catalog import current_catalog
from amqpstore_tools.offline.read_only_files import ReadOnlyFiles
from amqpstore_tools.spark.reading.envelopes import EnvelopeColumns, batches_of
from amqpstore_tools.spark.reading.leases import SUFFIX, link_new, renew, take_lease
from amqpstore_tools.spark.reading.messages import QueueIdentity
from amqpstore_tools.spark.reading.options import TapOptions
from amqpstore_tools.spark.reading.scanning import BatchColumns, ColumnScanner
from amqpstore_tools.spark.reading.schemas import VIEWS, arrow_schema

Offset = dict[str, int]

_START: Offset = {"segment": 0, "offset": 0, "lsn": 0}

_EVENTS = {
    OperationKind.ENQUEUE: "publish",
    OperationKind.ACK: "ack",
    OperationKind.DELIVERED: "deliver",
    OperationKind.PURGE: "remove",
}

_EVENT_COLUMNS = [name for name, _ in VIEWS["tap"]][:10]


class LogGoneError(StoreError):
    """The log does not go back as far as the stream has to read."""

    def __init__(self, directory: str, segment: int, first: int) -> None:
        super().__init__(
            f"segment {segment} of {directory} is gone, and the stream has not read it: compaction "
            f"removed it while the stream was stopped. The log continues in segment {first}. Start "
            'with a new checkpoint, or continue after the gap: option("fail_on_loss", "false").'
        )


@dataclass
class TapPartition(InputPartition):
    """A part of a segment: whole batches from `start` to before `end`, all after `last_lsn`."""

    number: int
    path: str
    start: int
    end: int
    last_lsn: int
    seed: int
    names: Mapping[int, QueueIdentity] = field(default_factory=dict)
    dictionaries: Mapping[int, bytes] = field(default_factory=dict)


class TapReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the log of the store that the options name."""

    def __init__(self, options: TapOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._directory = os.path.normpath(options.path)
        self._names: dict[int, QueueIdentity] = {}
        self._dictionaries: dict[int, bytes] = {}
        self._ends: dict[int, int] = {}
        self._seed: int | None = None
        self._lease = ""
        self._last: Offset | None = None

    # Names that Spark calls.

    def initialOffset(self) -> Offset:  # noqa: N802
        if self._options.start == "earliest":
            # Written to the checkpoint: it has to be a place in the log.
            return self._first(_START)
        return self._now()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxBytes(self._options.max_bytes)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        if self._last is not None and self._last["lsn"] <= start["lsn"]:
            return start
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        return self._end(self._first(start), most, last=self._last)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        # From wherever the stream is, it ends at the current end of the log.
        self._last = self._now()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        if start["lsn"] == end["lsn"]:
            return []
        self._learn()
        partitions = []
        start = self._first(start)
        numbers = [
            number for number in self._numbers() if start["segment"] <= number <= end["segment"]
        ]
        for number in numbers:
            first = start["offset"] if number == start["segment"] else 0
            last = end["offset"] if number == end["segment"] else self._size(number)
            if first < last:
                partitions.append(
                    TapPartition(
                        number,
                        self._path(number),
                        first,
                        last,
                        start["lsn"],
                        self._seeded(),
                        self._names,
                        self._dictionaries,
                    )
                )
        return partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TapPartition):
            yield from _events(partition, arrow_schema(self._schema))

    def commit(self, end: Offset) -> None:
        """Note that the log before `end` was read: its segments leave the lease."""
        if self._lease:
            with contextlib.suppress(FileNotFoundError):
                renew(self._lease)
                for number in segment_numbers(os.listdir(self._lease)):
                    if number < end["segment"]:
                        os.unlink(os.path.join(self._lease, segment_name(number)))

    # Finding the end of the log.

    def _now(self) -> Offset:
        """Return the log's end."""
        self._first(_START)
        for number in reversed(self._numbers()):
            end = self._end({"segment": number, "offset": 0, "lsn": 0}, None)
            if end["lsn"]:
                return end
        return _START

    def _end(self, start: Offset, most: int | None, *, last: Offset | None = None) -> Offset:
        """Return the end of the last whole batch, at most about `most` bytes after `start`.

        Args: last, the end that must not be passed.
        """
        numbers = [number for number in self._numbers() if number >= start["segment"]]
        if len(numbers) > 1:
            # Where one that a crash tore ends was noted before the next one was begun.
            self._learn()
        end = dict(start)
        done = 0
        for number in numbers:
            offset = start["offset"] if number == start["segment"] else 0
            with contextlib.closing(ReadOnlyFiles().open(self._path(number))) as file:
                is_last = number == numbers[-1]
                size = self._size(number)
                if is_last:
                    size = min(size, written_end(file))
                _make_durable(file.path, offset)
                scanner = self._scanner(file, number, size, offset, end["lsn"])
                for batch in scanner.durable_batches() if is_last else scanner.batches():
                    if batch.lsn:
                        done += batch.end - offset
                        offset = batch.end
                        end = {"segment": number, "offset": batch.end, "lsn": batch.lsn}
                    if (most and done >= most) or (last and end["lsn"] >= last["lsn"]):
                        break
                else:
                    continue
                break
        return end

    def _scanner(
        self, file: Any, number: int, size: int, offset: int, last_lsn: int
    ) -> ColumnScanner:
        return ColumnScanner(
            file,
            number,
            size,
            self._seeded(),
            want_bodies=False,
            start=offset,
            last_lsn=last_lsn,
        )

    def _first(self, start: Offset) -> Offset:
        """Return where to start reading the log. Raises: LogGoneError."""
        self._take_lease()
        numbers = self._numbers()
        if not numbers:
            return start
        gaps = [number for number in range(numbers[0], numbers[-1]) if number not in numbers]
        if start["segment"] == 0:
            # A new stream starts where the remaining log is complete.
            first = max(gaps, default=numbers[0] - 1) + 1
            return {"segment": first, "offset": 0, "lsn": 0}
        missing = [number for number in gaps if number >= start["segment"]]
        if start["segment"] < numbers[0]:
            missing.insert(0, start["segment"])
        if missing and self._options.fail_on_loss:
            raise LogGoneError(self._directory, missing[0], max(missing) + 1)
        if start["segment"] in numbers:
            return start
        later = [number for number in numbers if number > start["segment"]]
        return {"segment": later[0], "offset": 0, "lsn": start["lsn"]} if later else start

    def _numbers(self) -> list[int]:
        """Return the readable segments of the log, ascending."""
        # In this order: what compaction removes is linked into the lease before.
        found = {*os.listdir(f"{self._directory}/{SEGMENTS}")}
        if self._lease:
            found.update(os.listdir(self._lease))
        return log_segments(found)

    def _path(self, number: int) -> str:
        path = os.path.join(self._lease, segment_name(number))
        return path if os.path.exists(path) else segment_path(self._directory, number)

    def _size(self, number: int) -> int:
        """Return the bytes of a segment that are part of the store, as far as is known."""
        size = os.path.getsize(self._path(number))
        return min(size, self._ends.get(number, size))

    def _take_lease(self) -> None:
        """Take a lease on all of the log, or renew it. Raises: NotAStoreError, LeaseError."""
        if self._lease and os.path.isdir(self._lease):
            renew(self._lease)
            return
        self._seeded()
        segments = f"{self._directory}/{SEGMENTS}"
        beside = self._options.lease_directory or f"{self._directory}{SUFFIX}"
        self._lease = take_lease([], beside, idle_s=self._options.lease_idle_s, follow=segments)
        link_new(segments, self._lease)

    def _seeded(self) -> int:
        if self._seed is None:
            self._seed = marker.require(ReadOnlyFiles(), self._directory).seed
        return self._seed

    def _learn(self) -> None:
        """Read the current queues and dictionaries from the catalog; deleted ones stay known."""
        with current_catalog(self._directory) as catalog:
            hidden = tables.PREPARED.read_keys(catalog.rows)
            for queue_id, row in tables.QUEUES.read(catalog.rows).items():
                if isinstance(row, dict):
                    name = QueueIdentity(row.get("vhost"), row.get("name"), queue_id in hidden)
                    self._names[queue_id] = name
            self._dictionaries |= tables.DICTIONARIES.read(catalog.rows)
            ends = tables.SEGMENT_ENDS.read(catalog.rows)
            self._ends = {number: row.end for number, row in ends.items()}


def _make_durable(path: str, start: int) -> None:
    """Make a file durable, and read it from the disk from an offset on.

    The broker may not have synced it yet. Or a sync failed, and ended the broker: the page cache
    then still has bytes that the disk does not, and the next start drops them. So it is synced
    before it is read, and read without the cache; what is appended meanwhile is for the next time.
    Raises: OSError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(descriptor)
        # From the start of the page with the offset: the kernel keeps a page of which only a part
        # is dropped.
        os.posix_fadvise(descriptor, start // PAGE_BYTES * PAGE_BYTES, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _events(partition: TapPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    with contextlib.closing(ReadOnlyFiles().open(partition.path)) as file:
        scanner = ColumnScanner(
            file,
            partition.number,
            partition.end,
            partition.seed,
            dictionaries=partition.dictionaries,
            want_bodies="body" in schema.names,
            start=partition.start,
            last_lsn=partition.last_lsn,
        )
        for batch in scanner.batches():
            if batch.lsn:
                yield from _of_batch(batch, scanner, partition.names, schema)


def _of_batch(
    batch: BatchColumns,
    scanner: ColumnScanner,
    names: Mapping[int, QueueIdentity],
    schema: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    """Yield one Arrow batch: a batch of the log is no larger."""
    rows: list[tuple[Any, ...]] = []
    ats: list[int] = []
    index = {message_id: at for at, message_id in enumerate(batch.ids)}
    letters = _dead_letters(batch, scanner)
    for operation in batch.operations:
        kind, count, queue_id, first_sequence, first_id, detail, _ = operation
        name = names.get(queue_id, QueueIdentity(None, None))
        for step in range(count):
            is_publish = kind == OperationKind.ENQUEUE
            at = index.get(first_id + step, -1) if is_publish else -1
            ats.append(at)
            rows.append(
                (
                    batch.lsn,
                    batch.time_ms * 1000,
                    _EVENTS.get(OperationKind(kind), str(kind)),
                    name.vhost,
                    name.queue,
                    queue_id,
                    first_sequence + step,
                    first_id + step if is_publish else None,
                    detail if kind == OperationKind.DELIVERED else None,
                    batch.heads[at] in letters if at >= 0 else None,
                )
            )
    if not rows:
        return
    heads = [batch.heads[at] if at >= 0 else -1 for at in ats]
    columns = EnvelopeColumns(schema).columns(scanner.heads.__getitem__, heads)
    own = pa.schema([field for field in schema if field.name in _EVENT_COLUMNS])
    if own.names:
        for own_batch in batches_of(rows, _EVENT_COLUMNS, own, most=len(rows)):
            columns |= dict(zip(own.names, own_batch.columns, strict=True))
    if "body" in schema.names:
        bodies = [batch.bodies[at] if at >= 0 else None for at in ats]
        columns["body"] = pa.array([None if one is None else bytes(one) for one in bodies])
        columns["body"] = columns["body"].cast(pa.binary())
    yield pa.RecordBatch.from_arrays([columns[field.name] for field in schema], schema=schema)


def _dead_letters(batch: BatchColumns, scanner: ColumnScanner) -> set[int]:
    """Return the numbers of the heads which say that a message was dead-lettered."""
    return {number for number in {*batch.heads} if b"\x07x-death" in scanner.heads[number]}
