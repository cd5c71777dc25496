"""The consistent-hash exchange (RabbitMQ's `x-consistent-hash`): equal keys go to one destination.

The hash is of the routing key, unless the exchange was declared with argument `hash-header`, which
names a header, or `hash-property`, which names one of the properties message_id, correlation_id and
timestamp. A message without that header or property is hashed as if it were empty. The binding key
is a weight, a number from 1 up: a destination of weight 2 gets twice the share of one of weight 1.
The weights of several bindings of one destination add up.

The hash picks a slot of a ring, and the slot belongs to the destination with the best score for it
(weighted rendezvous hashing). A score depends only on the slot, the destination's name and its
weight. So a new destination takes over only the slots that become its own, a removed one leaves
only its own to the others, and all slots are the same after a restart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.exchanges.base import Binding, Destination, Exchange
from amqpstore_server.protocol.content import BasicProperties

_HEADER_ARGUMENT = "hash-header"
_PROPERTY_ARGUMENT = "hash-property"
_PROPERTIES = ("message_id", "correlation_id", "timestamp")

_MAX_WEIGHT = 1_000_000
"""The largest weight of a binding. Weights cost nothing here, but a number of any length would take
time to read and store.
"""

_SLOTS = 1 << 16
"""With 10 destinations of equal weight, their shares differ by 1 or 2%."""


class ConsistentHashExchange(Exchange):
    """Routes to one destination, chosen by a hash."""

    type = "x-consistent-hash"
    reads_arguments = (_HEADER_ARGUMENT, _PROPERTY_ARGUMENT)

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self._header = _text_argument(self.arguments, _HEADER_ARGUMENT)
        self._property = _text_argument(self.arguments, _PROPERTY_ARGUMENT)
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
        """Owners by slot, for slots that were looked up since the shares last changed."""

    def route(self, routing_key: str, properties: BasicProperties) -> Iterable[Destination]:
        if not self._shares:
            return ()
        slot = _hash(self._hashed(routing_key, properties)) % _SLOTS
        owner = self._owners.get(slot)
        if owner is None:
            owner = self._owners[slot] = self._find_owner(slot)
        return (owner,)

    def why(self, binding: Binding, routing_key: str, properties: BasicProperties) -> str:
        slot = _hash(self._hashed(routing_key, properties)) % _SLOTS
        what = "the routing key"
        if self._header is not None:
            what = f"the header {self._header!r}"
        elif self._property is not None:
            what = f"the property {self._property}"
        share = self._shares[binding.destination]
        total = sum(one.weight for one in self._shares.values())
        return (
            f"the hash of {what} falls on slot {slot} of {_SLOTS}, which it owns; its weight is "
            f"{share.weight} of {total}"
        )

    def _add(self, binding: Binding) -> None:
        weight = _weight(binding)
        share = self._shares.get(binding.destination)
        if share is None:
            share = self._shares[binding.destination] = _Share(binding.destination)
        share.weight += weight
        # All owners are forgotten: each slot's owner may be the new destination.
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
        # Numbers, tables and arrays are hashed by their text, which differs for each value.
        return repr(value).encode()

    def _find_owner(self, slot: int) -> Destination:
        # The number is hashed once more: neighbouring slots would otherwise have related scores.
        number = _hash(slot.to_bytes(2))
        return min(self._shares.values(), key=lambda share: share.score(number)).destination


class _Share:
    """The share of the ring that a destination gets."""

    __slots__ = ("_seed", "destination", "weight")

    def __init__(self, destination: Destination) -> None:
        kind = "exchange" if isinstance(destination, Exchange) else "queue"
        # A queue and an exchange may have one name.
        self._seed = _hash(f"{kind} {destination.name}".encode())
        self.destination = destination
        self.weight = 0

    def score(self, number: int) -> float:
        """Return the score for the slot with this random number; the lowest score wins.

        Scores are exponentially distributed with the weight as their rate, so each destination has
        the lowest with a probability in proportion to its weight.
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
    # The length is checked before the conversion: RabbitMQ had a denial of service by keys of 255
    # digits, which are not weights.
    if key.isascii() and key.isdigit() and len(key) <= len(str(_MAX_WEIGHT)):
        weight = int(key)
        if 1 <= weight <= _MAX_WEIGHT:
            return weight
    raise PreconditionFailedError(
        f"invalid binding key '{key}' for an x-consistent-hash exchange; expected a weight from 1 "
        f"to {_MAX_WEIGHT}"
    )


def _hash(value: bytes) -> int:
    """Return 64 bits that are the same in every process."""
    # Python's `hash` would not do: it is another in each process, and after a restart keys would
    # move to other queues.
    return int.from_bytes(blake2b(value, digest_size=8).digest())


def _mix(number: int) -> int:
    """Mix 64 bits so that each output bit depends on every input bit (SplitMix64's finalizer)."""
    number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    number = ((number ^ number >> 27) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return number ^ number >> 31
