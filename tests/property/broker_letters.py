"""Properties of messages in the model: what consumers see of them, and how dead-lettering changes
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from amqpstore import Message
from amqpstore_server.broker.messages.envelope import ParsedEnvelope, parse_envelope, visible
from amqpstore_server.protocol.content import BasicProperties, decode_properties, encode_properties

REJECTED = "rejected"
EXPIRED = "expired"
MAXLEN = "maxlen"
DELIVERY_LIMIT = "delivery_limit"


@dataclass(frozen=True)
class Letter:
    """A message as it is in a queue; a copy in another queue is the same letter."""

    exchange: str
    key: str
    body: bytes
    persistent: bool = False
    priority: int | None = None
    expiration: str | None = None
    headers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that the letter is routed by: its routing key, and those in the headers CC and
        BCC.
        """
        return (self.key, *self.headers.get("CC", ()), *self.headers.get("BCC", ()))

    def without(self, *headers: str) -> Letter:
        """Return the letter without some of its headers."""
        kept = {name: value for name, value in self.headers.items() if name not in headers}
        return replace(self, headers=kept)

    def with_header(self, name: str, value: Any) -> Letter:
        """Return the letter with one header more."""
        return replace(self, headers={**self.headers, name: value})


def shown(letter: Letter) -> Letter:
    """Return a letter as consumers see it, without BCC."""
    return letter.without("BCC")


def dead(
    letter: Letter, queue: str, reason: str, exchange: str, key: str | None, now_ms: int
) -> Letter:
    """Return a letter as it is when it has left a queue for the exchange of its dead letters.

    The header x-death has an entry for each queue and reason, the latest first, that counts. The
    first and the last death are in headers of their own. A dead letter does not expire any more as
    its publisher wished, and says so in its first entry. It goes on by its own keys, or else by
    `key` alone.
    """
    deaths = [dict(death) for death in letter.headers.get("x-death", ())]
    known = [one for one in deaths if (one["queue"], one["reason"]) == (queue, reason)]
    others = [one for one in deaths if one not in known]
    if known:
        death = {**known[0], "count": known[0]["count"] + 1}
    else:
        death = {
            "count": 1,
            "reason": reason,
            "queue": queue,
            "time": now_ms // 1000,
            "exchange": letter.exchange,
            "routing-keys": [letter.key, *letter.headers.get("CC", ())],
        }
        if letter.expiration is not None:
            death["original-expiration"] = letter.expiration
    headers = {**letter.headers, "x-death": [death, *others]}
    for what, value in (("reason", reason), ("queue", queue), ("exchange", letter.exchange)):
        headers.setdefault(f"x-first-death-{what}", value)
        headers[f"x-last-death-{what}"] = value
    changed = replace(letter, exchange=exchange, headers=headers, expiration=None)
    return changed if key is None else replace(changed.without("CC", "BCC"), key=key)


def is_in_a_circle(letter: Letter, queue: str) -> bool:
    """Tell whether a dead letter was in `queue` before, and was not rejected since."""
    for death in letter.headers.get("x-death", ()):
        if death["reason"] == REJECTED:
            return False
        if death["queue"] == queue:
            return True
    return False


# What the broker has for it.


def label_of(letter: Letter) -> ParsedEnvelope:
    """The label that a front door makes of it."""
    properties = BasicProperties(
        headers=dict(letter.headers) or None,
        delivery_mode=2 if letter.persistent else None,
        priority=letter.priority,
        expiration=letter.expiration,
    )
    return parse_envelope(letter.exchange, letter.key, encode_properties(properties), properties)


def letter_of(message: Message) -> Letter:
    """Return what a front door shows of a message."""
    envelope = message.envelope
    properties = decode_properties(visible(envelope.properties))
    return Letter(
        envelope.exchange,
        envelope.routing_key,
        message.body,
        persistent=properties.delivery_mode == 2,
        priority=properties.priority,
        expiration=properties.expiration,
        headers=properties.headers or {},
    )
