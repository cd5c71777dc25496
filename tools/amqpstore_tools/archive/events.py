"""Events of the log as rows: one for each published message, one for each run of other events."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from amqpstore.format.message import HEAD
from amqpstore.format.records import Operation, OperationKind
from amqpstore_tools.archive.layout import hour_of
from amqpstore_tools.spark.reading.live import LiveRuns
from amqpstore_tools.spark.reading.scanning import BatchColumns

PUBLISH, ACK, DELIVER, PURGE, HELD, GONE, DELETE = EVENTS = (
    *("publish", "ack", "deliver", "purge"),
    *("held", "gone", "delete"),
)
"""Events of the log, and three that a run infers from a part of the log that no longer exists:
messages that were still `held`, messages that were `gone`, and deleted queues.
"""

_OF_KIND: dict[int, str] = {
    OperationKind.ENQUEUE: PUBLISH,
    OperationKind.ACK: ACK,
    OperationKind.DELIVERED: DELIVER,
    OperationKind.PURGE: PURGE,
}

_TIME = pa.timestamp("ms", tz="UTC")

SCHEMA = pa.schema(
    [
        ("lsn", pa.int64()),
        ("time", _TIME),
        ("event", pa.string()),
        ("queue_id", pa.int64()),
        ("position", pa.int64()),
        ("count", pa.int64()),
        ("id", pa.int64()),
        ("level", pa.int32()),
        ("expires", _TIME),
        ("delivery_count", pa.int32()),
        ("exchange", pa.string()),
        ("routing_key", pa.string()),
        ("properties", pa.binary()),
        ("body", pa.binary()),
    ]
)
"""The columns of a file of an archive; JOBS.md of the Spark package describes each."""

_ROW_BYTES = 100
"""The size of a row in memory, without its body."""

Key = tuple[int, str]
"""A queue's id, and the hour."""


@dataclass
class Rows:
    """Rows of one queue and hour, as columns. `heads` count from 1; 0 is none."""

    lsns: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    ids: list[int | None] = field(default_factory=list)
    levels: list[int | None] = field(default_factory=list)
    expires: list[int | None] = field(default_factory=list)
    deliveries: list[int | None] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    bodies: list[bytes | memoryview | None] = field(default_factory=list)

    def append(self, event: str, lsn: int, time_ms: int, operation: Operation) -> None:
        """Add an operation without message content."""
        self.lsns.append(lsn)
        self.times.append(time_ms)
        self.events.append(event)
        self.positions.append(operation.first_sequence)
        self.counts.append(operation.message_count)
        self.ids.append(None)
        self.levels.append(None)
        self.expires.append(None)
        self.deliveries.append(operation.detail if event == DELIVER else None)
        self.heads.append(0)
        self.bodies.append(None)

    def extend(
        self,
        event: str,
        lsn: int,
        time_ms: int,
        first: tuple[int, int],
        count: int,
        *,
        level: int,
        expires_ms: int,
        delivery_count: int | None,
    ) -> None:
        """Add messages from a first sequence and id on; `fill` adds their heads and bodies."""
        sequence, message_id = first
        self.lsns += [lsn] * count
        self.times += [time_ms] * count
        self.events += [event] * count
        self.positions += range(sequence, sequence + count)
        self.counts += [1] * count
        self.ids += range(message_id, message_id + count)
        self.levels += [level] * count
        self.expires += [_time(expires_ms)] * count
        self.deliveries += [delivery_count] * count

    def fill(self, batch: BatchColumns, first_id: int, end_id: int) -> int:
        """Fill in heads and bodies of these ids, as far as a batch contains them. Returns bytes of
        bodies.
        """
        ids = batch.ids
        start, stop = bisect_left(ids, first_id), bisect_left(ids, end_id)
        if stop - start == end_id - first_id:
            self.heads += [head + 1 for head in batch.heads[start:stop]]
            self.bodies += batch.bodies[start:stop]
        else:
            # The records of the other messages are damaged.
            indexes = {ids[index]: index for index in range(start, stop)}
            for message_id in range(first_id, end_id):
                index = indexes.get(message_id)
                self.heads.append(0 if index is None else batch.heads[index] + 1)
                self.bodies.append(None if index is None else batch.bodies[index])
        return sum(batch.sizes[start:stop])

    def table(self, queue_id: int, heads: Heads) -> pa.Table:
        """Return all rows as a Parquet table."""
        count = len(self.lsns)
        numbers = pa.array(self.heads, pa.int32())
        columns = [
            pa.array(self.lsns, pa.int64()),
            pa.array(self.times, _TIME),
            pa.array(self.events, pa.string()),
            pa.repeat(pa.scalar(queue_id, pa.int64()), count),
            pa.array(self.positions, pa.int64()),
            pa.array(self.counts, pa.int64()),
            pa.array(self.ids, pa.int64()),
            pa.array(self.levels, pa.int32()),
            pa.array(self.expires, _TIME),
            pa.array(self.deliveries, pa.int32()),
            *(column.take(numbers) for column in heads.columns),
            pa.array(self.bodies, pa.binary()),
        ]
        return pa.Table.from_arrays(columns, schema=SCHEMA)


class Heads:
    """Exchange, routing key and properties of messages, by number; 0 has none."""

    def __init__(self, heads: list[bytes]) -> None:
        parts = [(None, None, None), *map(_decoded, heads)]
        kinds = pa.string(), pa.string(), pa.binary()
        self.columns = [
            pa.array(column, kind)
            for column, kind in zip(zip(*parts, strict=True), kinds, strict=True)
        ]


class EventCollector:
    """Sorts the events of one segment into rows. `bytes` is about the memory they take."""

    def __init__(self) -> None:
        self.rows: dict[Key, Rows] = {}
        self.bytes = 0

    def log(self, batch: BatchColumns) -> None:
        """Add everything in a batch of the log."""
        hour = hour_of(batch.time_ms)
        time_ms = min(batch.time_ms, _MAX_MS)
        for operation in batch.operations:
            event = _OF_KIND.get(operation.kind)
            if event is None:
                continue
            rows = self._rows(operation.queue_id, hour)
            if event != PUBLISH:
                rows.append(event, batch.lsn, time_ms, operation)
                self.bytes += _ROW_BYTES
                continue
            count, first_id = operation.message_count, operation.first_id
            rows.extend(
                event,
                batch.lsn,
                time_ms,
                (operation.first_sequence, first_id),
                count,
                level=operation.priority,
                expires_ms=operation.detail,
                delivery_count=None,
            )
            self.bytes += rows.fill(batch, first_id, first_id + count) + _ROW_BYTES * count

    def held(self, batch: BatchColumns, live: LiveRuns, lsn: int, time_ms: int) -> None:
        """Add what queues hold of some messages."""
        if not batch.ids:
            return
        for run in live.within(batch.ids[0], batch.ids[-1] + 1):
            rows = self._rows(run.queue_id, hour_of(time_ms))
            rows.extend(
                HELD,
                lsn,
                time_ms,
                (run.first_sequence, run.first_id),
                run.size,
                level=run.level,
                expires_ms=run.expires_ms,
                delivery_count=run.delivery_count,
            )
            self.bytes += rows.fill(batch, run.first_id, run.end_id) + _ROW_BYTES * run.size

    def tables(self, heads: list[bytes]) -> Iterator[tuple[Key, pa.Table]]:
        """Yield the tables of the added rows, for messages with these heads."""
        of_heads = Heads(heads)
        for key, rows in self.rows.items():
            yield key, rows.table(key[0], of_heads)

    def _rows(self, queue_id: int, hour: str) -> Rows:
        key = queue_id, hour
        rows = self.rows.get(key)
        if rows is None:
            rows = self.rows[key] = Rows()
        return rows


def found_out(
    event: str, queue_id: int, ranges: Iterable[tuple[int, int]], lsn: int, time_ms: int
) -> pa.Table:
    """Return rows which say that positions of a queue, each the first and the one after the last,
    are gone, or that the whole queue is.
    """
    rows = Rows()
    for first, end in ranges:
        rows.append(event, lsn, time_ms, Operation(0, end - first, queue_id, first))
    return rows.table(queue_id, Heads([]))


_MAX_MS = 253_402_300_799_999
"""The end of the year 9999."""


def _time(ms: int) -> int | None:
    return min(ms, _MAX_MS) if ms else None


def _decoded(head: bytes) -> tuple[str, str, bytes]:
    exchange, key, _ = HEAD.unpack_from(head)
    start = HEAD.size
    return (
        head[start : start + exchange].decode("utf-8", "replace"),
        head[start + exchange : start + exchange + key].decode("utf-8", "replace"),
        head[start + exchange + key :],
    )
