"""Queues that no client declares: an exchange's own, and those of direct replies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

import amqpstore
from amqpstore import DiskFullError, Message
from amqpstore_server.broker.exchanges.delayed import DELAY_HEADER, DelayedExchange, delay_ms
from amqpstore_server.broker.exchanges.recent_history import RecentHistoryExchange
from amqpstore_server.broker.faults import Contained
from amqpstore_server.broker.history import HISTORY_PREFIX, ConsumedQueue
from amqpstore_server.broker.label import Label, label
from amqpstore_server.broker.queue import Queue, Taken
from amqpstore_server.broker.settings import Settings
from amqpstore_server.broker.transaction import Plan, Transaction, move, plan
from amqpstore_server.protocol.content import decode_properties, edit_properties
from amqpstore_server.protocol.field_table import Int64

if TYPE_CHECKING:
    from amqpstore_server.broker.core import Core
    from amqpstore_server.broker.dead_letter import DeadLetters
    from amqpstore_server.broker.exchanges.base import Exchange
    from amqpstore_server.broker.routing import Router


REPLY_TO = "amq.rabbitmq.reply-to"
"""The name that a client consumes its direct replies from, and asks for them with."""


_SLICE_MS = 15 * 60 * 1000
"""Of time. What is due in one of them is in memory while it lasts, and nothing of the others."""


class DelayQueue(Queue):
    """What waits in a delayed exchange: each message expires when its delay is over.

    It has a level for each slice of time in which something is due, so that however much waits,
    only what is due soon is looked at. To purge it is to cancel all of it.
    """

    is_internal = True

    @property
    def is_plain(self) -> bool:
        return False

    @property
    def sends_on(self) -> bool:
        return True

    def _expires_ms(self, label: Label) -> int:
        return self._core.clock.wall_ms() + delay_ms(decode_properties(label.properties))

    def _level(self, label: Label, expires_ms: int) -> amqpstore.Queue:  # noqa: ARG002
        return self.levels.at(expires_ms // _SLICE_MS)

    def _expire(self, now_ms: int) -> None:
        for number, level in self.levels.ascending():
            if number * _SLICE_MS > now_ms:
                break
            if not self._expire_level(level, now_ms):
                return
            if not level.ready_count and (number + 1) * _SLICE_MS <= now_ms:
                # Not before what left it is durable elsewhere.
                self._core.when_durable(partial(self._end_slice, number, level))
        self._watch_expiry()

    def _watch_expiry(self) -> None:
        for _, level in self.levels.ascending():
            if due_ms := self._store.next_expiry(level):
                self._expiry.set_sooner(due_ms)
                return

    def _end_slice(self, number: int, level: amqpstore.Queue) -> None:
        # What cannot be read now may be read later.
        held = level.ready_count or level.quarantined.count or level.unreadable_count
        if not level.deleted and not held:
            with Contained(self), suppress(DiskFullError):
                # It stays until there is room on the disk, and something of it expires again.
                self.levels.remove(number)


class HistoryQueue(Queue):
    """The last messages of a recent-history exchange; for a publisher they are in no queue."""

    is_internal = True
    counts_as_route = False

    def _expires_ms(self, label: Label) -> int:  # noqa: ARG002 - history is history
        return 0

    def messages(self) -> list[Message]:
        """All of them, the oldest first. They stay."""
        return [message for part in self._store.browse(self.levels.lowest) for message in part]


class ReplyQueue(Queue):
    """A channel's direct replies on their way; for a publisher it is no queue."""

    counts_as_route = False


def held_queue_name(exchange: DelayedExchange | RecentHistoryExchange) -> str:
    """The name of an exchange's own queue, under which it can be purged and looked at."""
    kind = "delayed" if isinstance(exchange, DelayedExchange) else "history"
    return f"amq.{kind}.{exchange.name}"


def queue_type(name: str) -> type[Queue]:
    """The class of a queue that the store has, by its name."""
    if name.startswith("amq.delayed."):
        return DelayQueue
    if name.startswith("amq.history."):
        return HistoryQueue
    if name.startswith(HISTORY_PREFIX):
        return ConsumedQueue
    if name.startswith(f"{REPLY_TO}."):
        return ReplyQueue
    return Queue


def held_settings(exchange: DelayedExchange | RecentHistoryExchange) -> Settings:
    """Of the queue of an exchange. What waits long has no business in memory."""
    if isinstance(exchange, RecentHistoryExchange):
        return Settings(max_length=exchange.length)
    return Settings(queue_mode="lazy")


class HeldMessages:
    """What becomes of messages in the queues of exchanges."""

    def __init__(
        self,
        core: Core,
        router: Router,
        exchanges: Mapping[str, Exchange],
        dead_letters: DeadLetters,
    ) -> None:
        self._core = core
        self._router = router
        self._dead_letters = dead_letters
        self._exchanges = exchanges

    def release(self, queue: Queue, taken: Sequence[Taken]) -> bool:
        """Route messages whose delay is over. Returns False where the disk is full."""
        exchange = self._exchanges.get(queue.name.removeprefix("amq.delayed."))
        if not isinstance(exchange, DelayedExchange):
            exchange = None

        def add(transaction: Transaction) -> None:
            for one in taken:
                transaction.ack(queue, one)
                if exchange is not None:
                    waited = self._core.store.read_all(one.run)
                    self._add_waited(transaction, exchange, waited)

        return move(self._core, queue, taken, add)

    def _add_waited(
        self, transaction: Transaction, exchange: DelayedExchange, waited: Iterable[Message]
    ) -> None:
        for envelope, group in groupby(waited, attrgetter("envelope")):
            properties = decode_properties(envelope.properties)
            # The sign tells consumers, and this exchange, that it has waited.
            raw = edit_properties(
                envelope.properties, headers={DELAY_HEADER: Int64(-delay_ms(properties))}
            )
            its_label = label(envelope.exchange, envelope.routing_key, raw, properties)
            messages = [Message(its_label, message.body) for message in group]
            route = self._router.through(exchange, its_label, decode_properties(raw))
            if route.queues:
                self._send(transaction, plan(route, its_label, messages))

    def _send(self, transaction: Transaction, planned: Plan) -> None:
        """Put messages in queues; for those that refuse some, these may be dead letters."""
        transaction.publish(planned)
        for queue, placement in zip(planned.queues, planned.placements, strict=True):
            if queue.buries_refused and placement.most is not None:
                refused = planned.messages[placement.most :]
                self._dead_letters.add_refused(transaction, queue, refused)

    def send_history(self, exchange: RecentHistoryExchange, queue: Queue) -> None:
        """Send what an exchange remembers to a queue that was just bound."""
        held = exchange.held
        if not isinstance(held, HistoryQueue):
            return
        transaction = Transaction(self._core)
        for envelope, group in groupby(held.messages(), attrgetter("envelope")):
            properties = decode_properties(envelope.properties)
            its_label = label(
                envelope.exchange, envelope.routing_key, envelope.properties, properties
            )
            messages = [Message(its_label, message.body) for message in group]
            transaction.add(queue, its_label, messages, queue.place_for(its_label))
        transaction.commit()
