"""The deaths of a message: headers that say which queues it left without being consumed, and why.

They are those of RabbitMQ (x-death, newest first, one entry with a count for each queue and
reason), and one more, which detects cycles that are longer than x-death.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from amqpstore_server.protocol.content import BasicProperties
from amqpstore_server.protocol.field_table import Int64


class Reason(enum.StrEnum):
    """The reason why a message leaves its queue without being consumed, as in the header
    x-death.
    """

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"


_MAX_COUNT = (1 << 63) - 1

LANDMARK = "x-death-landmark"
"""A header of messages that have died more often than x-death can say: see `landmark_of`."""


def deaths_of(
    properties: BasicProperties,
    queue: str,
    reason: Reason,
    exchange: str,
    keys: tuple[str, ...],
) -> list[dict[str, Any]]:
    """Return the header x-death with one more death, as its first entry."""
    known = (properties.headers or {}).get("x-death")
    before: list[dict[str, Any]] = []
    if isinstance(known, list):
        # Anything else was written by a client.
        before = _merged([dict(death) for death in known if isinstance(death, Mapping)])
    same = [one for one in before if _is(one, "queue", queue) and _is(one, "reason", reason)]
    others = [
        one for one in before if not (_is(one, "queue", queue) and _is(one, "reason", reason))
    ]
    for death in others:
        # RabbitMQ's counts are 64-bit integers. A value of another type, written by a client, is
        # kept.
        if type(count := death.get("count")) is int:
            death["count"] = Int64(count)
    if same:
        death = same[0]
        count = death.get("count")
        # A client may have written any number, even a 64-bit unsigned timestamp.
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
    """Return the deaths with one entry for each queue and reason, in the place of its first entry.

    An entry without a count gets the number of its duplicates: some brokers write an entry for each
    death. Entries that are malformed stay as they are.
    """
    kinds: dict[object, list[dict[str, Any]]] = {}
    for index, death in enumerate(deaths):
        kind = death.get("queue"), death.get("reason")
        is_ours = all(isinstance(part, str) for part in kind)
        kinds.setdefault(kind if is_ours else index, []).append(death)
    return [
        {"count": Int64(len(alike)), **alike[0]} if isinstance(kind, tuple) else alike[0]
        for kind, alike in kinds.items()
    ]


def landmark_of(
    known: Any, queue: str, reason: Reason, count: int, max_deaths: int
) -> dict[str, Any] | None:
    """Return the landmark: one queue that the message was in, and how many moves it had made then.
    It detects a cycle of any length, even when x-death has forgotten where the cycle began. None
    while x-death has all deaths.

    This is Brent's cycle detection: the landmark is the queue that the message left last when its
    number of moves was a power of two. So it comes to lie on the cycle, early enough that the
    message returns to it before the landmark moves: at most three times round, and no list of
    queues is needed.

    Args: known, the header as it arrived; count, of deaths, including the new one; max_deaths, the
    most entries of x-death.
    """
    if reason == Reason.REJECTED:
        return None  # a cycle that includes a rejection may go on
    if (
        isinstance(known, Mapping)
        and isinstance(known.get("queue"), str)
        and _is_number(moves := known.get("moves"))
        and 0 < moves < _MAX_COUNT
    ):
        moves += 1
        if moves & (moves - 1):
            return {"queue": known["queue"], "moves": Int64(moves)}
    elif count <= max_deaths:
        return None
    else:
        moves = count
    return {"queue": queue, "moves": Int64(moves)}


def is_cycle(queue: str, deaths: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether a message has been in a queue before without a rejection since."""
    for death in deaths:
        if _is(death, "reason", Reason.REJECTED):
            return False
        if _is(death, "queue", queue):
            return True
    return False


def _is(death: Mapping[str, Any], field: str, text: str) -> bool:
    """Tell whether a field is this text, whatever type a client wrote."""
    value = death.get(field)
    return isinstance(value, str) and value == text


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
