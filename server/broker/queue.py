"""A queue of a virtual host: the store's queue, who may use it, and who consumes from it."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any

import amqpstore
from amqpstore import MessageDamagedError, Run, Store
from server.broker.errors import AccessRefusedError, ResourceLockedError

if TYPE_CHECKING:
    from server.broker.consumer import Consumer

_log = logging.getLogger(__name__)


class Queue:
    """A queue, under the name it was declared with.

    `owner` is the connection that an exclusive queue belongs to, and None for a shared one.
    `durable` is what was declared; an exclusive queue acts transient whatever it says.
    """

    __slots__ = (
        "_store",
        "_touched",
        "arguments",
        "auto_delete",
        "consumers",
        "durable",
        "name",
        "owner",
        "stored",
    )

    def __init__(
        self,
        store: Store,
        touched: set[Queue],
        stored: amqpstore.Queue,
        name: str,
        *,
        durable: bool,
        auto_delete: bool,
        arguments: dict[str, Any],
        owner: object = None,
    ) -> None:
        self._store = store
        self._touched = touched
        self.stored = stored
        self.name = name
        self.durable = durable
        self.auto_delete = auto_delete
        self.arguments = arguments
        self.owner = owner
        self.consumers: deque[Consumer] = deque()

    @property
    def ready_count(self) -> int:
        """Messages that wait for a consumer."""
        return self.stored.ready_count

    def check_owner(self, connection: object) -> None:
        """Raises: ResourceLockedError, when the queue is exclusive to another connection."""
        if self.owner is not None and self.owner is not connection:
            raise ResourceLockedError(
                f"cannot obtain exclusive access to locked queue '{self.name}'; it was declared "
                "exclusive by another connection"
            )

    def add_consumer(self, consumer: Consumer) -> None:
        """Raises: AccessRefusedError, when a consumer has, or wants, the queue for itself."""
        if self.consumers and (consumer.exclusive or self.consumers[0].exclusive):
            raise AccessRefusedError(f"queue '{self.name}' in exclusive use")
        self.consumers.append(consumer)
        self.touch()

    def touch(self) -> None:
        """Have `pump` called at the end of this turn."""
        self._touched.add(self)

    def pump(self) -> None:
        """Hand out what is ready, in turns, while anybody can take it.

        Each consumer gets its share as one run, so that a turn costs per run, not per message.
        """
        stored = self.stored
        while stored.ready_count:
            able = [consumer for consumer in self.consumers if consumer.capacity > 0]
            if not able:
                return
            share = max(1, stored.ready_count // len(able))
            for consumer in able:
                self._hand_out(consumer, share)

    def _hand_out(self, consumer: Consumer, share: int) -> None:
        """Give a consumer its share, as far as it can take it; it is the last in line then."""
        given = 0
        while self.stored.ready_count and (limit := min(share - given, consumer.capacity)) > 0:
            if run := self.take(limit, acked=consumer.no_ack):
                given += run.count
                consumer.deliver(run)
        if given and len(self.consumers) > 1:
            self.consumers.remove(consumer)
            self.consumers.append(consumer)

    def take(self, limit: int, *, acked: bool) -> Run | None:
        """Up to `limit` messages off the head; None where those at the head cannot be read."""
        run = self._store.take(self.stored, limit, acked=acked)
        if isinstance(run, MessageDamagedError):
            _log.error("message lost", extra={"queue": self.name, "reason": str(run)})
            return None
        return run

    def ack(self, run: Run) -> None:
        """The run is done with."""
        self._store.ack(self.stored, run)

    def requeue(self, run: Run) -> None:
        """The run goes back to its place."""
        self._store.requeue(self.stored, run)
        self.touch()

    def purge(self) -> int:
        """Remove what is ready, not what is unacked. Returns how many messages."""
        return self._store.purge(self.stored)
