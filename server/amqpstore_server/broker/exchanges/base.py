"""The base class of exchanges: a name, properties, and bindings that an algorithm matches.

A new type is a subclass of `Exchange` in a module of its own, here or in another package: see
`amqpstore_server.broker.exchanges`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

import msgpack

from amqpstore_server.broker.exchanges.values import comparable
from amqpstore_server.broker.monitoring.counters import ExchangeCounters
from amqpstore_server.broker.monitoring.faults import called
from amqpstore_server.broker.rules.settings import Settings
from amqpstore_server.protocol.content import BasicProperties

DELAYED = "delayed"
HISTORY = "history"
KEEPING_KINDS = (DELAYED, HISTORY)
"""The kinds of queues that an exchange can keep messages in. With the first, each message is routed
again when its `x-delay` is over; with the second, the last messages are sent to each queue that is
bound later.
"""


class Destination(Protocol):
    """The target of a binding: a queue, or another exchange."""

    @property
    def name(self) -> str: ...

    @property
    def durable(self) -> bool: ...


BindingKey = tuple[int, str, bytes]


class Binding(NamedTuple):
    """A rule that leads from an exchange to a queue, or to another exchange."""

    destination: Destination
    routing_key: str
    arguments: dict[str, Any]

    @property
    def key(self) -> BindingKey:
        """The key by which two bindings of one exchange are equal, whatever types their client's
        language has for the values of arguments.
        """
        return id(self.destination), self.routing_key, msgpack.packb(comparable(self.arguments))


BindingsByKey = dict[BindingKey, Binding]


class Destinations(dict[Destination, int]):
    """Destinations with the number of bindings that lead to each, in the order in which they were
    added.
    """

    def add(self, destination: Destination) -> None:
        """Count one more binding to a destination."""
        self[destination] = self.get(destination, 0) + 1

    def remove(self, destination: Destination) -> None:
        """Count one binding fewer to a destination."""
        self[destination] -= 1
        if not self[destination]:
            # A destination goes with its last binding only: a queue that is bound twice with
            # matching keys is one destination, and gets one copy (queue.bind, rule `unique`).
            del self[destination]


class Exchange(ABC):
    """An exchange of one virtual host. `type` is the name that declares its type.

    Args: arguments, of the declaration; random, returns a number from 0 to below 1.
    Raises: PreconditionFailedError, for arguments that its type cannot work with.
    """

    type: ClassVar[str]

    reads_properties: bool = False
    """Whether `route` reads the properties besides the routing key."""

    reads_routing_key: bool = True
    """Whether `route` reads the routing key; if not, a message with many is routed by the first."""

    is_repeatable: bool = True
    """Whether an equal message is routed in the same way as long as the bindings stay."""

    has_independent_bindings: bool = False
    """Whether a destination gets the same messages whatever the bindings to others are. The many
    bindings of a deleted queue are then taken out of the routing structure a few at a time, as
    messages are not routed to what is deleted; otherwise at once.
    """

    reads_arguments: ClassVar[tuple[str, ...]] = ()
    """The arguments that only this type reads."""

    queue_kind: ClassVar[str] = ""
    """One of `KEEPING_KINDS`, the kind of the exchange's own queue; empty if the type keeps no
    messages.
    """

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
        """The alternate exchange, which gets messages without a route; empty if there is none."""
        self.own_queue: Destination | None = None
        """The queue in which it keeps messages, as a destination for `route`; None without a
        `queue_kind`.
        """
        self.counters = ExchangeCounters()
        self.is_deleted = False
        self._bindings: BindingsByKey = {}
        """All bindings, and those to deleted destinations that are not removed yet."""
        self._by_destination: dict[int, BindingsByKey] = {}

    @property
    def bindings(self) -> list[Binding]:
        """All bindings, in the order in which they were added."""
        bound = self._by_destination
        return [binding for key, binding in self._bindings.items() if key[0] in bound]

    @property
    def binding_count(self) -> int:
        """The number of bindings."""
        return sum(map(len, self._by_destination.values()))

    def has(self, binding: Binding) -> bool:
        """Tell whether an equal binding exists."""
        return binding.key in self._bindings

    @property
    def is_bound(self) -> bool:
        """Whether it has any binding."""
        return bool(self._by_destination)

    def is_bound_to(self, destination: Destination) -> bool:
        """Tell whether any binding leads to a destination."""
        return id(destination) in self._by_destination

    def bindings_to(self, destination: Destination) -> list[Binding]:
        """Return the bindings that lead to a destination, in the order in which they were added."""
        return list(self._by_destination.get(id(destination), {}).values())

    def bind(self, binding: Binding) -> bool:
        """Add a binding. Returns False, and does nothing, if an equal one exists.

        Raises: PreconditionFailedError.
        """
        key = binding.key
        # queue.bind, rule `duplicates`: an equal binding is ignored, and is not an error.
        if key in self._bindings:
            return False
        # This comes first, as it may refuse the binding's arguments: then nothing is noted.
        self._add(binding)
        self._bindings[key] = binding
        self._by_destination.setdefault(key[0], {})[key] = binding
        return True

    def unbind(self, binding: Binding) -> Binding | None:
        """Remove a binding. Returns the one that there was; None if no equal one exists."""
        key = binding.key
        found = self._bindings.pop(key, None)
        if found is None:
            return None
        to_the_same = self._by_destination[key[0]]
        del to_the_same[key]
        if not to_the_same:
            del self._by_destination[key[0]]
        # A plug-in's type may raise here; the binding is removed all the same.
        called(partial(self._remove, found))
        return found

    def unbind_deleted(self, destination: Destination) -> BindingsByKey:
        """Unbind a queue or an exchange that is deleted. Returns the bindings to it, each to be
        passed to `drop`.
        """
        unbound = self._by_destination.pop(id(destination), {})
        # A hash exchange would go on choosing the queue that is gone, and its share of the
        # messages be lost.
        if not self.has_independent_bindings:
            for key, binding in unbound.items():
                self.drop(key, binding)
        return unbound

    def drop(self, key: BindingKey, binding: Binding) -> None:
        """Take a binding to a deleted destination out of the routing structure, if it is there."""
        if self._bindings.pop(key, None) is not None:
            # A plug-in's type may raise here; the binding is removed all the same.
            called(partial(self._remove, binding))

    def deleted(self) -> BindingsByKey:
        """Note that this exchange is deleted: it does not route any more. Returns its bindings."""
        self.is_deleted = True
        unbound, self._bindings, self._by_destination = self._bindings, {}, {}
        return unbound

    def own_queue_settings(self) -> Settings:
        """Return the settings of its own queue, which is lazy: messages that wait long should not
        take memory.
        """
        return Settings(queue_mode="lazy")

    def check(self, properties: BasicProperties) -> None:  # noqa: B027 - most refuse none
        """Make sure that a client may publish a message here. To be called where `reads_properties`
        is true. Raises: PreconditionFailedError.
        """

    @abstractmethod
    def route(self, routing_key: str, properties: BasicProperties) -> Iterable[Destination]:
        """Return the destinations of a message; one that two bindings match may occur twice.

        Args: properties, of the message; all None if `reads_properties` is false.
        """

    def why(self, binding: Binding, routing_key: str, properties: BasicProperties) -> str:  # noqa: ARG002
        """Explain why a message goes where a binding leads, which `route` has returned. Empty if
        this binding is not the reason.
        """
        return f"an exchange of type '{self.type}' chose it"

    @abstractmethod
    def _add(self, binding: Binding) -> None:
        """Add a binding to the routing structure. Raises: PreconditionFailedError, if it is not
        valid for this type.
        """

    @abstractmethod
    def _remove(self, binding: Binding) -> None:
        """Remove a binding that `_add` accepted from the routing structure."""
