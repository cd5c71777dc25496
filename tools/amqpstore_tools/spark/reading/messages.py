"""View `messages`: a segment's records, with the queues that hold or held them, as Arrow batches.

Live messages come from `live`; acked messages that still exist come from the ENQUEUEs of the log. A
row is a message in a queue, so one that was routed to three queues is three rows. Segments that
compaction wrote have no ENQUEUE: messages that are not live there have no queue.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

import pyarrow as pa

from amqpstore.format.records import OperationKind
from amqpstore.system.filenames import is_compacted
from amqpstore_tools.spark.reading.envelopes import EnvelopeColumns
from amqpstore_tools.spark.reading.live import LiveRun, LiveRuns
from amqpstore_tools.spark.reading.scanning import BatchColumns, ColumnScanner
from amqpstore_tools.spark.reading.wanted import Wanted

BATCH_BYTES = 8 << 20
BATCH_ROWS = 16_384

READY, UNACKED, ACKED, PREPARED = "ready", "unacked", "acked-not-compacted", "prepared"


class QueueIdentity(NamedTuple):
    """The name for a queue id. `is_prepared`: it holds what a prepared transaction will publish."""

    vhost: str | None
    queue: str | None
    is_prepared: bool = False


class Stretch(NamedTuple):
    """`size` rows of one queue: messages of contiguous ids, all sound and in one batch, from place
    `start` on; or, if that is -1, messages whose records are not sound.
    """

    start: int
    size: int
    queue_id: int | None
    first_sequence: int | None
    first_id: int
    state: str
    delivery_count: int | None
    expires_ms: int
    references: int


def stretches(
    batch: BatchColumns,
    live: LiveRuns,
    names: Mapping[int, QueueIdentity],
    bounds: tuple[int, int],
    *,
    is_log: bool,
) -> Iterator[Stretch]:
    """Yield the rows of a batch.

    Args: bounds, the ids that it covers: those without a record in it were lost.
    """
    first_id, end_id = bounds
    for run in live.within(first_id, end_id):
        name = names.get(run.queue_id)
        state = UNACKED if run.delivery_count else READY
        if name is not None and name.is_prepared:
            state = PREPARED
        for start, end, references in live.held(run.first_id, run.end_id):
            yield from _of_run(batch.ids, run.slice(start, end), state, references)
    if is_log:
        yield from _acked(batch, live)
        return
    ids = batch.ids
    if ids:
        for start, end, references in live.held(ids[0], ids[-1] + 1):
            if not references:
                for part in _present(ids, start, end):
                    yield Stretch(*part, None, None, ids[part[0]], ACKED, None, 0, 0)


def _of_run(ids: array[int], run: LiveRun, state: str, references: int) -> Iterator[Stretch]:
    wanted = run.first_id
    for start, count in [*_present(ids, run.first_id, run.end_id), (len(ids), 0)]:
        found = ids[start] if count else run.end_id
        for index, size in ((-1, found - wanted), (start, count)):
            if size:
                offset = wanted - run.first_id
                yield Stretch(
                    index,
                    size,
                    run.queue_id,
                    run.first_sequence + offset,
                    wanted,
                    state,
                    run.delivery_count,
                    run.expires_ms,
                    references,
                )
                wanted += size


def _acked(batch: BatchColumns, live: LiveRuns) -> Iterator[Stretch]:
    """Yield what the batch enqueued and its queue no longer holds."""
    for operation in batch.operations:
        if operation.kind != OperationKind.ENQUEUE:
            continue
        first = operation.first_id
        end = first + operation.message_count
        mine = [run for run in live.within(first, end) if run.queue_id == operation.queue_id]
        for start, stop in _between(mine, first, end):
            for held_from, held_to, references in live.held(start, stop):
                for index, count in _present(batch.ids, held_from, held_to):
                    message_id = batch.ids[index]
                    yield Stretch(
                        index,
                        count,
                        operation.queue_id,
                        operation.first_sequence + message_id - first,
                        message_id,
                        ACKED,
                        None,
                        operation.detail,
                        references,
                    )


def _between(runs: list[LiveRun], first: int, end: int) -> Iterator[tuple[int, int]]:
    for run in runs:
        if run.first_id > first:
            yield first, run.first_id
        first = max(first, run.end_id)
    if first < end:
        yield first, end


def _present(ids: array[int], first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield places and counts of contiguous existing ids from `first` to before `end`."""
    start, stop = bisect_left(ids, first), bisect_left(ids, end)
    while start < stop:
        if ids[stop - 1] - ids[start] == stop - 1 - start:
            yield start, stop - start
            return
        index = start + 1
        while ids[index] == ids[index - 1] + 1:
            index += 1
        yield start, index - start
        start = index


class MessageBatches:
    """Makes Arrow batches of the rows of one segment.

    Args: schema, the requested columns; names, of queues; wanted, the filter that every row must
    pass.
    """

    def __init__(
        self, schema: pa.Schema, number: int, names: Mapping[int, QueueIdentity], wanted: Wanted
    ) -> None:
        self._schema = schema
        self._number = number
        self._names = names
        self._wanted = wanted
        self._envelopes = EnvelopeColumns(schema)
        self._has = {field.name for field in schema}
        self._clear()

    def read(self, scanner: ColumnScanner, live: LiveRuns, end_id: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a segment. Args: end_id, the id after its last. Raises: OSError."""
        is_log = not is_compacted(self._number)
        next_id = 0
        for batch in scanner.batches():
            if not batch.ids:
                continue
            bounds = next_id, batch.ids[-1] + 1
            next_id = bounds[1]
            self._add_batch(batch, live, bounds, is_log=is_log)
            if self._bytes >= BATCH_BYTES or len(self._ids) >= BATCH_ROWS:
                yield self._made(scanner)
        end_id = max(end_id, live.end_id)
        if next_id < end_id:
            self._add_batch(BatchColumns(), live, (next_id, end_id), is_log=is_log)
        if self._ids:
            yield self._made(scanner)

    def _clear(self) -> None:
        self._bytes = 0
        # One value per row.
        self._ids = array("q")
        self._sequences = array("q")
        self._runs = array("i")
        self._heads: list[int] = []
        self._offsets = array("q")
        self._sizes = array("q")
        self._bodies: list[bytes | memoryview | None] = []
        # One value per stretch, which rows refer to by its number.
        self._columns: list[tuple[Any, ...]] = []

    def _add_batch(
        self, batch: BatchColumns, live: LiveRuns, bounds: tuple[int, int], *, is_log: bool
    ) -> None:
        wanted = self._wanted
        if not wanted.has_time(batch.time_ms or None):
            return
        for stretch in stretches(batch, live, self._names, bounds, is_log=is_log):
            if stretch.queue_id is None:
                name = QueueIdentity(None, None)
            else:
                name = self._names.get(stretch.queue_id, QueueIdentity(None, None))
            if wanted.has_queue(name.vhost, name.queue) and wanted.has_state(stretch.state):
                self._add(batch, stretch, name)

    def _add(self, batch: BatchColumns, stretch: Stretch, name: QueueIdentity) -> None:
        start, count = stretch.start, stretch.size
        end = start + count
        ids = range(stretch.first_id, stretch.first_id + count)
        self._ids.extend(ids)
        first = stretch.first_sequence
        self._sequences.extend(range(first, first + count) if first else [0] * count)
        self._runs.extend([len(self._columns)] * count)
        is_sound = start >= 0
        if is_sound:
            self._heads += batch.heads[start:end]
            self._offsets += batch.offsets[start:end]
            self._sizes += batch.sizes[start:end]
            self._bodies += batch.bodies[start:end]
            self._bytes += sum(batch.sizes[start:end])
        else:
            self._heads += [-1] * count
            self._offsets.extend([-1] * count)
            self._sizes.extend([-1] * count)
            self._bodies += [None] * count
        time_us = batch.time_ms * 1000 if batch.lsn else None
        expires_us = stretch.expires_ms * 1000 or None
        self._columns.append(
            (
                name.vhost,
                name.queue,
                stretch.queue_id,
                stretch.state,
                stretch.delivery_count,
                stretch.references,
                expires_us,
                batch.lsn or None,
                is_sound,
                time_us,
            )
        )

    def _made(self, scanner: ColumnScanner) -> pa.RecordBatch:
        indexes = pa.array(self._runs, pa.int32())
        count = len(self._ids)
        found = self._envelopes.columns(scanner.heads.__getitem__, self._heads)
        for name, values in zip(_OF_STRETCH, zip(*self._columns, strict=True), strict=True):
            if name in self._has:
                kind = self._schema.field(name).type
                found[name] = pa.array(values, kind).take(indexes)
        found["id"] = _numbers(self._ids)
        found["position"] = _numbers(self._sequences, none=0)
        found["offset"] = _numbers(self._offsets, none=-1)
        found["body_bytes"] = _numbers(self._sizes, none=-1)
        found["segment"] = pa.repeat(pa.scalar(self._number, pa.int64()), count)
        if "body" in self._has:
            found["body"] = _binary(self._bodies, count)
        self._clear()
        columns = [found[field.name] for field in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


_OF_STRETCH = (
    "vhost",
    "queue",
    "queue_id",
    "state",
    "delivery_count",
    "refcount",
    "expires",
    "lsn",
    "checksum_ok",
    "publish_time",
)


def _numbers(values: array[int], none: int | None = None) -> pa.Array:
    """Return an array of 64-bit numbers without copying each. Args: none, stands for null."""
    buffer = pa.py_buffer(values)
    found = pa.Array.from_buffers(pa.int64(), len(values), [None, buffer])
    if none is None or none not in values:
        return found
    return pa.array([None if value == none else value for value in values], pa.int64())


def _binary(values: list[bytes | memoryview | None], count: int) -> pa.Array:
    """Return bodies as one column; all null if none were kept."""
    if not values:
        return pa.nulls(count, pa.binary())
    known = [value for value in values if value is not None]
    if len(known) < count:
        return pa.array([None if one is None else bytes(one) for one in values], pa.binary())
    ends = array("i", accumulate(map(len, known), initial=0))
    data = b"".join(known)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)
