"""The deaths of a message: the headers that say which queues it left without a consumer, and why.

They are those that RabbitMQ writes (x-death, the newest first, one entry for each queue and reason
with a count), and one more, by which a cycle is noticed that is longer than x-death.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from amqpstore_server.protocol.content import BasicProperties
from amqpstore_server.protocol.field_table import Int64


class Reason(enum.StrEnum):
    """Why a message leaves its queue without a consumer, as the header x-death has it."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"


_MAX_COUNT = (1 << 63) - 1

MAX_DEATHS = 100
"""Entries of x-death: consumers that publish a message again have to get them into a field table,
and each move on a long way costs what they are."""

LANDMARK = "x-death-landmark"
"""A header of messages that have died more often than x-death says: see `landmark_of`."""


def deaths_of(
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
        death["count"] = Int64(min(max(count, 0) + 1, _MAX_COUNT) if _is_number(count) else 1)
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


def newest(deaths: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As many deaths as the header x-death has."""
    return deaths[:MAX_DEATHS]


def landmark_of(known: Any, queue: str, reason: Reason, count: int) -> dict[str, Any] | None:
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
        and 0 < moves < _MAX_COUNT
    ):
        moves += 1
        if moves & (moves - 1):
            return {"queue": known["queue"], "moves": Int64(moves)}
    elif count <= MAX_DEATHS:
        return None
    else:
        moves = count
    return {"queue": queue, "moves": Int64(moves)}


def is_cycle(queue: str, deaths: Sequence[Mapping[str, Any]]) -> bool:
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
