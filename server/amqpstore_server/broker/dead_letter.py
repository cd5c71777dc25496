"""Dead letters: what leaves a queue without a consumer, and where it goes instead.

The headers are those that RabbitMQ writes: x-death, the newest first, one entry for each queue
and reason with a count; x-first-death-* and x-last-death-* beside it. Each move is a transaction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeGuard

from amqpstore import Envelope, Message
from amqpstore_server.broker.core import Core
from amqpstore_server.broker.label import Label, more_keys
from amqpstore_server.broker.queue import Queue, Reason, Taken
from amqpstore_server.broker.routing import Route, Router
from amqpstore_server.broker.transaction import Plan, Transaction, move
from amqpstore_server.protocol.content import BasicProperties, decode_properties, edit_properties
from amqpstore_server.protocol.field_table import Int64, Timestamp

_MOST_COUNT = (1 << 63) - 1

MAX_DEATHS = 100
"""Entries of x-death: consumers that publish a message again have to get them into a field table,
and each move on a long way costs what they are."""

LANDMARK = "x-death-landmark"
"""A header of messages that have died more often than x-death says: see `_landmark`."""


class DeadLetters:
    """The dead letters of one virtual host."""

    def __init__(self, core: Core, router: Router) -> None:
        self._core = core
        self._router = router

    def bury(self, queue: Queue, taken: Sequence[Taken], reason: Reason) -> bool:
        """Send messages that were taken off a queue where its dead letters go, or drop them.

        Returns False where the disk is full: they are where they were.
        """
        return move(
            self._core,
            queue,
            taken,
            lambda transaction: self.add(transaction, queue, taken, reason),
        )

    def bury_refused(self, queue: Queue, messages: Sequence[Message]) -> None:
        """Send messages that a queue had no room for where its dead letters go."""
        transaction = Transaction(self._core)
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
                messages = self._core.store.read_all(one.run)
                self._add_messages(transaction, queue, messages, reason)

    def _add_messages(
        self, transaction: Transaction, queue: Queue, messages: Sequence[Message], reason: Reason
    ) -> None:
        exchange = queue.settings.dead_letter_exchange
        if exchange is None:
            return
        for envelope, group in groupby(messages, attrgetter("envelope")):
            label, deaths, landmark = self._label(queue, exchange, envelope, reason)
            route = self._router.route(label)
            targets = [
                target
                for target in route.queues
                if reason == Reason.REJECTED
                or not (_is_cycle(target.name, deaths) or target.name == landmark)
            ]
            letters = [Message(label, message.body) for message in group]
            if targets:
                transaction.publish(_placed(Route(targets), label, letters))

    def _label(
        self, queue: Queue, exchange: str, envelope: Envelope, reason: Reason
    ) -> tuple[Label, list[dict[str, Any]], str]:
        """The label of a dead letter, its deaths, and the queue that is its landmark."""
        properties = decode_properties(envelope.properties)
        shown_keys = (envelope.routing_key, *more_keys(properties, ["CC"]))
        deaths = _deaths(properties, queue.name, reason, envelope.exchange, shown_keys)
        key = queue.settings.dead_letter_routing_key
        unwanted = [] if key is None else ["CC", "BCC"]
        if not deaths[0].get("time"):
            deaths[0]["time"] = Timestamp(self._core.clock.wall_ms() // 1000)
        headers: dict[str, Any] = {"x-death": deaths[:MAX_DEATHS]}
        known = (properties.headers or {}).get(LANDMARK)
        landmark = _landmark(known, queue.name, reason, len(deaths))
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
        # Its expiration is gone: all else that a label reads is as it was.
        sent = dataclasses.replace(properties, expiration=None)
        name = landmark["queue"] if landmark else ""
        return Label(exchange, keys[0], raw, sent, keys[1:]), deaths[:MAX_DEATHS], name


def _placed(route: Route, label: Label, messages: list[Message]) -> Plan:
    """Dead letters are taken in by queues that are full too: there is nobody to refuse them to."""
    placements = [queue.place_for(label) for queue in route.queues]
    return Plan(label, messages, route.queues, placements, len(messages), len(messages))


def _deaths(
    properties: BasicProperties,
    queue: str,
    reason: Reason,
    exchange: str,
    keys: tuple[str, ...],
) -> list[dict[str, Any]]:
    """The header x-death with one death more, which is its first entry."""
    known = (properties.headers or {}).get("x-death")
    before: list[dict[str, Any]] = []
    if isinstance(known, list):
        # Whatever else a client put there is none of ours.
        before = _merged([dict(death) for death in known if isinstance(death, Mapping)])
    same = [one for one in before if _is(one, "queue", queue) and _is(one, "reason", reason)]
    others = [
        one for one in before if not (_is(one, "queue", queue) and _is(one, "reason", reason))
    ]
    for death in others:
        # RabbitMQ's are 64 bits wide. What a client put there under another type stays as it is.
        if type(count := death.get("count")) is int:
            death["count"] = Int64(count)
    if same:
        death = same[0]
        count = death.get("count")
        # A client may have put any number there, a timestamp of 64 bits without a sign too.
        death["count"] = Int64(min(max(count, 0) + 1, _MOST_COUNT) if _is_number(count) else 1)
    else:
        death = {
            "count": Int64(1),
            "reason": reason,
            "queue": queue,
            "time": None,
            "exchange": exchange,
            "routing-keys": list(keys),
        }
        if properties.expiration is not None:
            death["original-expiration"] = properties.expiration
    return [death, *others]


def _merged(deaths: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The deaths with one entry for each queue and reason, as the first of them has it.

    Where that has no count it is how many there are: there are brokers that write an entry for each
    death. What a client made up stays as it is.
    """
    kinds: dict[object, list[dict[str, Any]]] = {}
    for place, death in enumerate(deaths):
        kind = death.get("queue"), death.get("reason")
        is_ours = all(isinstance(part, str) for part in kind)
        kinds.setdefault(kind if is_ours else place, []).append(death)
    return [
        {"count": Int64(len(alike)), **alike[0]} if isinstance(kind, tuple) else alike[0]
        for kind, alike in kinds.items()
    ]


def _landmark(known: Any, queue: str, reason: Reason, count: int) -> dict[str, Any] | None:
    """One queue that a message was in, and how often it has moved: by it a cycle of any number of
    queues is noticed, though x-death has forgotten where it began. None while x-death says all.

    It is Brent's way: the landmark is the queue that the message left last when its moves were a
    power of two. So it comes to lie on the cycle, and far enough ahead that the message is there
    again before the next one: that takes three times round at most, and no list of queues.
    Args: known, the header as it came; count, of deaths, the one that is just added among them.
    """
    if reason == Reason.REJECTED:
        return None  # a cycle with a rejection in it may go on
    if (
        isinstance(known, Mapping)
        and isinstance(known.get("queue"), str)
        and _is_number(moves := known.get("moves"))
        and 0 < moves < _MOST_COUNT
    ):
        moves += 1
        if moves & (moves - 1):
            return {"queue": known["queue"], "moves": Int64(moves)}
    elif count <= MAX_DEATHS:
        return None
    else:
        moves = count
    return {"queue": queue, "moves": Int64(moves)}


def _is_cycle(queue: str, deaths: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a message has been in a queue before and nobody rejected it since."""
    for death in deaths:
        if _is(death, "reason", Reason.REJECTED):
            return False
        if _is(death, "queue", queue):
            return True
    return False


def _is(death: Mapping[str, Any], field: str, text: str) -> bool:
    """Whether a field is this text, whatever a client put there."""
    value = death.get(field)
    return isinstance(value, str) and value == text


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
