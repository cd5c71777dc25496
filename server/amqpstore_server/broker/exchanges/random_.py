"""The random exchange (RabbitMQ's `x-random`): each message goes to one bound destination."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from amqpstore_server.broker.exchanges.base import Binding, Destination, Destinations, Exchange
from amqpstore_server.protocol.content import BasicProperties


class RandomExchange(Exchange):
    """Routes to one destination; all are equally likely, however many bindings lead to each."""

    type = "x-random"
    is_repeatable = False

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self._destinations: list[Destination] = []
        self._indexes: dict[Destination, int] = {}
        self._counts = Destinations()

    def route(self, routing_key: str, properties: BasicProperties) -> Iterable[Destination]:  # noqa: ARG002
        if not self._destinations:
            return ()
        return (self._destinations[int(self.random() * len(self._destinations))],)

    def why(self, binding: Binding, routing_key: str, properties: BasicProperties) -> str:  # noqa: ARG002
        count = len(self._destinations)
        return f"drawn at random from {count} destinations; the next message is drawn anew"

    def _add(self, binding: Binding) -> None:
        destination = binding.destination
        if destination not in self._counts:
            self._indexes[destination] = len(self._destinations)
            self._destinations.append(destination)
        self._counts.add(destination)

    def _remove(self, binding: Binding) -> None:
        destination = binding.destination
        self._counts.remove(destination)
        if destination in self._counts:
            return
        # The last takes its place: closing the gap would move all entries behind it.
        index, last = self._indexes.pop(destination), self._destinations.pop()
        if last is not destination:
            self._destinations[index] = last
            self._indexes[last] = index
