"""The history of a queue: copies of received messages, limited by time or number.

A copy enters the history in the transaction that acks the message, so that after any crash the
message is in exactly one of the two. The history is a queue of its own, beside the other. Copies
beyond the limits are removed, oldest first, when the next is added.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from typing import NamedTuple

from amqpstore.errors import DiskFullError, MessageDamagedError, ReadLaterError
from amqpstore.format.message import Envelope, Message
from amqpstore.format.runs import Run
from amqpstore.prepared import Publish
from amqpstore.queues.queue import Placement, Queue
from amqpstore.shared.locked_store import LockedStore
from amqpstore.store import Store

_log = logging.getLogger(__name__)

_CONSUMED_AT = struct.Struct(">Q")
"""The time at which a copy was consumed, before its properties (FORMAT.md, "The queues of a
library").
"""

_AT_ONCE = 256
"""How many messages are read under the lock at a time, about 1 MiB at most."""


class HistoryLimits(NamedTuple):
    """The limits of a queue's history: messages, and ms for each; None means no limit.

    If both are None there is no history.
    """

    history_length: int | None = None
    history_ttl_ms: int | None = None

    def __str__(self) -> str:
        length, ttl_ms = self
        parts = [] if length is None else [f"of up to {length} messages"]
        parts += [] if ttl_ms is None else [f"of {ttl_ms} ms"]
        return f"a history {' and '.join(parts)}" if parts else "no history"


class Consumed(NamedTuple):
    """A message that was received; its transaction was committed at `consumed_at_ms` since 1970."""

    message: Message
    consumed_at_ms: int


class History:
    """The history of one queue. Args: queue, which has the copies."""

    def __init__(self, queue: Queue, limits: HistoryLimits) -> None:
        self.queue = queue
        self._limits = limits

    def copies(self, store: Store, runs: list[Run], now_ms: int) -> list[Publish]:
        """Return what a transaction that acks these runs has to publish as well.

        Nothing on a full disk: receiving has to free space then, and leaves no copy.
        """
        envelopes: dict[int, Envelope] = {}
        messages = []
        for run in runs:
            for message in store.stored.read(run):
                envelope = envelopes.get(id(message.envelope))
                if envelope is None:
                    envelope = _copy_envelope(message.envelope, now_ms)
                    envelopes[id(message.envelope)] = envelope
                messages.append(Message(envelope, message.body))
        ttl_ms = self._limits.history_ttl_ms
        placements = [Placement(self.queue, 0 if ttl_ms is None else now_ms + ttl_ms)]
        if not messages:
            return []
        # A transaction that frees space must not fail because its copies need some.
        copies = Publish.of(placements, messages)
        try:
            store.check_writable(publishing=True, needed_bytes=copies.needed_bytes())
        except DiskFullError as error:
            _log.warning("no history is kept of this queue: %s", error)
            return []
        return [copies]

    def trim(self, store: Store, now_ms: int) -> None:
        """Remove copies that are too old, or too many."""
        queue = self.queue
        if queue.deleted:
            return
        while expired := store.withdrawals.withdraw_expired(queue, now_ms, bodies=False):
            if isinstance(expired, ReadLaterError):
                break
            if isinstance(expired, Run):
                store.ack(queue, expired)
        most = self._limits.history_length
        while most is not None and (excess := queue.ready_count - most) > 0:
            paged = queue.is_head_paged
            first = queue.paged[0].first if paged else queue.ready.first.first_sequence
            try:
                runs = store.withdrawals.withdraw_range(queue, first, excess)
            except ReadLaterError as error:
                _log.warning("the history of a queue exceeds its limit: %s", error)
                return
            for run in runs:
                store.ack(queue, run)

    def browse(
        self, locked_store: LockedStore, first_ms: int, last_ms: int | None
    ) -> Iterator[Consumed]:
        """Yield what was consumed from `first_ms` to `last_ms`, both included; oldest first.

        It is read as it is requested: later additions and removals may be seen or not.
        Raises: ReadLaterError.
        """
        sequence = 1
        while True:
            with locked_store.working() as store:
                # Expired copies are gone by now, also if nothing was received since.
                self.trim(store, store.clock.wall_ms())
                read = None if self.queue.deleted else self._read(store, sequence)
                if read is None:
                    return
            run, messages = read
            # The lock is not held while the caller has the messages: hours may pass between two
            # steps.
            sequence = run.end
            for message in messages:
                consumed = _consumed(message)
                at_ms = consumed.consumed_at_ms
                if first_ms <= at_ms and (last_ms is None or at_ms <= last_ms):
                    yield consumed

    def _read(self, store: Store, sequence: int) -> tuple[Run, list[Message]] | None:
        """Return some messages from a sequence on, and leave them there."""
        queue = self.queue
        while found := store.withdrawals.withdraw(queue, _AT_ONCE, first_sequence=sequence):
            if isinstance(found, ReadLaterError):
                raise found
            if isinstance(found, MessageDamagedError):
                continue
            messages = found.messages or []
            # They are on disk, as a copy is ready once it is durable.
            found.let_go()
            store.withdrawals.put_back(queue, found)
            return found, messages
        return None


def _copy_envelope(envelope: Envelope, now_ms: int) -> Envelope:
    properties = _CONSUMED_AT.pack(now_ms) + envelope.properties
    return Envelope(envelope.exchange, envelope.routing_key, properties)


def _consumed(message: Message) -> Consumed:
    envelope = message.envelope
    (at_ms,) = _CONSUMED_AT.unpack_from(envelope.properties)
    properties = envelope.properties[_CONSUMED_AT.size :]
    original = Envelope(envelope.exchange, envelope.routing_key, properties)
    return Consumed(Message(original, message.body), at_ms)
