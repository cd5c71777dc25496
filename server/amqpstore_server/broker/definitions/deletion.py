"""Deletion: whatever is deleted takes others with it, all of them in one commit.

A queue takes its history with it; an exchange its own queue; and both the auto-delete exchanges
that lose their last binding as a result. Most of many bindings follow in later rounds: see
`removals`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

from amqpstore import DiskFullError
from amqpstore.catalog.catalog import Change
from amqpstore.format.departures import Departure
from amqpstore_server.broker.channels.branches import Branches
from amqpstore_server.broker.definitions.owned_queues import OwnedQueues
from amqpstore_server.broker.definitions.removals import Removals, Unbinding
from amqpstore_server.broker.definitions.rows import exchange_change
from amqpstore_server.broker.exchanges.base import Exchange
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.routing.routing import Router
from amqpstore_server.broker.transactions.history import Histories
from amqpstore_server.broker.work.services import BrokerServices


class DeletingHost(Protocol):
    """A virtual host as a deletion needs it."""

    name: str
    services: BrokerServices
    exchanges: dict[str, Exchange]
    queues: dict[str, Queue]
    owned_queues: OwnedQueues
    histories: Histories
    removals: Removals
    router: Router
    branches: Branches

    def delete_queue(self, queue: Queue, reason: Departure) -> None:
        """Delete a queue that is not the broker's own."""

    def happened(self, line: str, key: str, headers: Mapping[str, Any], **said: str) -> None:
        """Tell that something has changed there."""


class Deletion:
    """Queues and exchanges that are deleted together; `changes` are committed with that.

    Args: reason, why the messages of its queues leave.
    """

    def __init__(
        self,
        vhost: DeletingHost,
        changes: Sequence[Change] = (),
        reason: Departure = Departure.QUEUE_DELETED,
    ) -> None:
        self._vhost = vhost
        self._reason = reason
        self._changes = [*changes]
        self._unbinding = Unbinding(vhost.removals)
        self._queues: list[Queue] = []

    def add_queue(self, queue: Queue) -> None:
        """Add a queue of a client, with what goes with it."""
        self._queues.append(queue)
        self.add_exchanges(self._unbinding.add_destination(queue))
        if history := self._vhost.histories.of(queue.name):
            self._queues.append(history)
        if queue.letters is not None:
            self._queues.append(queue.letters)

    def add_exchanges(self, exchanges: Iterable[Exchange]) -> None:
        """Add exchanges, with what goes with them. Their names are free at once."""
        vhost = self._vhost
        going = list(exchanges)
        while going:
            exchange = going.pop()
            if vhost.exchanges.get(exchange.name) is not exchange:
                continue
            del vhost.exchanges[exchange.name]
            if exchange.durable:
                self._changes.append(exchange_change(vhost.name, exchange, add=False))
            self._unbinding.add_source(exchange)
            going += self._unbinding.add_destination(exchange)
            if exchange.own_queue is not None:
                self._queues.append(vhost.queues[exchange.own_queue.name])
            line = "exchange deleted" if exchange.durable else ""
            headers = {"name": exchange.name}
            vhost.happened(line, "exchange.deleted", headers, exchange=exchange.name)

    def add_own_queues(self, queues: Iterable[Queue]) -> None:
        """Add queues of the broker's own that outlived what they belong to."""
        self._queues += queues

    def commit(self) -> None:
        """Delete all of it. Durable on return.

        Raises: DiskFullError; the queues are still there then, and what is gone from memory follows
        on disk once there is room.
        """
        vhost = self._vhost
        services = vhost.services
        changes = [*self._changes, *self._unbinding.take()]
        store_queues = [one for queue in self._queues for one in queue.priorities]
        while any(services.moves.counts[one.id] for one in store_queues):
            # The deletion is durable at once. Messages that moved out of the queue must be durable
            # elsewhere before that, or a crash would lose them.
            services.flush()
        counts = [queue.held_count for queue in self._queues]
        if any(queue.unacked_count for queue in self._queues):
            services.late_acks.queue_deleted()
        try:
            if store_queues:
                services.store.delete_queue(*store_queues, changes=changes)
            elif changes:
                services.store.definitions.define(changes)
        except DiskFullError:
            # The exchanges and bindings are gone from memory: with rows that stay, the next start
            # would route by them again.
            self._unbinding.postpone(changes)
            vhost.router.changed()
            raise
        finally:
            # Nothing knows of the other bindings any more, even if the disk is full.
            self._unbinding.go_on()
        for queue, count in zip(self._queues, counts, strict=True):
            del vhost.queues[queue.name]
            vhost.owned_queues.remove(queue)
            queue.departures.note(self._reason, count)
            queue.closed()
            queue.departures.closed()
            if not queue.kind:
                line = "queue deleted" if queue.durable else ""
                vhost.happened(line, "queue.deleted", {"name": queue.name}, queue=queue.name)
        services.statistics.churn.queue_deleted += sum(queue.is_listed for queue in self._queues)
        vhost.router.changed()


def deleting_all(vhost: DeletingHost) -> Iterator[None]:
    """Delete everything in a virtual host, in steps of one commit each: others may have their turn
    after each. A crash in between leaves what is left to the next start.
    """
    yield from vhost.branches.rolling_back_all()
    store = vhost.services.store
    while True:
        vhost.services.work["vhost deleted"] = None
        store.definitions.begin_group()
        try:
            is_done = _delete_some(vhost)
        finally:
            store.definitions.end_group()
        if is_done:
            return
        yield


def _delete_some(vhost: DeletingHost) -> bool:
    """Delete some queues; the exchanges once no queue is bound to them. Returns whether nothing is
    left.
    """
    # A history goes with its queue, and the own queue of an exchange with that.
    of_clients = (queue for queue in vhost.queues.values() if not queue.is_internal)
    most = vhost.services.limits.max_deleted
    queues = list(islice(of_clients, most))
    for queue in queues:
        if not queue.is_deleted:
            vhost.delete_queue(queue, Departure.QUEUE_DELETED)
    if queues:
        return False
    exchanges = list(islice(vhost.exchanges.values(), most))
    left = [] if exchanges else list(islice(vhost.queues.values(), most))
    deletion = Deletion(vhost)
    deletion.add_exchanges(exchanges)
    deletion.add_own_queues(left)
    deletion.commit()
    if exchanges or left:
        return False
    # In a virtual host of the same name, rows that are left would be bindings again.
    for unbinding in vhost.removals.unfinished:
        unbinding.step()
        return False
    return True
