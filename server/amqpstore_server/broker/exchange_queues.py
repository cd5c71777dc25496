"""What becomes of messages in the queues that exchanges keep them in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from amqpstore import Message
from amqpstore_server.broker.exchanges.delayed import DELAY_HEADER, delay_ms
from amqpstore_server.broker.kinds import DelayQueue, HistoryQueue
from amqpstore_server.broker.label import label
from amqpstore_server.broker.queue import Queue, Reason, Taken
from amqpstore_server.broker.transaction import Plan, Transaction, move, plan
from amqpstore_server.protocol.content import decode_properties, edit_properties
from amqpstore_server.protocol.field_table import Int64

if TYPE_CHECKING:
    from amqpstore_server.broker.core import Core
    from amqpstore_server.broker.dead_letter import DeadLetters
    from amqpstore_server.broker.exchanges.base import Exchange
    from amqpstore_server.broker.routing import Router


class ExchangeQueues:
    """What becomes of messages in the queues of exchanges."""

    def __init__(self, core: Core, router: Router, dead_letters: DeadLetters) -> None:
        self._core = core
        self._router = router
        self._dead_letters = dead_letters

    def release(self, queue: Queue, taken: Sequence[Taken], reason: Reason) -> bool:  # noqa: ARG002
        """Route messages whose delay is over. Returns False where the disk is full."""
        exchange = queue.exchange if isinstance(queue, DelayQueue) else None

        def add(transaction: Transaction) -> None:
            for one in taken:
                transaction.ack(queue, one)
                if exchange is not None:
                    waited = self._core.store.read_all(one.run)
                    self._add_waited(transaction, exchange, waited)

        return move(self._core, queue, taken, add)

    def _add_waited(
        self, transaction: Transaction, exchange: Exchange, waited: Iterable[Message]
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

    def bound(self, exchange: Exchange, queue: Queue) -> None:
        """Send the last messages of an exchange that keeps them to a queue that was just bound."""
        history = exchange.own_queue
        if not isinstance(history, HistoryQueue):
            return
        transaction = Transaction(self._core)
        for envelope, group in groupby(history.messages(), attrgetter("envelope")):
            properties = decode_properties(envelope.properties)
            its_label = label(
                envelope.exchange, envelope.routing_key, envelope.properties, properties
            )
            messages = [Message(its_label, message.body) for message in group]
            transaction.add(queue, its_label, messages, queue.place_for(its_label))
        transaction.commit()
