"""From published frames to messages: what the content properties demand is checked here, once."""

from __future__ import annotations

from collections.abc import Iterator

from amqpstore import Envelope, Message
from server.protocol.content import decode_properties
from server.protocol.errors import PreconditionFailed
from server.protocol.receiver import Publishes

PERSISTENT = 2
"""The delivery-mode of a message that must survive a restart; any other is transient."""

_CACHED_ENVELOPES = 1024


class Envelopes:
    """The envelopes of one connection's publishes, by exchange, routing key and properties.

    Args: user, who is logged in: the only user-id that a message may claim.
    """

    def __init__(self, user: str) -> None:
        self._user = user
        self._envelopes: dict[tuple[str, str, bytes], Envelope] = {}

    def messages(self, publishes: Publishes) -> Iterator[list[Message]]:
        """The messages, in order, in groups of which all are persistent or none is.

        Raises: PreconditionFailed, at the first that claims something it may not; the groups
        before it have been given out.
        """
        exchange = publishes.publish.exchange
        routing_key = publishes.publish.routing_key
        group: list[Message] = []
        header = None
        envelope: Envelope | None = None
        for next_header, body in zip(publishes.headers, publishes.bodies, strict=True):
            if next_header is not header:
                header = next_header
                properties = header.properties
                known = self._envelopes.get((exchange, routing_key, properties))
                try:
                    found = known or self._new(exchange, routing_key, properties)
                except PreconditionFailed:
                    if group:
                        yield group
                    raise
                if envelope is not None and found.persistent != envelope.persistent:
                    yield group
                    group = []
                envelope = found
            assert envelope is not None  # set by the first header
            group.append(Message(envelope, body))
        yield group

    def _new(self, exchange: str, routing_key: str, raw: bytes) -> Envelope:
        """Raises: PreconditionFailed (a wrong expiration or user-id), MalformedError."""
        properties = decode_properties(raw)
        expiration = properties.expiration
        if expiration is not None and not (expiration.isascii() and expiration.isdigit()):
            raise PreconditionFailed(f"invalid expiration '{expiration}': not a number of ms")
        if properties.user_id is not None and properties.user_id != self._user:
            raise PreconditionFailed(
                f"user_id property set to '{properties.user_id}' but authenticated user was "
                f"'{self._user}'"
            )
        persistent = properties.delivery_mode == PERSISTENT
        envelope = Envelope(exchange, routing_key, raw, persistent=persistent)
        if len(self._envelopes) >= _CACHED_ENVELOPES:
            self._envelopes.clear()
        self._envelopes[exchange, routing_key, raw] = envelope
        return envelope
