"""The checkpoint: the state of the store at a position in the log, so that recovery need not read
the log before it.

A job in three parts, so that the caller is not blocked: creating it takes the batches that became
durable since the last one (a swap of lists); `run` does the work, with file access and in any
thread; its result is then applied to the queues and to the log.

`run` writes in this order, and a crash between two steps leaves the old checkpoint or the new one:

1. new entries to index files, `datasync` of each, and of their directory for new ones; then index
   files that are mostly acked, or many, are merged into new ones in the same way. A crash leaves
   bytes after the recorded ends, and files without a row: the old checkpoint holds;
2. one commit of the catalog: index states, accounts, offset tables, and the position in the log.
   LMDB makes it atomic;
3. removal of index files in which nothing is live; segments are left to the caller. A crash leaves
   some of them without a row in the catalog, and the next start removes them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from amqpstore.catalog import tables
from amqpstore.catalog.backing import Backing
from amqpstore.catalog.catalog import Change
from amqpstore.catalog.keys import IndexKey
from amqpstore.catalog.tables import NextSequenceRow, OffsetTableRow, Position, StoreRows
from amqpstore.checkpoints.batch_merge import merged
from amqpstore.checkpoints.checkpoint_state import CheckpointState, IndexFile, QueueIndex
from amqpstore.checkpoints.index_merge import IndexMerger
from amqpstore.checkpoints.index_writer import IndexWriter
from amqpstore.errors import DurabilityError
from amqpstore.format.index import IndexState, Merged
from amqpstore.log.batch import BatchSummary
from amqpstore.system.durability import reason_of
from amqpstore.system.filenames import index_path
from amqpstore.system.removal import attempt, quarantine

_log = logging.getLogger(__name__)


class Written(NamedTuple):
    """The result of a checkpoint: index states of queues by id, and segments without a row, to be
    removed.

    `merged` index files have no row any more; they are to be removed once no queue reads them.
    `not_deleted` queues have more to release, perhaps only once an index file can be read again:
    that is for the next checkpoint.
    """

    states: dict[int, list[IndexState]]
    dropped: list[int]
    merged: list[Merged]
    not_deleted: list[int]


class _Commitment(NamedTuple):
    """The changes to commit, and what follows the commit: paths to remove, and segments that are
    gone.
    """

    changes: list[Change]
    gone: list[str]
    dropped: list[int]
    touched: list[QueueIndex]


class Checkpoint:
    """One checkpoint, to be run once."""

    def __init__(
        self,
        backing: Backing,
        checkpoint_state: CheckpointState,
        writer: IndexWriter,
        *,
        created: Sequence[int],
        batches: Sequence[BatchSummary],
        deleted: Sequence[int],
        offset_tables: Mapping[int, OffsetTableRow],
        damaged: Collection[int],
        position: Position,
        passed_over: Sequence[Change] = (),
    ) -> None:
        self._files = backing.files
        self._directory = backing.directory
        self._catalog = backing.catalog
        self._checkpoint_state = checkpoint_state
        self._writer = writer
        self._max_released_files = backing.limits.max_released_files
        self._merger = IndexMerger(backing.files, backing.directory, backing.seed, backing.limits)
        # Each list shrinks as its items are processed, so that a failed run can be repeated from
        # there.
        self._created = list(created)
        self._batches = deque(batches)
        self._deleted = list(deleted)
        self._not_deleted: list[int] = []
        # What a start has passed over is noted by the commit that moves the position behind it.
        self._changes = list(passed_over)
        self._gone: list[str] = []
        # The state has the new files at once: the catalog has to hear of each, whatever fails next.
        self._merged: list[Merged] = []
        self._offset_tables = offset_tables
        self._damaged = damaged
        self._position = position
        # What to commit, once everything is written: it cannot be computed a second time.
        self._commitment: _Commitment | None = None

    def run(self) -> Written:
        """Make the checkpoint. Raises: OSError (it may be run again), DurabilityError."""
        checkpoint_state = self._checkpoint_state
        if self._commitment is None:
            self._commitment = self._write()
        changes, gone, dropped, touched = self._commitment
        # A crash before this commit leaves bytes in index files that no row counts, and new files
        # without a row: the old checkpoint holds, and the next start reads the log again from it.
        self._catalog.commit(changes)
        # A crash from here on leaves files without a row: the next start removes them. Never the
        # other way round, as a row without its file would be damage.
        checkpoint_state.touched.clear()
        checkpoint_state.sizes.clear()
        checkpoint_state.accounts.changed.clear()
        # The removals are not synced: a file that a crash brings back has no row.
        for path in gone:
            attempt(self._files.remove, path)
        for number in dropped:
            if number in self._damaged:
                attempt(quarantine, self._files, self._directory, number)
        states = {queue.id: [file.state for file in queue.files] for queue in touched}
        return Written(states, dropped, self._merged, self._not_deleted)

    def _write(self) -> _Commitment:
        checkpoint_state = self._checkpoint_state
        while self._created:
            checkpoint_state.create(self._created.pop())
        self._batches = deque(merged(self._batches))
        # Each is popped only once it is applied: where this fails (a full disk), the same
        # checkpoint is run again, and a batch left out or counted twice would be wrong from then
        # on.
        while self._batches:
            checkpoint_state.apply(self._batches[0])
            self._batches.popleft()
        checkpoint_state.catch_up()
        while self._deleted:
            self._delete(self._deleted[-1])
            self._deleted.pop()
        changes, gone = list(self._changes), list(self._gone)
        touched = sorted(checkpoint_state.touched, key=lambda queue: queue.id)
        # Entries are durable before any row is computed from them: a row must never count bytes
        # that a crash could take. A failure here leaves what was not counted fresh, and in the log.
        self._writer.write(touched, checkpoint_state.sizes)
        for queue in touched:
            self._merge(queue)
            changes += self._queue_changes(queue, gone)
        changes += [
            tables.INDEX.remove(IndexKey(one.queue_id, state.number))
            for one in self._merged
            for state in one.old
        ]
        dropped = self._account_changes(changes)
        changes += StoreRows(position=self._position).changes()
        return _Commitment(changes, gone, dropped, touched)

    def _delete(self, queue_id: int) -> None:
        """Release what a deleted queue holds. The next checkpoint continues with the rest."""
        for queue, file in self._checkpoint_state.delete(queue_id, self._max_released_files):
            self._remove(queue, file, self._changes, self._gone)
        if queue_id in self._checkpoint_state.queues:
            self._not_deleted.append(queue_id)
        else:
            self._changes.append(tables.NEXT_SEQUENCES.remove(queue_id))

    def _merge(self, queue: QueueIndex) -> None:
        try:
            for merged in self._merger.merge(queue, self._writer.appends_to(queue.id)):
                self._merged.append(merged)
        except DurabilityError:
            raise
        except OSError as error:
            # Usually a full disk: freeing other files helps more.
            _log.warning(
                "the index files of queue %d were not merged: %s", queue.id, reason_of(error)
            )

    def _queue_changes(self, queue: QueueIndex, gone: list[str]) -> Iterator[Change]:
        changes: list[Change] = []
        for file in list(queue.files):
            is_changed = file.is_changed
            state = file.close()
            if not state.live:
                self._remove(queue, file, changes, gone)
                queue.files.remove(file)
            elif is_changed:
                changes.append(tables.INDEX.put(IndexKey(queue.id, state.number), state))
        changes.append(tables.NEXT_SEQUENCES.put(queue.id, NextSequenceRow(queue.next_sequence)))
        return iter(changes)

    def _remove(
        self, queue: QueueIndex, file: IndexFile, changes: list[Change], gone: list[str]
    ) -> None:
        self._writer.forget(queue.id, file)
        changes.append(tables.INDEX.remove(IndexKey(queue.id, file.state.number)))
        gone.append(index_path(self._directory, queue.id, file.state.number))

    def _account_changes(self, changes: list[Change]) -> list[int]:
        accounts = self._checkpoint_state.accounts
        # The log may continue in the last one, and recovery starts there.
        dropped = [
            account
            for account in accounts
            if not account.live_count and account.number != self._position.segment
        ]
        for account in dropped:
            accounts.replace([account], None)
            changes += [table.remove(account.number) for table in tables.OF_SEGMENTS]
        numbers = {account.number for account in dropped}
        for account in accounts.changed:
            changes.append(tables.SEGMENTS.put(account.number, account.row()))
        for number, offset_table in self._offset_tables.items():
            if number not in numbers:
                changes.append(tables.OFFSET_TABLES.put(number, offset_table))
        return sorted(numbers)
