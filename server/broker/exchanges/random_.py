"""The random exchange (RabbitMQ's `x-random`): each message goes to one of all that is bound."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from server.broker.exchanges.base import Binding, Exchange
from server.protocol.content import BasicProperties

if TYPE_CHECKING:
    from server.broker.queue import Queue


class RandomExchange(Exchange):
    """One destination, each as likely as the others however many bindings lead to it."""

    type = "x-random"
    is_repeatable = False

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self._destinations: list[Queue | Exchange] = []
        self._binding_counts: dict[Queue | Exchange, int] = {}

    def route(self, routing_key: str, properties: BasicProperties) -> Iterable[Queue | Exchange]:  # noqa: ARG002
        if not self._destinations:
            return ()
        return (self._destinations[int(self.random() * len(self._destinations))],)

    def _add(self, binding: Binding) -> None:
        destination = binding.destination
        count = self._binding_counts.get(destination, 0)
        self._binding_counts[destination] = count + 1
        if not count:
            self._destinations.append(destination)

    def _remove(self, binding: Binding) -> None:
        destination = binding.destination
        self._binding_counts[destination] -= 1
        if not self._binding_counts[destination]:
            del self._binding_counts[destination]
            self._destinations.remove(destination)
