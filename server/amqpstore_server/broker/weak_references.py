"""How the parts of a queue refer to the queue that they are part of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast
from weakref import ref

if TYPE_CHECKING:
    from amqpstore_server.broker.queues.queue import Queue


def weakly(queue: Queue) -> Callable[[], Queue]:
    """Return a function that returns a queue, but does not keep it alive; for its own parts.

    So a deleted queue is freed at once. A cycle of references would wait for the garbage collector,
    which comes so seldom here that a million reply queues of clients that are gone would add up.
    """
    return cast("Callable[[], Queue]", ref(queue))
