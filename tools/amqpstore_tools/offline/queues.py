"""The live messages of a queue, as recovery would find them, without their bodies in memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from amqpstore.checkpoints.checkpoint_state import IndexFile, QueueIndex, Sizes
from amqpstore.errors import DamageError
from amqpstore.format.index import Entries, IndexReader, entries_of
from amqpstore.format.runs import Run

_RUN_ENTRIES = 16_384


class Entry(NamedTuple):
    """The place of one message of a queue.

    `size` in bytes, of its MESSAGE record without compression, 0 if unknown; `expires_ms` since
    1970, 0 is never; `delivery_count` is how often it has been delivered.
    """

    sequence: int
    message_id: int
    size: int
    expires_ms: int
    delivery_count: int
    priority: int


class Unreadable(NamedTuple):
    """A file, or a directory, that lacks messages of a queue or cannot be read, and how many live
    messages it should have.
    """

    path: str
    reason: str
    live: int


class QueueTotals(NamedTuple):
    """Totals of one queue: messages, and `bytes` of their MESSAGE records without compression.

    `ready` are those that a broker would deliver, `delivered` those that it has delivered before;
    `locked` wait for the decision on a transaction, and `unreadable` are in index files that cannot
    be read. `oldest_id` is the lowest id of a message; None if it has none.
    """

    ready: int
    locked: int
    delivered: int
    bytes: int
    unreadable: int
    oldest_id: int | None


class QueueImage:
    """The stored queue `id`; a broker's queue with priorities is several of them, one per level.

    `definition` is the owner's, None if the catalog has none; `lost` are sequences of messages
    whose record was damaged behind the checkpoint. `locked_count` messages are not ready, because a
    prepared transaction will ack them; `is_hidden`, whether it holds the messages that such a
    transaction will publish. Sequences in `purged`, each pair a first one and an end, are of purges
    that can be undone: they are left out.

    What else is known of a queue of a damaged store: `missing` are messages that it held and that
    are not among its live ones, `again_count` of these may have been acked, and `is_recovered` says
    that its name is lost, and made of its id.
    """

    def __init__(
        self,
        queue_id: int,
        definition: Any,
        index: QueueIndex,
        sizes: Sizes,
        reader: IndexReader,
        lost: frozenset[int],
        *,
        locked_count: int = 0,
        is_hidden: bool = False,
        purged: Iterable[tuple[int, int]] = (),
    ) -> None:
        self.id = queue_id
        self.locked_count = locked_count
        self.is_hidden = is_hidden
        self._purged = sorted(purged)
        self.definition = definition
        self.lost = lost
        self.missing: list[Unreadable] = []
        self.again_count = 0
        self.is_recovered = False
        self.unreadable: list[Unreadable] = []
        self._index = index
        self._sizes = sizes
        self._reader = reader

    @property
    def vhost(self) -> str | None:
        """The virtual host of the queue, if a broker created it."""
        return _text(self.definition, "vhost")

    @property
    def name(self) -> str | None:
        """The name of the queue, if it has one."""
        return name_of(self.definition)

    @property
    def label(self) -> str:
        """The name of the queue for people."""
        if self.is_hidden:
            return f"prepared transaction (queue id {self.id})"
        return self.name if self.name is not None else f"queue id {self.id}"

    @property
    def level(self) -> int | None:
        """The priority whose messages it holds, if not the lowest."""
        definition = self.definition
        level = definition.get("level") if isinstance(definition, Mapping) else None
        return level if isinstance(level, int) else None

    @property
    def live_count(self) -> int:
        """Messages that it holds, including those that cannot be read."""
        missing = sum(one.live for one in self.missing)
        return sum(file.live for file in self._index.files) + self._index.fresh.count + missing

    @property
    def next_sequence(self) -> int:
        """The first sequence that was never assigned."""
        return self._index.next_sequence

    def columns(self) -> Iterator[Entries]:
        """Yield its live messages as columns, up to 16,384 at a time, ascending in sequence.

        Index files that cannot be read are left out and added to `unreadable`, beside what is
        `missing`.
        Raises: OSError.
        """
        self.unreadable = [*self.missing]
        spans: list[tuple[int, IndexFile | Run]] = [
            (file.state.first, file) for file in self._index.files
        ]
        spans += [(run.first_sequence, run) for run in self._index.fresh]
        for _, span in sorted(spans, key=lambda one: one[0]):
            if isinstance(span, Run):
                yield from self._not_purged(self._of_run(span))
            elif span.live:
                yield from self._not_purged(self._of_file(span))

    def _not_purged(self, blocks: Iterable[Entries]) -> Iterator[Entries]:
        for block in blocks:
            start = 0
            sequences = block.sequences
            # The range before may reach into it.
            index = max(bisect_left(self._purged, (sequences[0], 0)) - 1, 0)
            for first, end in self._purged[index:]:
                if first > sequences[-1]:
                    break
                if kept := bisect_left(sequences, first, start) - start:
                    yield block.slice(start, start + kept)
                start = max(start, bisect_left(sequences, end))
            if start < len(sequences):
                yield block.slice(start, len(sequences)) if start else block

    def entries(self) -> Iterator[Entry]:
        """Yield its live messages one by one, ascending in sequence. Raises: OSError."""
        for columns in self.columns():
            yield from map(Entry, *columns[:6])

    def totals(self, see: Callable[[QueueImage, Entries], None] | None = None) -> QueueTotals:
        """Count its messages. Reads all of its index files. Raises: OSError.

        Args: see, is called with each of its `columns`.
        """
        ready = delivered = size = 0
        oldest_id: int | None = None
        for columns in self.columns():
            if see is not None:
                see(self, columns)
            first_id = columns.ids[0]
            oldest_id = first_id if oldest_id is None else min(oldest_id, first_id)
            counts = columns.delivery_counts
            ready += len(counts)
            delivered += len(counts) - counts.count(0)
            size += sum(columns.sizes)
        unreadable = sum(one.live for one in self.unreadable)
        ready -= len(self.lost) + self.locked_count
        return QueueTotals(ready, self.locked_count, delivered, size, unreadable, oldest_id)

    def _of_file(self, file: IndexFile) -> Iterator[Entries]:
        was_changed = file.is_changed
        try:
            entries = self._reader.entries(self.id, file.state)
        except DamageError as error:
            self.unreadable.append(Unreadable(error.path, error.reason, file.live))
            return
        live = file.live_entries(entries)
        if not was_changed:
            # It takes one byte per entry while it is open.
            file.close()
        if live.sequences:
            yield live

    def _of_run(self, run: Run) -> Iterator[Entries]:
        for start in range(0, run.count, _RUN_ENTRIES):
            part = Run(
                run.first_sequence + start,
                min(_RUN_ENTRIES, run.count - start),
                first_id=run.first_id + start,
                delivery_count=run.delivery_count,
                expires_ms=run.expires_ms,
                priority=run.priority,
            )
            yield entries_of(part, *self._sizes.of(part))


def name_of(definition: Any) -> str | None:
    """Return the name of a queue by its definition; None if that has none.

    A history of a `SharedStore` has no name of its own: it is named as a broker's would be.
    """
    if of := _text(definition, "history_of"):
        return f"amq.consumed.{of}"
    return _text(definition, "name")


def _text(definition: Any, key: str) -> str | None:
    value = definition.get(key) if isinstance(definition, Mapping) else None
    return value if isinstance(value, str) else None
