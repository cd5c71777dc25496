"""The envelope of a message: exchange, routing keys and the properties that the broker reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from amqpstore import Envelope
from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.messages.cycles import LANDMARK, LANDMARK_FIELD
from amqpstore_server.protocol.content import (
    BasicProperties,
    edit_properties,
    join_properties,
    split_properties,
)
from amqpstore_server.protocol.field_table import EMPTY_TABLE, without_first

_PERSISTENT = 2
"""The delivery-mode of persistent messages; any other value is transient."""

_MAX_EXPIRATION_MS = 1 << 52
KEY_HEADERS = ("CC", "BCC")
BLIND = b"\x03BCC"
"""Bytes that properties with the header BCC or a landmark contain, and few others."""

_HIDDEN = "BCC", LANDMARK


class ParsedEnvelope(Envelope):
    """A parsed envelope.

    `address` is the exchange and all routing keys: the message's own, then those of the headers CC
    and BCC. `expiration_ms` is what the publisher asked for, or None. Messages with equal `alike`
    can be handled together, except by exchanges that read properties. `prefix` is what precedes the
    properties in `head`.
    """

    __slots__ = ("address", "alike", "expiration_ms", "prefix", "priority")

    def __init__(
        self,
        exchange: str,
        routing_key: str,
        raw: bytes,
        properties: BasicProperties,
        more_keys: tuple[str, ...] = (),
    ) -> None:
        # delivery-mode missing means transient (basic properties, delivery-mode).
        persistent = properties.delivery_mode == _PERSISTENT
        super().__init__(exchange, routing_key, raw, persistent=persistent)
        self.address = exchange, (routing_key, *more_keys)
        self.expiration_ms = expiration_ms(properties.expiration)
        # A message without a priority counts as 0, as in RabbitMQ.
        self.priority = properties.priority or 0
        self.prefix = self.head[: len(self.head) - len(raw)]
        self.alike = persistent, self.expiration_ms, self.priority, more_keys

    def with_values(self, properties: bytes) -> ParsedEnvelope:
        """Return an envelope with other properties that the broker need not read: in what it does
        read they say the same.
        """
        other = ParsedEnvelope.__new__(ParsedEnvelope)
        other.exchange = self.exchange
        other.routing_key = self.routing_key
        other.properties = properties
        other.persistent = self.persistent
        if len(properties) == len(self.properties):
            other.prefix = self.prefix
            other.head = self.prefix + properties
        else:
            other.head = self.head_with(properties)
            other.prefix = other.head[: len(other.head) - len(properties)]
        other.address = self.address
        other.expiration_ms = self.expiration_ms
        other.priority = self.priority
        other.alike = self.alike
        return other


def parse_envelope(
    exchange: str, routing_key: str, raw: bytes, properties: BasicProperties
) -> ParsedEnvelope:
    """Parse the envelope of a published message whose properties are encoded in `raw`.

    Raises: PreconditionFailedError.
    """
    return ParsedEnvelope(
        exchange, routing_key, raw, properties, more_keys(properties.headers, KEY_HEADERS)
    )


def more_keys(headers: Mapping[str, Any] | None, names: Iterable[str]) -> tuple[str, ...]:
    """Return the routing keys in these headers, CC and BCC. Raises: PreconditionFailedError."""
    if not headers:
        return ()
    return tuple(key for name in names if name in headers for key in _keys(headers, name))


def published(raw: bytes, headers: Mapping[str, Any] | None) -> bytes:
    """Return the properties that a client publishes without a landmark: only the broker knows which
    deaths there have been. Args: headers, what is in them.
    """
    if not headers or LANDMARK not in headers:
        return raw
    # A client that sends it has copied it from somewhere, or wants to hide a cycle or to fake one.
    return edit_properties(raw, without_headers=(LANDMARK,))


def visible(raw: bytes) -> bytes:
    """Return the properties as consumers get them: without BCC, and without a landmark."""
    # The raw bytes are searched, as hardly any message has either header: nothing is decoded for
    # the others.
    if BLIND not in raw:
        return raw
    seen = _without_first_landmark(raw)
    return edit_properties(seen, without_headers=_HIDDEN) if BLIND in seen else seen


def _without_first_landmark(raw: bytes) -> bytes:
    """Return properties without the landmark if it is the first of the headers, as in all letters
    that this version writes. There may be thousands of headers, and consumers of thousands of
    letters: so it is cut out without a look at the others.
    """
    if LANDMARK_FIELD not in raw:
        return raw
    parts = split_properties(raw)
    # A client may have written one of another type, which stays for now.
    parts["headers"] = without_first(parts.get("headers", EMPTY_TABLE), LANDMARK_FIELD)
    return join_properties(parts)


def expiration_ms(expiration: str | None) -> int | None:
    """Parse the property `expiration`. Raises: PreconditionFailedError, if it is not a number."""
    if expiration is None:
        return None
    # `int` takes " 5", "+5" and "1_0" as well, and digits of other scripts.
    if not (expiration.isascii() and expiration.isdigit()) or (
        int(expiration) > _MAX_EXPIRATION_MS
    ):
        raise PreconditionFailedError(
            f"invalid expiration '{expiration}': not a number of ms from 0 to 2^52"
        )
    return int(expiration)


def _keys(headers: Mapping[str, Any], name: str) -> list[str]:
    """Raises: PreconditionFailedError."""
    value = headers[name]
    if not isinstance(value, list) or not all(isinstance(key, str) for key in value):
        raise PreconditionFailedError(
            f"unacceptable type in the header {name}: it must be an array of long strings"
        )
    if any(len(key.encode()) > 255 for key in value):
        raise PreconditionFailedError(f"a routing key in the header {name} has over 255 bytes")
    return value
