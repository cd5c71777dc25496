"""The messages of a drill: what is published, and how messages are named."""

from __future__ import annotations

from typing import NamedTuple

EXCHANGE = "amqpstore-drill"
"""The exchange of everything that a drill publishes to a store on a simulated disk."""


class Payload(NamedTuple):
    """The content of a publish. For a drill's messages the routing key is the message's name: no
    two have the same.
    """

    exchange: str
    routing_key: str
    properties: bytes
    body: bytes


def message_name(exchange: str, routing_key: str, message_id: int) -> str:
    """Return a message's name: messages that were in the store before the drill are named by id."""
    return routing_key if exchange == EXCHANGE else f"message {message_id}"
