"""Exclusive queues: those that belong to one connection, and are deleted with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from amqpstore_server.broker.context import BrokerContext
from amqpstore_server.broker.faults import called
from amqpstore_server.broker.queues.queue import Queue

_AT_ONCE = 128
"""Queues of a connection that ended which are deleted before others have their turn."""


class OwnedQueues:
    """The exclusive queues of a virtual host, by the connections that own them.

    Args: delete, which deletes a queue, and then calls `remove`.
    """

    def __init__(self, context: BrokerContext, delete: Callable[[Queue], object]) -> None:
        self._context = context
        self._delete = delete
        self._of: dict[object, dict[Queue, None]] = {}
        self._ended: set[object] = set()
        """Connections that have ended, and whose queues are not all deleted yet."""

    def add(self, queue: Queue) -> None:
        """Add a queue, unless it belongs to nobody."""
        if queue.owner is not None:
            self._of.setdefault(queue.owner, {})[queue] = None

    def remove(self, queue: Queue) -> None:
        """Remove a queue that was deleted."""
        if queue.owner is not None:
            self._of.get(queue.owner, {}).pop(queue, None)

    def is_over(self, queue: Queue) -> bool:
        """Whether the connection of a queue has ended, and the queue is as good as deleted."""
        return queue.owner in self._ended and not queue.is_internal

    def end(self, connection: object) -> None:
        """Delete the queues of a connection that ended: of hundreds most in later turns. Until then
        they are as good as deleted.
        """
        deleting = self._deleting(connection)
        for _ in deleting:
            self._ended.add(connection)
            self._context.background.append(deleting)
            return

    def _deleting(self, connection: object) -> Iterator[None]:
        """Delete the queues of a connection, in steps."""
        queues = list(self._of.get(connection, ()))
        for number, queue in enumerate(queues, 1):
            if not (queue.is_internal or queue.is_deleted):
                called(partial(self._delete, queue))
            if not number % _AT_ONCE and number < len(queues):
                self._context.work["exclusive queues"] = None
                yield
        self._of.pop(connection, None)
        self._ended.discard(connection)
