"""What every exchange is: a name, its properties, and bindings that an algorithm matches.

A new type is a subclass of `Exchange` in a module of its own, here or in somebody's package: see
`amqpstore_server.broker.exchanges`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

import msgpack

from amqpstore_server.broker.faults import called
from amqpstore_server.broker.settings import Settings
from amqpstore_server.protocol.content import BasicProperties

DELAYED = "delayed"
HISTORY = "history"
KEEPING_KINDS = (DELAYED, HISTORY)
"""The kinds of queues that an exchange can keep messages in: until their `x-delay` is over, when it
routes them again; or as the last ones, which each queue gets that is bound later."""


class Destination(Protocol):
    """What an exchange routes to: a queue, or another exchange."""

    @property
    def name(self) -> str: ...

    @property
    def durable(self) -> bool: ...


class Binding(NamedTuple):
    """A rule that leads from an exchange to a queue, or on to another exchange."""

    destination: Destination
    routing_key: str
    arguments: dict[str, Any]

    @property
    def key(self) -> tuple[int, str, bytes]:
        """What two bindings of one exchange are equal by."""
        return id(self.destination), self.routing_key, msgpack.packb(sorted(self.arguments.items()))


class Destinations(dict[Destination, int]):
    """What bindings lead to, with how many of them do, in the order in which they were made."""

    def add(self, destination: Destination) -> None:
        """A binding more leads there."""
        self[destination] = self.get(destination, 0) + 1

    def remove(self, destination: Destination) -> None:
        """A binding less does."""
        self[destination] -= 1
        if not self[destination]:
            del self[destination]


class Exchange(ABC):
    """An exchange instance of one virtual host. `type` is the name that declares its kind.

    Args: arguments, of the declaration; random, gives a number from 0 to below 1.
    Raises: PreconditionFailedError, for arguments that its type cannot work with.
    """

    type: ClassVar[str]

    reads_properties: bool = False
    """Whether `route` looks at the properties, and not only at the routing key."""

    is_repeatable: bool = True
    """Whether a message that is published again goes the same way, as long as the bindings stay."""

    queue_kind: ClassVar[str] = ""
    """Which of `KEEPING_KINDS` its own queue is; empty for a type that keeps no messages."""

    def __init__(
        self,
        name: str,
        *,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: dict[str, Any],
        random: Callable[[], float],
    ) -> None:
        self.name = name
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments = arguments
        self.random = random
        self.alternate = ""
        """The exchange for what this one has no route for; empty where there is none."""
        self.own_queue: Destination | None = None
        """Where it keeps messages, which `route` sends there; None unless it has a `queue_kind`."""
        self._bindings: dict[tuple[int, str, bytes], Binding] = {}
        self._by_destination: dict[int, dict[tuple[int, str, bytes], Binding]] = {}

    @property
    def bindings(self) -> list[Binding]:
        """All bindings, in the order in which they were made."""
        return list(self._bindings.values())

    @property
    def is_bound(self) -> bool:
        """Whether it has any binding."""
        return bool(self._bindings)

    def is_bound_to(self, destination: Destination) -> bool:
        """Whether any binding leads there."""
        return id(destination) in self._by_destination

    def bind(self, binding: Binding) -> bool:
        """Add a binding. Returns False, and does nothing, where there is an equal one.

        Raises: PreconditionFailedError.
        """
        key = binding.key
        if key in self._bindings:
            return False
        self._add(binding)
        self._bindings[key] = binding
        self._by_destination.setdefault(key[0], {})[key] = binding
        return True

    def unbind(self, binding: Binding) -> bool:
        """Remove a binding. Returns False where there is none that is equal."""
        key = binding.key
        found = self._bindings.pop(key, None)
        if found is None:
            return False
        to_the_same = self._by_destination[key[0]]
        del to_the_same[key]
        if not to_the_same:
            del self._by_destination[key[0]]
        # A package's type may fail in this; the binding is gone all the same.
        called(partial(self._remove, found))
        return True

    def unbind_destination(self, destination: Destination) -> list[Binding]:
        """Remove all bindings to a queue or an exchange, and return them."""
        gone = list(self._by_destination.get(id(destination), {}).values())
        for binding in gone:
            self.unbind(binding)
        return gone

    def own_queue_settings(self) -> Settings:
        """The settings of its own queue: what waits long has no business in memory."""
        return Settings(queue_mode="lazy")

    @abstractmethod
    def route(self, routing_key: str, properties: BasicProperties) -> Iterable[Destination]:
        """Where a message goes; a destination that two bindings match may come twice.

        Args: properties, of the message; all None where `reads_properties` is false.
        """

    @abstractmethod
    def _add(self, binding: Binding) -> None:
        """A binding comes: take it in. Raises: PreconditionFailedError, where it makes no sense."""

    @abstractmethod
    def _remove(self, binding: Binding) -> None:
        """A binding, one that `_add` took in, is gone."""
