"""Checkpoints of an open store: when one is due, and the use of what it has written."""

from __future__ import annotations

import logging
from functools import partial

from amqpstore.catalog.backing import Backing
from amqpstore.checkpoints.checkpoint import Checkpoint, Written
from amqpstore.checkpoints.index_writer import IndexWriter
from amqpstore.format.index import Merged
from amqpstore.log.log import Log
from amqpstore.log.spares import Spares
from amqpstore.options import Options
from amqpstore.queues.memory import Memory
from amqpstore.queues.queue import Queue
from amqpstore.recovery.recovered import Recovered
from amqpstore.system.filenames import index_path, segment_path
from amqpstore.system.removal import attempt
from amqpstore.upkeep.kept_segments import SegmentsToKeep
from amqpstore.upkeep.retired import RetiredFiles

_log = logging.getLogger(__name__)


class Checkpoints:
    """Makes the checkpoints of one store. `created` and `deleted` are queue ids since the last one,
    and `segment` is where the log was then.
    """

    def __init__(
        self,
        backing: Backing,
        log: Log,
        queues: dict[int, Queue],
        memory: Memory,
        recovered: Recovered,
        options: Options,
        kept: SegmentsToKeep,
        retired: RetiredFiles,
        spares: Spares | None,
    ) -> None:
        self.created: list[int] = []
        self.deleted = recovered.deleted
        self.segment = recovered.start.segment
        self.unfinished: Checkpoint | None = None
        """One that failed."""
        self._backing = backing
        self._log = log
        self._queues = queues
        self._memory = memory
        self._options = options
        self._state = recovered.checkpoint_state
        self._kept = kept
        self._kept_numbers: frozenset[int] = frozenset()
        self._retired = retired
        self._spares = spares
        self._writer = IndexWriter(backing.files, backing.directory, backing.seed, options.limits)
        log.durable[:0] = recovered.batches
        first = recovered.batches[0] if recovered.batches else None
        self._tables_from = first.segment if first else recovered.position.segment
        # For the first checkpoint: it covers what the start has not seen.
        self._passed_over = recovered.passed_over
        self._first_segment = recovered.next_segment
        # A checkpoint would make the loss of unreadable parts final: the next start should try them
        # again. But the log must not grow for ever.
        self._is_unread = recovered.is_unread

    @property
    def has_passed_over(self) -> bool:
        """Whether the next one notes what the start has passed over."""
        return bool(self._passed_over)

    @property
    def is_needed(self) -> bool:
        """Whether anything has come since the last one, and one may be made."""
        has_come = self._log.durable or self.created or self.deleted or self._state.is_behind
        return bool(has_come) and not self._must_wait()

    def is_due(self, age_ms: int) -> bool:
        """Tell whether one is due. Args: age_ms, how long ago the last one began."""
        options, log = self._options, self._log
        if self._must_wait():
            return False
        if age_ms >= options.checkpoint_ms:
            return bool(log.durable or self.deleted or self.unfinished)
        return (
            log.durable_bytes >= options.checkpoint_bytes
            or log.durable_messages >= options.checkpoint_messages
        )

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

    def next(self) -> Checkpoint:
        """Return the next one, to be run; one that failed is run again."""
        # One that failed has taken its batches off the log's list: nothing else in memory has them,
        # and a new one without them would move the position past what it never applied.
        if self.unfinished:
            return self.unfinished
        log = self._log
        self._kept_numbers = self._kept.numbers()
        created, self.created = self.created, []
        deleted, self.deleted = self.deleted, []
        changed = self._changed_tables()
        offset_tables = {
            one.number: one.offset_table_row() for one in log.segments if one.number in changed
        }
        self._tables_from = log.position.segment
        # Offset tables are copies, and the batches and the position those of one moment: the log
        # goes on while the checkpoint runs in another thread.
        self.unfinished = Checkpoint(
            self._backing,
            self._state,
            self._writer,
            created=created,
            batches=log.take_durable(),
            deleted=deleted,
            offset_tables=offset_tables,
            damaged=self._kept_numbers,
            position=log.position,
            passed_over=self._passed_over,
        )
        return self.unfinished

    def _changed_tables(self) -> range:
        """Return the numbers of the log's segments whose offset tables changed since the last
        checkpoint.
        """
        return range(self._tables_from, self._log.position.segment + 1)

    def written(self, written: Written) -> None:
        """Have log and queues use what a checkpoint has written."""
        self.unfinished = None
        self._passed_over = []
        self.deleted += written.not_deleted
        self.segment = self._tables_from
        # The log and queues may read dropped segments and merged index files until they hear of it:
        # so these are removed by the next clean-up. A crash before that leaves them without a row,
        # and the next start removes them.
        self._retired.detach(self._log.drop(written.dropped))
        for number in written.dropped:
            if number not in self._kept_numbers:
                self._retired.remove(partial(self._remove_segment, number))
        for merged in written.merged:
            if queue := self._queues.get(merged.queue_id):
                queue.merged(merged)
            self._retired.remove(partial(self._remove_merged, merged))
        for queue_id, states in written.states.items():
            if queue := self._queues.get(queue_id):
                max_runs = 0 if queue.lazy else self._options.limits.max_runs
                self._memory.let_go(queue, queue.page_out(states, max_runs))
        self._log.forget_taken()

    def _remove_segment(self, number: int) -> None:
        if self._spares:
            self._spares.keep(number)
        else:
            attempt(self._backing.files.remove, segment_path(self._backing.directory, number))

    def _remove_merged(self, merged: Merged) -> None:
        files, directory, *_ = self._backing
        for state in merged.old:
            attempt(files.remove, index_path(directory, merged.queue_id, state.number))

    def close(self) -> None:
        """Close the files that are written to."""
        self._writer.close()
