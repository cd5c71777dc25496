"""Messages in JSON, in the form of RabbitMQ's management API, and a few fields more."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from amqpstore import Message
from amqpstore_server.administration.tables import shown_properties
from amqpstore_server.administration.work import Work
from amqpstore_server.broker.messages.envelope import visible
from amqpstore_server.broker.queues.browsing import SeenMessage

_STEP_BYTES = 1 << 18
_STEP_MESSAGES = 128

_LONGEST_CHARACTER = 4


_NOTHING: dict[str, Any] = {
    "exchange": "",
    "routing_key": "",
    "properties": {},
    "payload": "",
    "payload_encoding": "string",
    "payload_bytes": 0,
    "truncated": True,
}
"""The fields of a message that cannot be read."""


def rendered(seen: Sequence[SeenMessage]) -> Work[list[dict[str, Any]]]:
    """Return the messages of a page, whose bodies are cut already."""
    rows = []
    size = 0
    for index, message in enumerate(seen, 1):
        row: dict[str, Any] = {
            "position": str(message.position),
            "state": "unacked" if message.is_unacked else "ready",
            "redelivered": message.delivery_count > 0,
            "delivery_count": message.delivery_count,
        }
        if message.expires_ms:
            row["expires_at"] = message.expires_ms
        if message.message is None:
            row |= _NOTHING
            row["error"] = "cannot be read: see the log of the broker"
        else:
            row |= _message_row(message.message, message.body_bytes)
            size += len(message.message.body) + len(message.message.envelope.properties)
        rows.append(row)
        if size >= _STEP_BYTES or not index % _STEP_MESSAGES:
            size = 0
            yield None
    return rows


def _message_row(message: Message, body_bytes: int) -> dict[str, Any]:
    """Return a message as JSON, which may have only the beginning of its body."""
    envelope, body = message.envelope, message.body
    is_cut = len(body) < body_bytes
    text = _text(body, is_cut=is_cut)
    return {
        "exchange": envelope.exchange,
        "routing_key": envelope.routing_key,
        "properties": shown_properties(visible(envelope.properties)),
        "payload": base64.b64encode(body).decode() if text is None else text,
        "payload_encoding": "base64" if text is None else "string",
        "payload_bytes": body_bytes,
        "truncated": is_cut,
    }


def _text(body: bytes, *, is_cut: bool) -> str | None:
    """Return the text in a body, without a character that is cut; None if it is not text."""
    for end in range(len(body), max(len(body) - _LONGEST_CHARACTER, -1), -1):
        try:
            return body[:end].decode()
        except UnicodeDecodeError:
            if not is_cut:
                return None
    return None
