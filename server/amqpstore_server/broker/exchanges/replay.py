"""The exchange `amq.replay`: a publish to it is a request to replay a queue's history.

It routes nothing (see `broker.transactions.replay`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from amqpstore_server.broker.errors import AccessRefusedError, PreconditionFailedError
from amqpstore_server.broker.exchanges.base import Binding, Destination, Exchange
from amqpstore_server.protocol.content import BasicProperties

REPLAY_EXCHANGE = "amq.replay"

REPLAY_TO = "x-replay-to"
CONSUMED_FROM = "x-from"
CONSUMED_TO = "x-to"
REPLAY_LIMIT = "x-limit"
REPLAY_MESSAGE_ID = "x-message-id"
REPLAY_HEADERS = (REPLAY_TO, CONSUMED_FROM, CONSUMED_TO, REPLAY_LIMIT, REPLAY_MESSAGE_ID)
"""The headers of a request."""


class ReplayExchange(Exchange):
    """`amq.replay`. Nothing can be bound to it, and it routes nothing."""

    type = "x-replay"

    def __init__(self, name: str, **properties: Any) -> None:
        if name != REPLAY_EXCHANGE:
            raise PreconditionFailedError(
                f"exchange '{name}' cannot be of type 'x-replay': '{REPLAY_EXCHANGE}' alone is"
            )
        super().__init__(name, **properties)

    def route(self, routing_key: str, properties: BasicProperties) -> Iterable[Destination]:  # noqa: ARG002
        return ()

    def _add(self, binding: Binding) -> None:  # noqa: ARG002
        raise AccessRefusedError(f"nothing can be bound to '{REPLAY_EXCHANGE}': it routes nothing")

    def _remove(self, binding: Binding) -> None:
        """Do nothing: there are no bindings."""
