"""Maintenance: starts checkpoints and compaction when they are due, and has their results used.

A worker does both, one at a time: they share the checkpoint's state. `housekeep` starts due work
and takes over results, in the caller's thread, which owns queues and log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from amqpstore.catalog.backing import Backing
from amqpstore.checkpoints.checkpoint import Written
from amqpstore.checkpoints.compaction import Compacted
from amqpstore.errors import DamageError
from amqpstore.evidence.absence import Absence
from amqpstore.evidence.durable_positions import PositionNotes
from amqpstore.log.log import Log
from amqpstore.log.measures import BucketHistogram
from amqpstore.log.space import Space
from amqpstore.log.spares import Spares
from amqpstore.options import Options
from amqpstore.queues.memory import Memory
from amqpstore.queues.queue import Queue
from amqpstore.recovery.recovered import Recovered
from amqpstore.system.clock import Clock
from amqpstore.system.durability import reason_of
from amqpstore.upkeep.background import Background
from amqpstore.upkeep.checkpointing import Checkpoints
from amqpstore.upkeep.compacting import Compactions
from amqpstore.upkeep.definitions_copier import DefinitionsCopier
from amqpstore.upkeep.kept_segments import SegmentsToKeep
from amqpstore.upkeep.retired import RetiredFiles
from amqpstore.upkeep.watched_accounts import WatchedAccounts
from amqpstore.upkeep.worker import Worker

_log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


class Maintenance:
    """Runs the maintenance of one open store."""

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
        self._log = log
        self._queues = queues
        self._memory = memory
        self._space = space
        self._spares = spares
        self._worker = worker
        self._clock = clock
        self._state = recovered.checkpoint_state
        self._background = Background(worker)
        self._retired = RetiredFiles()
        self._kept = SegmentsToKeep(recovered, queues)
        self._copy = DefinitionsCopier(backing, clock, options.checkpoint_ms)
        self.checkpoints = Checkpoints(
            *(backing, log, queues, memory, recovered, options),
            *(self._kept, self._retired, spares),
        )
        self.compactions = Compactions(
            *(backing, log, recovered, options, clock),
            *(self.checkpoints, self._copy, self._kept, self._retired),
        )
        # By the monotonic clock. The first checkpoint is due some time after the start, not at
        # once.
        self._checkpoint_ms = clock.monotonic_ms()
        self._positions = PositionNotes(
            *(backing.files, backing.directory, backing.seed, log.position),
            may_write=lambda: not space.is_low,
            # Until a checkpoint notes what is missing, nothing but the old notes knows of it.
            may_remove=lambda: not self.checkpoints.has_passed_over,
        )
        absence = Absence(backing.files, backing.directory, recovered.report.absent)
        self.accounts = WatchedAccounts(self._state, self._background, absence)

    def housekeep(self) -> None:
        """Take over finished work, and start what is due."""
        self._space.look()
        if self._spares and self._space.is_low:
            self._spares.remove()
        now_ms = self._clock.monotonic_ms()
        position, positions = self._log.position, self._positions
        if now_ms >= positions.due_ms or position.segment != positions.segment:
            positions.note(position, now_ms, self._clock.wall_ms())
        if self._background.work and not self._finish():
            return
        measures = self._log.measures
        if self._retired:
            self._begin("cleaning", self._retired.take(), _use_nothing)
        elif self.checkpoints.is_due(now_ms - self._checkpoint_ms):
            self._checkpoint_ms = now_ms
            self._memory.share(list(self._queues.values()))
            self._space.make_room()
            work = _timed(self.checkpoints.next().run, measures.checkpoint_s)
            self._begin("checkpoint", work, self._written)
        elif self._copy.is_due(now_ms):
            # Before the copy is made: a definition that comes while it is written sets it again.
            self._copy.is_behind = False
            self._space.make_room()
            self._begin("copy", self._copy.write, self._copy.written)
        elif self.compactions.is_due(now_ms):
            if accounts := self.compactions.choose():
                self._space.make_room(sum(account.end_bytes for account in accounts))
                compaction = self.compactions.of(accounts)
                timed = _timed(compaction.run, measures.compaction_s)
                self._begin("compaction", timed, self.compactions.compacted)
            else:
                self.compactions.is_checked = True

    def checkpoint(self) -> None:
        """Finish running work, and make a checkpoint of everything durable in this thread."""
        checkpoints, copy = self.checkpoints, self._copy
        if self._background.work:
            self._finish(wait=True)
        if checkpoints.unfinished:
            self._written(checkpoints.unfinished.run())
        if checkpoints.is_needed:
            self._space.make_room()
            self._written(checkpoints.next().run())
        self._retired.take()()
        if copy.is_behind:
            try:
                copy.written(copy.write())
            except OSError as error:
                _log.warning(
                    "the copy of the definitions could not be updated: %s", reason_of(error)
                )
            else:
                copy.is_behind = False

    def compact(self) -> Compacted | None:
        """Run one compaction in this thread, if any frees something; None if none does.

        Raises: OSError, DamageError (the new file is not as it was written), DurabilityError.
        """
        self.checkpoint()
        accounts = self.compactions.choose(to_the_end=True)
        if not accounts:
            return None
        self._space.make_room(sum(account.end_bytes for account in accounts))
        compacted = self.compactions.of(accounts).run()
        self.compactions.compacted(compacted)
        self._retired.take()()
        return compacted

    @property
    def checkpoint_age_s(self) -> float:
        """The time since the last checkpoint began, or since the store was opened."""
        return (self._clock.monotonic_ms() - self._checkpoint_ms) / 1000

    @property
    def quarantined_count(self) -> int:
        """The number of segments that are kept in quarantine."""
        return self._kept.damaged_count

    @property
    def work(self) -> str:
        """The work that is running in the background, by its name; empty if none is."""
        return self._background.work

    def defined(self) -> None:
        """Note that something was defined: the copy of the definitions is behind."""
        self._copy.is_behind = True

    def close(self) -> None:
        """Wait for running work, and close all files."""
        self._worker.close()
        self._positions.close()
        self.checkpoints.close()
        self._retired.close()

    def _begin(
        self, name: str, work: Callable[[], ResultT], take_over: Callable[[ResultT], None]
    ) -> None:
        # From here until the work is done, the checkpoint state belongs to the worker: nothing in
        # this thread may read or change it.
        self.accounts.count()
        self._background.begin(name, work, take_over)

    def _finish(self, *, wait: bool = False) -> bool:
        """Take over the result of the work, if it is done. Returns False while it is running."""
        try:
            take_over = self._background.poll(wait=wait)
        except (OSError, DamageError) as error:
            # Nothing was changed. On a full disk all of it is tried again the next time.
            _log.error("background work is postponed: %s", reason_of(error))
            self._copy.is_behind = True
            self._copy.postpone()
            self.compactions.failed(error)
            return True
        if take_over is None:
            return False
        take_over()
        return True

    def _written(self, written: Written) -> None:
        """Take over what a checkpoint has written: there may be something to compact now."""
        self.compactions.is_checked = False
        self.checkpoints.written(written)


def _use_nothing(_result: None) -> None:
    """Do nothing: cleaning has no result."""


def _timed(work: Callable[[], ResultT], histogram: BucketHistogram) -> Callable[[], ResultT]:
    """Return work whose time is counted, that of the worker's thread alone."""

    @wraps(work)
    def timed() -> ResultT:
        began_s = time.perf_counter()
        result = work()
        histogram.observe(time.perf_counter() - began_s)
        return result

    return timed
