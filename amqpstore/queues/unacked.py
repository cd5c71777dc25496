"""Bodies of messages that were taken and are neither acked nor back in their queues.

Whoever took a run holds it, perhaps for ever. An ack needs no body, so the bodies need not wait for
it in memory: if there are too many, the oldest are dropped. Those that are in the log are on disk
already; the others are written to `transient/`. They are read back if they are needed after all, to
be delivered once more or to move elsewhere: see `Store.bring_back`. Those of a queue that is
deleted are never needed again, and are dropped soon.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque

from amqpstore.format.runs import Run
from amqpstore.queues.queue import Queue
from amqpstore.queues.transient import TransientLog
from amqpstore.system.durability import reason_of

_log = logging.getLogger(__name__)

_MAX_LOOKED_AT = 4096
"""Runs whose queues are looked at before others have their turn."""

_LOOK_EVERY_MS = 1000
"""The least time between two looks at all runs, which may be very many while queues come and go."""


class Unacked:
    """Counts the runs that were taken, and whose messages are in memory.

    It is kept per run, so that an ack costs the same however many messages it is for.
    Args: transient, for messages that are not in the log.
    """

    def __init__(self, transient: TransientLog) -> None:
        self._transient_log = transient
        # Those that were taken first come first.
        self._logged: OrderedDict[Run, Queue] = OrderedDict()
        self._transient: OrderedDict[Run, Queue] = OrderedDict()
        self.memory_bytes = 0
        self.suspects: deque[Run] = deque()
        """Runs whose queues are yet to be looked at since one was deleted."""
        self._look_at_ms = 0
        self.has_deleted = False
        """Whether a queue was deleted that may have runs here. They are not listed by queue, which
        would cost something for each delivery and each ack.
        """

    def add(self, queue: Queue, run: Run) -> None:
        """Count a run that was taken, and has its messages."""
        run.account = self
        (self._logged if run.first_id else self._transient)[run] = queue
        self.memory_bytes += run.memory_bytes

    def remove(self, run: Run) -> None:
        """Stop counting a run that is acked, or requeued."""
        run.account = None
        del (self._logged if run.first_id else self._transient)[run]
        self.memory_bytes -= run.memory_bytes

    def note_split(self, run: Run, head: Run) -> None:
        """Note that a part of a run is a run of its own: both together have what the run had."""
        head.account = self
        runs = self._logged if run.first_id else self._transient
        runs[head] = runs[run]

    def let_go(self, most_bytes: int, next_message_id: int) -> None:
        """Drop bodies until no more than `most_bytes` are in memory, as far as possible.

        Messages in the log can be read back once they are durable: ids below `next_message_id` are.
        """
        logged = self._logged
        while logged and self.memory_bytes > most_bytes:
            run = next(iter(logged))
            if run.end_id > next_message_id:
                break
            self._unload(logged[run], run)
        transient = self._transient
        while transient and self.memory_bytes > most_bytes:
            run, queue = next(iter(transient.items()))
            first_id = 0
            # Messages of a queue that is deleted by now are never needed again.
            if not queue.deleted:
                try:
                    first_id = self._transient_log.write(run.messages or [])
                except OSError as error:
                    _log.warning(
                        "transient messages stay in memory, as writing them out failed: %s",
                        reason_of(error),
                    )
                    break
            self._unload(queue, run)
            run.first_id = first_id

    def drop_deleted(self, now_ms: int) -> None:
        """Drop bodies of queues that were deleted: looks at some runs in each call. Args: now_ms,
        by a clock that is never set.
        """
        suspects = self.suspects
        if self.has_deleted and not suspects and now_ms >= self._look_at_ms:
            self.has_deleted = False
            self._look_at_ms = now_ms + _LOOK_EVERY_MS
            suspects.extend(self._logged)
            suspects.extend(self._transient)
        for _ in range(min(len(suspects), _MAX_LOOKED_AT)):
            run = suspects.popleft()
            queue = (self._logged if run.first_id else self._transient).get(run)
            if queue is not None and queue.deleted:
                self._unload(queue, run)

    def _unload(self, queue: Queue, run: Run) -> None:
        self.remove(run)
        run.unload()
        queue.unloaded.add(run)
