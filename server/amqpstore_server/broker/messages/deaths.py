"""The deaths of a message: headers that say which queues it left without being consumed, and why.

They are those of RabbitMQ: x-death, newest first, one entry with a count for each queue and reason,
and x-first-death-* and x-last-death-*. A client may publish them, too: their counts go on, but what
they say happened before the publish, makes no cycle (see `cycles`), and where a message had come
from it does not say any more once the message has died here in the same way.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeGuard

from amqpstore.format.departures import Departure
from amqpstore_server.protocol.field_table import (
    FieldValue,
    Int64,
    Timestamp,
    array_of,
    decode_value,
    encode_name,
    encode_value,
    split_array,
    table_of,
)


class Reason(enum.StrEnum):
    """The reason why a message leaves its queue without being consumed, as in the header
    x-death. Its `departure` is how the message has left then, if its dead letter arrives anywhere.
    """

    departure: Departure

    def __init__(self, value: str) -> None:
        self.departure = Departure[value.upper()]

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"


_MAX_COUNT = (1 << 63) - 1
_MAX_READ = 1024

DEATHS_FIELD = encode_name("x-death")
"""The name of the header, encoded."""


class Death(NamedTuple):
    """An entry of x-death. `queue` and `reason` are None in one that a client has written and that
    does not say them; `table` is the entry itself, encoded if this broker has written it.
    """

    queue: str | None
    reason: str | None
    table: bytes | dict[str, Any]

    def again(self, now_s: int) -> Death:
        """Return the entry after one more death of its kind."""
        table = self.table
        if isinstance(table, bytes):
            (count,) = _COUNT.unpack_from(table, _COUNT_OFFSET)
            more = _COUNT.pack(min(max(count, 0) + 1, _MAX_COUNT))
            end = _COUNT_OFFSET + _COUNT.size
            return self._replace(table=table[:_COUNT_OFFSET] + more + table[end:])
        # A client may have written any number, even a 64-bit unsigned timestamp.
        count = table.get("count")
        next_count = min(max(count, 0) + 1, _MAX_COUNT) if _is_number(count) else 1
        time = table.get("time") or Timestamp(now_s)
        return self._replace(table={**table, "count": Int64(next_count), "time": time})

    def published_by(self, exchange: str, keys: Sequence[str]) -> Death:
        """Return the entry with the exchange and the routing keys that the message was really
        published with: a client that had written it could have named any.
        """
        table = decode_value(self.table) if isinstance(self.table, bytes) else self.table
        assert isinstance(table, dict)  # an entry is one
        origin: dict[str, Any] = {"exchange": exchange, "routing-keys": list(keys)}
        return self._replace(table={**table, **origin})


def deaths_of(value: bytes | None) -> list[Death]:
    """Return the entries of the header x-death, one for each queue and reason. None is no header;
    anything but an array was written by a client, and is no deaths at all.
    """
    if value is None or value[:1] != b"A":
        return []
    # A client may have written any number, and each takes time.
    entries = split_array(value)[:_MAX_READ]
    deaths = [death for entry in entries if (death := _own(entry))]
    if len({(queue, reason) for queue, reason, _ in deaths}) == len(entries):
        return deaths
    return _foreign(entries)


def one_more_death(
    before: Sequence[Death],
    queue: str,
    reason: Reason,
    envelope: tuple[str, tuple[str, ...]],
    expiration: str | None,
    now_s: int,
) -> tuple[list[Death], int]:
    """Return the deaths with one more, as the first, and the place that its entry had before; that
    of a new one is behind all others.

    Args: envelope, the exchange that the message was published to, and its routing keys but those
    of BCC; expiration, its property; now_s, in seconds since 1970.
    """
    # By queue and reason, as RabbitMQ counts: a message that dies of its TTL and of a rejection in
    # one queue has two entries.
    for index, death in enumerate(before):
        if death.queue == queue and death.reason == reason:
            # The entry goes to the front: consumers and dead-letter tools look there for the last
            # death.
            return [death.again(now_s), *before[:index], *before[index + 1 :]], index
    parts = [_beginning(queue, reason), encode_value(Timestamp(now_s)), _ending(*envelope)]
    if expiration is not None:
        parts.append(_field("original-expiration", expiration))
    return [Death(queue, reason, table_of(*parts)), *before], len(before)


def encode_deaths(deaths: Sequence[Death]) -> bytes:
    """Return the header x-death."""
    return array_of([one if isinstance(one, bytes) else encode_value(one) for _, _, one in deaths])


@lru_cache(maxsize=256)
def first_and_last(
    queue: str, reason: Reason, exchange: str
) -> tuple[Mapping[bytes, bytes], Mapping[bytes, bytes]]:
    """Return the headers that say how a message died first, and how last, as if this were it."""
    values = (("reason", reason.value), ("queue", queue), ("exchange", exchange))
    first, last = (
        {encode_name(f"x-{when}-death-{what}"): encode_value(value) for what, value in values}
        for when in ("first", "last")
    )
    return first, last


# How this broker writes an entry: count (always 64 bits, as RabbitMQ's), reason, queue, time, and
# what else there is. So its kind can be read, and its count changed, where they stand.

_BEGINNING = b"F", b"\x05countl", b"\x06reasonS"
_COUNT = struct.Struct(">q")
_COUNT_NAME, _COUNT_OFFSET = slice(5, 12), 12
_REASON_NAME, _REASON_LENGTH, _REASON_OFFSET = slice(20, 28), slice(28, 32), 32


def _own(entry: bytes) -> Death | None:
    """Return an entry that this broker has written; None if it was not."""
    if (entry[:1], entry[_COUNT_NAME], entry[_REASON_NAME]) != _BEGINNING:
        return None
    reason_end = _REASON_OFFSET + int.from_bytes(entry[_REASON_LENGTH])
    index = reason_end + 11
    if entry[reason_end : reason_end + 7] != b"\x05queueS":
        return None
    queue_end = index + int.from_bytes(entry[reason_end + 7 : index])
    if entry[queue_end : queue_end + 6] != b"\x04timeT":
        return None
    try:
        return Death(
            entry[index:queue_end].decode(), entry[_REASON_OFFSET:reason_end].decode(), entry
        )
    except UnicodeDecodeError:
        return None


@lru_cache(maxsize=256)
def _beginning(queue: str, reason: Reason) -> bytes:
    return (
        b"\x05countl"
        + _COUNT.pack(1)
        + _field("reason", reason.value)
        + _field("queue", queue)
        + encode_name("time")
    )


@lru_cache(maxsize=256)
def _ending(exchange: str, keys: tuple[str, ...]) -> bytes:
    return _field("exchange", exchange) + _field("routing-keys", list(keys))


def _field(name: str, value: FieldValue) -> bytes:
    return encode_name(name) + encode_value(value)


def _foreign(entries: Sequence[bytes]) -> list[Death]:
    """Return entries that somebody else has written, with one for each queue and reason, in the
    place of its first entry.

    An entry without a count gets the number of its duplicates: some brokers write an entry for each
    death. Entries that are malformed stay as they are.
    """
    kinds: dict[object, list[dict[str, Any]]] = {}
    for index, entry in enumerate(entries):
        # A client may have written it, so any shape is possible, and nothing of it may raise.
        death = decode_value(entry)
        if not isinstance(death, dict):
            continue
        kind: object = death.get("queue"), death.get("reason")
        if not all(isinstance(death.get(part), str) for part in ("queue", "reason")):
            kind = index
        kinds.setdefault(kind, []).append(death)
    deaths = []
    for kind, alike in kinds.items():
        table = dict(alike[0])
        if isinstance(kind, tuple):
            table = {"count": Int64(len(alike)), **table}
        # RabbitMQ's counts are 64-bit integers. A value of another type is kept.
        if type(count := table.get("count")) is int:
            table["count"] = Int64(count)
        deaths.append(Death(_text(table.get("queue")), _text(table.get("reason")), table))
    return deaths


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
