"""The fanout exchange: a message goes to every queue that is bound (AMQP 3.1.3.2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from server.broker.exchanges.base import Exchange

if TYPE_CHECKING:
    from server.broker.queue import Queue


class FanoutExchange(Exchange):
    """All bound queues, whatever the routing key."""

    type = "fanout"

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self._queues: list[Queue] = []

    def route(self, routing_key: str) -> Iterable[Queue]:  # noqa: ARG002
        return self._queues

    def _changed(self) -> None:
        self._queues = [binding.queue for binding in self._bindings]
