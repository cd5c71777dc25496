"""The direct exchange: a message goes where the routing key equals the binding's (AMQP 3.1.3.1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from server.broker.exchanges.base import Exchange

if TYPE_CHECKING:
    from server.broker.queue import Queue


class DirectExchange(Exchange):
    """Routing key equals binding key."""

    type = "direct"

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self._queues: dict[str, list[Queue]] = {}

    def route(self, routing_key: str) -> Iterable[Queue]:
        return self._queues.get(routing_key, ())

    def _changed(self) -> None:
        self._queues = {}
        for binding in self._bindings:
            self._queues.setdefault(binding.routing_key, []).append(binding.queue)
