"""Queues that go with a connection: exclusive ones, which belong to it, and those that are deleted
with their last consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

from amqpstore_server.broker.monitoring.faults import called
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.work.services import BrokerServices


class OwnedQueues:
    """The exclusive queues of a virtual host, by the connections that own them; and the unused
    ones, whose last consumer has left.

    Args: delete, which deletes a queue, and then calls `remove`.
    """

    def __init__(self, services: BrokerServices, delete: Callable[[Queue], object]) -> None:
        self._services = services
        self._delete = delete
        self._of: dict[object, dict[Queue, None]] = {}
        self._ended: set[object] = set()
        """Connections that have ended, and whose queues are not all deleted yet."""
        self._unused: dict[Queue, None] = {}
        """Queues that lost their last consumer and are not deleted yet."""

    def add(self, queue: Queue) -> None:
        """Add a queue, if it is exclusive."""
        if queue.owner is not None:
            self._of.setdefault(queue.owner, {})[queue] = None

    def remove(self, queue: Queue) -> None:
        """Remove a queue that was deleted."""
        self._unused.pop(queue, None)
        if queue.owner is not None:
            self._of.get(queue.owner, {}).pop(queue, None)

    def is_over(self, queue: Queue) -> bool:
        """Whether the connection of a queue, or its last consumer, has gone, and the queue counts
        as deleted.
        """
        return queue in self._unused or (queue.owner in self._ended and not queue.is_internal)

    def end_unused(self, queue: Queue) -> None:
        """Delete a queue that has lost its last consumer; in a later round if many queues lost
        theirs in this one. Until then it counts as deleted.
        """
        services = self._services
        if not services.is_budget_spent:
            services.agenda.spent += services.limits.delete_cost
            self._delete(queue)
            return
        if not self._unused:
            services.agenda.background.append(self._deleting_unused())
        self._unused[queue] = None

    def _deleting_unused(self) -> Iterator[None]:
        """Delete queues that have lost their last consumer, in steps of one commit each."""
        store = self._services.store
        while self._unused:
            self._services.work["unused queues"] = None
            # One sync for all of them.
            store.definitions.begin_group()
            try:
                for queue in list(islice(self._unused, self._services.limits.max_deleted)):
                    del self._unused[queue]
                    # A client that has used its name since has deleted it: see
                    # `VirtualHost.existing_queue`.
                    if not queue.is_deleted:
                        called(partial(self._delete, queue))
            finally:
                store.definitions.end_group()
            yield

    def end(self, connection: object) -> None:
        """Delete the queues of a connection that ended; if there are hundreds, most of them in
        later rounds. Until then they count as deleted.
        """
        deleting = self._deleting(connection)
        for _ in deleting:
            self._ended.add(connection)
            self._services.agenda.background.append(deleting)
            return

    def _deleting(self, connection: object) -> Iterator[None]:
        """Delete the queues of a connection, in steps."""
        queues = list(self._of.get(connection, ()))
        for number, queue in enumerate(queues, 1):
            if not (queue.is_internal or queue.is_deleted):
                called(partial(self._delete, queue))
            if not number % self._services.limits.max_deleted and number < len(queues):
                self._services.work["exclusive queues"] = None
                yield
        self._of.pop(connection, None)
        self._ended.discard(connection)
