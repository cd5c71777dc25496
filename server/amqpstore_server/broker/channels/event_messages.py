"""Publishes events to the event exchange: persistent messages without a body, as in RabbitMQ."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

from amqpstore import Message
from amqpstore_server.broker.messages.envelope import ParsedEnvelope
from amqpstore_server.broker.work.events import EVENT_EXCHANGE, BrokerEvent
from amqpstore_server.protocol.content import BasicProperties, encode_properties
from amqpstore_server.protocol.field_table import FieldValue, Int64

if TYPE_CHECKING:
    from amqpstore.system.clock import Clock
    from amqpstore_server.broker.channels.own_publishes import OwnPublishes

AT_ONCE = 500
"""Events that are published in one round: 100,000 queues may be deleted with one connection."""

_MAX_BYTES = 48 << 10
"""The headers have to fit in one frame."""


class EventMessages:
    """The messages of events, which `own` publishes, at most `AT_ONCE` in a turn."""

    def __init__(self, clock: Clock, own: OwnPublishes) -> None:
        self._clock = clock
        self._own = own

    def publish(self, event: BrokerEvent) -> None:
        """Publish an event, with the time as it is now."""
        self._own.add(1, partial(_message, event, self._clock.wall_ms()))


def _message(event: BrokerEvent, now_ms: int) -> list[Message]:
    headers: dict[str, FieldValue] = {
        **{name: _shown(value) for name, value in event.headers.items()},
        "timestamp_in_ms": Int64(now_ms),
    }
    properties = BasicProperties(headers=headers, delivery_mode=2, timestamp=now_ms // 1000)
    raw = encode_properties(properties)
    # Policies and arguments may be larger than a frame; the event matters more than its details.
    if len(raw) > _MAX_BYTES:
        long = [name for name, value in headers.items() if isinstance(value, (dict, list))]
        for name in long:
            del headers[name]
        raw = encode_properties(properties)
    return [Message(ParsedEnvelope(EVENT_EXCHANGE, event.key, raw, properties), b"")]


def _shown(value: Any) -> FieldValue:
    """Return a value as RabbitMQ encodes those of events: all integers have 64 bits."""
    if isinstance(value, bool) or value is None:
        return value if value is not None else ""
    if isinstance(value, int):
        return Int64(value)
    if isinstance(value, dict):
        return {str(name): _shown(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shown(one) for one in value]
    if isinstance(value, (str, bytes, float, Decimal)):
        return value
    return str(value)
