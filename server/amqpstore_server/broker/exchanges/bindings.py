"""The bindings of a virtual host, by destination.

Each exchange knows its own bindings. When a queue or an exchange is deleted, the bindings to it are
too; this index finds them without a search of all exchanges.
"""

from __future__ import annotations

from amqpstore_server.broker.exchanges.base import Binding, Destination, Exchange


class Bindings:
    """The bindings between the exchanges and queues of a virtual host."""

    def __init__(self) -> None:
        self._sources: dict[Destination, dict[Exchange, None]] = {}

    def bind(self, source: Exchange, binding: Binding) -> bool:
        """Add a binding, as `Exchange.bind` does."""
        is_new = source.bind(binding)
        self._sources.setdefault(binding.destination, {})[source] = None
        return is_new

    def unbind(self, source: Exchange, binding: Binding) -> bool:
        """Remove a binding, as `Exchange.unbind` does."""
        was_bound = source.unbind(binding)
        if not source.is_bound_to(binding.destination):
            self._forget(source, binding.destination)
        return was_bound

    def unbind_all(self, destination: Destination) -> dict[Exchange, list[Binding]]:
        """Remove the bindings to a queue or an exchange. Returns them by their source exchanges."""
        sources = self._sources.pop(destination, {})
        return {source: source.unbind_destination(destination) for source in sources}

    def remove_source(self, source: Exchange) -> list[Binding]:
        """Remove the bindings of a deleted exchange, and return them."""
        bindings = source.bindings
        for destination in {binding.destination: None for binding in bindings}:
            self._forget(source, destination)
        return bindings

    def _forget(self, source: Exchange, destination: Destination) -> None:
        sources = self._sources.get(destination, {})
        sources.pop(source, None)
        if not sources:
            self._sources.pop(destination, None)
