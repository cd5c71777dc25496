"""The imports for packages that add exchange types.

A type is a subclass of `Exchange` in a package of your own. `route` returns the destinations of a
message; `_add` and `_remove` are called for each binding::

    from amqpstore_server.plugins import Exchange, PreconditionFailedError

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

Once it is installed next to the broker, exchanges of the type can be declared. The code runs inside
the broker, on every publish: it must neither block nor raise anything but a PreconditionFailedError
from `__init__` and `_add`. A type whose `route` looks at more than the routing key says so with
`reads_properties` and `is_repeatable`, see `Exchange`. Of a durable exchange the declaration and
the bindings are restored at start by calling `__init__` and `_add` again.

A type can keep messages, in a queue of each exchange that is as durable as the exchange, ends with
it, and is called `amq.KIND.NAME`. It says in `queue_kind` which of two kinds that queue is, and has
`route` send there (to `self.own_queue`, where that is not None) what is to be kept. With `DELAYED`
a message waits for the ms that its header x-delay says, then has that number negative, and is
routed by the exchange once more. With `HISTORY` the queue has the last messages, and each queue
that is bound later gets them; `own_queue_settings` says how many they are.
"""

from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.exchanges.base import DELAYED, HISTORY, Binding, Exchange
from amqpstore_server.broker.rules.settings import Settings
from amqpstore_server.protocol.content import BasicProperties, decode_properties

__all__ = [
    "DELAYED",
    "HISTORY",
    "BasicProperties",
    "Binding",
    "Exchange",
    "PreconditionFailedError",
    "Settings",
    "decode_properties",
]
