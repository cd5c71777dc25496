"""Maintenance: when checkpoints and compaction are due, and the use of their results.

A worker does both, one at a time: they share the checkpoint's state. `housekeep` starts due work
and takes over results, in the caller's thread, which owns queues and log.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import TypeVar

from amqpstore.catalog.backing import Backing
from amqpstore.catalog.definitions import copy_of, renew_copy
from amqpstore.checkpoints.checkpoint import Checkpoint, Written
from amqpstore.checkpoints.compaction import Compacted, Compaction, choose, remove_compacted
from amqpstore.checkpoints.index_writer import IndexWriter
from amqpstore.errors import DamageError
from amqpstore.evidence.absence import Absence
from amqpstore.evidence.durable_positions import PositionNotes
from amqpstore.format.index import Merged
from amqpstore.log.log import Log
from amqpstore.log.measures import BucketHistogram
from amqpstore.log.segment_accounts import SegmentAccount
from amqpstore.log.segments import Segment
from amqpstore.log.space import Space, is_no_space
from amqpstore.log.spares import Spares
from amqpstore.options import Options, compressor_of
from amqpstore.queues.memory import Memory
from amqpstore.queues.queue import Queue
from amqpstore.recovery.recovered import Recovered
from amqpstore.system.clock import Clock
from amqpstore.system.durability import reason_of
from amqpstore.system.filenames import index_path, is_compacted, segment_path
from amqpstore.system.files import File
from amqpstore.system.removal import attempt
from amqpstore.upkeep.figures import CountedSegment, LogFigures
from amqpstore.upkeep.worker import Outcome, Worker

_log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

_ROWS_A_MS = 10
"""Rows in a copy of the definitions for each ms until the next copy: a large copy is written less
often.
"""

_AVOIDED_MS = 600_000
"""Segments whose compaction failed are left alone for this time: a read error may pass."""


class Maintenance:
    """Runs the maintenance of one open store. `created` and `deleted` are queue ids since the last
    checkpoint.
    """

    def __init__(
        self,
        backing: Backing,
        log: Log,
        queues: dict[int, Queue],
        memory: Memory,
        space: Space,
        recovered: Recovered,
        options: Options,
        worker: Worker,
        clock: Clock,
        spares: Spares | None = None,
    ) -> None:
        self.created: list[int] = []
        self.deleted = recovered.deleted
        # A crash may have come between a definition and its copy.
        self._is_copy_behind = True
        self._backing = backing
        self._log = log
        self._queues = queues
        self._memory = memory
        self._space = space
        self._spares = spares
        self._options = options
        self._worker = worker
        self._clock = clock
        self._checkpoint_state = recovered.checkpoint_state
        # Compaction's own: a compressor is for one thread.
        self._compressor = compressor_of(options)
        for dictionary in log.dictionaries.values():
            self._compressor = self._compressor and self._compressor.with_dictionary(dictionary)
        self._writer = IndexWriter(backing.files, backing.directory, backing.seed, options.limits)
        self._next_compacted = recovered.next_compacted
        self._log.durable[:0] = recovered.batches
        first = recovered.batches[0] if recovered.batches else None
        self._tables_from = first.segment if first else recovered.position.segment
        self._known_segment = recovered.start.segment
        self._damaged = recovered.to_quarantine
        # For the first checkpoint: it covers what the start has not seen.
        self._passed_over = recovered.passed_over
        self._first_segment = recovered.next_segment
        # A repair may need these, too, as something is missing: segments of the log say where
        # messages are whose index files cannot be read.
        self._kept_segments = recovered.kept_segments
        self._kept: frozenset[int] = frozenset()
        # A checkpoint would make the loss of unreadable parts final: the next start should try them
        # again. But the log must not grow for ever.
        self._is_unread = recovered.is_unread
        # Not to be compacted before a time, as it has failed, by the numbers of the segments.
        self._avoided: dict[int, int] = {}
        # By the monotonic clock: when the last checkpoint started, and when the others may. The
        # first checkpoint is due some time after the start, not at once.
        self._checkpoint_ms = clock.monotonic_ms()
        self._compaction_ms = 0
        self._copy_ms = self._checkpoint_ms + options.checkpoint_ms
        self._take_over: Callable[[object], None] | None = None
        self._unfinished: Checkpoint | None = None
        self._detached: list[File] = []
        self._removals: list[Callable[[], None]] = []
        self._compacting: set[int] = set()
        self._work = ""
        self._live_bytes = self._garbage_bytes = 0
        self._counted: dict[int, tuple[int, int, int, int]] = {}
        self._checkpoint_segment = recovered.start.segment
        self._is_compaction_checked = False
        self._positions = PositionNotes(
            *(backing.files, backing.directory, backing.seed, log.position),
            may_write=lambda: not space.is_low,
            # Until a checkpoint notes what is missing, nothing but the old notes knows of it.
            may_remove=lambda: not self._passed_over,
        )
        self._absence = Absence(backing.files, backing.directory, recovered.report.absent)

    def housekeep(self) -> None:
        """Take over finished work, and start what is due."""
        self._space.look()
        if self._spares and self._space.is_low:
            self._spares.remove()
        now_ms = self._clock.monotonic_ms()
        position, positions = self._log.position, self._positions
        if now_ms >= positions.due_ms or position.segment != positions.segment:
            positions.note(position, now_ms, self._clock.wall_ms())
        if self._take_over is not None:
            outcome = self._worker.poll()
            if outcome is None:
                return
            self._finish(outcome)
        if self._detached or self._removals:
            self._begin("cleaning", self._clean_up(), self._cleaned_up)
        elif self._is_checkpoint_due(now_ms):
            self._checkpoint_ms = now_ms
            self._memory.share(list(self._queues.values()))
            self._space.make_room()
            work = _timed(self._new_checkpoint().run, self._log.measures.checkpoint_s)
            self._begin("checkpoint", work, self._checkpointed)
        elif self._is_copy_behind and now_ms >= self._copy_ms:
            # Before the copy is made: a definition that comes while it is written sets it again.
            self._is_copy_behind = False
            self._space.make_room()
            self._begin("copy", self._copy_definitions, self._copied)
        elif (
            # A failed checkpoint has left its state ahead of the catalog.
            not self._unfinished
            and not self._is_compaction_checked
            and now_ms >= self._compaction_ms
        ):
            if accounts := self._to_compact():
                self._space.make_room(sum(account.end_bytes for account in accounts))
                compact = self._new_compaction(accounts).run
                timed = _timed(compact, self._log.measures.compaction_s)
                self._begin("compaction", timed, self._compacted)
            else:
                self._is_compaction_checked = True

    def checkpoint(self) -> None:
        """Finish running work, and make a checkpoint of everything durable in this thread."""
        if self._take_over is not None:
            outcome = self._worker.poll(wait=True)
            if outcome is not None:
                self._finish(outcome)
        if self._unfinished:
            self._checkpointed(self._unfinished.run())
        is_needed = (
            self._log.durable or self.created or self.deleted or self._checkpoint_state.is_behind
        )
        if is_needed and not self._must_wait():
            self._space.make_room()
            self._checkpointed(self._new_checkpoint().run())
        self._clean_up()()
        if self._is_copy_behind:
            try:
                self._copied(self._copy_definitions())
            except OSError as error:
                _log.warning(
                    "the copy of the definitions could not be updated: %s", reason_of(error)
                )
            else:
                self._is_copy_behind = False

    def compact(self) -> Compacted | None:
        """Run one compaction in this thread, if any frees something; None if none does.

        Raises: OSError, DamageError (the new file is not as it was written), DurabilityError.
        """
        self.checkpoint()
        accounts = self._to_compact(to_the_end=True)
        if not accounts:
            return None
        self._space.make_room(sum(account.end_bytes for account in accounts))
        result = self._new_compaction(accounts).run()
        self._compacted(result)
        self._clean_up()()
        return result

    def figures(self) -> LogFigures:
        """Return what there is in the log."""
        self._count_garbage()
        log = self._log
        return LogFigures(
            segments=len(log.segments),
            segment_bytes=sum([segment.size for segment in log.segments]),
            live_bytes=self._live_bytes,
            garbage_bytes=self._garbage_bytes,
            tail_bytes=log.durable_bytes,
            tail_messages=log.durable_messages,
            pending_bytes=log.pending_bytes,
            segment=log.position.segment,
            sequence=log.position.lsn,
            checkpoint_segment=self._checkpoint_segment,
            checkpoint_age_s=(self._clock.monotonic_ms() - self._checkpoint_ms) / 1000,
            quarantined_segments=len(self._damaged),
            work=self._work,
        )

    def _count_garbage(self) -> None:
        """Count live bytes and garbage, unless the worker has the accounts."""
        if self._take_over is None:
            accounts = [*self._checkpoint_state.accounts]
            self._garbage_bytes = sum([account.garbage_bytes for account in accounts])
            self._live_bytes = sum([account.end_bytes for account in accounts])
            self._live_bytes -= self._garbage_bytes
            self._counted = {
                one.number: (one.end_bytes, one.garbage_bytes, one.count, one.live_count)
                for one in accounts
            }

    def absence_now(self) -> Absence:
        """Return which messages the files of segments lack, as of the last checkpoint."""
        if self._take_over is None:
            self._absence.look(self._checkpoint_state.accounts)
        return self._absence

    def segments(self) -> list[CountedSegment]:
        """Return the figures of each segment, in the order of the log."""
        self._count_garbage()
        found = []
        for segment in self._log.segments:
            counted = self._counted.get(segment.number)
            end_bytes, garbage_bytes, count, live_count = counted or (0, 0, 0, 0)
            live_bytes = end_bytes - garbage_bytes
            row = (segment.number, segment.size, live_bytes, garbage_bytes, count, live_count)
            found.append(CountedSegment(*row, is_log=counted is None))
        return found

    def defined(self) -> None:
        """Note that something was defined: the copy of the definitions is behind."""
        self._is_copy_behind = True

    def close(self) -> None:
        """Wait for running work, and close all files."""
        self._worker.close()
        self._positions.close()
        self._writer.close()
        for file in self._detached:
            file.close()

    def _begin(
        self, name: str, work: Callable[[], object], take_over: Callable[[object], None]
    ) -> None:
        # From here until `poll` returns the outcome, the checkpoint state belongs to the worker:
        # nothing in this thread may read or change it.
        self._count_garbage()
        self._take_over = take_over
        self._work = name
        self._worker.start(work)

    def _clean_up(self) -> Callable[[], None]:
        """Return a function that closes and removes files that are no longer used, which can take a
        while.
        """
        detached, self._detached = self._detached, []
        removals, self._removals = self._removals, []

        def clean_up() -> None:
            for file in detached:
                file.close()
            for remove in removals:
                remove()

        return clean_up

    def _detach(self, segments: Sequence[Segment]) -> None:
        """Close the files of segments that nobody reads any more, if they are open."""
        self._detached += [file for segment in segments if (file := segment.detach())]

    def _cleaned_up(self, result: object) -> None:
        """Do nothing: there is no result to use."""

    def _remove_segment(self, number: int) -> None:
        if self._spares:
            self._spares.keep(number)
        else:
            attempt(self._backing.files.remove, segment_path(self._backing.directory, number))

    def _remove_merged(self, merged: Merged) -> None:
        files, directory, *_ = self._backing
        for state in merged.old:
            attempt(files.remove, index_path(directory, merged.queue_id, state.number))

    def _finish(self, outcome: Outcome[object]) -> None:
        take_over, self._take_over = self._take_over, None
        self._work = ""
        if take_over is None:
            return
        try:
            result = outcome.get()
        except (OSError, DamageError) as error:
            # Nothing was changed. On a full disk all of it is tried again the next time.
            _log.error("background work is postponed: %s", reason_of(error))
            self._is_copy_behind = True
            self._copy_ms = self._clock.monotonic_ms() + self._options.checkpoint_ms
            self._is_compaction_checked = True
            if not (isinstance(error, OSError) and is_no_space(error)):
                until_ms = self._clock.monotonic_ms() + _AVOIDED_MS
                self._avoided |= dict.fromkeys(self._compacting, until_ms)
        else:
            take_over(result)

    def _copy_definitions(self) -> int:
        """Bring the copy of the definitions up to date. Returns how many rows it has."""
        files, directory, store_id, catalog, *_ = self._backing
        try:
            copy = copy_of(store_id, catalog)
        except MemoryError:
            # Nothing was changed: it is tried again, as on a full disk.
            reason = "not enough memory to copy the definitions"
            raise OSError(errno.ENOMEM, reason, directory) from None
        renew_copy(files, directory, copy)
        return copy.rows

    def _copied(self, result: object) -> None:
        if not isinstance(result, int):
            raise TypeError(f"{result!r} is not a number of rows")
        pause_ms = self._options.checkpoint_ms + result // _ROWS_A_MS
        self._copy_ms = self._clock.monotonic_ms() + pause_ms

    def _must_wait(self) -> bool:
        """Tell whether no checkpoint may be made: because the disk may yet read what it could not,
        or because a start has passed over something, and the log has not gone on behind it. The
        position would then be before what is missing, and have numbers that are behind it.
        """
        if self._passed_over and self._log.position.segment < self._first_segment:
            return True
        if self._is_unread:
            log, options = self._log, self._options
            factor = options.limits.unread_factor
            self._is_unread = (
                log.durable_bytes < factor * options.checkpoint_bytes
                and log.durable_messages < factor * options.checkpoint_messages
            )
            if not self._is_unread:
                _log.error(
                    "making a checkpoint without the part of the log that the disk cannot read"
                )
        return self._is_unread

    def _is_checkpoint_due(self, now_ms: int) -> bool:
        options = self._options
        if self._must_wait():
            return False
        if now_ms - self._checkpoint_ms >= options.checkpoint_ms:
            return bool(self._log.durable or self.deleted or self._unfinished)
        return (
            self._log.durable_bytes >= options.checkpoint_bytes
            or self._log.durable_messages >= options.checkpoint_messages
        )

    def _new_checkpoint(self) -> Checkpoint:
        # One that failed has taken its batches off the log's list: nothing else in memory has them,
        # and a new one without them would move the position past what it never applied.
        if self._unfinished:
            return self._unfinished
        log = self._log
        self._kept = self._segments_to_keep()
        created, self.created = self.created, []
        deleted, self.deleted = self.deleted, []
        changed = self._changed_tables()
        offset_tables = {
            one.number: one.offset_table_row() for one in log.segments if one.number in changed
        }
        self._tables_from = log.position.segment
        # Offset tables are copies, and the batches and the position those of one moment: the log
        # goes on while the checkpoint runs in another thread.
        self._unfinished = Checkpoint(
            self._backing,
            self._checkpoint_state,
            self._writer,
            created=created,
            batches=log.take_durable(),
            deleted=deleted,
            offset_tables=offset_tables,
            damaged=self._kept,
            position=log.position,
            passed_over=self._passed_over,
        )
        return self._unfinished

    def _segments_to_keep(self) -> frozenset[int]:
        """Return the segments that are moved to quarantine when the store needs them no more."""
        if any(queue.unread for queue in self._queues.values()):
            numbers = (account.number for account in self._checkpoint_state.accounts)
            self._kept_segments |= {number for number in numbers if not is_compacted(number)}
        return frozenset(self._damaged | self._kept_segments)

    def _changed_tables(self) -> range:
        """Return the numbers of the log's segments whose offset tables changed since the last
        checkpoint.
        """
        return range(self._tables_from, self._log.position.segment + 1)

    def _checkpointed(self, result: object) -> None:
        if not isinstance(result, Written):
            raise TypeError(f"{result!r} is not what a checkpoint returns")
        self._unfinished = None
        self._passed_over = []
        self.deleted += result.not_deleted
        self._known_segment = self._checkpoint_segment = self._tables_from
        self._is_compaction_checked = False
        # The log and queues may read dropped segments and merged index files until they hear of it:
        # so these are removed by the next clean-up. A crash before that leaves them without a row,
        # and the next start removes them.
        self._detach(self._log.drop(result.dropped))
        self._removals += [
            partial(self._remove_segment, number)
            for number in result.dropped
            if number not in self._kept
        ]
        for merged in result.merged:
            if queue := self._queues.get(merged.queue_id):
                queue.merged(merged)
            self._removals.append(partial(self._remove_merged, merged))
        for queue_id, states in result.states.items():
            if queue := self._queues.get(queue_id):
                max_runs = 0 if queue.lazy else self._options.limits.max_runs
                self._memory.let_go(queue, queue.page_out(states, max_runs))
        self._log.forget_taken()

    def _to_compact(self, *, to_the_end: bool = False) -> list[SegmentAccount]:
        now_ms = self._clock.monotonic_ms()
        return choose(
            self._checkpoint_state.accounts,
            # Its account goes as far as the last checkpoint did, which may be only a part of it.
            log_segment=self._known_segment,
            avoided=[number for number, until_ms in self._avoided.items() if now_ms < until_ms],
            segment_bytes=self._options.segment_bytes,
            to_the_end=to_the_end,
            garbage_fraction=self._options.limits.garbage_fraction,
        )

    def _new_compaction(self, accounts: list[SegmentAccount]) -> Compaction:
        self._compacting = numbers = {account.number for account in accounts}
        number = self._next_compacted
        self._next_compacted += 1
        return Compaction(
            self._backing,
            self._checkpoint_state,
            accounts=accounts,
            sources=[segment for segment in self._log.segments if segment.number in numbers],
            number=number,
            created_ms=self._clock.wall_ms(),
            compressor=self._compressor,
            train_dictionary=self._options.train_dictionary and not self._log.dictionaries,
        )

    def _compacted(self, result: object) -> None:
        if not isinstance(result, Compacted):
            raise TypeError(f"{result!r} is not what a compaction returns")
        self._is_compaction_checked = False
        if result.dictionary and self._compressor:
            number, dictionary = result.dictionary
            self._log.dictionaries[number] = dictionary
            self._is_copy_behind = True
            self._compressor = self._compressor.with_dictionary(dictionary)
        # The commit took the rows of the old segments, but the log reads them until here: so they
        # are removed by the next clean-up. A crash before that leaves them to the next start.
        replaced = self._log.replace(result.numbers, result.segment)
        self._log.measures.freed_bytes += sum([one.size for one in replaced]) - result.segment.size
        self._log.measures.compacted_bytes += result.moved_bytes
        self._detach(replaced)
        files, directory, *_ = self._backing
        kept = self._segments_to_keep()
        self._removals.append(partial(remove_compacted, files, directory, result, kept))
        if result.damage:
            path, offset, _, reason = result.damage[0]
            _log.error(
                "compaction met damage in %d places of %d segments, %d bytes; the first in %s at "
                "%d: %s. The segments are moved to quarantine",
                *(len(result.damage), len({one[0] for one in result.damage})),
                *(sum(size for *_, size, _ in result.damage), path, offset, reason),
            )
        pause_ms = 1000 * result.moved_bytes // self._options.compaction_bytes_s
        self._compaction_ms = self._clock.monotonic_ms() + pause_ms


def _timed(work: Callable[[], ResultT], histogram: BucketHistogram) -> Callable[[], ResultT]:
    """Return work whose time is counted, that of the worker's thread alone."""

    @wraps(work)
    def timed() -> ResultT:
        began_s = time.perf_counter()
        result = work()
        histogram.observe(time.perf_counter() - began_s)
        return result

    return timed
