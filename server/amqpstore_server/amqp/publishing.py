"""From published frames to messages: what the content properties demand is checked here, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from amqpstore import Message
from amqpstore_server.broker.errors import BrokerError
from amqpstore_server.broker.kinds import REPLY_TO
from amqpstore_server.broker.label import Label, label
from amqpstore_server.protocol.content import decode_properties, edit_properties
from amqpstore_server.protocol.errors import AmqpError, PreconditionFailed
from amqpstore_server.protocol.receiver import Publishes

_CACHED_LABELS = 1024
_CACHED_BYTES = 256 << 10
"""Of the properties that labels are remembered for."""


class Labels:
    """The labels of one connection's publishes, by exchange, routing key and properties.

    Args: user, who is logged in: the only user-id that a message may claim, but for a user of whom
    `may_impersonate` says otherwise.
    """

    def __init__(self, user: str, may_impersonate: Callable[[str], bool]) -> None:
        self._user = user
        self._may_impersonate = may_impersonate
        self._labels: dict[tuple[str, str, bytes, str], Label] = {}
        self._cached_bytes = 0

    def messages(
        self, publishes: Publishes, reply_to: str
    ) -> Iterator[tuple[Label, list[Message]]]:
        """The messages, in order, in groups whose labels are alike, with the label of the first.

        Args: reply_to, the address of the channel's direct replies; empty where it has none.
        Raises: PreconditionFailed, PreconditionFailedError, at the first message that claims
        something it may not; the groups before it have been given out.
        """
        exchange = publishes.publish.exchange
        routing_key = publishes.publish.routing_key
        group: list[Message] = []
        header = None
        first: Label | None = None
        current: Label | None = None
        for next_header, body in zip(publishes.headers, publishes.bodies, strict=True):
            if next_header is not header:
                header = next_header
                key = exchange, routing_key, header.properties, reply_to
                found = self._labels.get(key)
                if found is None:
                    try:
                        found = self._new(*key)
                    except (AmqpError, BrokerError):
                        if first is not None:
                            yield first, group
                        raise
                if first is None:
                    first = found
                elif found.alike != first.alike:
                    yield first, group
                    group = []
                    first = found
                current = found
            assert current is not None  # set by the first header
            group.append(Message(current, body))
        assert first is not None  # there is no event without a message
        yield first, group

    def _new(self, exchange: str, routing_key: str, raw: bytes, reply_to: str) -> Label:
        """Raises: PreconditionFailed (a wrong user-id or reply-to), PreconditionFailedError."""
        properties = decode_properties(raw)
        is_foreign = properties.user_id not in (None, self._user)
        if is_foreign and not self._may_impersonate(self._user):
            raise PreconditionFailed(
                f"user_id property set to '{properties.user_id}' but authenticated user was "
                f"'{self._user}'"
            )
        kept = raw
        if properties.reply_to == REPLY_TO:
            if not reply_to:
                raise PreconditionFailed("fast reply consumer does not exist")
            kept = edit_properties(raw, reply_to=reply_to)
        made = label(exchange, routing_key, kept, properties)
        if is_foreign:
            return made  # the next one is asked for again: the right to it may be taken away
        self._cached_bytes += len(raw)
        if len(self._labels) >= _CACHED_LABELS or self._cached_bytes > _CACHED_BYTES:
            self._labels.clear()
            self._cached_bytes = len(raw)
        self._labels[exchange, routing_key, raw, reply_to] = made
        return made
