"""Metrics of replication, which a leader has; a single node has none of them."""

from __future__ import annotations

from amqpstore_server.metrics.families import Described, Families, single
from amqpstore_server.metrics.source import MetricsSource

_PREFIX = "amqpstore_replication_"


def families(source: MetricsSource) -> Families:
    """Yield all of them."""
    figures = source.replication()
    if figures is None:
        return
    for name, help_text, value in (
        ("term", "The term that this member leads", figures.term),
        ("in_sync", "Replicas in the in-sync list, the leader included", figures.in_sync),
        ("joining", "Followers that are about to enter the list", figures.joining),
        ("copies", "Followers that get a copy of the store now", figures.copies),
        ("copied_bytes_total", "Bytes of copies that were sent", figures.copied_bytes),
        ("copy_left_bytes", "Bytes of copies that are still to be sent", figures.left_bytes),
        (
            "waiting",
            "Members that stay out or do not lead, as they or the group may be older than before",
            figures.waiting,
        ),
        (
            "etcd_refused",
            "Whether etcd is not used, as it is not the group's or is older than before",
            int(figures.is_etcd_refused),
        ),
    ):
        yield single(Described(_PREFIX + name, help_text), value)
