"""Messages: an envelope, which like messages share, and a body."""

from __future__ import annotations

import struct

HEAD = struct.Struct(">BBI")
"""Bytes of the exchange, of the routing key, of the content properties (FORMAT.md, MESSAGE)."""

MAX_NAME_BYTES = 255
MAX_PROPERTIES_BYTES = 1 << 30

_MAX_SHOWN_BYTES = 48


class Envelope:
    """Exchange, routing key and content properties of one or many messages.

    Neighbouring messages often repeat them byte for byte, so one Envelope serves a whole run and
    its encoded form is computed once.

    Args: exchange and routing key, at most 255 bytes of UTF-8 each; properties, raw bytes that the
    store keeps unchanged and never interprets, at most 1 GiB; persistent, whether the message must
    be in the log when its queue is durable. An envelope is equal to itself alone, as it is compared
    for each message: compare the messages, or its fields.
    Raises: ValueError, if one of them is too long, or not text that UTF-8 can encode; TypeError.
    """

    __slots__ = ("exchange", "head", "persistent", "properties", "routing_key")

    def __init__(
        self, exchange: str, routing_key: str, properties: bytes = b"", *, persistent: bool = True
    ) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.properties = properties
        self.persistent = persistent
        try:
            self.head = encode_head(exchange, routing_key, properties)
        except (AttributeError, TypeError):
            raise TypeError(
                "an envelope needs an exchange and a routing key of type str, and properties of "
                f"type bytes, not {exchange.__class__.__name__}, {routing_key.__class__.__name__} "
                f"and {properties.__class__.__name__}"
            ) from None

    def __repr__(self) -> str:
        persistent = "" if self.persistent else ", persistent=False"
        return (
            f"Envelope({self.exchange!r}, {self.routing_key!r}, "
            f"{_shown(self.properties)}{persistent})"
        )

    @classmethod
    def restored(cls, exchange: str, routing_key: str, properties: bytes, head: bytes) -> Envelope:
        """Return an envelope whose encoded form is known: what it was read from."""
        envelope = cls.__new__(cls)
        envelope.exchange = exchange
        envelope.routing_key = routing_key
        envelope.properties = properties
        envelope.persistent = True
        envelope.head = head
        return envelope

    def head_with(self, properties: bytes) -> bytes:
        """Return the encoded form of an envelope that differs in its properties alone."""
        head = self.head
        exchange_size, routing_key_size, _ = HEAD.unpack_from(head)
        names = head[HEAD.size : HEAD.size + exchange_size + routing_key_size]
        return HEAD.pack(exchange_size, routing_key_size, len(properties)) + names + properties


class Message:
    """One message: what was published, wherever it is now. Messages are equal if they have the same
    body, and envelopes with the same content.
    """

    __slots__ = ("body", "envelope")

    def __init__(self, envelope: Envelope, body: bytes) -> None:
        self.envelope = envelope
        self.body = body

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        ours, theirs = self.envelope, other.envelope
        return (
            self.body == other.body
            and ours.head == theirs.head
            and ours.persistent == theirs.persistent
        )

    def __hash__(self) -> int:
        return hash((self.envelope.head, self.body))

    def __repr__(self) -> str:
        return f"Message({self.envelope!r}, {_shown(self.body)})"


def _shown(content: bytes) -> str:
    """Return bytes as text for people: only the first of many."""
    try:
        if len(content) <= _MAX_SHOWN_BYTES:
            return repr(content)
        return f"<{len(content)} bytes: {content[:_MAX_SHOWN_BYTES]!r}...>"
    except TypeError:  # not bytes, which `publish` refuses
        return repr(content)


def encode_head(exchange: str, routing_key: str, properties: bytes) -> bytes:
    """Return the part of a MESSAGE record's payload that precedes the body."""
    exchange_bytes = exchange.encode()
    routing_key_bytes = routing_key.encode()
    if len(exchange_bytes) > MAX_NAME_BYTES or len(routing_key_bytes) > MAX_NAME_BYTES:
        raise ValueError(
            f"an exchange name and a routing key may have at most {MAX_NAME_BYTES} bytes each"
        )
    if len(properties) > MAX_PROPERTIES_BYTES:
        raise ValueError(f"properties may have at most {MAX_PROPERTIES_BYTES} bytes")
    sizes = HEAD.pack(len(exchange_bytes), len(routing_key_bytes), len(properties))
    return sizes + exchange_bytes + routing_key_bytes + properties
