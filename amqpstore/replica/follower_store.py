"""The store of a follower, open: takes what its leader sends, and keeps itself ready to lead.

The leader's batches are durable when `append` returns, and are acked then. Its definitions are
durable when `define` returns. Checkpoints, compaction and all else that cannot be undone know of
either only once they are committed: until then another leader may take them back.

On joining a leader three things are agreed on, in this order: the definitions
(`replace_definitions`), as the log must not name a queue that the catalog does not have; a common
batch (`resume`, `adopt`); and what is committed (`commit`). What a crash may have left is not
touched before that, so a member that finds no leader can still lead with it.

To lead, close it, and open the directory with `Store.open` and the term.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence

from amqpstore.catalog import tables
from amqpstore.catalog.catalog import Change, LmdbCatalog, OpenCatalog, Value
from amqpstore.catalog.tables import Position, StoreRows
from amqpstore.errors import (
    DamageError,
    DivergedError,
    DurabilityError,
    RefusedBatchError,
    RefusedCopyError,
)
from amqpstore.identity import marker
from amqpstore.log.batch import Batch, BatchSummary
from amqpstore.log.open_state import ClosableStore, OpenState
from amqpstore.log.space import is_no_space
from amqpstore.options import DEFAULTS, Options, check_options
from amqpstore.queues.memory import Memory
from amqpstore.queues.transient import TransientLog
from amqpstore.recovery.opening import OpenedStore, lock_directory, open_directory
from amqpstore.replica.follower_log import FollowerLog, end_of_batch
from amqpstore.replica.log_reading import LOG_START, BatchEnd, LogReader, sealed_batches
from amqpstore.replica.replacement import (
    Replacement,
    finish,
    is_pending,
    received,
    remove_unfinished,
)
from amqpstore.replica.sealed_batch import SealedBatch
from amqpstore.replica.segment_rewrite import (
    Discarded,
    SegmentRewrite,
    copy_to,
    new_quarantine,
    remove_last,
)
from amqpstore.replica.whole_copy import WholeCopy
from amqpstore.system.clock import SYSTEM_CLOCK, Clock
from amqpstore.system.durability import reason_of
from amqpstore.system.filenames import CATALOG, absolute_path, segment_path
from amqpstore.system.files import Files, Lock, OsFiles
from amqpstore.terms import batch_named, term_of
from amqpstore.upkeep.maintenance import Maintenance
from amqpstore.upkeep.worker import ThreadWorker, Worker

_log = logging.getLogger(__name__)

SHIPPED = (
    *("queues", "prepared"),
    *("vhosts", "users", "exchanges", "bindings", "permissions", "policies"),
)
"""The tables of the catalog that a leader sends, with `next_queue_id`; all others are a member's
own.
"""

_NEXT_QUEUE_ID = "next_queue_id"


class FollowerStore(ClosableStore):
    """An open follower. Created by `FollowerStore.open`. For one thread.

    `term` is the highest it has heard of. `definition_number` is that of the leader's last
    commit of definitions that it has. `discarded` is what it gave up, since it was opened. `space`
    is the free space of its disk.
    """

    log: FollowerLog

    def __init__(
        self,
        lock: Lock,
        opened: OpenedStore,
        options: Options,
        worker: Worker,
        clock: Clock,
    ) -> None:
        backing, _, recovered, space, measures = opened
        self.directory = backing.directory
        self.store_id = backing.store_id
        self.recovery_report = recovered.report
        self.discarded: list[Discarded] = []
        rows = StoreRows.read(backing.catalog.rows)
        self.term = rows.term or 0
        self.definition_number = rows.definitions or 0
        self._backing = backing
        self._lock = lock
        self._catalog = backing.catalog
        self.space = space
        self._options = options
        self._worker = worker
        self._clock = clock
        self._recovered = recovered
        self.log = FollowerLog(
            backing.descriptors,
            backing.directory,
            store_id=backing.store_id,
            segment_bytes=options.segment_bytes,
            segments=recovered.segments,
            next_segment=recovered.next_segment,
            position=recovered.position,
            space=space,
            dictionaries=tables.DICTIONARIES.read(backing.catalog.rows),
            limits=options.limits,
            measures=measures,
        )
        # Recovery has reported those that are gone: the log has nothing of them, and ends before
        # them, if they are its last ones.
        self._gone = frozenset(
            one
            for one in self.log.ends()
            if not backing.files.exists(segment_path(backing.directory, one))
        )
        # The files decide, and not what recovery has noted: this is what the member offers to its
        # leader.
        self.log.follow(self._reader().end(), space)
        # Batches that recovery found, up to here, are committed for all that is known.
        self._adopted_lsn = self.log.last.lsn
        self._maintenance: Maintenance | None = None
        # The queues that the checkpoint's state has; those that definitions behind the committed
        # ones create and delete, by the number of the definitions.
        self._queue_ids = set(recovered.checkpoint_state.queues)
        self._waiting: list[tuple[int, set[int], set[int]]] = []
        # The number of definitions that were replaced as a whole; None: not since it was opened.
        self._agreed_definitions: int | None = None
        self._state = OpenState(backing.directory, self.log)

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
    ) -> FollowerStore:
        """Open the store of a member that follows; one that was to take the place of its own is put
        there first. Args: as `Store.open`.

        Raises: as `Store.open`; MembershipError, if it is not a member's.
        """
        directory = absolute_path(directory)
        check_options(options)
        files = files or OsFiles()
        store_marker = marker.require(files, directory)
        with contextlib.ExitStack() as on_error:
            lock = lock_directory(files, directory)
            on_error.callback(lock.release)
            # Before anything is read: until this is finished the directory has the rows of one
            # store and the files of another.
            if is_pending(files, directory):
                path = os.path.join(directory, CATALOG)
                with contextlib.closing(
                    open_catalog(path, False, plain=store_marker.is_plain)
                ) as catalog:
                    finish(files, directory, catalog)
            opened = open_directory(directory, files, open_catalog, options, is_follower=True)
            on_error.callback(opened.backing.catalog.close)
            follower = cls(lock, opened, options, worker or ThreadWorker(), clock)
            on_error.pop_all()
        return follower

    # The log.

    @property
    def last(self) -> BatchEnd:
        """The end of the log. All of it is durable, and up to there may be acked."""
        return self.log.last

    @property
    def is_appendable(self) -> bool:
        """Whether `append` may follow: this process has agreed with a leader on where the log ends,
        and nothing has failed since.
        """
        return self.log.is_appendable

    @property
    def committed_lsn(self) -> int:
        """The last batch that is known to be committed: nothing up to it is ever discarded."""
        of = self.log.position if self._maintenance else self._recovered.start
        return of.lsn - 1

    @property
    def seed(self) -> int:
        """The seed of the checksums of its records."""
        return self._backing.seed

    def reader(self) -> LogReader:
        """Return a reader of all that is in the log now. It may be used in another thread."""
        return self._reader()

    def lsns(self) -> list[int]:
        """Return LSNs of this log for a leader to find one that it has too: see `LogReader`."""
        return self._reader().lsns()

    def append(self, batch: SealedBatch) -> None:
        """Append a batch that the leader of this term has sealed. It is durable on return.

        Raises: RefusedBatchError; DiskFullError: it was not written, and before the next one is
        the follower has to `resume`; DurabilityError.
        """
        self._state.check()
        self.log.append(self.log.accept(batch, self.term))

    def resume(self, lsn: int) -> SegmentRewrite:
        """Begin to have the log go on behind a batch that the leader has as well.

        Returns the segment where it does. What the leader has behind that place in this segment,
        which is perhaps nothing, is appended to it; then `adopt` it. Nothing is changed before.
        Args: lsn, one of `lsns`; 0 if there is none.
        Raises: RefusedBatchError, DivergedError; DiskFullError, OSError.
        """
        self._state.check()
        # A batch that names a queue without a row would be damage at the next start.
        if self._agreed_definitions is None:
            raise RefusedBatchError(lsn, "the leader's definitions come first")
        end = self._reader().find(lsn)
        if end is None:
            raise DivergedError(self.directory, f"it has no {batch_named(lsn)}")
        floor = self._committed()
        if end[1:3] < floor:
            reason = f"what follows {batch_named(lsn)} is committed"
            raise DivergedError(self.directory, reason)
        # The log goes on: no copy is needed.
        remove_unfinished(self._backing.files, self.directory)
        return self._rewrite(end.segment or 1, end)

    def next_segment(self, number: int) -> SegmentRewrite:
        """Begin a segment behind the last one, of which the leader sends all that it has. Then
        `adopt` it.

        Raises: DiskFullError, OSError.
        """
        self._state.check()
        return self._rewrite(number, self.last)

    def adopt(self, rewrite: SegmentRewrite) -> None:
        """Have the log end with a segment that was written anew. Durable on return.

        What the log has behind `rewrite.end` goes to quarantine.
        Raises: RefusedBatchError, DamageError (what the leader sent does not continue the log);
        DiskFullError, OSError; nothing is changed then. DurabilityError.
        """
        self._state.check()
        try:
            batches = self._checked(rewrite)
            with self._changing():
                self._apply_rewrite(rewrite, batches)
        except DurabilityError:
            raise
        except BaseException:
            rewrite.abandon()
            raise

    def commit(self, lsn: int, definitions: int) -> None:
        """Note that batches up to one, and definitions up to a number, are committed."""
        self._state.check()
        agreed = self._agreed_definitions
        if agreed is None or definitions < agreed:
            # A batch may name a queue that only these definitions have: a checkpoint that does not
            # know of it would forget its messages.
            return
        if self._maintenance is None:
            if not self.log.is_appendable or lsn < self._adopted_lsn:
                return
            # Upkeep does not begin at the start: compaction and checkpoints remove files, and what
            # a member has may be what the group lacks.
            self._begin_maintenance()
        self.log.commit(lsn)
        self._note_queues(definitions)

    # A copy of the leader's store.

    def received(self) -> Iterator[tuple[str, int, int]]:
        """Yield what was received of a copy that was cut off: see `replacement.received`."""
        self._state.check()
        return received(self._backing.files, self.directory)

    def replacement(self) -> Replacement:
        """Begin to receive a store that is to take the place of this one: see `replace`."""
        self._state.check()
        return Replacement(self._backing.files, self.directory)

    def require_room(self, size: int) -> None:
        """Make sure that a copy may take that much space. Raises: DiskFullError."""
        self._state.check()
        self.space.look()
        self.space.check(size)

    def replace(self, replacement: Replacement, copy: WholeCopy, common_lsn: int) -> None:
        """Close this store for good: the next `open` finds the one that was received. Durable on
        return.

        If this log has anything behind the batch that is common with the leader, all its segments
        are copied to quarantine before.
        Raises: RefusedCopyError, DiskFullError, OSError: nothing is changed then. DurabilityError.
        """
        self._state.check()
        # A leader of another group must not put its store in the place of this one.
        if StoreRows.read(copy.tables.__getitem__).store_id != self._backing.store_id:
            raise RefusedCopyError(self.directory, "it is of another store")
        replacement.check(copy)
        with self._changing():
            # Before the decision, as the next start removes every segment that is not of the copy.
            if self.last.lsn > common_lsn:
                self._quarantine_all(common_lsn)
            # From here on a start completes the change, whatever happens to this process.
            replacement.decide(copy)
        self.abandon()

    def _quarantine_all(self, common_lsn: int) -> None:
        """Keep what may be the only copy of a batch: also of those that a checkpoint has moved to
        index files and compacted segments.
        """
        files = self._backing.files
        behind = [one for one in self._reader().behind(LOG_START) if one.lsn > common_lsn]
        path = new_quarantine(files, self.directory)
        for one in self.log.segments:
            if files.exists(segment_path(self.directory, one.number)):
                copy_to(files, self.directory, one.number, one.size, path)
        self._note_discarded(path, behind)

    # Definitions.

    def adopt_term(self, term: int) -> None:
        """Take nothing more from the leader of an earlier term. Durable on return.

        Raises: RefusedBatchError, if a later one has begun; DiskFullError, DurabilityError.
        """
        self._state.check()
        if term < self.term:
            raise RefusedBatchError(0, f"term {term} ended when term {self.term} began")
        if term > self.term:
            # Durable before anything is acked in that term: a member that forgot it could ack to
            # two leaders.
            self._commit(StoreRows(term=term).changes())
            self.term = term

    def define(self, number: int, changes: Sequence[Change]) -> None:
        """Make the leader's next commit of definitions, of that number. Durable on return.

        Raises: RefusedBatchError; DiskFullError, DurabilityError.
        """
        self._state.check()
        if self._agreed_definitions is None or number <= self.definition_number:
            reason = f"definitions {number} do not continue definitions {self.definition_number}"
            raise RefusedBatchError(0, reason)
        for change in changes:
            if change.table not in SHIPPED and change[:2] != ("store", _NEXT_QUEUE_ID):
                reason = f"table {change.table}, row {change.key!r}, is a member's own"
                raise RefusedBatchError(0, reason)
        queues = [change for change in changes if change.table == tables.QUEUES.name]
        self._define(
            number,
            changes,
            {tables.QUEUES.parse_key(one.key) for one in queues if one.value is not None},
            {tables.QUEUES.parse_key(one.key) for one in queues if one.value is None},
        )

    def replace_definitions(
        self, number: int, next_queue_id: int, shipped: Mapping[str, Mapping[str, Value]]
    ) -> None:
        """Have exactly the definitions that the leader has. Durable on return.

        Args: number of its last commit of definitions; shipped, all rows of each table in
        `SHIPPED`.
        Raises: RefusedBatchError; DiskFullError, DurabilityError.
        """
        self._state.check()
        if number < 1:
            raise RefusedBatchError(0, f"definitions have no number {number}")
        if missing := [table for table in SHIPPED if table not in shipped]:
            raise RefusedBatchError(0, f"definitions without {', '.join(missing)}")
        changes = StoreRows(next_queue_id=next_queue_id).changes()
        for table in SHIPPED:
            rows, present = shipped[table], self._catalog.rows(table)
            changes += [
                Change(table, key, row) for key, row in rows.items() if present.get(key) != row
            ]
            changes += [Change(table, key, None) for key in present if key not in rows]
        queue_ids = set(map(tables.QUEUES.parse_key, shipped[tables.QUEUES.name]))
        # Whatever a former leader defined behind what was committed is undone with this.
        self._waiting.clear()
        self._define(number, changes, queue_ids - self._queue_ids, self._queue_ids - queue_ids)
        self._agreed_definitions = number

    def _define(
        self, number: int, changes: Sequence[Change], created: set[int], deleted: set[int]
    ) -> None:
        # The number in the same commit as the rows: a crash between two commits would have it take
        # the next change twice, or miss it.
        self._commit([*changes, *StoreRows(definitions=number).changes()])
        self.definition_number = number
        self._waiting.append((number, created, deleted))
        if self._maintenance:
            self._maintenance.defined()

    def _note_queues(self, committed: int) -> None:
        """Have checkpoints know of queues that are defined, or deleted, for good."""
        maintenance = self._maintenance
        while maintenance and self._waiting and self._waiting[0][0] <= committed:
            _, created, deleted = self._waiting.pop(0)
            maintenance.checkpoints.created += sorted(created - self._queue_ids)
            maintenance.checkpoints.deleted += sorted(deleted & (self._queue_ids | created))
            self._queue_ids = (self._queue_ids | created) - deleted

    def _commit(self, changes: Sequence[Change]) -> None:
        with self._changing():
            self._catalog.commit(changes)

    # Maintenance.

    def housekeep(self) -> None:
        """Make a checkpoint, or a compaction, if one is due: see `Upkeep.housekeep`.

        Raises: DurabilityError.
        """
        self._state.check()
        if self._maintenance:
            with self._changing():
                self._maintenance.housekeep()

    def checkpoint(self) -> None:
        """Make a checkpoint of all that is committed. Raises: OSError, DurabilityError."""
        self._state.check()
        if self._maintenance:
            with self._changing():
                self._maintenance.checkpoint()

    def _finish(self) -> None:
        try:
            self.checkpoint()
        except (OSError, DamageError) as error:
            _log.warning("the follower was closed without a checkpoint: %s", reason_of(error))

    def _end_work(self) -> None:
        if self._maintenance:
            self._maintenance.close()
        else:
            self._worker.close()

    def _reader(self) -> LogReader:
        backing = self._backing
        ends = {one: end for one, end in self.log.ends().items() if one not in self._gone}
        return LogReader(backing.files, self.directory, backing.seed, ends)

    def _committed(self) -> tuple[int, int]:
        """Return the segment and offset up to which the log is known to be committed."""
        of = self.log.position if self._maintenance else self._recovered.start
        return of.segment, of.offset

    def _rewrite(self, number: int, end: BatchEnd) -> SegmentRewrite:
        self.space.check(end.offset)
        end = end._replace(message_id=self._next_id(end))
        with self._changing():
            return SegmentRewrite(self._backing.files, self.directory, number, end)

    def _next_id(self, end: BatchEnd) -> int:
        """Return the message id after all those in the log up to a place.

        The batches of its segment may have no message.
        """
        start = self.log.position if self._maintenance else self._recovered.start
        behind = [*self._kept(end), *(one.summary for one in self._received_until(end))]
        ids = [one.first_id + len(one.sizes) for one in behind if one is not None]
        return max(end.message_id, start.message_id, *ids, 1)

    def _kept(self, end: BatchEnd) -> list[BatchSummary]:
        """Return the batches that recovery found, up to a place."""
        return [
            one
            for one in self._recovered.batches
            if (one.segment, one.end_bytes) <= (end.segment, end.offset)
        ]

    def _received_until(self, end: BatchEnd) -> list[Batch]:
        return [one for one in self.log.received if one.lsn <= end.lsn]

    def _checked(self, rewrite: SegmentRewrite) -> list[Batch]:
        """Return the batches that a segment has which it did not have before.

        Raises: RefusedBatchError, DamageError, OSError.
        """
        new_batches: list[Batch] = []
        last = rewrite.end
        content = rewrite.content()
        sealed = sealed_batches(
            content, rewrite.number, self._backing.seed, rewrite.offset, rewrite.path
        )
        for sealed_batch in sealed:
            if term_of(sealed_batch.lsn) > self.term:
                reason = f"term {term_of(sealed_batch.lsn)} is not known here, only {self.term}"
                raise RefusedBatchError(sealed_batch.lsn, reason)
            batch = self.log.continue_with(sealed_batch, last)
            # Its bytes are in the file.
            batch.buffers = []
            last = end_of_batch(batch, last)
            new_batches.append(batch)
        return new_batches

    def _apply_rewrite(self, rewrite: SegmentRewrite, batches: Sequence[Batch]) -> None:
        """Replace the end of the log: see `segment_rewrite` for what a crash leaves."""
        files, directory, end = self._backing.files, self.directory, rewrite.end
        ends = self.log.ends()
        if not rewrite.size and rewrite.number not in ends:
            rewrite.abandon()
            return
        # If nothing of the segment itself is left, it goes as well.
        later = [number for number in ends if number > rewrite.number - (not rewrite.size)]
        behind = self._reader().behind(end) if self.last.lsn > end.lsn else []
        # Before anything is removed: from here on the new segment is all that may be left of this
        # end of the log.
        rewrite.sync()
        if later or behind:
            path = new_quarantine(files, directory)
            for number in sorted({*later, *(one.segment for one in behind)}):
                copy_to(files, directory, number, ends[number], path)
            # A noted end without its file would be damage, and so would an end behind the file's.
            self._forget_ends(later)
            remove_last(files, directory, later)
            self._note_discarded(path, behind)
        self._forget_ends([rewrite.number])
        if rewrite.size:
            self.log.skip_to(rewrite.number)
            rewrite.rename_to_segment()
        else:
            rewrite.abandon()
        if not self._maintenance:
            self._recovered.batches = self._kept(end)
            self._adopted_lsn = min(self._adopted_lsn, end.lsn)
            position = Position(end.segment, end.offset, end.lsn + 1, end.message_id)
            self.log.position = position
            if position.segment < self._recovered.position.segment:
                # The first checkpoint writes the offset tables from there on.
                self._recovered.position = position
        self.log.replace_end(rewrite, batches)

    def _forget_ends(self, numbers: Sequence[int]) -> None:
        noted = tables.SEGMENT_ENDS.read_keys(self._catalog.rows)
        if changes := [tables.SEGMENT_ENDS.remove(one) for one in numbers if one in noted]:
            self._catalog.commit(changes)

    def _note_discarded(self, path: str, behind: Sequence[BatchEnd]) -> None:
        found = Discarded(path, tuple(one.lsn for one in behind))
        self.discarded.append(found)
        _log.warning(
            "batches %s were never committed, and are discarded: they are in %s",
            ", ".join(map(str, found.lsns)) or "(none is whole)",
            path,
        )

    def _begin_maintenance(self) -> None:
        backing, options, recovered = self._backing, self._options, self._recovered
        # Which queues are gone is known from the leader's definitions.
        recovered.deleted = []
        transient = TransientLog(backing, options.segment_bytes)
        # Messages that are not durable do not survive the process they were in.
        transient.wipe()
        self._maintenance = Maintenance(
            *(backing, self.log, {}, Memory({}, options.memory_bytes, transient), self.space),
            *(recovered, options, self._worker, self._clock),
        )

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Change what is on disk: an error that is not foreseen ends all writing."""
        try:
            with self._state.working():
                yield
        except OSError as error:
            if is_no_space(error):
                raise self.space.error() from error
            raise
