"""Metrics of the broker as a whole: all but those of single objects.

What has passed through the channels is summed once for all of them: with ten thousand channels that
takes milliseconds.
"""

from __future__ import annotations

from amqpstore_server.metrics import objects, rabbitmq, replicas, store
from amqpstore_server.metrics.families import Families
from amqpstore_server.metrics.source import MetricsSource


def families(source: MetricsSource) -> Families:
    """Yield all of them."""
    counters = source.broker.counters()
    yield from rabbitmq.families(source, counters)
    yield from store.families(source, counters)
    yield from replicas.families(source)


def without_sums(source: MetricsSource) -> Families:
    """Yield all of them but those that are sums of the objects' metrics."""
    for found in families(source):
        if not any(sample.name in objects.OBJECT_METRICS for sample in found.samples):
            yield found
