"""Dead letters: messages that leave a queue without being consumed, and where they go instead.

The headers are those of RabbitMQ: x-death, newest first, one entry with a count for each queue and
reason; x-first-death-* and x-last-death-* beside it. Each move is a transaction.
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

    def dead_letter(self, queue: Queue, taken: Sequence[Taken], reason: Reason) -> bool:
        """Send messages that were taken off a queue to its dead-letter exchange, or drop them.

        Returns False if the disk is full: the messages are back in the queue.
        """
        if not queue.sends_on:
            # A full queue drops one for each that arrives, so this should be cheap.
            self._count(queue, taken, reason)
            for one in taken:
                self._context.store.ack(*one)
            return True
        return move(
            self._context,
            queue,
            taken,
            lambda transaction: self.add(transaction, queue, taken, reason),
        )

    def dead_letter_refused(self, queue: Queue, messages: Sequence[Message]) -> None:
        """Send messages that a full queue refused to its dead-letter exchange."""
        transaction = Transaction(self._context)
        self.add_refused(transaction, queue, messages)
        transaction.commit()

    def add_refused(
        self, transaction: Transaction, queue: Queue, messages: Sequence[Message]
    ) -> None:
        """Add to a transaction: messages that a full queue refused go to its dead-letter
        exchange.
        """
        self._context.dead_letters[Reason.MAXLEN, True] += len(messages)
        self.add_messages(transaction, queue, messages, Reason.MAXLEN)

    def add(
        self, transaction: Transaction, queue: Queue, taken: Sequence[Taken], reason: Reason
    ) -> None:
        """Add to a transaction: messages that were taken off a queue leave it as dead letters.

        Raises: ReadLaterError, MessageDamagedError (a body has to be read back and cannot be).
        """
        self._count(queue, taken, reason)
        for one in taken:
            transaction.ack(queue, one)
            if queue.settings.dead_letter_exchange is not None:
                messages = self._context.store.stored.read_all(one.run)
                self.add_messages(transaction, queue, messages, reason)

    def _count(self, queue: Queue, taken: Sequence[Taken], reason: Reason) -> None:
        if reason != Reason.REJECTED:  # those its channel has counted
            count = sum([one.run.count for one in taken])
            self._context.dead_letters[reason, queue.sends_on] += count

    def add_messages(
        self, transaction: Transaction, queue: Queue, messages: Sequence[Message], reason: Reason
    ) -> None:
        """Add to a transaction: messages that leave a queue become dead letters, if it has any."""
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
                transaction.publish(_unlimited_plan(Route(targets), parsed, letters))

    def _envelope(
        self, queue: Queue, exchange: str, envelope: Envelope, reason: Reason
    ) -> tuple[ParsedEnvelope, list[dict[str, Any]], str]:
        """Return the envelope of a dead letter, its deaths, and its landmark queue."""
        properties = decode_properties(envelope.properties)
        shown_keys = (envelope.routing_key, *more_keys(properties, ["CC"]))
        deaths = deaths_of(properties, queue.name, reason, envelope.exchange, shown_keys)
        key = queue.settings.dead_letter_routing_key
        unwanted = [] if key is None else ["CC", "BCC"]
        if not deaths[0].get("time"):
            deaths[0]["time"] = Timestamp(self._context.clock.wall_ms() // 1000)
        max_deaths = self._context.limits.max_deaths
        headers: dict[str, Any] = {"x-death": deaths[:max_deaths]}
        known = (properties.headers or {}).get(LANDMARK)
        landmark = landmark_of(known, queue.name, reason, len(deaths), max_deaths)
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
        # Only its expiration is removed: everything else that an envelope reads is unchanged.
        sent = dataclasses.replace(properties, expiration=None)
        name = landmark["queue"] if landmark else ""
        return ParsedEnvelope(exchange, keys[0], raw, sent, keys[1:]), deaths[:max_deaths], name


def _unlimited_plan(route: Route, parsed: ParsedEnvelope, messages: list[Message]) -> Plan:
    """Plan dead letters so that full queues accept them too: there is no publisher to refuse them
    to.
    """
    placements = [queue.unlimited_placement(parsed) for queue in route.queues]
    return Plan(parsed, messages, route.queues, placements, len(messages), len(messages))
