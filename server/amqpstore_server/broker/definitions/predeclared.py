"""The exchanges that every virtual host has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amqpstore_server.broker.channels.firehose import TRACE_EXCHANGE
from amqpstore_server.broker.exchanges.replay import REPLAY_EXCHANGE
from amqpstore_server.broker.work.events import EVENT_EXCHANGE

DEFAULT_VHOST = "/"
"""The virtual host of a new broker; it has the event exchange."""

_PREDECLARED = {
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
    REPLAY_EXCHANGE: "x-replay",
    TRACE_EXCHANGE: "topic",
}
_INTERNAL = (TRACE_EXCHANGE, EVENT_EXCHANGE)
"""The exchanges that clients cannot publish to."""


def predeclared_exchanges(vhost: str) -> Iterator[dict[str, Any]]:
    """Yield the predeclared exchanges of a virtual host as rows of the catalog, which has none of
    them.
    """
    types = {**_PREDECLARED, EVENT_EXCHANGE: "topic"} if vhost == DEFAULT_VHOST else _PREDECLARED
    for name, type_name in types.items():
        yield {
            "name": name,
            "type": type_name,
            "auto_delete": False,
            "internal": name in _INTERNAL,
            "arguments": {},
        }
