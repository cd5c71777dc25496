"""Compactions of an open store: when one is due, and the use of what it has written."""

from __future__ import annotations

import logging
from functools import partial

from amqpstore.catalog.backing import Backing
from amqpstore.checkpoints.compaction import Compacted, Compaction, choose, remove_compacted
from amqpstore.log.log import Log
from amqpstore.log.segment_accounts import SegmentAccount
from amqpstore.log.space import is_no_space
from amqpstore.options import Options, compressor_of
from amqpstore.recovery.recovered import Recovered
from amqpstore.system.clock import Clock
from amqpstore.upkeep.checkpointing import Checkpoints
from amqpstore.upkeep.definitions_copier import DefinitionsCopier
from amqpstore.upkeep.kept_segments import SegmentsToKeep
from amqpstore.upkeep.retired import RetiredFiles

_log = logging.getLogger(__name__)

_AVOIDED_MS = 600_000
"""Segments whose compaction failed are left alone for this time: a read error may pass."""


class Compactions:
    """Makes the compactions of one store. `is_checked`: nothing has changed since the last time
    that there was nothing to compact.
    """

    def __init__(
        self,
        backing: Backing,
        log: Log,
        recovered: Recovered,
        options: Options,
        clock: Clock,
        checkpoints: Checkpoints,
        copy: DefinitionsCopier,
        kept: SegmentsToKeep,
        retired: RetiredFiles,
    ) -> None:
        self.is_checked = False
        self._backing = backing
        self._log = log
        self._options = options
        self._clock = clock
        self._state = recovered.checkpoint_state
        self._checkpoints = checkpoints
        self._copy = copy
        self._kept = kept
        self._retired = retired
        # Compaction's own: a compressor is for one thread.
        self._compressor = compressor_of(options)
        for dictionary in log.dictionaries.values():
            self._compressor = self._compressor and self._compressor.with_dictionary(dictionary)
        self._next_number = recovered.next_compacted
        # Not to be compacted before a time, as it has failed, by the numbers of the segments.
        self._avoided: dict[int, int] = {}
        self._compacting: set[int] = set()
        self._due_ms = 0

    def is_due(self, now_ms: int) -> bool:
        """Tell whether it is time to look for something to compact."""
        # A failed checkpoint has left its state ahead of the catalog.
        return not self._checkpoints.unfinished and not self.is_checked and now_ms >= self._due_ms

    def choose(self, *, to_the_end: bool = False) -> list[SegmentAccount]:
        """Return the segments to compact next. Args: to_the_end, whatever little it frees."""
        now_ms = self._clock.monotonic_ms()
        return choose(
            self._state.accounts,
            # Its account goes as far as the last checkpoint did, which may be only a part of it.
            log_segment=self._checkpoints.segment,
            avoided=[number for number, until_ms in self._avoided.items() if now_ms < until_ms],
            segment_bytes=self._options.segment_bytes,
            to_the_end=to_the_end,
            garbage_fraction=self._options.limits.garbage_fraction,
        )

    def of(self, accounts: list[SegmentAccount]) -> Compaction:
        """Return the compaction of these segments, to be run."""
        self._compacting = numbers = {account.number for account in accounts}
        number = self._next_number
        self._next_number += 1
        return Compaction(
            self._backing,
            self._state,
            accounts=accounts,
            sources=[segment for segment in self._log.segments if segment.number in numbers],
            number=number,
            created_ms=self._clock.wall_ms(),
            compressor=self._compressor,
            train_dictionary=self._options.train_dictionary and not self._log.dictionaries,
        )

    def compacted(self, compacted: Compacted) -> None:
        """Have the log use the new segment in place of the old ones."""
        self.is_checked = False
        if compacted.dictionary and self._compressor:
            number, dictionary = compacted.dictionary
            self._log.dictionaries[number] = dictionary
            self._copy.is_behind = True
            self._compressor = self._compressor.with_dictionary(dictionary)
        # The commit took the rows of the old segments, but the log reads them until here: so they
        # are removed by the next clean-up. A crash before that leaves them to the next start.
        replaced = self._log.replace(compacted.numbers, compacted.segment)
        freed_bytes = sum([one.size for one in replaced]) - compacted.segment.size
        self._log.measures.freed_bytes += freed_bytes
        self._log.measures.compacted_bytes += compacted.moved_bytes
        self._retired.detach(replaced)
        files, directory, *_ = self._backing
        kept = self._kept.numbers()
        self._retired.remove(partial(remove_compacted, files, directory, compacted, kept))
        if compacted.damage:
            path, offset, _, reason = compacted.damage[0]
            _log.error(
                "compaction met damage in %d places of %d segments, %d bytes; the first in %s at "
                "%d: %s. The segments are moved to quarantine",
                *(len(compacted.damage), len({one[0] for one in compacted.damage})),
                *(sum(size for *_, size, _ in compacted.damage), path, offset, reason),
            )
        pause_ms = 1000 * compacted.moved_bytes // self._options.compaction_bytes_s
        self._due_ms = self._clock.monotonic_ms() + pause_ms

    def failed(self, error: Exception) -> None:
        """Leave alone what could not be compacted. On a full disk it is tried again the next time
        that there is something to do.
        """
        self.is_checked = True
        if not (isinstance(error, OSError) and is_no_space(error)):
            until_ms = self._clock.monotonic_ms() + _AVOIDED_MS
            self._avoided |= dict.fromkeys(self._compacting, until_ms)
