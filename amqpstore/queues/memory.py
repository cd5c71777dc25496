"""The budget of messages that stay in memory, one for the whole store, shared by its queues.

Unacked messages have a part of it as well: see `unacked`.

Every message in the log can be read back, so it need not wait in memory. Messages at the head of a
queue are taken first; so once a queue has used its share, further messages are dropped from memory
as soon as they are durable. The shares follow the rates at which the queues are emptied: without
consumers, nothing is worth keeping.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping

from amqpstore.format.runs import Run
from amqpstore.queues.arguments import check_queue
from amqpstore.queues.queue import Queue
from amqpstore.queues.transient import TransientLog
from amqpstore.queues.unacked import Unacked
from amqpstore.system.durability import reason_of

_log = logging.getLogger(__name__)

_MAX_WRITTEN_ASIDE = 128
_MAX_MESSAGES_ASIDE = 4096
"""Transient runs, and about how many messages in them, that are written out before others have
their turn: each run is a write to a file.
"""

_MAX_DROPPED = 2048
"""Runs whose bodies are dropped before others have their turn."""

_PLENTY = 8
_PLENTY_UNLOGGED = 2
"""Memory is not short up to these parts of the budget: whoever comes uses them, without a share.
Messages that are not in the log have more: they would have to be written first.
"""

_LEAST_SHARE_BYTES = 64 << 10
"""About one read of a connection."""

_SHORT_BYTES = 1 << 20
"""The budget while the machine's memory is short: about what is on the way to consumers."""


class Memory:
    """The memory budget of a store, and what was counted of it.

    It alone lets ready messages go from memory, and only those that can be read back: durable ones,
    or transient ones once they are in `transient`. Its count is the sum of the queues' own.
    `unacked` are the messages that were taken.

    Args: queues, of the store, by id; limit_bytes, of messages in memory, with their envelopes:
    messages that are not durable yet come on top; transient, for messages that are not in the log.
    """

    def __init__(
        self, queues: Mapping[int, Queue], limit_bytes: int, transient: TransientLog
    ) -> None:
        self.budget_bytes = limit_bytes
        """The limit, or less while the machine's memory is short."""
        self._queues = queues
        self._limit_bytes = limit_bytes
        self._is_short = False
        self.plenty_bytes = limit_bytes // _PLENTY
        """Up to this many bytes, nothing is too much but what is in lazy queues."""
        self._transient = transient
        self._transient_excess: deque[tuple[Queue, Run]] = deque()
        self.memory_bytes = 0
        """The bytes of messages ready in queues; a message in several queues counts in each."""
        self._excess: deque[tuple[Queue, Run]] = deque()
        self.unacked = Unacked(transient)

    @property
    def all_bytes(self) -> int:
        """The bytes of all messages in memory, ready and unacked; one in several queues counts in
        each.
        """
        return self.memory_bytes + self.unacked.memory_bytes

    def add(self, queue: Queue, run: Run, memory_bytes: int) -> None:
        """Count a run that is ready with its messages, or `memory_bytes` that it got more."""
        queue.memory_bytes += memory_bytes
        self.memory_bytes += memory_bytes
        # There is plenty, or the queue has less than its share.
        may_be = self.memory_bytes > self.plenty_bytes and queue.memory_bytes > queue.share_bytes
        if (may_be or queue.lazy) and self.is_excess(queue, is_logged=run.first_id > 0):
            (self._excess if run.first_id else self._transient_excess).append((queue, run))
            while self._transient_excess and self.memory_bytes > 2 * self.budget_bytes:
                # If nothing is logged, `drop_excess` may be called only a second later.
                self._write_aside(*self._transient_excess.popleft())

    def limit(self, limit_bytes: int) -> None:
        """Change the limit. What exceeds a smaller one is dropped by the next `drop_excess`."""
        self._limit_bytes = limit_bytes
        self._set_budget()

    def shrink(self, *, is_short: bool) -> None:
        """Keep hardly any message in memory while that `is_short`, whatever the limit allows."""
        self._is_short = is_short
        self._set_budget()

    def _set_budget(self) -> None:
        before, budget_bytes = self.budget_bytes, self._limit_bytes
        if self._is_short:
            budget_bytes = min(budget_bytes, _SHORT_BYTES)
        self.budget_bytes = budget_bytes
        self.plenty_bytes = budget_bytes // _PLENTY
        if budget_bytes < before:
            for queue in self._queues.values():
                # A share that was measured by another budget would keep as much as before.
                queue.share_bytes = queue.share_bytes * budget_bytes // before
                self.reconsider(queue)

    def set_lazy(self, queue: Queue, *, lazy: bool) -> None:
        """Set whether a queue keeps no body in memory that is on disk; at any time."""
        check_queue(queue)
        queue.lazy = lazy
        self.reconsider(queue)

    def reconsider(self, queue: Queue) -> None:
        """Check all ready messages of a queue again: it has become lazy, or holds too much."""
        for run in queue.ready:
            if run.messages is not None and self.is_excess(queue, is_logged=run.first_id > 0):
                (self._excess if run.first_id else self._transient_excess).append((queue, run))

    def let_go(self, queue: Queue, memory_bytes: int) -> None:
        """Stop counting bodies that were taken or removed."""
        queue.memory_bytes -= memory_bytes
        self.memory_bytes -= memory_bytes

    def drop_excess(self, next_message_id: int) -> None:
        """Drop excess bodies that are durable: ids below `next_message_id` are.

        Some of them in each call. Transient messages are written to `transient/`; if that fails
        they stay.
        """
        if self._transient_excess:
            messages = 0
            for _ in range(min(len(self._transient_excess), _MAX_WRITTEN_ASIDE)):
                queue, run = self._transient_excess.popleft()
                messages += run.count
                self._write_aside(queue, run)
                if messages >= _MAX_MESSAGES_ASIDE:
                    break
        excess = self._excess
        left = _MAX_DROPPED
        # In the order of ids. A body that is not durable yet is only in memory: dropping it would
        # lose a message that is about to be confirmed.
        while excess and left and excess[0][1].end_id <= next_message_id:
            left -= 1
            queue, run = excess.popleft()
            # Before it is let go: then it takes none any more.
            memory_bytes = run.memory_bytes
            is_excess = run.messages is not None and self.is_excess(queue, is_logged=True)
            # The run may have been taken since, or its queue may have got a consumer.
            if is_excess and queue.let_go(run):
                self.let_go(queue, memory_bytes)
        self.let_go_unacked(next_message_id)

    def let_go_unacked(self, next_message_id: int) -> None:
        """Drop excess bodies of messages that were taken: see `drop_excess`.

        A quarter of the budget is theirs, however much waits in queues.
        """
        most_bytes = max(self.budget_bytes - self.memory_bytes, self.budget_bytes // 4)
        if self.unacked.memory_bytes > most_bytes:
            self.unacked.let_go(most_bytes, next_message_id)

    def _write_aside(self, queue: Queue, run: Run) -> None:
        if run.messages is None or not self.is_excess(queue, is_logged=False):
            return
        # The run may have been taken or purged since. If it were written then, it would keep its
        # segment in `transient/` until the process ends.
        if not queue.ready.has(run):
            return
        memory_bytes = run.memory_bytes
        try:
            run.first_id = self._transient.write(run.messages)
        # A full disk must not cost transient messages that are in memory already; the memory alarm
        # stops publishers.
        except OSError as error:
            _log.warning(
                "transient messages stay in memory, as writing them out failed: %s",
                reason_of(error),
            )
            return
        queue.let_go(run)
        self.let_go(queue, memory_bytes)

    def share(self, queues: list[Queue]) -> None:
        """Share the budget again, by what was taken from each queue since the last time."""
        active = [queue for queue in queues if queue.taken_bytes or queue.share_bytes]
        total = sum(queue.taken_bytes for queue in active)
        for queue in active:
            part = self.budget_bytes * queue.taken_bytes // total if total else 0
            # Half of the way each time: a rate is not what happened in one moment.
            queue.share_bytes = (queue.share_bytes + part) // 2
            queue.taken_bytes = 0

    def is_excess(self, queue: Queue, *, is_logged: bool) -> bool:
        """Tell whether a queue has more in memory than its share, and memory is short for messages
        that are in the log, or are not.
        """
        if queue.lazy:
            return True
        plenty_bytes = self.plenty_bytes if is_logged else self.budget_bytes // _PLENTY_UNLOGGED
        # While there is plenty of memory, no shares apply: they are known a second late, and a
        # burst into a new queue would go to disk first.
        if self.memory_bytes <= plenty_bytes:
            return False
        least = _LEAST_SHARE_BYTES if self.memory_bytes <= self.budget_bytes else 0
        return queue.memory_bytes > max(queue.share_bytes, least)
