"""Whether the broker lives, whether clients should be sent to it, and what is wrong with it.

An alarm keeps no client away: consumers are what clears it, and a load balancer that sends no
client to the only broker would have it go on for ever. So what blocks publishers, and what of the
messages cannot be read, are questions of their own.
"""

from __future__ import annotations

from amqpstore_server.loop.alarms import DISK, MEMORY, REPLICAS
from amqpstore_server.metrics.source import MetricsSource

_NAMES = {MEMORY: "memory", DISK: "disk", REPLICAS: "replicas"}


def troubles(source: MetricsSource, *, is_stopping: bool) -> list[str]:
    """Return why the broker is not ready for clients; nothing if it is.

    Before it listens it is not ready either, but does not answer.
    """
    found = []
    if is_stopping:
        found.append("the broker is stopping")
    store = source.broker.services.store
    if store.failure is not None:
        found.append("the disk has failed")
    if store.space.problem:
        found.append("the data directory cannot be reached")
    queues = source.sampler.all_queues()
    if queues and all(queue.is_set_aside for queue in queues):
        found.append("none of its queues can be served")
    return found


def alarms(source: MetricsSource) -> list[str]:
    """Return the names of what is short, so that publishers are blocked: memory, disk, replicas."""
    return [_NAMES[reason] for reason in source.alarms.reasons]


def unreadable_messages(source: MetricsSource) -> int:
    """Return how many messages cannot be read; up to some seconds old."""
    return source.sampler.figures.unreadable


def queues_set_aside(source: MetricsSource) -> int:
    """Return how many queues are not served, as they could not be opened."""
    return len(source.broker.set_aside)
