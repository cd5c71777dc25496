"""Checks of published messages, made in the call: the log would only notice when it encodes the
batch.

A batch contains messages of many publishers, and one that cannot be encoded stops the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index

from amqpstore.message import MAX_PROPERTIES_BYTES, Message
from amqpstore.queue import Placement
from amqpstore.records import HEADER, OPERATION

MAX_PRIORITY = 255
MAX_MESSAGE_BYTES = (1 << 32) - 1
"""The largest payload of a MESSAGE: exchange, routing key, properties and body."""

_MAX_TIME_MS = (1 << 64) - 1


def check_messages(messages: Sequence[Message]) -> None:
    """Raises: ValueError, if a body is not bytes."""
    kinds = {message.body.__class__ for message in messages}
    if kinds != {bytes}:
        names = ", ".join(sorted(kind.__name__ for kind in kinds)) or "nothing"
        raise ValueError(f"a message to publish must have a body of type bytes, not {names}")


def publish_bytes(
    placements: Sequence[Placement], messages: Sequence[Message], priority: int, body_bytes: int
) -> int:
    """Return about how many bytes of the log a publish takes. Args: body_bytes, of all the
    messages.

    Raises: ValueError, if the log cannot hold it; TypeError, for a number that is not an integer.
    """
    if not 0 <= index(priority) <= MAX_PRIORITY:
        raise ValueError(
            f"a priority must be an integer from 0 to {MAX_PRIORITY}, not {priority!r}"
        )
    for _, expires_ms, most in placements:
        if not 0 <= index(expires_ms) <= _MAX_TIME_MS:
            raise ValueError(f"an expiry time must be in ms since 1970, not {expires_ms!r}")
        if most is not None and most < 0:
            raise ValueError(f"the number of messages for a queue must be 0 or more, not {most}")
    if not messages:
        raise ValueError("a publish needs at least one message")
    if len(placements) > 1 and len({one.queue for one in placements}) < len(placements):
        raise ValueError("a publish puts its messages in a queue once: a queue is named twice")
    # Messages of one call usually share an envelope.
    head_bytes = len(messages[0].envelope.head)
    count = len(messages)
    needed = body_bytes + count * (HEADER.size + head_bytes) + len(placements) * OPERATION.size
    if body_bytes > MAX_MESSAGE_BYTES - MAX_PROPERTIES_BYTES - (1 << 10):
        _check_sizes(messages)
    return needed if messages[0].envelope.persistent else 0


def _check_sizes(messages: Sequence[Message]) -> None:
    for message in messages:
        size = len(message.envelope.head) + len(message.body)
        if size > MAX_MESSAGE_BYTES:
            raise ValueError(
                f"a message may have at most {MAX_MESSAGE_BYTES} bytes, including its properties "
                f"and names; this one has {size}"
            )
