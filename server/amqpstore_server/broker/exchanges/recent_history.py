"""The recent-history exchange: a fanout that sends its last messages to every newly bound queue.

The argument x-recent-history-length says how many. They are in the exchange's own queue, so that
persistent messages of a durable exchange survive a restart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.exchanges.base import HISTORY, Destination
from amqpstore_server.broker.exchanges.fanout import FanoutExchange
from amqpstore_server.broker.rules.settings import Settings
from amqpstore_server.protocol.content import BasicProperties

LENGTH_ARGUMENT = "x-recent-history-length"
NO_STORE_HEADER = "x-recent-history-no-store"

_DEFAULT_LENGTH = 20
_MAX_LENGTH = 100_000


class RecentHistoryExchange(FanoutExchange):
    """Routes to every destination, and to its own queue of the last `length` messages."""

    type = "x-recent-history"
    reads_arguments = (LENGTH_ARGUMENT,)
    queue_kind = HISTORY
    reads_properties = True

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        length = self.arguments.get(LENGTH_ARGUMENT, _DEFAULT_LENGTH)
        if (
            isinstance(length, bool)
            or not isinstance(length, int)
            or not (0 < length <= _MAX_LENGTH)
        ):
            raise PreconditionFailedError(
                f"invalid arg '{LENGTH_ARGUMENT}' for exchange '{name}': {length!r} is not a "
                "number "
                f"from 1 to {_MAX_LENGTH}"
            )
        self.length = length

    def own_queue_settings(self) -> Settings:
        return Settings(max_length=self.length)

    def route(self, routing_key: str, properties: BasicProperties) -> Iterable[Destination]:
        yield from super().route(routing_key, properties)
        # The header of RabbitMQ's plug-in: for messages that should not come again.
        if self.own_queue is not None and not (properties.headers or {}).get(NO_STORE_HEADER):
            yield self.own_queue
