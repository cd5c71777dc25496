"""The bindings of a virtual host, by destination.

Each exchange knows its own bindings. When a queue or an exchange is deleted, the bindings to it are
too; this index finds them without a search of all exchanges.
"""

from __future__ import annotations

from amqpstore_server.broker.exchanges.base import (
    Binding,
    BindingKey,
    BindingsByKey,
    Destination,
    Exchange,
)


class Bindings:
    """The bindings between the exchanges and queues of a virtual host."""

    def __init__(self) -> None:
        self._sources: dict[Destination, dict[Exchange, None]] = {}

    def bind(self, source: Exchange, binding: Binding) -> bool:
        """Add a binding, as `Exchange.bind` does."""
        is_new = source.bind(binding)
        self._sources.setdefault(binding.destination, {})[source] = None
        return is_new

    def unbind(self, source: Exchange, binding: Binding) -> Binding | None:
        """Remove a binding, as `Exchange.unbind` does."""
        found = source.unbind(binding)
        if not source.is_bound_to(binding.destination):
            self._forget(source, binding.destination)
        return found

    def unbind_deleted(self, destination: Destination) -> dict[Exchange, BindingsByKey]:
        """Unbind a queue or an exchange that is deleted. Returns the bindings to it by their source
        exchanges; each is to be passed to `drop`.
        """
        sources = self._sources.pop(destination, {})
        return {source: source.unbind_deleted(destination) for source in sources}

    def drop(self, source: Exchange, key: BindingKey, binding: Binding) -> None:
        """Forget a binding whose source or destination is deleted."""
        # The routing structure of a deleted exchange is gone with it.
        if source.is_deleted:
            self._forget(source, binding.destination)
        else:
            source.drop(key, binding)

    def _forget(self, source: Exchange, destination: Destination) -> None:
        sources = self._sources.get(destination, {})
        sources.pop(source, None)
        if not sources:
            self._sources.pop(destination, None)
