"""The exchange types, one module each, by the name that declares them.

A type of your own is a subclass of `Exchange` in a package of your own. It says in `route` where
a message goes, and takes bindings in and out with `_add` and `_remove`::

    from server.broker.errors import PreconditionFailedError
    from server.broker.exchanges.base import Exchange

    class LengthExchange(Exchange):
        \"\"\"Destinations whose binding key is the number of characters of the routing key.\"\"\"

        type = "x-length"

        def __init__(self, name, **properties):
            super().__init__(name, **properties)
            self._destinations = {}

        def route(self, routing_key, properties):
            return self._destinations.get(len(routing_key), ())

        def _add(self, binding):
            if not (binding.routing_key.isascii() and binding.routing_key.isdigit()):
                raise PreconditionFailedError(f"no length: '{binding.routing_key}'")
            length = int(binding.routing_key)
            self._destinations.setdefault(length, []).append(binding.destination)

        def _remove(self, binding):
            self._destinations[int(binding.routing_key)].remove(binding.destination)

The package names it in its `pyproject.toml`, under the same name, which starts with "x-"::

    [project.entry-points."amqpstore.exchange_types"]
    x-length = "my_package:LengthExchange"

Once it is installed next to the broker, exchanges of the type can be declared. The code runs
inside the broker, on every publish: it must neither block nor raise anything but a
PreconditionFailedError from `__init__` and `_add`. A type whose `route` looks at more than the
routing key says so with `reads_properties` and `is_repeatable`, see `Exchange`. Of a durable
exchange the declaration and the bindings are restored at start by calling `__init__` and `_add`
again.
"""

from __future__ import annotations

import inspect
import logging
from importlib.metadata import EntryPoint, entry_points

from amqpstore_server.broker.exchanges.base import Exchange
from amqpstore_server.broker.exchanges.consistent_hash import ConsistentHashExchange
from amqpstore_server.broker.exchanges.delayed import DelayedExchange
from amqpstore_server.broker.exchanges.direct import DirectExchange
from amqpstore_server.broker.exchanges.fanout import FanoutExchange
from amqpstore_server.broker.exchanges.headers import HeadersExchange
from amqpstore_server.broker.exchanges.random_ import RandomExchange
from amqpstore_server.broker.exchanges.recent_history import RecentHistoryExchange
from amqpstore_server.broker.exchanges.replay import ReplayExchange
from amqpstore_server.broker.exchanges.topic import TopicExchange

_log = logging.getLogger(__name__)

ENTRY_POINT_GROUP = "amqpstore.exchange_types"

EXCHANGE_TYPES: dict[str, type[Exchange]] = {
    built_in.type: built_in
    for built_in in (
        DirectExchange,
        FanoutExchange,
        TopicExchange,
        HeadersExchange,
        ConsistentHashExchange,
        RandomExchange,
        RecentHistoryExchange,
        DelayedExchange,
        ReplayExchange,
    )
}
"""Those that come with the broker."""


def plugged_in() -> dict[str, type[Exchange]]:
    """The types of installed packages, by name. One that cannot be used is logged and left out."""
    found: dict[str, type[Exchange]] = {}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        try:
            if entry.name in found:
                raise TypeError("another package has a type of that name")  # noqa: TRY301
            found[entry.name] = _load(entry)
        except Exception as error:  # noqa: BLE001 - the code is another's, and the broker starts
            _log.error(
                "exchange type not loaded",
                extra={
                    "type": entry.name,
                    "package": entry.dist.name if entry.dist else "",
                    "reason": f"{type(error).__name__}: {error}",
                },
            )
    return found


def _load(entry: EntryPoint) -> type[Exchange]:
    """Raises: TypeError, for what is no exchange type; whatever the package's code raises."""
    if not entry.name.startswith("x-"):
        raise TypeError("the name does not start with 'x-'")
    if entry.name in EXCHANGE_TYPES:
        raise TypeError("the name is that of a type of the broker's own")
    loaded = entry.load()
    if not (isinstance(loaded, type) and issubclass(loaded, Exchange)):
        raise TypeError(f"{entry.value} is no subclass of Exchange")
    if inspect.isabstract(loaded):
        missing = ", ".join(sorted(loaded.__abstractmethods__))
        raise TypeError(f"{entry.value} does not have {missing}")
    if getattr(loaded, "type", None) != entry.name:
        raise TypeError(f"the type of {entry.value} is not '{entry.name}'")
    return loaded
