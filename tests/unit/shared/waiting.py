"""Tools of the tests of a `SharedStore`."""

from __future__ import annotations

from amqpstore import SharedStore


def waiting(shared: SharedStore, queue: str) -> int:
    """Return how many threads wait for a message of a queue."""
    with shared._locked_store.lock:
        return len(shared._queues.get(queue).arrivals)


def send(shared: SharedStore, queue: str, *bodies: bytes) -> None:
    """Send in a transaction of its own."""
    with shared.transaction() as transaction:
        transaction.send(queue, bodies)


def receive(shared: SharedStore, queue: str, limit: int = 1) -> list[bytes]:
    """Receive what is there in a transaction of its own."""
    with shared.transaction() as transaction:
        return [one.body for one in transaction.receive(queue, limit=limit, timeout_s=0)]


def ready(shared: SharedStore, queue: str) -> int:
    """Return how many messages wait in a queue."""
    state = shared.find(queue)
    assert state is not None
    return state.ready_count
