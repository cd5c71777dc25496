"""The events of consumers: RabbitMQ's `consumer.created` and `consumer.deleted`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from amqpstore_server.broker.monitoring.audit import By
from amqpstore_server.broker.work.events import BrokerEvent

if TYPE_CHECKING:
    from amqpstore_server.broker.channels.firehose import Origin
    from amqpstore_server.broker.queues.consumer import Consumer
    from amqpstore_server.broker.work.events import BrokerEvents


class ConsumerEvents:
    """Tells of the consumers of one channel. Args: origin, of the channel."""

    __slots__ = ("_events", "_origin", "_vhost")

    def __init__(self, events: BrokerEvents, vhost: str, origin: Origin) -> None:
        self._events = events
        self._vhost = vhost
        self._origin = origin

    def created(
        self, consumer: Consumer, prefetch_count: int, arguments: Mapping[str, object]
    ) -> None:
        """Tell that a consumer was started."""
        self._tell(
            "consumer.created",
            consumer,
            {
                "exclusive": consumer.exclusive,
                "ack_required": not consumer.no_ack,
                "prefetch_count": prefetch_count,
                "arguments": dict(arguments),
            },
        )

    def deleted(self, *consumers: Consumer) -> None:
        """Tell that consumers have ended."""
        if self._events.is_heard:  # thousands of consumers may end with their connection
            for consumer in consumers:
                self._tell("consumer.deleted", consumer, {})

    def _tell(self, key: str, consumer: Consumer, more: Mapping[str, Any]) -> None:
        if not (self._events.is_heard and consumer.queue.is_listed):
            return
        headers = {
            "consumer_tag": consumer.tag,
            "channel": self._origin.name,
            "vhost": self._vhost,
            "queue": consumer.queue.name,
            **more,
        }
        self._events.happened("", BrokerEvent(key, headers), by=By(self._origin.user, ""))
