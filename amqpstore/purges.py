"""Purges that can be undone: the messages are set aside for a while, on disk and out of sight.

Nothing is moved or written again, however many messages there are: a row of the catalog (table
`prepared`, with `purged`) names their sequences, as the row of a prepared transaction names those
that it will ack. To tell whether the purge is durable there is a queue of its own, as with such a
transaction, which holds a marker only:

1. `purge_aside`: one commit of the catalog creates the queue, empty, and the row. One batch of the
   log puts the marker into the queue. Once that is durable, so is the purge.
2. `Purged.end`: one batch of the log purges the messages, and empties the queue. After that the
   queue and the row are removed.
3. `Purged.undo`: one commit of the catalog removes both. The messages are ready, in their places.

A crash in 1 or in 2 that leaves the queue empty leaves a purge that was not promised, or one that
has ended: the next start removes the row. After any other it can still be undone. That the marker
is durable says that everything before it is, too: so no sequence in the row is given again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from amqpstore.catalog import tables
from amqpstore.catalog.catalog import Value
from amqpstore.catalog.tables import PreparedRow
from amqpstore.format.index import PagedFile
from amqpstore.format.message import Envelope, Message
from amqpstore.format.records import MAX_COUNT, Operation, OperationKind
from amqpstore.format.runs import Run, overhead_bytes
from amqpstore.queues.queue import Placement, Queue, is_logged

if TYPE_CHECKING:
    from amqpstore.store import Store

_MARKER = Message(Envelope("", ""), b"purged")

Range = tuple[int, int]
"""The first sequence, and how many there are."""


class Aside(NamedTuple):
    """Messages that were purged from one queue: `ranges` of sequences, those in `files` as index
    files have them, the others as `runs` without bodies.
    """

    queue: Queue
    ranges: list[Range]
    files: list[PagedFile]
    runs: list[Run]

    @property
    def message_count(self) -> int:
        """The number of messages."""
        return sum(file.live for file in self.files) + sum(run.count for run in self.runs)


class Purged:
    """A purge that can be undone. Created by `Store.purge_aside`, and by `Store.open`.

    `label` is its owner's description, `hidden` its own queue. It `is_durable` once the log has it.
    """

    def __init__(
        self, store: Store, hidden: Queue, label: Value, asides: list[Aside], *, is_durable: bool
    ) -> None:
        self.label = label
        self.is_durable = is_durable
        self.hidden = hidden
        self._store = store
        self._asides = asides
        for aside in asides:
            aside.queue.asides.append(aside.files)

    @property
    def queues(self) -> list[Queue]:
        """The queues that were purged, and still exist."""
        return [aside.queue for aside in self._asides if not aside.queue.deleted]

    @property
    def message_count(self) -> int:
        """The number of messages."""
        return sum(one.message_count for one in self._asides if not one.queue.deleted)

    def is_of(self, queues: Sequence[Queue]) -> bool:
        """Tell whether nothing is left of it without these queues."""
        return all(queue in queues for queue in self.queues)

    def undo(self) -> int:
        """Undo the purge, durably on return. Returns how many messages are ready again.

        To be called once it `is_durable`: before that their bodies cannot be read.
        Raises: DurabilityError.
        """
        count = self.message_count
        # The row goes first: what clients are given must not be aside again after a crash.
        _remove(self._store, self.hidden)
        for queue, _, files, runs in self._left():
            queue.bring_back(files)
            for run in runs:
                self._store.withdrawals.make_ready(queue, run)
        return count

    def end(self) -> bool:
        """Purge the messages for good. Returns False if that is not possible now, because the index
        of some of them cannot be read.
        """
        store = self._store
        if any(map(_is_unread, self._asides)):
            return False
        for queue, ranges, _, _ in self._left():
            for first, count in _in_chunks(ranges):
                operation = Operation(OperationKind.PURGE, count, queue.id, first)
                store.log.append_operation(operation)
        del store.purged[self.hidden.id]
        store.purge(self.hidden)
        # If the row went earlier, a crash would leave the messages ready again.
        store.log.when_durable(partial(_remove, store, self.hidden))
        return True

    def set_aside_again(self, queue: Queue) -> int:
        """Set messages aside that could not be read until now. Returns how many."""
        count = 0
        for of_queue, ranges, _, runs in self._asides:
            if of_queue is queue:
                for span in ranges:
                    found = self._store.withdrawals.withdraw_known(queue, *span)
                    count += sum(run.count for run in found)
                    runs += found
        return count

    def _left(self) -> Iterator[Aside]:
        """Yield what is aside, and stop counting it as that."""
        for aside in self._asides:
            aside.queue.asides.remove(aside.files)
            if not aside.queue.deleted:
                yield aside


def purge_aside(store: Store, queues: Iterable[Queue], label: Value) -> Purged | None:
    """Purge queues so that it can be undone: see `Store.purge_aside`."""
    purgeable = [(queue, ranges) for queue in queues if (ranges := _ranges(queue))]
    if not purgeable:
        return None
    locked = [[queue.id, *span] for queue, ranges in purgeable for span in ranges]
    row = PreparedRow(label, locked, [], purged=True)
    hidden = store.create_queue({}, changes=[tables.PREPARED.put(store.next_queue_id, row)])
    store.enqueues.enqueue(
        [Placement(hidden)], [_MARKER], len(_MARKER.body), overhead_bytes([_MARKER])
    )
    asides = []
    for queue, ranges in purgeable:
        files = list(queue.paged)
        runs = [run for run in store.clear(queue) if is_logged(run)]
        for run in runs:
            run.let_go()
        asides.append(Aside(queue, ranges, files, runs))
    purged = store.purged[hidden.id] = Purged(store, hidden, label, asides, is_durable=False)

    def durable() -> None:
        purged.is_durable = True

    store.log.when_durable(durable)
    return purged


def restore(store: Store, hidden: Queue, row: PreparedRow) -> None:
    """Set the messages of a purge aside again. What an index file has as a whole is not read."""
    by_queue: dict[int, list[Range]] = {}
    for queue_id, first, count in row.locked:
        by_queue.setdefault(queue_id, []).append((first, count))
    asides = []
    for queue_id, ranges in by_queue.items():
        if queue := store.queues.get(queue_id):
            files: list[PagedFile] = []
            runs: list[Run] = []
            for first, count in ranges:
                files += queue.set_aside(first, first + count)
                # Of a file that has other messages, too, its entries are read.
                runs += store.withdrawals.withdraw_range(queue, first, count)
            asides.append(Aside(queue, ranges, files, runs))
    if not asides:
        _remove(store, hidden)
        return
    store.purged[hidden.id] = Purged(store, hidden, row.label, asides, is_durable=True)


def _ranges(queue: Queue) -> list[Range]:
    """Return the sequences of what is ready and in the log. Between them there may be unacked
    messages: those that an index file skips are gone.
    """
    if not queue.durable:
        return []
    runs = [(run.first_sequence, run.end) for run in queue.ready if is_logged(run)]
    files = [(file.first, file.end) for file in queue.paged]
    found: list[Range] = []
    for first, end in sorted([*runs, *files]):
        if found and sum(found[-1]) == first:
            found[-1] = found[-1][0], end - found[-1][0]
        else:
            found.append((first, end - first))
    return found


def _in_chunks(ranges: Iterable[Range]) -> Iterator[Range]:
    """Yield ranges of as many sequences as one operation can name."""
    for first, count in ranges:
        for start in range(first, first + count, MAX_COUNT):
            yield start, min(first + count - start, MAX_COUNT)


def _is_unread(aside: Aside) -> bool:
    """Tell whether some of its messages are in an index file that cannot be read."""
    return any(
        file.first < first + count and first < file.end
        for file in aside.queue.unread
        for first, count in aside.ranges
    )


def _remove(store: Store, hidden: Queue) -> None:
    """Remove the row and the queue, unless they went with the queues that were purged."""
    if not hidden.deleted:
        store.delete_queue(hidden, changes=[tables.PREPARED.remove(hidden.id)])
        store.purged.pop(hidden.id, None)
