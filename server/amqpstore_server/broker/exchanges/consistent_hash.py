"""The consistent-hash exchange (RabbitMQ's `x-consistent-hash`): equal keys, one destination.

What is hashed is the routing key, or what the exchange was declared with: argument `hash-header`
names a header, `hash-property` one of the properties message_id, correlation_id and timestamp. A
message without it is hashed as if it had an empty one. The binding key is a weight, a number from
1 on: a destination of weight 2 gets twice the share of one of weight 1. The weights of several
bindings of one destination add up.

A hash picks a slot of a ring, and of all destinations the one with the best score for that slot
has it (weighted rendezvous hashing). A score depends on nothing but the slot, the destination's
name and its weight. So a destination that comes takes only slots that become its own, one that
goes leaves only its own to the others, and all slots are the same after a restart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.exchanges.base import Binding, Destination, Exchange
from amqpstore_server.protocol.content import BasicProperties

_PROPERTIES = ("message_id", "correlation_id", "timestamp")

_MAX_WEIGHT = 1_000_000
"""The largest weight of a binding. A weight costs nothing here, but an endless number would cost
time to read and store."""

_SLOTS = 1 << 16
"""With 10 destinations of equal weight, their shares differ by 1 or 2%."""


class ConsistentHashExchange(Exchange):
    """One destination, chosen by a hash."""

    type = "x-consistent-hash"

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self._header = _text_argument(self.arguments, "hash-header")
        self._property = _text_argument(self.arguments, "hash-property")
        if self._header is not None and self._property is not None:
            raise PreconditionFailedError(
                "an x-consistent-hash exchange takes hash-header or hash-property, not both"
            )
        if self._property is not None and self._property not in _PROPERTIES:
            raise PreconditionFailedError(
                f"invalid hash-property {self._property!r}; expected one of "
                f"{', '.join(_PROPERTIES)}"
            )
        reads_properties = self._header is not None or self._property is not None
        self.reads_properties = reads_properties
        self._shares: dict[Destination, _Share] = {}
        self._owners: dict[int, Destination] = {}
        """By slot, for those that were looked up since the shares last changed."""

    def route(self, routing_key: str, properties: BasicProperties) -> Iterable[Destination]:
        if not self._shares:
            return ()
        slot = _hash(self._hashed(routing_key, properties)) % _SLOTS
        owner = self._owners.get(slot)
        if owner is None:
            owner = self._owners[slot] = self._find_owner(slot)
        return (owner,)

    def _add(self, binding: Binding) -> None:
        weight = _weight(binding)
        share = self._shares.get(binding.destination)
        if share is None:
            share = self._shares[binding.destination] = _Share(binding.destination)
        share.weight += weight
        self._owners.clear()

    def _remove(self, binding: Binding) -> None:
        share = self._shares[binding.destination]
        share.weight -= _weight(binding)
        if not share.weight:
            del self._shares[binding.destination]
        self._owners.clear()

    def _hashed(self, routing_key: str, properties: BasicProperties) -> bytes:
        value: Any = routing_key
        if self._header is not None:
            value = (properties.headers or {}).get(self._header)
        elif self._property is not None:
            value = getattr(properties, self._property)
        if value is None:
            return b""
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, (bytes, bytearray)):
            return bytes(value)
        # A number, a table, an array: whatever a field can be has a text of its own.
        return repr(value).encode()

    def _find_owner(self, slot: int) -> Destination:
        number = _hash(slot.to_bytes(2))
        return min(self._shares.values(), key=lambda share: share.score(number)).destination


class _Share:
    """How much of the ring a destination gets."""

    __slots__ = ("_seed", "destination", "weight")

    def __init__(self, destination: Destination) -> None:
        kind = "exchange" if isinstance(destination, Exchange) else "queue"
        self._seed = _hash(f"{kind} {destination.name}".encode())
        self.destination = destination
        self.weight = 0

    def score(self, number: int) -> float:
        """For the slot with this random number; the lowest wins.

        These are exponentially distributed with the weight as their rate. Of such numbers each is
        the lowest with a probability that is in proportion to its rate.
        """
        mixed = _mix(self._seed ^ number)
        return -math.log((mixed + 0.5) / (1 << 64)) / self.weight


def _text_argument(arguments: dict[str, Any], name: str) -> str | None:
    """Raises: PreconditionFailedError."""
    value = arguments.get(name)
    if value is not None and not isinstance(value, str):
        raise PreconditionFailedError(f"invalid {name} {value!r}; expected a string")
    return value


def _weight(binding: Binding) -> int:
    """Raises: PreconditionFailedError."""
    key = binding.routing_key
    if key.isascii() and key.isdigit() and len(key) <= len(str(_MAX_WEIGHT)):
        weight = int(key)
        if 1 <= weight <= _MAX_WEIGHT:
            return weight
    raise PreconditionFailedError(
        f"invalid binding key '{key}' for an x-consistent-hash exchange; expected a weight from 1 "
        f"to {_MAX_WEIGHT}"
    )


def _hash(value: bytes) -> int:
    """64 bits, the same in every process."""
    return int.from_bytes(blake2b(value, digest_size=8).digest())


def _mix(number: int) -> int:
    """64 bits in, 64 out, each of which depends on all that went in (SplitMix64's finalizer)."""
    number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    number = ((number ^ number >> 27) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return number ^ number >> 31
