"""The store: queues of messages in a directory, and the interface to everything in this package.

Synchronous and single-threaded, except `Log.write`, which may run in a thread of its own, and the
background work of `upkeep`, which its worker does. Changes take effect in memory at once and enter
the open batch of the log; they are durable once that batch is. A caller that has promised something
registers with `Log.when_durable` and then either calls `sync`, or drives the batches itself:
`seal`, `write`, `complete` (see `log`), and `Upkeep.housekeep` now and then.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterable, Sequence

from amqpstore.catalog import tables
from amqpstore.catalog.catalog import Change, LmdbCatalog, OpenCatalog, Value
from amqpstore.catalog.tables import SegmentEndRow, StoreRows
from amqpstore.errors import (
    DiskFullError,
)
from amqpstore.format.message import Message
from amqpstore.format.records import (
    MAX_COUNT,
    Operation,
    OperationKind,
)
from amqpstore.format.runs import Run, body_bytes
from amqpstore.identity import marker
from amqpstore.log.companion import Companion
from amqpstore.log.grouped_definitions import GroupedDefinitions
from amqpstore.log.log import Log
from amqpstore.log.open_state import ClosableStore, OpenState
from amqpstore.log.segments import Unread
from amqpstore.log.spares import Spares
from amqpstore.options import DEFAULTS, Options, check_options, compressor_of
from amqpstore.prepared import Prepared, restore
from amqpstore.provenance.store_provenance import StoreProvenance
from amqpstore.purges import Purged, purge_aside
from amqpstore.queues.acks import GatheredAcks
from amqpstore.queues.arguments import (
    check_many,
    check_messages,
    check_own,
    check_queue,
    check_taken,
)
from amqpstore.queues.disposal import Disposal
from amqpstore.queues.enqueue import Enqueues, publish_bytes
from amqpstore.queues.memory import Memory
from amqpstore.queues.queue import Placement, Queue
from amqpstore.queues.stored_runs import StoredRuns
from amqpstore.queues.transient import FIRST_TRANSIENT, TransientLog
from amqpstore.queues.withdrawals import Withdrawals
from amqpstore.recovery.opening import OpenedStore, lock_directory, open_directory
from amqpstore.system.clock import SYSTEM_CLOCK, Clock
from amqpstore.system.durability import reason_of
from amqpstore.system.filenames import absolute_path
from amqpstore.system.files import SPARE, Files, Lock, OsFiles
from amqpstore.transaction import Transaction
from amqpstore.upkeep.maintenance import Maintenance
from amqpstore.upkeep.statistics import StoreStatistics
from amqpstore.upkeep.upkeep import Upkeep
from amqpstore.upkeep.worker import ThreadWorker, Worker

_log = logging.getLogger(__name__)

# Each look-up in an enumeration takes 50 ns, and there is one for each delivery and ack.
_ACK, _DELIVERED = OperationKind.ACK, OperationKind.DELIVERED


class Store(ClosableStore):
    """An open store. Created by `Store.open`.

    `queues` has all queues by id, including those of transactions in `prepared`, which hold their
    messages, and of purges in `purged`, under the same ids: see `is_hidden`. `next_queue_id` is the
    id of the next queue. `stored` reads the messages of runs that are on disk; `enqueues` and
    `withdrawals` are how messages enter queues and leave them. `memory` and `space` are what its
    messages may take of the machine's memory and of the disk; `definitions` are the rows that its
    owner keeps in the catalog. Owners that drive the batches of `log` themselves have `upkeep` do
    its work in between; `disposal` frees lists of messages that they do not need any more.
    `statistics` says what there is, `measures` what its work took, and `provenance` what the log
    has of one message. `clock` is the one passed to `open`; `store_id` tells it from every other
    store.
    """

    def __init__(
        self,
        lock: Lock,
        opened: OpenedStore,
        options: Options,
        worker: Worker,
        clock: Clock,
        began_s: float,
        companion: Companion | None = None,
    ) -> None:
        backing, queues, recovered, space, _ = opened
        if companion is not None:
            backing = backing._replace(catalog=companion.replicate(backing.catalog))
        self.directory = backing.directory
        self.store_id = backing.store_id
        self.queues = queues
        self.recovery_report = recovered.report
        self.clock = clock
        self._backing = backing
        self._lock = lock
        self._catalog = backing.catalog
        self.space = space
        self._transient = TransientLog(backing, options.segment_bytes)
        self._transient.wipe()
        self.memory = Memory(queues, options.memory_bytes, self._transient)
        self.disposal = Disposal(self._release)
        self._unacked = self.memory.unacked
        self._spares = Spares(backing.files, backing.directory, options.segment_bytes, space, clock)
        self.log = _open_log(opened, options, self._spares, companion)
        self._maintenance = Maintenance(
            *(backing, self.log, queues, self.memory, space, recovered, options, worker, clock),
            spares=self._spares,
        )
        self._state = OpenState(backing.directory, self.log)
        self.definitions = GroupedDefinitions(
            *(backing.directory, backing.catalog, self.log, space, self._state),
            committed=self._maintenance.defined,
        )
        self.upkeep = Upkeep(
            *(self.log, self._state, self.definitions, self.memory, self.disposal),
            *(self._maintenance, clock),
        )
        limits = options.limits
        self.stored = StoredRuns(backing, self.log, self._transient, self.memory, clock)
        self.provenance = StoreProvenance(backing, self.log, space, clock)
        self.enqueues = Enqueues(self.log, self.memory, limits.joined_bytes)
        self.withdrawals = Withdrawals(self.stored, self.memory, limits.split_messages)
        self.next_queue_id = StoreRows.read(self._catalog.rows).next_queue_id or 1
        self.prepared: dict[int, Prepared] = {}
        self.purged: dict[int, Purged] = {}
        SPARE.fill()
        for queue in queues.values():
            self.stored.sizes.count_ready(queue)
        restore(self, is_unread=recovered.is_unread)
        for queue in queues.values():
            if queue.quarantined.count or queue.unread:
                self.stored.quarantine.retry(queue)
        opening_s = time.perf_counter() - began_s
        self.statistics = StoreStatistics(
            *(self.log, self.memory, space, self._maintenance, recovered.report, opening_s)
        )

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        *,
        files: Files | None = None,
        open_catalog: OpenCatalog = LmdbCatalog,
        options: Options = DEFAULTS,
        worker: Worker | None = None,
        clock: Clock = SYSTEM_CLOCK,
        term: int = 0,
        companion: Companion | None = None,
    ) -> Store:
        """Open the store in `directory`, or create one in an empty directory; recover what it
        holds.

        Args: directory, which a later `os.chdir` does not change; worker, does the background work,
        a thread by default; clock, by which work is due, and batches are dated; term, which this
        member of a group leads from now on; 0 for a single node; companion, which sends what it
        writes to the others of the group.
        Raises: MembershipError, NotAStoreError, FormatVersionError, StoreLockedError, DamageError
        (the marker or the catalog is missing or cannot be read), UnreadableLogError; only the
        lock's text is changed then. OSError.
        """
        began_s = time.perf_counter()
        directory = absolute_path(directory)
        check_options(options)
        files = files or OsFiles()
        marker.check_directory(files, directory)
        marker.create_directory(files, directory)
        with contextlib.ExitStack() as on_error:
            lock = lock_directory(files, directory)
            on_error.callback(lock.release)
            opened = open_directory(directory, files, open_catalog, options, term=term)
            on_error.callback(opened.backing.catalog.close)
            worker = worker or ThreadWorker()
            store = cls(lock, opened, options, worker, clock, began_s, companion)
            on_error.pop_all()
        return store

    # Queues: durable on return, unless definitions are grouped.

    def create_queue(
        self, definition: Value, *, durable: bool = True, changes: Sequence[Change] = ()
    ) -> Queue:
        """Create an empty queue, with `changes` of definitions in the same commit.

        Raises: DiskFullError (nothing is done then), DurabilityError.
        """
        queue = Queue(self.next_queue_id, definition, durable=durable)
        self.next_queue_id += 1
        if durable:
            # Durable before the log names the queue: recovery drops operations on a queue that the
            # catalog does not have. The counter goes with it, as an id in the log must never be
            # given again.
            counter = StoreRows(next_queue_id=self.next_queue_id).changes()
            self.definitions.define([*counter, tables.QUEUES.put(queue.id, definition), *changes])
        else:
            self.definitions.define(changes)
        self.queues[queue.id] = queue
        if durable:
            self._maintenance.checkpoints.created.append(queue.id)
        return queue

    def delete_queue(self, queue: Queue, *others: Queue, changes: Sequence[Change] = ()) -> None:
        """Delete queues with their messages, atomically, with `changes` in the same commit.

        Raises: TypeError, ValueError, if one is not a queue of this store, or is named twice;
        DurabilityError; DiskFullError, if not even the reserve is left.
        """
        queues = (*check_own((queue, *others), self.queues),)
        if len(set(queues)) < len(queues):
            raise ValueError("a queue is deleted once: one is named twice")
        ending = [one for one in self.purged.values() if one.is_of(queues)]
        queues = (*queues, *[one.hidden for one in ending])
        changes = [*changes, *[tables.PREPARED.remove(one.hidden.id) for one in ending]]
        rows = [tables.QUEUES.remove(one.id) for one in queues if one.durable]
        # The rows first: after a crash from here on the messages belong to no queue, and recovery
        # and the next checkpoints release them. The log is told nothing.
        self.definitions.define([*rows, *changes])
        for purged in ending:
            del self.purged[purged.hidden.id]
        for gone in queues:
            gone.deleted = True
            self.memory.let_go(gone, gone.memory_bytes)
            self.disposal.add_runs(gone.clear() + gone.quarantined.clear())
            del self.queues[gone.id]
            if gone.durable:
                self._maintenance.checkpoints.deleted.append(gone.id)
        self._unacked.has_deleted = True

    def set_keeps_transient(self, queue: Queue, *, keeps: bool) -> None:
        """Set whether messages of a durable queue are logged even if they are not persistent."""
        check_queue(queue)
        queue.keeps_transient = keeps

    # Messages: in memory at once, durable with the open batch.

    def publish(
        self,
        queues: Iterable[Queue],
        messages: Sequence[Message],
        *,
        priority: int = 0,
        expires_ms: int = 0,
    ) -> bool:
        """Put messages, all of them persistent or none, at the end of each of the queues.

        A short form of `enqueue` for queues that are all treated alike. It also checks what the
        messages are, and that the queues are the store's. Raises: as `enqueue`; TypeError.
        """
        messages = check_many("messages", messages)
        check_messages(messages)
        own = check_own(queues, self.queues)
        placements = [Placement(queue, expires_ms) for queue in own]
        return self.enqueue(placements, messages, priority=priority)

    def enqueue(
        self,
        placements: Sequence[Placement],
        messages: list[Message],
        *,
        priority: int = 0,
        whole_bytes: int | None = None,
    ) -> bool:
        """Put messages, all of them persistent or none, in queues, each once.

        Persistent messages are logged for the durable queues, others for those of them that keep
        transient messages too (see `set_keeps_transient`). One publish is in all of these or, when
        a crash comes first, in none. Returns whether they entered the log: whether a promise about
        them has to wait for it.
        Args: placements: where one of them has `indexes`, either all of the queues are durable or
        none is, none keeps transient messages, nothing expires, and each message goes to one of
        them at least; messages, made by the caller itself: a body that is not bytes, which
        `publish` refuses, stops the store; priority, 0 to 255, which the store keeps and does not
        act on; whole_bytes, of all bodies, if that is known.
        Raises: StoreClosedError, DiskFullError, ValueError (the log cannot hold it); nothing is
        done then.
        """
        if whole_bytes is None:
            whole_bytes = body_bytes(messages)
        needed_bytes = publish_bytes(placements, messages, priority, whole_bytes)
        log, space = self.log, self.space
        soon_bytes = space.written_bytes + log.pending_bytes + needed_bytes
        if not log.is_open or soon_bytes >= space.trusted_bytes:
            self.check_writable(publishing=True, needed_bytes=needed_bytes)
        return self.enqueues.enqueue(placements, messages, whole_bytes, priority=priority)

    def transaction(self) -> Transaction:
        """Begin a transaction: see `Transaction`."""
        return Transaction(self)

    def take(
        self,
        queue: Queue,
        limit: int,
        *,
        acked: bool = False,
        first_sequence: int = 0,
        in_chunks: bool = False,
    ) -> Run | Unread | None:
        """Take up to `limit` messages off the head of a queue; None if nothing is ready.

        They are withdrawn, see `Withdrawals.withdraw`, and that is a delivery; with `acked` they
        are acked at once. While more is taken than the memory budget allows, `Upkeep`
        drops the messages of unacked runs from memory: see `StoredRuns.bring_back`.
        Raises: TypeError.
        """
        run = self.withdrawals.withdraw(queue, limit, first_sequence, in_chunks=in_chunks)
        if not isinstance(run, Run):
            return run
        if acked:
            self._log_run(_ACK, queue, run)
        else:
            self._log_delivered(queue, run)
            self._unacked.add(queue, run)
        return run

    def redeliver(self, queue: Queue, run: Run) -> None:
        """Count one more delivery of a run that was taken."""
        if queue.__class__ is not Queue or run.__class__ is not Run:
            check_taken(queue, run)
        run.delivery_count += 1
        self._log_delivered(queue, run)

    def ack(self, queue: Queue, run: Run) -> None:
        """Remove a run that was taken or withdrawn for good. Raises: TypeError."""
        if queue.__class__ is not Queue or run.__class__ is not Run:
            check_taken(queue, run)
        self._log_run(_ACK, queue, run)
        self._release(run)

    def ack_all(self, acks: GatheredAcks) -> None:
        """Ack as `ack` does, in little time however many runs there are."""
        self.disposal.add_runs(acks.move_to(self.log))

    def _release(self, run: Run) -> None:
        """Release what an acked run has in memory, or in `transient/`."""
        if run.account is not None:
            run.account.remove(run)
        if run.messages is None:
            self.stored.reader.release_transient(run)

    def requeue(self, queue: Queue, run: Run) -> None:
        """Return a run that was taken to its place, marked as delivered. Raises: TypeError."""
        if queue.__class__ is not Queue or run.__class__ is not Run:
            check_taken(queue, run)
        # Nothing is logged: `take` has logged this delivery, and for the log the run never left.
        run.delivery_count += 1
        self.withdrawals.put_back(queue, run)

    def purge(self, queue: Queue) -> int:
        """Remove all ready messages. Returns how many there were."""
        check_queue(queue)
        count = queue.ready_count
        for file in queue.paged:
            # Sequences that were skipped between its entries may be more than one operation can
            # name.
            for first in range(file.first, file.end, MAX_COUNT):
                span = min(file.end - first, MAX_COUNT)
                self.log.append_operation(Operation(OperationKind.PURGE, span, queue.id, first))
        for run in self.clear(queue):
            self._log_run(OperationKind.PURGE, queue, run)
        return count

    def purge_aside(self, queues: Iterable[Queue], label: Value) -> Purged | None:
        """Remove all ready messages of queues, so that it can be undone: see `Purged`.

        They are gone from the queues at once, and take their place on disk until it is undone or
        ended; those that are not in the log are gone for good. Durable with the open batch.
        Returns None, and does nothing, if the log has none of them.
        Args: label, which is stored with it.
        Raises: DiskFullError (nothing is done then), DurabilityError.
        """
        self._state.check()
        return purge_aside(self, check_own(queues, self.queues), label)

    def clear(self, queue: Queue) -> list[Run]:
        """Remove everything that is ready from memory. Returns the runs that were there."""
        check_queue(queue)
        self.memory.let_go(queue, queue.memory_bytes)
        runs = queue.clear()
        self.disposal.add_runs(runs)
        return runs

    def is_hidden(self, queue_id: int) -> bool:
        """Tell whether a queue is the store's own: of a prepared transaction, or of a purge."""
        return queue_id in self.prepared or queue_id in self.purged

    def read_again(self) -> dict[Queue, int]:
        """Try to read some messages that could not be read: readable ones are ready again, in their
        places.

        To be called about once a second. Returns how many messages of which queues are ready again.
        """
        found = self.stored.read_again(self.withdrawals.make_ready)
        for queue in found:
            # Before anybody can take them.
            for prepared in self.prepared.values():
                found[queue] -= prepared.lock_again(queue)
            for purged in self.purged.values():
                found[queue] -= purged.set_aside_again(queue)
        return {queue: count for queue, count in found.items() if count}

    # Durability.

    def sync(self) -> None:
        """Make everything done so far durable. Raises: DurabilityError."""
        self._state.check()
        if batch := self.log.seal(self.clock.wall_ms()):
            self.log.write(batch)
            self.log.is_committed(batch, wait=True)
            self.log.complete(batch)
        self.upkeep.housekeep()

    def _finish(self) -> None:
        """Sync, make a checkpoint, and note in the catalog where the log ends."""
        self.sync()
        self._spares.close()
        try:
            self.upkeep.checkpoint()
        except OSError as error:
            # The next start reads a little more of the log.
            _log.warning("the store was closed without a checkpoint: %s", reason_of(error))
        if (segment := self.log.current) is not None:
            # What stays of it is behind the noted end, where nothing is read.
            with contextlib.suppress(OSError):
                self.log.trim()
            with contextlib.suppress(DiskFullError):
                # Last, as a noted end tells the next start that nothing before it can be torn. On a
                # full disk the next start finds the end of the log by itself.
                self.definitions.commit(
                    [tables.SEGMENT_ENDS.put(segment.number, SegmentEndRow(segment.size))]
                )

    def _end_work(self) -> None:
        self._maintenance.close()
        self._transient.close()

    def check_writable(self, *, publishing: bool, needed_bytes: int = 0) -> None:
        """Raises: StoreClosedError; when `publishing`, DiskFullError.

        Args: needed_bytes, of the log, beyond what is not written yet.
        """
        self._state.check()
        if publishing:
            self.space.check(needed_bytes + self.log.pending_bytes)

    def _log_delivered(self, queue: Queue, run: Run) -> None:
        # An index file has four bytes for it, and more is not counted.
        # One more than the run has: a crash makes it ready again, and by then this delivery has
        # happened.
        self._log_run(_DELIVERED, queue, run, min(run.delivery_count + 1, MAX_COUNT))

    def _log_run(self, kind: OperationKind, queue: Queue, run: Run, detail: int = 0) -> None:
        """Log an operation on those messages of the run that are in the log."""
        if not queue.durable or queue.deleted:
            return
        if 0 < run.first_id < FIRST_TRANSIENT:
            # Persistent and transient messages share no run: see `publish`.
            self.log.append_operation(
                Operation(kind, run.count, queue.id, run.first_sequence, 0, detail)
            )


def _open_log(
    opened: OpenedStore, options: Options, spares: Spares, companion: Companion | None
) -> Log:
    """Return the log, where it goes on after what was recovered."""
    backing, _, recovered, space, measures = opened
    return Log(
        backing.descriptors,
        backing.directory,
        store_id=backing.store_id,
        segment_bytes=options.segment_bytes,
        segments=recovered.segments,
        next_segment=recovered.next_segment,
        position=recovered.position,
        space=space,
        compressor=compressor_of(options),
        dictionaries=tables.DICTIONARIES.read(backing.catalog.rows),
        limits=options.limits,
        measures=measures,
        companion=companion,
        spares=spares,
    )
