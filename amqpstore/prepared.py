"""Prepared transactions: undecided, and safe from crashes until somebody decides them.

The messages that one will publish wait in a queue of its own, and a row of the catalog (table
`prepared`) says where they go and which messages it will ack:

1. `prepare`: one commit of the catalog creates the queue, empty, and the row. One batch of the log
   puts a marker and all messages into the queue. Once that is durable, so is the promise.
2. `Prepared.commit`: one batch of the log enqueues the messages, acks, and empties the queue. After
   that the queue and the row are removed.
3. `Prepared.rollback`: one commit of the catalog removes the queue, with its messages, and the row.

So if a crash leaves an empty queue, the transaction was not prepared yet, or is committed already:
the next start removes it. Any other is still undecided, and the messages it will ack are locked
until it is decided.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from amqpstore import purges
from amqpstore.catalog import tables
from amqpstore.catalog.catalog import Value
from amqpstore.catalog.tables import PreparedRow
from amqpstore.errors import (
    PartlyReadError,
    ReadLaterError,
    TransactionEndedError,
    UndecidableError,
)
from amqpstore.format.message import Envelope, Message
from amqpstore.format.runs import Run, body_bytes, overhead_bytes
from amqpstore.queues.acks import GatheredAcks
from amqpstore.queues.enqueue import publish_bytes
from amqpstore.queues.queue import Placement, Queue

if TYPE_CHECKING:
    from amqpstore.store import Store

_log = logging.getLogger(__name__)


_READ_AT_ONCE = 1024
_BYTES_OF_ONE = 512
"""Messages that are read before others have their turn; each of these bytes of their bodies counts
as another one.
"""

_MARKER = Message(Envelope("", ""), b"prepared")
"""In the queue even if nothing is published, to show that the transaction was prepared."""


class Publish(NamedTuple):
    """Messages, all of them persistent or none, and the queues they go to: see `Store.enqueue`.

    Their sizes, see `runs`, are known beforehand, so that a commit of many takes little time.
    """

    placements: Sequence[Placement]
    messages: list[Message]
    priority: int
    body_bytes: int
    overhead_bytes: int

    @classmethod
    def of(
        cls, placements: Sequence[Placement], messages: list[Message], priority: int = 0
    ) -> Publish:
        """Return a publish of messages that are not sized yet."""
        return cls(placements, messages, priority, body_bytes(messages), overhead_bytes(messages))

    def needed_bytes(self) -> int:
        """Return about how many bytes of the log it takes. Raises: as `publish_bytes`."""
        return publish_bytes(self.placements, self.messages, self.priority, self.body_bytes)


class _Group(NamedTuple):
    """Messages that wait in the queue from a sequence on, and where they go: see `Placement`."""

    first_sequence: int
    length: int
    priority: int
    placements: list[tuple[int, int, int | None]]


class Prepared:
    """A transaction that was prepared. Created by `Transaction.prepare`, and by `Store.open`.

    `label` is its owner's description. Transient messages that it will publish to queues that do
    not keep them, and acks in queues that are not durable, do not survive a restart, just as
    without a transaction.

    Args: ranges, the messages it will ack, as queue id, first sequence and count. Some may be in an
    index file that cannot be read: then it cannot be committed, until they are locked too.
    """

    def __init__(
        self,
        store: Store,
        hidden: Queue,
        label: Value,
        acks: GatheredAcks,
        groups: list[_Group],
        ranges: Sequence[Sequence[int]],
    ) -> None:
        self.label = label
        self._acks = acks
        self._store = store
        self._hidden = hidden
        self._groups = groups
        self._ranges = ranges
        self.acked_queue_ids = {int(one[0]) for one in ranges}
        """The ids of the queues in which it acks."""
        self.without_queue: Counter[int] = Counter()
        """By the ids of queues that were deleted: how many messages were for them, as of the last
        time they were read.
        """

    @property
    def locked(self) -> list[tuple[Queue, Run]]:
        """The runs that a commit will ack: they are in no queue now."""
        return self._acks.runs

    @property
    def publish_count(self) -> int:
        """The number of messages that a commit will publish."""
        return self._hidden.ready_count

    @property
    def ack_count(self) -> int:
        """The number of messages that a commit will ack."""
        return sum(int(one[2]) for one in self._ranges)

    def publishes(self) -> list[Publish]:
        """Return what it will publish, read from the store, to the queues that still exist.

        Raises: UndecidableError, ReadLaterError (a message cannot be read, or not now): committing
        the others would be half of a transaction.
        """
        return [publish for publish in self.reading() if publish is not None]

    def reading(self) -> Iterator[Publish | None]:
        """Yield what `publishes` returns, and None where others may have their turn first.

        The messages stay in the store: nothing has to be done if not all of it is taken.
        Raises: as `publishes`.
        """
        self._check_locked()
        sequences = array("Q")
        waiting: list[Message] = []
        yield from self._read_into(sequences, waiting)
        if lost := self._hidden.quarantined.count + self._hidden.unreadable_count:
            raise UndecidableError(self.label, f"{lost} of its messages cannot be read")
        self.without_queue.clear()
        for first, length, priority, placements in self._groups:
            start, stop = (bisect_left(sequences, one) for one in (first, first + length))
            messages = waiting[start:stop]
            for queue_id, _, most in placements:
                if queue_id not in self._store.queues:
                    count = len(messages)
                    self.without_queue[queue_id] += count if most is None else min(most, count)
            placed = [
                Placement(queue, expires_ms, most)
                for queue_id, expires_ms, most in placements
                if (queue := self._store.queues.get(queue_id))
            ]
            if messages and placed:
                yield Publish.of(placed, messages, priority)

    def commit(self, publishes: Sequence[Publish]) -> None:
        """Commit: enqueue `publishes`, which the owner may have changed, and ack.

        Promise it only once it is durable: see `Log.when_durable`.
        Raises: TransactionEndedError, StoreClosedError; DiskFullError (it is undecided then).
        """
        self.check()
        store = self._store
        needed_bytes = sum([publish.needed_bytes() for publish in publishes])
        # Whatever can be refused is refused here: from the next line on nothing may stop half-way.
        store.check_writable(publishing=bool(publishes), needed_bytes=needed_bytes)
        # All of this is one batch. A crash before it is durable leaves the queue full, and the
        # transaction undecided; one before `_remove` leaves it empty: the next start removes it.
        del store.prepared[self._hidden.id]
        withheld = put_all(store, publishes)
        store.ack_all(self._acks)
        store.purge(self._hidden)
        for queue, run in withheld:
            # No consumer sees them before: a crash would leave the transaction undecided, and it
            # may be rolled back then.
            store.log.when_durable(partial(store.withdrawals.make_ready, queue, run))
        store.log.when_durable(partial(_remove, store, self._hidden))

    def rollback(self) -> list[tuple[Queue, Run]]:
        """Roll back, durably on return. Returns `locked`, which is the caller's now.

        Raises: TransactionEndedError, DurabilityError.
        """
        self.check()
        _remove(self._store, self._hidden)
        return self.locked

    def _read_into(self, sequences: array[int], messages: list[Message]) -> Iterator[None]:
        """Add everything that waits in its queue to the lists, and leave it there, in steps."""
        store, hidden = self._store, self._hidden
        # Messages that could not be read the last time may be readable by now.
        for run in hidden.quarantined.clear():
            store.withdrawals.put_back(hidden, run)
        cost = 0
        position = hidden.first_sequence
        while withdrawn := store.withdrawals.withdraw(
            hidden, _READ_AT_ONCE, first_sequence=position, in_chunks=True
        ):
            if isinstance(withdrawn, PartlyReadError):
                cost = _READ_AT_ONCE
            elif isinstance(withdrawn, ReadLaterError):
                raise withdrawn
            elif isinstance(withdrawn, Run):
                position = withdrawn.end
                sequences.extend(range(withdrawn.first_sequence, position))
                messages += withdrawn.messages or ()
                cost += withdrawn.count + withdrawn.body_bytes // _BYTES_OF_ONE
                store.withdrawals.put_back(hidden, withdrawn)
            else:
                _log.error("cannot restore a prepared transaction: %s", withdrawn)
            if cost >= _READ_AT_ONCE:
                cost = 0
                yield

    def lock_again(self, queue: Queue) -> int:
        """Lock messages that it will ack and that could not be read until now. Returns how many."""
        runs = [
            run
            for queue_id, first_sequence, count in self._ranges
            if queue_id == queue.id
            for run in self._store.withdrawals.withdraw_known(queue, first_sequence, count)
        ]
        for run in runs:
            self._acks.add(queue, run)
        return sum(run.count for run in runs)

    def _check_locked(self) -> None:
        """Raises: UndecidableError, if it is unknown which messages it will ack."""
        for queue_id in self.acked_queue_ids:
            queue = self._store.queues.get(queue_id)
            if queue is None or not queue.unreadable_count:
                continue
            wanted = sum(count for of_queue, _, count in self._ranges if of_queue == queue_id)
            found = sum(run.count for of_queue, run in self.locked if of_queue is queue)
            if found < wanted:
                reason = f"the index of queue {queue_id}, in which it acks messages, cannot be read"
                raise UndecidableError(self.label, reason)

    def check(self) -> None:
        """Raises: TransactionEndedError, if it is decided already."""
        if self._store.prepared.get(self._hidden.id) is not self:
            raise TransactionEndedError


def put_all(store: Store, publishes: Iterable[Publish]) -> list[tuple[Queue, Run]]:
    """Put messages in queues, where they are not ready yet: see `Enqueues`. Returns the runs."""
    withheld: list[tuple[Queue, Run]] = []
    for placements, messages, priority, size, overhead in publishes:
        store.enqueues.enqueue(
            placements, messages, size, overhead, priority=priority, withheld=withheld
        )
    return withheld


def prepare(
    store: Store, label: Value, publishes: Sequence[Publish], acks: GatheredAcks
) -> Prepared:
    """Put a transaction into the log's open batch, undecided: see `Transaction.prepare`."""
    groups = []
    sequence = 2
    kept: list[tuple[Publish, bool]] = []
    for publish in publishes:
        placements, messages, priority, _, _ = publish
        count = max(
            len(messages) if one.most is None else min(one.most, len(messages))
            for one in placements
        )
        if not count:
            continue
        placed = [(one.queue.id, one.expires_ms, one.most) for one in placements]
        groups.append(_Group(sequence, count, priority, placed))
        if count < len(messages):
            publish = Publish.of(placements, messages[:count])
        kept.append((publish, any(one.queue.keeps_transient for one in placements)))
        sequence += count
    row = PreparedRow(
        label,
        locked=acks.ranges(),
        publishes=[list(group) for group in groups],
    )
    # A crash between this commit and the batch leaves the row with an empty queue, without the
    # marker: the next start removes both, as nothing was promised.
    hidden = store.create_queue({}, changes=[tables.PREPARED.put(store.next_queue_id, row)])
    target = [Placement(hidden)]
    store.enqueues.enqueue(target, [_MARKER], len(_MARKER.body))
    for (_, messages, _, size, overhead), keeps_transient in kept:
        store.set_keeps_transient(hidden, keeps=keeps_transient)
        store.enqueues.enqueue(target, messages, size, overhead)
    for _, run in acks.runs:
        # As after a restart: they were delivered, and no consumer has them.
        run.delivery_count += 1
    prepared = store.prepared[hidden.id] = Prepared(store, hidden, label, acks, groups, row.locked)
    return prepared


def restore(store: Store, *, is_unread: bool) -> None:
    """Restore `Store.prepared` with undecided transactions, and remove the remains of others.

    Args: is_unread, whether part of the log could not be read: then the next start decides whether
    a transaction with an empty queue was prepared, and what it locks stays locked.
    """
    for hidden_id, row in tables.PREPARED.read(store.definitions.rows).items():
        hidden = store.queues[hidden_id]
        is_empty = not (hidden.ready_count or hidden.quarantined.count or hidden.unreadable_count)
        if is_empty and (row.purged or not is_unread):
            # Part of the log could not be read: then messages that were purged come back.
            _remove(store, hidden)
            continue
        if row.purged:
            purges.restore(store, hidden, row)
            continue
        acks = GatheredAcks()
        for queue_id, first_sequence, count in row.locked:
            if queue := store.queues.get(queue_id):
                for run in store.withdrawals.withdraw_range(queue, first_sequence, count):
                    acks.add(queue, run)
        if is_empty:
            _log.error("a prepared transaction may be lost, as it cannot be read: %s", row.label)
            for queue_id, _, _ in row.locked:
                if queue := store.queues.get(queue_id):
                    # Nothing would lock what it locks in these: the next start reads them too.
                    queue.unread.clear()
            continue
        groups = [_group(*group) for group in row.publishes]
        store.prepared[hidden.id] = Prepared(store, hidden, row.label, acks, groups, row.locked)


def _group(first_sequence: int, length: int, priority: int, placements: list[Any]) -> _Group:
    placed = [(queue_id, expires_ms, most) for queue_id, expires_ms, most in placements]
    return _Group(first_sequence, length, priority, placed)


def _remove(store: Store, hidden: Queue) -> None:
    store.prepared.pop(hidden.id, None)
    store.delete_queue(hidden, changes=[tables.PREPARED.remove(hidden.id)])
