"""The upkeep of an open store: what has to be done between its batches, in its owner's thread."""

from __future__ import annotations

from collections.abc import Iterator

from amqpstore.checkpoints.compaction import Compacted
from amqpstore.log.grouped_definitions import GroupedDefinitions
from amqpstore.log.log import Log
from amqpstore.log.open_state import OpenState
from amqpstore.queues.disposal import Disposal
from amqpstore.queues.memory import Memory
from amqpstore.system.clock import Clock
from amqpstore.system.files import SPARE
from amqpstore.upkeep.maintenance import Maintenance


class Upkeep:
    """Keeps one open store small: its log, and the memory that its messages take.

    All of it can be done later as well: nothing that was promised waits for it. An error after
    which it is unknown how far a checkpoint or a compaction came ends all writing: see
    `OpenState.working`.
    """

    def __init__(
        self,
        log: Log,
        state: OpenState,
        definitions: GroupedDefinitions,
        memory: Memory,
        disposal: Disposal,
        maintenance: Maintenance,
        clock: Clock,
    ) -> None:
        self._log = log
        self._state = state
        self._definitions = definitions
        self._memory = memory
        self._disposal = disposal
        self._maintenance = maintenance
        self._clock = clock

    def housekeep(self) -> None:
        """Start background work that is due, and finish what is done, without waiting for either.

        To be called after batches became durable, and at least about once a second while any are.
        Raises: StoreClosedError, DurabilityError, DamageError (a segment that compaction has just
        written).
        """
        self._state.check()
        SPARE.fill()
        self._log.measures.count_batches()
        # A checkpoint removes the index files of queues that the catalog does not have.
        if self._definitions.waiting:
            self._definitions.commit_group()
        if self._disposal.runs or self._disposal.lists:
            self._disposal.free()
        unacked = self._memory.unacked
        if unacked.has_deleted or unacked.suspects:
            unacked.drop_deleted(self._clock.monotonic_ms())
        with self._state.working():
            self._memory.drop_excess(self._log.position.message_id)
            self._maintenance.housekeep()

    def free_memory(self) -> bool:
        """Drop bodies of taken messages from memory if there are too many, as `housekeep` does, and
        free some of what was purged, deleted or acked. Returns whether more is to be freed.

        To be called more often than that, if much may be taken in between: it costs nothing if
        there is nothing to do.
        """
        memory = self._memory
        if memory.unacked.memory_bytes > memory.budget_bytes // 4:
            memory.let_go_unacked(self._log.position.message_id)
        disposal = self._disposal
        if not (disposal.runs or disposal.lists):
            return False
        return disposal.free()

    def checkpoint(self) -> None:
        """Make a checkpoint of everything durable, now.

        Raises: StoreClosedError, DurabilityError; OSError, if it could not be made and can be tried
        again.
        """
        self._state.check()
        self._definitions.commit_group()
        with self._state.working():
            self._maintenance.checkpoint()

    def compact(self) -> Iterator[Compacted]:
        """Compact segments until nothing more is freed, at once: yields each compaction.

        The segment in which the log continues is left alone. The caller may stop between two.
        Raises: StoreClosedError, DurabilityError; OSError, DamageError, if one could not be made.
        """
        while True:
            self._state.check()
            with self._state.working():
                compacted = self._maintenance.compact()
            if compacted is None:
                return
            yield compacted
