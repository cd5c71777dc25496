"""The direct exchange: a message goes where the routing key equals the binding's (AMQP 3.1.3.1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from amqpstore_server.broker.exchanges.base import Binding, Destination, Destinations, Exchange
from amqpstore_server.protocol.content import BasicProperties


class DirectExchange(Exchange):
    """Routes where the binding key equals the routing key."""

    type = "direct"
    has_independent_bindings = True

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self._destinations: dict[str, Destinations] = {}

    def route(self, routing_key: str, properties: BasicProperties) -> Iterable[Destination]:  # noqa: ARG002
        return self._destinations.get(routing_key, ())

    def why(self, binding: Binding, routing_key: str, properties: BasicProperties) -> str:  # noqa: ARG002
        return "the binding key is the routing key" if binding.routing_key == routing_key else ""

    def _add(self, binding: Binding) -> None:
        self._destinations.setdefault(binding.routing_key, Destinations()).add(binding.destination)

    def _remove(self, binding: Binding) -> None:
        destinations = self._destinations[binding.routing_key]
        destinations.remove(binding.destination)
        if not destinations:
            del self._destinations[binding.routing_key]
