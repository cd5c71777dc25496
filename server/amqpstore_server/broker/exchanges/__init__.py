"""The exchange types, one module each, by the name that declares them.

- `base`: the base class of exchanges; `bindings`: which exchanges lead to a queue or an exchange.
- `direct`, `fanout`, `topic`, `headers`: the types of the specification; `topic_patterns`: many
  topic patterns matched at once.
- `consistent_hash`, `random_`, `recent_history`, `delayed`: types of RabbitMQ and its plug-ins.
- `values`: which values of arguments are the same although their types differ.
- `built_in`: the types that route at once, by name.
- `replay`: `amq.replay`, which takes requests to replay a history.

Other packages add types by entry points: see `amqpstore_server.plugins`.
"""

from __future__ import annotations

import inspect
import logging
from importlib.metadata import EntryPoint, entry_points

from amqpstore_server.broker.exchanges.base import KEEPING_KINDS, Exchange
from amqpstore_server.broker.exchanges.built_in import ROUTING_TYPES
from amqpstore_server.broker.exchanges.delayed import DelayedExchange

_log = logging.getLogger(__name__)

ENTRY_POINT_GROUP = "amqpstore.exchange_types"

EXCHANGE_TYPES: dict[str, type[Exchange]] = {**ROUTING_TYPES, DelayedExchange.type: DelayedExchange}
"""The types that come with the broker."""


def plugged_in() -> dict[str, type[Exchange]]:
    """Return the exchange types of installed packages, by name. A type that cannot be used is
    logged and left out.
    """
    found: dict[str, type[Exchange]] = {}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        try:
            if entry.name in found:
                raise TypeError("another package provides a type of that name")  # noqa: TRY301
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
    """Load a type. Raises: TypeError, if it is not an exchange type; whatever its package
    raises.
    """
    # AMQP 0-9-1, 3.1.3.4: types that are not in the standard are named with x-.
    if not entry.name.startswith("x-"):
        raise TypeError("the name does not start with 'x-'")
    # A package must not change what durable exchanges of the built-in types do.
    if entry.name in EXCHANGE_TYPES:
        raise TypeError("the name is that of a built-in type")
    loaded = entry.load()
    if not (isinstance(loaded, type) and issubclass(loaded, Exchange)):
        raise TypeError(f"{entry.value} is not a subclass of Exchange")
    if inspect.isabstract(loaded):
        missing = ", ".join(sorted(loaded.__abstractmethods__))
        raise TypeError(f"{entry.value} does not have {missing}")
    # The type's name is stored with each exchange: it has to lead back to this class at the next
    # start.
    if getattr(loaded, "type", None) != entry.name:
        raise TypeError(f"the type of {entry.value} is not '{entry.name}'")
    if loaded.queue_kind not in ("", *KEEPING_KINDS):
        raise TypeError(f"the queue_kind of {entry.value} is not one of {', '.join(KEEPING_KINDS)}")
    return loaded
