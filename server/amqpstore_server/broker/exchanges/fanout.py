"""The fanout exchange: a message goes to every bound queue and exchange (AMQP 3.1.3.2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from amqpstore_server.broker.exchanges.base import Binding, Destination, Destinations, Exchange
from amqpstore_server.protocol.content import BasicProperties


class FanoutExchange(Exchange):
    """Routes to every destination, whatever the routing key."""

    type = "fanout"
    reads_routing_key = False
    has_independent_bindings = True

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self._destinations = Destinations()

    def route(self, routing_key: str, properties: BasicProperties) -> Iterable[Destination]:  # noqa: ARG002
        return self._destinations

    def why(self, binding: Binding, routing_key: str, properties: BasicProperties) -> str:  # noqa: ARG002
        return "a fanout exchange sends everything to all that is bound"

    def _add(self, binding: Binding) -> None:
        self._destinations.add(binding.destination)

    def _remove(self, binding: Binding) -> None:
        self._destinations.remove(binding.destination)
