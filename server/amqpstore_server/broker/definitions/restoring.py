"""Queues, prepared transactions and purges of a store, restored at a start.

Rows that cannot be used stay in the store untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import amqpstore
from amqpstore import Store
from amqpstore_server.broker.channels.branches import Branches
from amqpstore_server.broker.definitions.stored import is_usable, log_unusable
from amqpstore_server.broker.queues.kinds import QUEUE_KINDS, kind_of, served_name
from amqpstore_server.broker.queues.queue import Queue


class RestoredHost(Protocol):
    """A virtual host in which they are restored."""

    queues: dict[str, Queue]
    branches: Branches

    def add_queue(self, store_queue: amqpstore.Queue, *, durable: bool) -> Queue:
        """Add a queue from the store."""


FindHost = Callable[[str], "RestoredHost | None"]
"""Returns the virtual host of a name."""


def restore_queues(store: Store, find: FindHost) -> None:
    """Restore the queues from the store: first those with a name of their own, then
    those of their other priorities.

    Rows that cannot be used stay in the store untouched, with their messages.
    """
    priorities = []
    for store_queue in [one for one in store.queues.values() if not store.is_hidden(one.id)]:
        definition: Any = store_queue.definition
        if not is_usable("queues", str(store_queue.id), definition):
            continue
        vhost = find(definition["vhost"])
        if vhost is None:
            reason = f"there is no virtual host {definition['vhost']!r}"
            log_unusable("queues", str(store_queue.id), reason)
        elif "level" in definition:
            priorities.append((vhost, store_queue, definition))
        elif (name := served_name(definition)) in vhost.queues:
            reason = f"there is already a queue {name!r}"
            log_unusable("queues", str(store_queue.id), reason)
        elif kind_of(definition) not in QUEUE_KINDS:
            reason = f"there is no kind of queue {kind_of(definition)!r}"
            log_unusable("queues", str(store_queue.id), reason)
        else:
            vhost.add_queue(store_queue, durable=True)
    for vhost, store_queue, definition in priorities:
        name = served_name(definition)
        queue = vhost.queues.get(name)
        if queue is None:
            log_unusable("queues", str(store_queue.id), f"there is no queue {name!r}")
        elif definition["level"] in dict(queue.priorities.levels()):
            reason = f"queue {name!r} already has a level {definition['level']}"
            log_unusable("queues", str(store_queue.id), reason)
        else:
            queue.priorities.add(definition["level"], store_queue)


def restore_branches(store: Store, hosts: Sequence[RestoredHost], find: FindHost) -> None:
    """Restore the prepared transactions that are still in doubt."""
    if not store.prepared:
        return
    queues = queues_by_store_id(hosts)
    for key, prepared in store.prepared.items():
        label = prepared.label
        if not is_usable("branches", str(key), label):
            continue
        if vhost := find(label["vhost"]):
            vhost.branches.restore(prepared, queues)
        else:
            log_unusable("branches", str(key), f"there is no virtual host {label['vhost']!r}")


def restore_purges(store: Store, hosts: Sequence[RestoredHost]) -> None:
    """Restore the purges that can be undone."""
    queues = queues_by_store_id(hosts) if store.purged else {}
    for purged in store.purged.values():
        of = next((queues[one.id] for one in purged.queues if one.id in queues), None)
        if of is not None:
            of.purges.restore(purged)


def queues_by_store_id(hosts: Sequence[RestoredHost]) -> dict[int, Queue]:
    """Return the queues of all hosts by the ids of the store's queues, one for each priority."""
    return {
        store_queue.id: queue
        for vhost in hosts
        for queue in vhost.queues.values()
        for store_queue in queue.priorities
    }
