"""Messages that leave the queues in which exchanges keep them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from amqpstore import Message
from amqpstore.format.departures import Departure
from amqpstore_server.broker.exchanges.base import Destination, Exchange
from amqpstore_server.broker.exchanges.delayed import DELAY_HEADER, delay_ms
from amqpstore_server.broker.messages.deaths import Reason
from amqpstore_server.broker.messages.envelope import parse_envelope
from amqpstore_server.broker.queues.backlog import Taken
from amqpstore_server.broker.queues.kinds import DelayQueue, RecentHistoryQueue
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.transactions.transaction import Plan, Transaction, move, plan
from amqpstore_server.protocol.content import decode_properties, edit_properties
from amqpstore_server.protocol.field_table import Int64

if TYPE_CHECKING:
    from amqpstore_server.broker.routing.routing import Router
    from amqpstore_server.broker.transactions.dead_letter import DeadLetters
    from amqpstore_server.broker.work.services import BrokerServices


class ExchangeQueues:
    """Moves messages out of the queues in which exchanges keep them."""

    def __init__(self, services: BrokerServices, router: Router, dead_letters: DeadLetters) -> None:
        self._services = services
        self._router = router
        self._dead_letters = dead_letters

    def release(self, queue: Queue, taken: Sequence[Taken], reason: Reason) -> bool:  # noqa: ARG002
        """Route messages whose delay is over. Returns False if the disk is full."""
        exchange = queue.exchange if isinstance(queue, DelayQueue) else None
        routed: list[int] = []

        def add(transaction: Transaction) -> None:
            for one in taken:
                transaction.ack(queue, one)
                if exchange is not None:
                    waited = self._services.store.stored.read_all(one.run)
                    routed.append(self._add_waited(transaction, exchange, waited))

        # The ack in the delay queue and the publishes are one: a delayed message is never in both
        # places, nor in none.
        if not move(self._services, queue, taken, add):
            return False
        queue.departures.note(Departure.RELEASED, sum(routed))
        unrouted = sum([one.run.count for one in taken]) - sum(routed)
        queue.departures.note(Departure.NO_ROUTE, unrouted)
        return True

    def _add_waited(
        self, transaction: Transaction, exchange: Exchange, waited: Iterable[Message]
    ) -> int:
        """Add to a transaction: messages that have waited go where they are routed. Returns how
        many go anywhere.
        """
        count = 0
        for envelope, group in groupby(waited, attrgetter("envelope")):
            properties = decode_properties(envelope.properties)
            # The negative sign tells consumers, and this exchange, that the message has waited.
            raw = edit_properties(
                envelope.properties, headers={DELAY_HEADER: Int64(-delay_ms(properties))}
            )
            parsed = parse_envelope(envelope.exchange, envelope.routing_key, raw, properties)
            messages = [Message(parsed, message.body) for message in group]
            # Routing starts from this exchange, wherever the message was published: an exchange
            # before it has routed it once already.
            route = self._router.route_from(exchange, parsed, decode_properties(raw))
            if route.queues:
                count += len(messages)
                self._send(transaction, plan(route, parsed, messages))
        return count

    def _send(self, transaction: Transaction, planned: Plan) -> None:
        """Put messages in queues; those that a queue refuses may become dead letters."""
        transaction.publish(planned)
        for queue, placement in zip(planned.queues, planned.placements, strict=True):
            if placement.most is None:
                continue
            refused = planned.messages[placement.most :]
            arrived = 0
            if queue.dead_letters_refused:
                arrived = self._dead_letters.add_refused(transaction, queue, refused)
            queue.departures.note(Departure.PUBLISH_REJECTED, len(refused), arrived)

    def bound(self, exchange: Exchange, destination: Destination) -> None:
        """Send the kept messages of an exchange to a queue that was just bound, or through an
        exchange.
        """
        history = exchange.own_queue
        if not isinstance(history, RecentHistoryQueue):
            return
        transaction = Transaction(self._services)
        for envelope, group in groupby(history.messages(), attrgetter("envelope")):
            properties = decode_properties(envelope.properties)
            parsed = parse_envelope(
                envelope.exchange, envelope.routing_key, envelope.properties, properties
            )
            messages = [Message(parsed, message.body) for message in group]
            if isinstance(destination, Queue):
                # What a binding brings has no publisher to be refused to.
                placement = destination.unlimited_placement(parsed)
                transaction.add(destination, parsed, messages, placement)
            elif isinstance(destination, Exchange):
                route = self._router.route_from(destination, parsed, properties)
                if route.queues:
                    self._send(transaction, plan(route, parsed, messages))
        # One transaction for all of it: a queue that is bound gets the whole history or, after a
        # crash, none of it.
        transaction.commit()
