"""Exchanges for tests, with exchanges as the destinations of their bindings."""

from random import Random
from typing import Any, TypeVar

from amqpstore_server.broker.exchanges.base import Binding, Exchange
from amqpstore_server.broker.exchanges.fanout import FanoutExchange
from amqpstore_server.protocol.content import BasicProperties

Made = TypeVar("Made", bound=Exchange)

NO_PROPERTIES = BasicProperties()


def made(kind: type[Made], name: str = "tested", **arguments: Any) -> Made:
    """An exchange; keywords are its arguments, each `_` in their names a `-`."""
    return kind(
        name,
        durable=False,
        auto_delete=False,
        internal=False,
        arguments={key.replace("_", "-"): value for key, value in arguments.items()},
        random=Random(1).random,
    )


def destination(name: str) -> Exchange:
    return made(FanoutExchange, name)


def bind(
    exchange: Exchange, to: Exchange, key: str = "", arguments: dict[str, Any] | None = None
) -> Binding:
    """Make a binding that is not there yet."""
    binding = Binding(to, key, arguments or {})
    assert exchange.bind(binding)
    return binding


def routed(
    exchange: Exchange, key: str = "", properties: BasicProperties = NO_PROPERTIES
) -> list[str]:
    """The names of where a message goes, each once, sorted."""
    return sorted({one.name for one in exchange.route(key, properties)})
