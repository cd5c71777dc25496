"""What every exchange is: a name, its properties, and bindings that an algorithm matches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from server.broker.queue import Queue


class Binding(NamedTuple):
    """A rule that leads from an exchange to a queue."""

    queue: Queue
    routing_key: str
    arguments: dict[str, Any]


class Exchange(ABC):
    """An exchange instance of one virtual host. `type` is the name that declares its kind."""

    type: ClassVar[str]

    def __init__(
        self,
        name: str,
        *,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: dict[str, Any],
    ) -> None:
        self.name = name
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments = arguments
        self._bindings: list[Binding] = []

    @property
    def bindings(self) -> list[Binding]:
        """All bindings, in the order in which they were made."""
        return list(self._bindings)

    def bind(self, binding: Binding) -> bool:
        """Add a binding. Returns False, and does nothing, where there is an equal one."""
        if binding in self._bindings:
            return False
        self._bindings.append(binding)
        self._changed()
        return True

    def unbind(self, binding: Binding) -> bool:
        """Remove a binding. Returns False where there is none that is equal."""
        if binding not in self._bindings:
            return False
        self._bindings.remove(binding)
        self._changed()
        return True

    def unbind_queue(self, queue: Queue) -> list[Binding]:
        """Remove all bindings to a queue, and return them."""
        gone = [binding for binding in self._bindings if binding.queue is queue]
        if gone:
            self._bindings = [binding for binding in self._bindings if binding.queue is not queue]
            self._changed()
        return gone

    @abstractmethod
    def route(self, routing_key: str) -> Iterable[Queue]:
        """The queues that a message goes to; one that two bindings match may come twice."""

    @abstractmethod
    def _changed(self) -> None:
        """The bindings are others: derive anew what `route` looks things up in."""
