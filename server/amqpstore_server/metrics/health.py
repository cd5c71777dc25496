"""Whether the broker lives, and whether clients should be sent to it."""

from __future__ import annotations

from amqpstore_server.metrics.source import MetricsSource


def troubles(source: MetricsSource, *, is_stopping: bool) -> list[str]:
    """Return why the broker is not ready for clients; nothing if it is.

    It is not before it listens either, as nobody answers then.
    """
    found = []
    if is_stopping:
        found.append("the broker is stopping")
    if source.broker.context.store.failure is not None:
        found.append("the disk has failed")
    if source.alarms.is_raised:
        found.append(f"publishers are blocked: {source.alarms.reason}")
    return found
