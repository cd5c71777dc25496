"""The broker: its virtual hosts, restored from the store, and the queues that have work to do."""

from __future__ import annotations

from collections.abc import Callable

from amqpstore import Store
from amqpstore.catalog import Change
from server.broker.errors import NotFoundError
from server.broker.queue import Queue
from server.broker.vhost import VirtualHost

DEFAULT_VHOST = "/"


class Broker:
    """All virtual hosts on top of one store.

    Args: make_name, a random string that no other call returned, for server-named queues.
    """

    def __init__(self, store: Store, make_name: Callable[[], str]) -> None:
        self.store = store
        self.vhosts: dict[str, VirtualHost] = {}
        self._touched: set[Queue] = set()
        names = store.definitions("vhosts")
        if not names:
            store.define([Change("vhosts", DEFAULT_VHOST, {})])
            names = {DEFAULT_VHOST: {}}
        for name in names:
            self.vhosts[name] = VirtualHost(name, store, make_name, self._touched)
        for row in store.definitions("exchanges").values():
            self.vhosts[row["vhost"]].restore_exchange(row)
        for stored in list(store.queues.values()):
            definition = stored.definition
            assert isinstance(definition, dict)  # as VirtualHost.declare_queue made it
            self.vhosts[definition["vhost"]].add_queue(stored, durable=True)
        for row in store.definitions("bindings").values():
            self.vhosts[row["vhost"]].restore_binding(row)

    def vhost(self, name: str) -> VirtualHost:
        """Raises: NotFoundError."""
        vhost = self.vhosts.get(name)
        if vhost is None:
            raise NotFoundError(f"vhost '{name}' not found")
        return vhost

    @property
    def has_work(self) -> bool:
        """Whether a queue has something to hand out, or somebody to hand it to, since `pump`."""
        return bool(self._touched)

    def pump(self) -> None:
        """Have every queue that something happened to hand out what it can."""
        touched = list(self._touched)
        self._touched.clear()
        for queue in touched:
            queue.pump()
