"""The history of a queue: copies of consumed messages, limited by time or number.

It is an extension: `x-history-length` and `x-history-ttl`. A message enters the history in the
store transaction that acks it, so after a crash it is either in the queue or in the history. The
history is a queue of the broker's own, and as durable as the queue that it belongs to.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from amqpstore import DiskFullError, Envelope, Message, Placement
from amqpstore_server.broker.messages.envelope import ParsedEnvelope
from amqpstore_server.broker.queues.backlog import Taken
from amqpstore_server.broker.queues.kinds import ConsumedQueue
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.rules.names import own_name
from amqpstore_server.broker.rules.settings import Settings
from amqpstore_server.broker.transactions.selected import PATIENCE, durable
from amqpstore_server.broker.transactions.transaction import Transaction
from amqpstore_server.protocol.content import decode_properties, edit_properties
from amqpstore_server.protocol.field_table import Int64

if TYPE_CHECKING:
    from amqpstore_server.broker.work.services import BrokerServices

_log = logging.getLogger(__name__)

_COPY_BYTES = 200
"""A generous estimate of what a copy takes besides the message."""

CONSUMED_AT = "x-consumed-at"
"""The header that says when a message was consumed, in ms since 1970."""


class QueueHistory:
    """Handles the messages consumed from one queue: `queue` keeps copies."""

    def __init__(self, services: BrokerServices, queue: ConsumedQueue) -> None:
        self.queue = queue
        self._services = services
        self._has_room = True
        self._last: tuple[Envelope, int, ParsedEnvelope] | None = None

    def consumed(self, queue: Queue, taken: Taken) -> None:
        """Ack a run that was taken off the queue, and add it to the history."""
        transaction = Transaction(self._services)
        transaction.consume(queue, taken)
        transaction.commit()

    def copies(
        self, consumed: Sequence[Message]
    ) -> Iterator[tuple[ParsedEnvelope, list[Message], Placement]]:
        """Yield the copies that go to the history, for messages that a transaction acks.

        Yields nothing while the disk is full: acks have to succeed then.
        """
        if self.queue.is_set_aside or not self._look_for_room(consumed):
            return
        now_ms = self._services.clock.wall_ms()
        for envelope, group in groupby(consumed, attrgetter("envelope")):
            parsed = self._envelope(envelope, now_ms)
            messages = [Message(parsed, message.body) for message in group]
            yield parsed, messages, self.queue.placement(parsed, messages, immediate=False)

    def _envelope(self, envelope: Envelope, now_ms: int) -> ParsedEnvelope:
        """Return the envelope of a copy. Consecutive copies often share one."""
        last = self._last
        if last is not None and last[0] is envelope and last[1] == now_ms:
            return last[2]
        raw = edit_properties(envelope.properties, headers={CONSUMED_AT: Int64(now_ms)})
        parsed = ParsedEnvelope(
            envelope.exchange, envelope.routing_key, raw, decode_properties(raw)
        )
        self._last = envelope, now_ms, parsed
        return parsed

    def _look_for_room(self, messages: Sequence[Message]) -> bool:
        had_room, self._has_room = self._has_room, True
        needed_bytes = sum([len(one.body) + len(one.envelope.head) for one in messages])
        needed_bytes += _COPY_BYTES * len(messages)
        try:
            self._services.store.check_writable(publishing=True, needed_bytes=needed_bytes)
        except DiskFullError as error:
            self._has_room = False
            if had_room:
                extra = {**self.queue.log_fields, "reason": str(error)}
                _log.warning("history is not kept while the disk is full", extra=extra)
        return self._has_room


class Histories:
    """The histories of one virtual host's `queues`. Args: create, creates a queue of that name."""

    def __init__(
        self,
        services: BrokerServices,
        queues: Mapping[str, Queue],
        create: Callable[[str, Queue], Queue],
    ) -> None:
        self._services = services
        self._queues = queues
        self._create = create

    def of(self, name: str) -> ConsumedQueue | None:
        """Return the history of a queue, by the queue's name; None if there is none."""
        kept = self._queues.get(own_name(ConsumedQueue.kind, name))
        return kept if isinstance(kept, ConsumedQueue) else None

    def arriving(self, kept: ConsumedQueue) -> Generator[None, None, None]:
        """Wait until what was acked in a queue before the call is in its history, `kept`, where it
        can be counted and read.

        Acked messages move there in later rounds, and are there once that is durable. If others do
        not get their turn in between, the messages move in the steps of this wait.
        """
        queue = kept.source()
        if queue is None:
            return
        end, patience = queue.pending_moves.added, PATIENCE
        while queue.pending_moves.gone < end:
            if patience:
                patience -= 1
            else:
                # Where others do not drive the loop, this waits for the disk by itself.
                self._services.flush()
                self._services.agenda.spent = 0
                self._services.moves.are_paused = False
                queue.pump()
            yield
        if kept.is_expecting:
            yield from durable(self._services)

    def apply(self, queue: Queue) -> None:
        """Give a queue the history that its settings ask for.

        Without such settings, existing copies stay until they expire.
        """
        if queue.kind:
            # The broker's own queues keep no history: a history of a history would never end.
            return
        settings = queue.settings
        kept: Queue | None = self.of(queue.name)
        if kept is None and settings.keeps_history:
            kept = self._create(own_name(ConsumedQueue.kind, queue.name), queue)
        queue.history = None
        if isinstance(kept, ConsumedQueue):
            kept.source = weakref.ref(queue)
            kept.apply(
                Settings(
                    max_length=settings.history_length,
                    message_ttl=settings.history_ttl,
                    queue_mode="lazy",
                )
            )
            if settings.keeps_history:
                queue.history = QueueHistory(self._services, kept)
