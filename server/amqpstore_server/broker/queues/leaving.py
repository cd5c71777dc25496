"""Messages that leave a queue after their bodies have left memory: they are read back first.

They were rejected or delivered too often in a queue with dead letters, or consumed from a queue
that keeps a history. However many they are, they leave about 1 MiB at a time, no faster than the
disk can write the results, in the order in which they were settled. Until a message has left, it is
unacked in the store: after a crash it is in its queue, marked as delivered.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from amqpstore import MessageDamagedError, ReadLaterError
from amqpstore_server.broker.context import BrokerContext

if TYPE_CHECKING:
    from amqpstore_server.broker.queues.backlog import Taken
    from amqpstore_server.broker.queues.queue import Queue

_log = logging.getLogger(__name__)

_READ_AT_ONCE = 4
"""How many parts of about 1 MiB leave in one turn."""

Go = Callable[["Taken"], bool]
"""Lets a run leave. Returns False if the disk is full: the run is back in its queue then."""


class Leaving:
    """The messages that are leaving one queue, in order."""

    def __init__(self, context: BrokerContext, queue: Queue) -> None:
        self._context = context
        self._queue = queue
        self._line: deque[tuple[Taken, Go]] = deque()
        self._left_in_turn = _READ_AT_ONCE

    def __bool__(self) -> bool:
        return bool(self._line)

    def add(self, taken: Taken, go: Go) -> None:
        """Let a run leave: now, or when its turn comes."""
        self._line.append((taken, go))
        self._queue.touch()
        if len(self._line) == 1:
            self._go()

    def pump(self) -> None:
        """Let some of them leave. The queue is touched again while there are more."""
        self._left_in_turn = _READ_AT_ONCE
        self._go()

    def _go(self) -> None:
        store = self._context.store
        while self._line and self._left_in_turn:
            if not self._context.has_room:
                self._context.wait_for_room(self._queue.touch)
                return
            self._left_in_turn -= 1
            taken, go = self._line.popleft()
            part, rest = store.stored.bring_back(*taken)
            if rest is not None:
                self._line.appendleft((taken._replace(run=rest), go))
            if isinstance(part, ReadLaterError):
                self._queue.backlog.read_later(part)
                return
            if isinstance(part, MessageDamagedError):
                extra = {"queue": self._queue.name, "reason": str(part)}
                _log.error("some messages cannot be read; the others are served", extra=extra)
            elif not go(taken._replace(run=part)):
                self.put_back_all()
                return
        if self._line:
            self._queue.touch()

    def put_back_all(self) -> None:
        """Put all of them back into the queue, ready: they cannot leave now."""
        line, self._line = self._line, deque()
        for taken, _ in line:
            self._queue.backlog.put_back(taken)

    def forget(self) -> None:
        """Drop them: the queue is deleted, and they with it."""
        line, self._line = self._line, deque()
        for taken, _ in line:
            self._context.store.ack(*taken)
