"""A task of an archive run: writes some segments to Parquet files in the staging directory."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from amqpstore.system.files import Files
from amqpstore_tools.archive.events import HELD, PUBLISH, EventCollector, Key
from amqpstore_tools.archive.layout import QueueName, directory_of, file_name
from amqpstore_tools.archive.manifest import FileEntry
from amqpstore_tools.spark.reading.live import LiveRuns
from amqpstore_tools.spark.reading.scanning import ColumnScanner

_FLUSH_BYTES = 96 << 20
"""How many bytes of events may be in memory before they are written."""

_GROUP_BYTES = 32 << 20
_LEVEL = 1
_DICTIONARIES = ["event", "exchange", "routing_key", "level"]
_STATISTICS = [
    *("lsn", "time", "event", "queue_id", "position", "count", "id", "level"),
    *("expires", "delivery_count"),
]


class SegmentItem(NamedTuple):
    """A segment: `size` bytes of its file, from offset `start` on, with batches before `end_lsn`.

    `held` is for `LiveRuns`: messages left by compaction that the archive does not have; their
    events get `held_lsn` and `held_ms`. It is None for a segment of the log.
    """

    number: int
    path: str
    size: int
    start: int
    end_lsn: int
    held: bytes | None = None
    held_lsn: int = 0
    held_ms: int = 0


@dataclass(frozen=True)
class ArchiveContext:
    """The context that all tasks of a run share."""

    run: int
    staging: str
    files: Files
    seed: int
    names: Mapping[int, QueueName]
    dictionaries: Mapping[int, bytes]


@dataclass
class ArchiveResult:
    """The result of a task: what it has written and found; see `manifest.Manifest`."""

    files: list[FileEntry] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    first_lsn: int = 0
    batches: int = 0
    damaged: int = 0
    unreadable: int = 0


def write(shared: ArchiveContext, items: Iterable[SegmentItem]) -> ArchiveResult:
    """Write the events of some segments, in the order of the log. Raises: OSError."""
    writer = _Writer(shared)
    for item in items:
        writer.read(item)
    return writer.end()


class _Writer:
    def __init__(self, shared: ArchiveContext) -> None:
        self._shared = shared
        self._out = ArchiveResult()
        self._pending: dict[Key, list[pa.Table]] = {}
        self._bytes = 0
        self._first_segment = 0
        self._file_number = 0

    def read(self, item: SegmentItem) -> None:
        """Read everything new in a segment."""
        self._first_segment = self._first_segment or item.number
        shared = self._shared
        with contextlib.closing(shared.files.open(item.path)) as file:
            scanner = ColumnScanner(
                file,
                item.number,
                item.size,
                shared.seed,
                dictionaries=shared.dictionaries,
                start=item.start,
            )
            collector = EventCollector()
            live = LiveRuns(item.held) if item.held is not None else None
            for batch in scanner.batches():
                if live is not None:
                    collector.held(batch, live, item.held_lsn, item.held_ms)
                # What a broker has appended since the plan was made is for the next run.
                elif batch.lsn and batch.lsn < item.end_lsn:
                    collector.log(batch)
                    self._out.batches += 1
                    self._out.first_lsn = self._out.first_lsn or batch.lsn
                if self._bytes + collector.bytes >= _FLUSH_BYTES:
                    self._take(collector, scanner.heads)
                    self._flush()
                    collector = EventCollector()
            self._take(collector, scanner.heads)
            self._out.damaged += len(scanner.gaps)

    def end(self) -> ArchiveResult:
        self._flush()
        return self._out

    def _take(self, collector: EventCollector, heads: list[bytes]) -> None:
        for key, table in collector.tables(heads):
            self._pending.setdefault(key, []).append(table)
        self._bytes += collector.bytes

    def _flush(self) -> None:
        for key, tables in self._pending.items():
            self._write(key, pa.concat_tables(tables))
        self._pending.clear()
        self._bytes = 0
        self._file_number += 1

    def _write(self, key: Key, table: pa.Table) -> None:
        shared = self._shared
        queue_id, hour = key
        name = shared.names.get(queue_id, QueueName(None, None))
        path = os.path.join(
            directory_of(name, hour),
            file_name(shared.run, self._first_segment, self._file_number, queue_id),
        )
        self._out.files.append(write_table(table, shared.staging, path, queue_id))
        for event in pc.value_counts(table["event"]).to_pylist():
            self._out.events[event["values"]] += event["counts"]
        self._out.unreadable += _unreadable(table)


def write_table(table: pa.Table, staging: str, path: str, queue_id: int) -> FileEntry:
    """Write one file, durable. Raises: OSError."""
    target = os.path.join(staging, path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    # The same task may be run twice at the same time.
    new = f"{target}.{os.getpid()}.new"
    groups = max(-(-table.nbytes // _GROUP_BYTES), 1)
    pq.write_table(
        table,
        new,
        row_group_size=-(-table.num_rows // groups),
        compression="zstd",
        compression_level=_LEVEL,
        use_dictionary=_DICTIONARIES,
        write_statistics=_STATISTICS,
        store_schema=False,
    )
    # A sync is of the file, whichever descriptor it was written through.
    descriptor = os.open(new, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        size = os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    os.replace(new, target)
    lsns, times = pc.min_max(table["lsn"]), pc.min_max(table["time"].cast(pa.int64()))
    return FileEntry(
        path,
        queue_id,
        table.num_rows,
        size,
        *(lsns[end].as_py() for end in ("min", "max")),
        *(times[end].as_py() for end in ("min", "max")),
    )


def _unreadable(table: pa.Table) -> int:
    """Count messages without their content."""
    has_message = pc.is_in(table["event"], value_set=pa.array([PUBLISH, HELD]))
    return int(pc.sum(pc.and_(has_message, table["body"].is_null())).as_py() or 0)
