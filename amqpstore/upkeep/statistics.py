"""Statistics of an open store: how much there is of everything, for those who watch it."""

from __future__ import annotations

from amqpstore.evidence.absence import UnreadableCount
from amqpstore.log.log import Log
from amqpstore.log.space import Space
from amqpstore.queues.memory import Memory
from amqpstore.recovery.recovered import RecoveryReport
from amqpstore.upkeep.figures import CountedSegment, LogFigures, StoreFigures
from amqpstore.upkeep.maintenance import Maintenance


class StoreStatistics:
    """Counts what there is in one open store. To be asked in the thread that owns the store.

    It changes nothing. While the worker has the accounts of the segments, it says what was in them
    when the work began. Args: report, of the start; opening_s, how long that took.
    """

    def __init__(
        self,
        log: Log,
        memory: Memory,
        space: Space,
        maintenance: Maintenance,
        report: RecoveryReport,
        opening_s: float,
    ) -> None:
        self._log = log
        self._memory = memory
        self._space = space
        self._maintenance = maintenance
        self._report = report
        self._opening_s = opening_s

    def figures(self) -> StoreFigures:
        """Return what there is in the store, and what its start found; it takes as long as the
        store has segments.
        """
        report = self._report
        return StoreFigures(
            self._log_figures(),
            self._memory.memory_bytes,
            self._memory.unacked.memory_bytes,
            self._memory.budget_bytes,
            self._space.free_bytes,
            self._space.least_free_bytes,
            self._opening_s,
            report.torn_bytes,
            report.rolled_back,
            report.lost_count,
            len(report.damage),
        )

    def unreadable(self) -> UnreadableCount:
        """Return a new count of the messages that cannot be read, to which queues are added."""
        return UnreadableCount(self._maintenance.accounts.absence())

    def segments(self) -> list[CountedSegment]:
        """Return the figures of each segment, in the order of the log."""
        counted = self._maintenance.accounts.counted()
        found = []
        for segment in self._log.segments:
            account = counted.get(segment.number)
            end_bytes, garbage_bytes, messages, live_messages = account or (0, 0, 0, 0)
            live_bytes = end_bytes - garbage_bytes
            row = (segment.number, segment.size, live_bytes, garbage_bytes, messages, live_messages)
            found.append(CountedSegment(*row, is_log=account is None))
        return found

    def _log_figures(self) -> LogFigures:
        log, maintenance = self._log, self._maintenance
        counted = maintenance.accounts.counted().values()
        garbage_bytes = sum([account.garbage_bytes for account in counted])
        return LogFigures(
            segments=len(log.segments),
            segment_bytes=sum([segment.size for segment in log.segments]),
            live_bytes=sum([account.end_bytes for account in counted]) - garbage_bytes,
            garbage_bytes=garbage_bytes,
            tail_bytes=log.durable_bytes,
            tail_messages=log.durable_messages,
            pending_bytes=log.pending_bytes,
            segment=log.position.segment,
            sequence=log.position.lsn,
            checkpoint_segment=maintenance.checkpoints.segment,
            checkpoint_age_s=maintenance.checkpoint_age_s,
            quarantined_segments=maintenance.quarantined_count,
            work=maintenance.work,
        )
