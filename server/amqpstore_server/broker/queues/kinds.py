"""The kinds of queues: those that clients declare, and the broker's own.

The broker's own queues have their kind in their row of the catalog, as `kind`. If a row has none,
the name decides: older stores have no `kind`, and the rows of queues that clients declare never
have one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import amqpstore
from amqpstore import DiskFullError, Message, ReadLaterError
from amqpstore.format.departures import Departure
from amqpstore_server.broker.exchanges.base import DELAYED, HISTORY, Exchange
from amqpstore_server.broker.exchanges.delayed import delay_ms
from amqpstore_server.broker.messages.envelope import ParsedEnvelope
from amqpstore_server.broker.monitoring.faults import Contained
from amqpstore_server.broker.queues.backlog import Backlog
from amqpstore_server.broker.queues.letters import LettersQueue
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.rules.names import own_name
from amqpstore_server.protocol.content import REPLY_TO, decode_properties

_log = logging.getLogger(__name__)

_SLICE_MS = 15 * 60 * 1000
"""The length of a time slice. Messages due in the current slice are in memory; later slices are
not.
"""


class DelayBacklog(Backlog):
    """The backlog of a delayed exchange: its priorities are slices of time, so that only messages
    that are due soon are looked at, however many wait.
    """

    def expire_until(self, now_ms: int) -> None:
        for number, store_queue in self.priorities.ascending():
            if number * _SLICE_MS > now_ms:
                break
            if not self._expire_queue(store_queue, now_ms):
                return
            if not store_queue.ready_count and (number + 1) * _SLICE_MS <= now_ms:
                # Not before the copies of the messages that left it are durable.
                self._services.when_durable(partial(self._end_slice, number, store_queue))
        self.watch_expiry()

    def watch_expiry(self) -> None:
        for _, store_queue in self.priorities.ascending():
            if due_ms := self._store.withdrawals.next_expiry(store_queue):
                self.expiry.set_sooner(due_ms)
                return

    def _end_slice(self, number: int, store_queue: amqpstore.Queue) -> None:
        # Messages that cannot be read now may be readable later.
        is_empty = not (
            store_queue.ready_count or store_queue.quarantined.count or store_queue.asides
        )
        is_empty = is_empty and not self._queue().is_expecting  # perhaps in this slice
        # Nothing may be removed with what a later read could bring back.
        if is_empty and not store_queue.unreadable_count and not store_queue.deleted:
            with Contained(self._queue()), suppress(DiskFullError):
                # The store queue stays until the disk has room and another of its messages expires.
                self.priorities.remove(number)


class DelayQueue(Queue):
    """The queue of a delayed exchange: each message expires when its delay is over.

    Purging it cancels all of them.
    """

    kind = DELAYED
    backlog_type = DelayBacklog
    is_internal = True
    is_listed = False
    exchange: Exchange | None = None
    """The exchange it belongs to; None if that, or its type, is gone."""

    def closed(self) -> None:
        super().closed()
        self.exchange = None  # which refers to its queue

    @property
    def is_plain(self) -> bool:
        return False

    @property
    def appends(self) -> bool:
        return False

    @property
    def sends_on(self) -> bool:
        return True

    def _expires_ms(self, envelope: ParsedEnvelope) -> int:
        return self._services.clock.wall_ms() + delay_ms(decode_properties(envelope.properties))

    def _store_queue(self, envelope: ParsedEnvelope, expires_ms: int) -> amqpstore.Queue:  # noqa: ARG002
        return self.priorities.at(expires_ms // _SLICE_MS)


class RecentHistoryQueue(Queue):
    """The last messages of a recent-history exchange; publishers do not see it as a queue."""

    kind = HISTORY
    is_internal = True
    is_listed = False
    has_copies = True
    counts_as_route = False

    def _expires_ms(self, envelope: ParsedEnvelope) -> int:  # noqa: ARG002 - history is history
        return 0

    def messages(self) -> list[Message]:
        """Return all messages, oldest first. They stay in the queue."""
        return [
            message
            for part in self._store.stored.browse(self.priorities.lowest)
            for message in part
        ]


class ConsumedBacklog(Backlog):
    """The backlog of a queue's history: when it is full, the oldest messages are dropped without
    being read.
    """

    def drop_excess(self, arrived: int = 0) -> None:  # noqa: ARG002 - the cost is not theirs
        most = self._queue().settings.max_length
        if most is None:
            return
        store_queue = self.priorities.lowest
        while (excess := store_queue.ready_count - most) > 0:
            if store_queue.is_head_paged:
                first = store_queue.paged[0].first
            else:
                first = store_queue.ready.first.first_sequence
            try:
                runs = self._store.withdrawals.withdraw_range(store_queue, first, excess)
            except ReadLaterError as error:
                # The next copy tries again.
                _log.warning(
                    "a history exceeds its limit for now: it cannot be read",
                    extra={**self._queue().log_fields, "reason": str(error)},
                )
                return
            # The copies are acked and not dead-lettered: the messages themselves were consumed.
            for run in runs:
                self._queue().departures.note(Departure.MAXLEN, run.count)
                self._store.ack(store_queue, run)


class ConsumedQueue(Queue):
    """The history of one queue."""

    kind = "consumed"
    source: Callable[[], Queue | None] = staticmethod(lambda: None)
    """Returns the queue whose history it is; None if that is gone."""
    backlog_type = ConsumedBacklog
    is_internal = True
    is_listed = False
    has_copies = True
    counts_as_route = False

    def _expires_ms(self, envelope: ParsedEnvelope) -> int:  # noqa: ARG002 - its time in the queue is over
        ttl = self.settings.message_ttl
        return 0 if ttl is None else self._services.clock.wall_ms() + ttl


class ReplyQueue(Queue):
    """Holds a channel's direct replies. To clients it is an address and no queue: who knows it can
    publish to it, and nothing else.
    """

    kind = "reply"
    is_listed = False
    counts_as_route = False


QUEUE_KINDS: dict[str, type[Queue]] = {
    its_class.kind: its_class
    for its_class in (
        *(Queue, DelayQueue, RecentHistoryQueue, ConsumedQueue, LettersQueue, ReplyQueue),
    )
}
"""The class of each kind."""


_NAMED = {
    f"amq.{DELAYED}.": DELAYED,
    f"amq.{HISTORY}.": HISTORY,
    f"amq.{ConsumedQueue.kind}.": ConsumedQueue.kind,
    f"{REPLY_TO}.": ReplyQueue.kind,
}
"""The prefix of the names of each kind. Clients cannot declare queues with such a name."""


def kind_of(definition: Mapping[str, Any]) -> str:
    """Return the kind of a stored queue, by its row."""
    named = (kind for prefix, kind in _NAMED.items() if definition["name"].startswith(prefix))
    return str(definition.get("kind") or next(named, Queue.kind))


def served_name(definition: Mapping[str, Any]) -> str:
    """Return the name that a stored queue is served under. Rows of older stores say the whole name
    of a queue of the broker's own, however long it is.
    """
    name: str = definition["name"]
    kind = kind_of(definition)
    prefix = f"amq.{kind}."
    return own_name(kind, name.removeprefix(prefix)) if name.startswith(prefix) else name
