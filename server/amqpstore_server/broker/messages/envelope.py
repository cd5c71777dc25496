"""The envelope of a message, with what the broker has to know of its properties."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from amqpstore import Envelope
from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.protocol.content import BasicProperties, edit_properties

_PERSISTENT = 2
"""The delivery-mode of a message that must survive a restart; any other is transient."""

_MAX_EXPIRATION_MS = 1 << 52
_KEY_HEADERS = ("CC", "BCC")
_BLIND = b"\x03BCC"
"""What properties have in them that have the header BCC, and few others."""


class ParsedEnvelope(Envelope):
    """An envelope that was read.

    `address` is the exchange and all routing keys: the message's own, then those of the headers
    CC and BCC. `expiration_ms` is what the publisher asked for, or None. Messages whose
    envelopes are equal in `alike` can be handled in one go, but by exchanges that read properties.
    """

    __slots__ = ("address", "alike", "expiration_ms", "priority")

    def __init__(
        self,
        exchange: str,
        routing_key: str,
        raw: bytes,
        properties: BasicProperties,
        more_keys: tuple[str, ...] = (),
    ) -> None:
        persistent = properties.delivery_mode == _PERSISTENT
        super().__init__(exchange, routing_key, raw, persistent=persistent)
        self.address = exchange, (routing_key, *more_keys)
        self.expiration_ms = expiration_ms(properties.expiration)
        self.priority = properties.priority or 0
        self.alike = persistent, self.expiration_ms, self.priority, more_keys


def parse_envelope(
    exchange: str, routing_key: str, raw: bytes, properties: BasicProperties
) -> ParsedEnvelope:
    """The envelope of a message that is published with these properties, which `raw` encodes.

    Raises: PreconditionFailedError.
    """
    return ParsedEnvelope(
        exchange, routing_key, raw, properties, more_keys(properties, _KEY_HEADERS)
    )


def more_keys(properties: BasicProperties, names: Iterable[str]) -> tuple[str, ...]:
    """The routing keys of these headers, CC and BCC. Raises: PreconditionFailedError."""
    headers = properties.headers
    if not headers:
        return ()
    return tuple(key for name in names if name in headers for key in _keys(headers, name))


def visible(raw: bytes) -> bytes:
    """The properties as consumers get them: BCC is kept for routing, and shown to nobody."""
    return edit_properties(raw, without_headers=["BCC"]) if _BLIND in raw else raw


def expiration_ms(expiration: str | None) -> int | None:
    """The property `expiration` as number. Raises: PreconditionFailedError, where it is none."""
    if expiration is None:
        return None
    if not (expiration.isascii() and expiration.isdigit()) or (
        int(expiration) > _MAX_EXPIRATION_MS
    ):
        raise PreconditionFailedError(
            f"invalid expiration '{expiration}': not a number of ms from 0 to 2^52"
        )
    return int(expiration)


def _keys(headers: dict[str, Any], name: str) -> list[str]:
    """Raises: PreconditionFailedError."""
    value = headers[name]
    if not isinstance(value, list) or not all(isinstance(key, str) for key in value):
        raise PreconditionFailedError(
            f"unacceptable type in the header {name}: it must be an array of long strings"
        )
    if any(len(key.encode()) > 255 for key in value):
        raise PreconditionFailedError(f"a routing key in the header {name} has over 255 bytes")
    return value
