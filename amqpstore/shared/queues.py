"""The queues of a `SharedStore`, by name, and their definitions in the store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amqpstore.errors import OtherOwnerError, QueueDiffersError, QueueNotFoundError
from amqpstore.queues.queue import Queue
from amqpstore.shared.arrivals import Arrivals
from amqpstore.shared.history import History, HistoryLimits
from amqpstore.shared.locked_store import LockedStore
from amqpstore.store import Store

# FORMAT.md, "The queues of a library".
_OWNER = "library"
_OF_QUEUE = {_OWNER, "name", "history_length", "history_ttl_ms"}
_OF_HISTORY = {_OWNER, "history_of"}
_VERSION = 1


class NamedQueue:
    """A queue of the store, the receivers that wait for its messages, and its history, if any."""

    def __init__(self, name: str, queue: Queue, limits: HistoryLimits, arrivals: Arrivals) -> None:
        self.name = name
        self.queue = queue
        self.limits = limits
        self.arrivals = arrivals
        self.history: History | None = None


class Queues:
    """All queues. Every method is called under the lock; changes are durable on return.

    Raises: OtherOwnerError, if the store has queues of another owner; nothing is changed then.
    """

    def __init__(self, locked_store: LockedStore) -> None:
        self._locked_store = locked_store
        self._named: dict[str, NamedQueue] = {}
        self._by_id: dict[int, NamedQueue] = {}
        store = locked_store.store
        found = [queue for queue in store.queues.values() if not store.is_hidden(queue.id)]
        # Before anything is created: a broker's store must not get queues that it does not know.
        _check_owner(store, found)
        histories: dict[str, Queue] = {}
        for queue in found:
            definition: Any = queue.definition
            if "history_of" in definition:
                histories[definition["history_of"]] = queue
            else:
                limits = HistoryLimits(definition["history_length"], definition["history_ttl_ms"])
                self._add(definition["name"], queue, limits)
        for one in self._named.values():
            self._have_history(one, histories.get(one.name))

    def __iter__(self) -> Iterator[NamedQueue]:
        return iter(self._named.values())

    def get(self, name: str) -> NamedQueue:
        """Return the queue of that name. Raises: QueueNotFoundError."""
        if (found := self._named.get(name)) is None:
            raise QueueNotFoundError(name)
        return found

    def of_id(self, queue_id: int) -> NamedQueue | None:
        """Return a queue by the store's id; None if it was deleted, or is a history."""
        return self._by_id.get(queue_id)

    def declare(self, name: str, limits: HistoryLimits) -> None:
        """Create a queue, unless it exists. Raises: QueueDiffersError, DurabilityError."""
        if found := self._named.get(name):
            if found.limits != limits:
                raise QueueDiffersError(name, str(limits), str(found.limits))
            return
        definition = {_OWNER: _VERSION, "name": name, **limits._asdict()}
        self._have_history(
            self._add(name, self._locked_store.store.create_queue(definition), limits), None
        )

    def delete(self, name: str) -> None:
        """Delete a queue, with its messages and its history. Raises: DurabilityError."""
        found = self.get(name)
        del self._named[name], self._by_id[found.queue.id]
        histories = [found.history.queue] if found.history else []
        self._locked_store.store.delete_queue(found.queue, *histories)
        # Receivers would wait for messages that cannot come any more.
        found.arrivals.wake_all()

    def _add(self, name: str, queue: Queue, limits: HistoryLimits) -> NamedQueue:
        named = NamedQueue(name, queue, limits, Arrivals(self._locked_store.lock))
        self._named[name] = self._by_id[queue.id] = named
        return named

    def _have_history(self, named: NamedQueue, copies: Queue | None) -> None:
        if named.limits == HistoryLimits():
            return
        # It is created after its queue: after a crash between them the next start creates it.
        store = self._locked_store.store
        copies = copies or store.create_queue({_OWNER: _VERSION, "history_of": named.name})
        # A history has no consumers: its bodies would only take memory from other queues.
        store.memory.set_lazy(copies, lazy=True)
        named.history = History(copies, named.limits)


def _check_owner(store: Store, queues: list[Queue]) -> None:
    found = None
    if store.definitions.rows("vhosts"):
        found = "it has virtual hosts, as a broker's store has"
    for queue in queues:
        definition: Any = queue.definition
        is_ours = isinstance(definition, dict) and definition.get(_OWNER) == _VERSION
        if not is_ours or set(definition) not in (_OF_QUEUE, _OF_HISTORY):
            found = found or f"a queue of it is defined as {definition!r}"
    if found:
        raise OtherOwnerError(store.directory, "a `SharedStore`", found)
