"""The bindings of deleted queues and exchanges, which are removed a few at a time.

The name goes at once, in one commit with everything that is deleted with it, and from then on
nothing is routed there. Its bindings may be many thousands; most of them follow in later rounds, a
commit for some hundreds. A crash in between leaves rows of bindings whose queue or exchange has no
row: the next start removes them. The name cannot be declared again before, or a binding that is
restored would lead to the new queue.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from amqpstore import DiskFullError, Store
from amqpstore.catalog.catalog import Change
from amqpstore_server.broker.definitions.rows import binding_changes, name_key
from amqpstore_server.broker.exchanges.base import Binding, Destination, Exchange
from amqpstore_server.broker.rules.names import RESERVED_PREFIX
from amqpstore_server.broker.work.events import BrokerEvent

if TYPE_CHECKING:
    from amqpstore_server.broker.exchanges.base import BindingsByKey
    from amqpstore_server.broker.exchanges.bindings import Bindings
    from amqpstore_server.broker.work.services import BrokerServices

_log = logging.getLogger(__name__)

_RETRY_MS = 1000


class Removals:
    """The unfinished removals of one virtual host, by the names that wait for them."""

    def __init__(self, vhost: str, services: BrokerServices, bindings: Bindings) -> None:
        self.vhost = vhost
        self.services = services
        self.bindings = bindings
        self.queues: dict[str, Unbinding] = {}
        self.exchanges: dict[str, Unbinding] = {}
        self.unfinished: dict[Unbinding, None] = {}

    def names(self, one: Destination) -> dict[str, Unbinding]:
        """Return the removals by the names of queues, or by those of exchanges."""
        return self.exchanges if isinstance(one, Exchange) else self.queues


class Unbinding:
    """The bindings of queues and exchanges that are deleted together."""

    def __init__(self, removals: Removals) -> None:
        self._removals = removals
        self._services = removals.services
        self._deleted: list[Destination] = []
        self._unbound: list[tuple[Exchange, BindingsByKey]] = []
        self._changes: list[Change] = []

    def add_destination(self, destination: Destination) -> list[Exchange]:
        """Add the bindings to a queue or an exchange that is deleted.

        Returns the auto-delete exchanges that lost their last binding.
        """
        self._deleted.append(destination)
        sources = self._removals.bindings.unbind_deleted(destination)
        self._unbound += sources.items()
        return [one for one in sources if one.auto_delete and not one.is_bound]

    def add_source(self, exchange: Exchange) -> None:
        """Add the bindings of an exchange that is deleted."""
        self._unbound.append((exchange, exchange.deleted()))

    @property
    def is_done(self) -> bool:
        """Whether nothing is left."""
        return not self._unbound and not self._changes

    def take(self) -> list[Change]:
        """Remove some bindings. Returns the changes that remove their rows, to be committed with
        the deletion or after it.
        """
        changes: list[Change] = []
        left = self._services.limits.max_unbound
        while self._unbound and left:
            source, unbound = self._unbound[-1]
            taken = [unbound.popitem() for _ in range(min(left, len(unbound)))]
            left -= len(taken)
            for key, binding in taken:
                self._removals.bindings.drop(source, key, binding)
            gone = [binding for _, binding in taken]
            self._tell(source, gone)
            changes += binding_changes(self._removals.vhost, source, gone, add=False)
            if not unbound:
                self._unbound.pop()
        return changes

    def _tell(self, source: Exchange, gone: Iterable[Binding]) -> None:
        events = self._services.events
        if events.is_heard:
            vhost = self._removals.vhost
            for binding in gone:
                headers = {**binding_headers(source, binding), "vhost": vhost}
                events.happened("", BrokerEvent("binding.deleted", headers))

    def postpone(self, changes: list[Change]) -> None:
        """Have changes that were taken, and those of what is deleted with them, stored later."""
        self._changes = changes

    def go_on(self) -> None:
        """Remove the rest in later rounds: to be called when everything was added, and is
        deleted.
        """
        if self.is_done:
            return
        self._removals.unfinished[self] = None
        for one in self._deleted:
            # What is not durable has no rows of bindings: its name is free at once.
            if one.durable:
                self._removals.names(one)[one.name] = self
        self._services.agenda.background.append(self._steps())

    def step(self) -> None:
        """Remove some bindings with their rows. Raises: DiskFullError (it can be called again),
        DurabilityError.
        """
        self._services.work["bindings"] = None
        # What the disk had no room for at the last call comes first.
        self._changes = self._changes or self.take()
        if self._changes:
            self._services.store.definitions.define(self._changes)
            self._changes = []
        if self.is_done:
            self._removals.unfinished.pop(self, None)
            for one in self._deleted:
                names = self._removals.names(one)
                if names.get(one.name) is self:
                    del names[one.name]

    def finish(self) -> None:
        """Remove all that is left now. Raises: as `step`."""
        while not self.is_done:
            self.step()

    def _steps(self) -> Iterator[None]:
        """Remove all that is left, in steps."""
        while not self.is_done:
            try:
                self.step()
            except DiskFullError as error:
                extra = {"vhost": self._removals.vhost, "reason": str(error)}
                _log.warning("bindings of a deleted queue or exchange are kept", extra=extra)
                again = self._services.timers.timer(
                    lambda: self._services.agenda.background.append(self._steps())
                )
                again.set(self._services.clock.monotonic_ms() + _RETRY_MS)
                return
            yield


def binding_headers(source: Exchange, binding: Binding) -> dict[str, Any]:
    """Return the headers of the events of a binding."""
    destination = binding.destination
    return {
        "source_name": source.name,
        "source_kind": "exchange",
        "destination_name": destination.name,
        "destination_kind": "exchange" if isinstance(destination, Exchange) else "queue",
        "routing_key": binding.routing_key,
        "arguments": binding.arguments,
    }


def leftovers(store: Store, rows: Mapping[str, Mapping[str, Any]]) -> list[Change]:
    """Return the changes that remove the rows of bindings that a crash has left behind.

    What was left out at the start, because it cannot be used, has a row, and keeps its bindings.
    Args: rows, the keys and rows of bindings that do not have both of their ends.
    """
    if not rows:
        return []
    stored = {("exchange", key) for key in store.definitions.rows("exchanges")}
    for number, queue in store.queues.items():
        if store.is_hidden(number):
            continue
        definition = queue.definition
        if not isinstance(definition, dict) or not {"vhost", "name"} <= definition.keys():
            return []  # any of them may lead there
        stored.add(("queue", name_key(definition["vhost"], definition["name"])))
    changes = []
    for key, row in rows.items():
        for kind, name in (("exchange", row["exchange"]), (row["to"], row["name"])):
            # The predeclared exchanges have no rows.
            is_predeclared = kind == "exchange" and name.startswith(RESERVED_PREFIX)
            if not is_predeclared and (kind, name_key(row["vhost"], name)) not in stored:
                changes.append(Change("bindings", key, None))
                break
    return changes
