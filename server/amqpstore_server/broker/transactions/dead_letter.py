"""Dead letters: what leaves a queue without a consumer, and where it goes instead.

The headers are those that RabbitMQ writes: x-death, the newest first, one entry for each queue
and reason with a count; x-first-death-* and x-last-death-* beside it. Each move is a transaction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from amqpstore import Envelope, Message
from amqpstore_server.broker.context import BrokerContext
from amqpstore_server.broker.messages.deaths import (
    LANDMARK,
    Reason,
    deaths_of,
    is_cycle,
    landmark_of,
    newest,
)
from amqpstore_server.broker.messages.envelope import ParsedEnvelope, more_keys
from amqpstore_server.broker.queues.backlog import Taken
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.routing import Route, Router
from amqpstore_server.broker.transactions.transaction import Plan, Transaction, move
from amqpstore_server.protocol.content import decode_properties, edit_properties
from amqpstore_server.protocol.field_table import Timestamp


class DeadLetters:
    """The dead letters of one virtual host."""

    def __init__(self, context: BrokerContext, router: Router) -> None:
        self._context = context
        self._router = router

    def bury(self, queue: Queue, taken: Sequence[Taken], reason: Reason) -> bool:
        """Send messages that were taken off a queue where its dead letters go, or drop them.

        Returns False where the disk is full: they are where they were.
        """
        return move(
            self._context,
            queue,
            taken,
            lambda transaction: self.add(transaction, queue, taken, reason),
        )

    def bury_refused(self, queue: Queue, messages: Sequence[Message]) -> None:
        """Send messages that a queue had no room for where its dead letters go."""
        transaction = Transaction(self._context)
        self.add_refused(transaction, queue, messages)
        transaction.commit()

    def add_refused(
        self, transaction: Transaction, queue: Queue, messages: Sequence[Message]
    ) -> None:
        """Have messages that a queue had no room for go where its dead letters go."""
        self._add_messages(transaction, queue, messages, Reason.MAXLEN)

    def add(
        self, transaction: Transaction, queue: Queue, taken: Sequence[Taken], reason: Reason
    ) -> None:
        """Have messages that were taken off a queue leave it with a transaction.

        Raises: ReadLaterError, MessageDamagedError (one has to be read back and cannot be).
        """
        for one in taken:
            transaction.ack(queue, one)
            if queue.settings.dead_letter_exchange is not None:
                messages = self._context.store.read_all(one.run)
                self._add_messages(transaction, queue, messages, reason)

    def _add_messages(
        self, transaction: Transaction, queue: Queue, messages: Sequence[Message], reason: Reason
    ) -> None:
        exchange = queue.settings.dead_letter_exchange
        if exchange is None:
            return
        for envelope, group in groupby(messages, attrgetter("envelope")):
            parsed, deaths, landmark = self._envelope(queue, exchange, envelope, reason)
            route = self._router.route(parsed)
            targets = [
                target
                for target in route.queues
                if reason == Reason.REJECTED
                or not (is_cycle(target.name, deaths) or target.name == landmark)
            ]
            letters = [Message(parsed, message.body) for message in group]
            if targets:
                transaction.publish(_placed(Route(targets), parsed, letters))

    def _envelope(
        self, queue: Queue, exchange: str, envelope: Envelope, reason: Reason
    ) -> tuple[ParsedEnvelope, list[dict[str, Any]], str]:
        """The envelope of a dead letter, its deaths, and the queue that is its landmark."""
        properties = decode_properties(envelope.properties)
        shown_keys = (envelope.routing_key, *more_keys(properties, ["CC"]))
        deaths = deaths_of(properties, queue.name, reason, envelope.exchange, shown_keys)
        key = queue.settings.dead_letter_routing_key
        unwanted = [] if key is None else ["CC", "BCC"]
        if not deaths[0].get("time"):
            deaths[0]["time"] = Timestamp(self._context.clock.wall_ms() // 1000)
        headers: dict[str, Any] = {"x-death": newest(deaths)}
        known = (properties.headers or {}).get(LANDMARK)
        landmark = landmark_of(known, queue.name, reason, len(deaths))
        if landmark:
            headers[LANDMARK] = landmark
        elif known is not None:
            unwanted.append(LANDMARK)
        for when in ("first", "last"):
            for what, value in (
                ("reason", reason),
                ("queue", queue.name),
                ("exchange", envelope.exchange),
            ):
                name = f"x-{when}-death-{what}"
                if when == "last" or name not in (properties.headers or {}):
                    headers[name] = value
        keys = (*shown_keys, *more_keys(properties, ["BCC"])) if key is None else (key,)
        raw = edit_properties(
            envelope.properties,
            headers=headers,
            without_headers=unwanted,
            expiration=None,
        )
        # Its expiration is gone: all else that an envelope reads is as it was.
        sent = dataclasses.replace(properties, expiration=None)
        name = landmark["queue"] if landmark else ""
        return ParsedEnvelope(exchange, keys[0], raw, sent, keys[1:]), newest(deaths), name


def _placed(route: Route, parsed: ParsedEnvelope, messages: list[Message]) -> Plan:
    """Dead letters are taken in by queues that are full too: there is nobody to refuse them to."""
    placements = [queue.place_for(parsed) for queue in route.queues]
    return Plan(parsed, messages, route.queues, placements, len(messages), len(messages))
