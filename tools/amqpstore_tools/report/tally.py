"""The counts of tasks in segments, and their sum."""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from amqpstore.format.message import HEAD
from amqpstore.format.records import OperationKind
from amqpstore.system.files import Files
from amqpstore_tools.offline.contents import properties_of
from amqpstore_tools.spark.reading.live import LiveRuns
from amqpstore_tools.spark.reading.scanning import BatchColumns, ColumnScanner

AGES_MS = (60_000, 600_000, 3_600_000, 86_400_000, 7 * 86_400_000)
"""The upper bounds of the age groups; older messages are in the last one."""

UNKNOWN_AGE = len(AGES_MS) + 1
"""The group of messages that were published before the log begins."""

_MAX_KEYS = 200_000
_KEPT_KEYS = 20_000

_OF_KIND: dict[int, str] = {
    OperationKind.ENQUEUE: "published",
    OperationKind.ACK: "acked",
    OperationKind.DELIVERED: "delivered",
    OperationKind.PURGE: "purged",
}


class Item(NamedTuple):
    """A segment: `size` bytes of the file at `path`; `live` is for `LiveRuns`."""

    number: int
    path: str
    size: int
    live: bytes


@dataclass(frozen=True)
class ReportContext:
    """The context that all tasks share. Events are counted by `bucket_ms`."""

    files: Files
    seed: int
    dictionaries: Mapping[int, bytes]
    bucket_ms: int
    taken_ms: int


@dataclass
class Tally:
    """The counts of a store, or of some segments of it. Queues are ids, buckets of time numbers.

    `events` by queue, bucket and event; `bytes` published by queue and bucket; `redelivered` by
    queue and count (10: or more); `dead` by reason and the queue's name; `keys` by exchange and
    routing key; `sizes` of bodies by the number of bits in them; `ages` of waiting messages, by
    queue and group; `oldest` of these by queue, in ms since 1970.
    """

    events: Counter[tuple[int, int, str]] = field(default_factory=Counter)
    bytes: Counter[tuple[int, int]] = field(default_factory=Counter)
    redelivered: Counter[tuple[int, int]] = field(default_factory=Counter)
    dead: Counter[tuple[str, str]] = field(default_factory=Counter)
    keys: Counter[tuple[str, str]] = field(default_factory=Counter)
    sizes: Counter[int] = field(default_factory=Counter)
    ages: Counter[tuple[int, int]] = field(default_factory=Counter)
    oldest: dict[int, int] = field(default_factory=dict)
    batches: int = 0
    damaged: int = 0

    def add(self, other: Tally) -> None:
        """Add counts that were made elsewhere."""
        for one in fields(self):
            ours, theirs = getattr(self, one.name), getattr(other, one.name)
            if isinstance(ours, Counter):
                ours.update(theirs)
        self.batches += other.batches
        self.damaged += other.damaged
        for queue_id, time_ms in other.oldest.items():
            self.oldest[queue_id] = min(self.oldest.get(queue_id, time_ms), time_ms)
        self.prune()

    def prune(self) -> None:
        """Drop the rarest keys if there are too many."""
        if len(self.keys) > _MAX_KEYS:
            self.keys = Counter(dict(self.keys.most_common(_KEPT_KEYS)))


def count(shared: ReportContext, items: Iterable[Item]) -> Tally:
    """Count some segments. Raises: OSError."""
    out = Tally()
    for item in items:
        _Count(shared, item, out).run()
    return out


class _Count:
    """The counts of one segment."""

    def __init__(self, shared: ReportContext, item: Item, out: Tally) -> None:
        self._shared = shared
        self._item = item
        self._out = out
        self._live = LiveRuns(item.live)
        self._heads: Counter[int] = Counter()

    def run(self) -> None:
        shared, item = self._shared, self._item
        with contextlib.closing(shared.files.open(item.path)) as file:
            scanner = ColumnScanner(file, item.number, item.size, shared.seed, want_bodies=False)
            for batch in scanner.batches():
                if batch.lsn:
                    self._log(batch)
                self._waiting(batch)
        self._out.damaged += len(scanner.gaps)
        self._name(scanner.heads)
        self._out.prune()

    def _log(self, batch: BatchColumns) -> None:
        out = self._out
        out.batches += 1
        bucket = batch.time_ms // self._shared.bucket_ms
        self._heads.update(batch.heads)
        for size in batch.sizes:
            out.sizes[size.bit_length()] += 1
        for operation in batch.operations:
            name = _OF_KIND.get(operation.kind)
            if name is None:
                continue
            queue_id, number = operation.queue_id, operation.message_count
            out.events[queue_id, bucket, name] += number
            if operation.kind == OperationKind.ENQUEUE:
                start = bisect_left(batch.ids, operation.first_id)
                stop = bisect_left(batch.ids, operation.first_id + number)
                out.bytes[queue_id, bucket] += sum(batch.sizes[start:stop])
            elif operation.kind == OperationKind.DELIVERED and operation.detail > 1:
                out.redelivered[queue_id, min(operation.detail, 10)] += number

    def _waiting(self, batch: BatchColumns) -> None:
        """Count the ages of the live messages of a batch."""
        if not batch.ids:
            return
        group = UNKNOWN_AGE
        if batch.lsn:
            group = bisect_left(AGES_MS, self._shared.taken_ms - batch.time_ms)
        oldest = self._out.oldest
        for run in self._live.within(batch.ids[0], batch.ids[-1] + 1):
            self._out.ages[run.queue_id, group] += run.size
            if batch.lsn:
                known = oldest.get(run.queue_id, batch.time_ms)
                oldest[run.queue_id] = min(known, batch.time_ms)

    def _name(self, heads: list[bytes]) -> None:
        """Parse the heads of messages."""
        for number, times in self._heads.items():
            if number < 0:
                continue
            head = heads[number]
            exchange, key, _ = HEAD.unpack_from(head)
            start = HEAD.size
            names = head[start : start + exchange], head[start + exchange :][:key]
            shown = tuple(name.decode("utf-8", "replace") for name in names)
            self._out.keys[shown[0], shown[1]] += times
            properties = head[start + exchange + key :]
            if b"x-death" in properties:
                for cause in _causes(properties):
                    self._out.dead[cause] += times


def _causes(raw: bytes) -> Iterator[tuple[str, str]]:
    """Yield why a message was last dead-lettered, and from which queue."""
    try:
        deaths: Any = properties_of(raw).get("headers", {}).get("x-death")
    except ValueError:
        return
    if isinstance(deaths, list) and deaths and isinstance(deaths[0], dict):
        # The latest one is the first.
        yield str(deaths[0].get("reason", "?")), str(deaths[0].get("queue", "?"))
