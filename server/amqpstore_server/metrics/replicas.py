"""Metrics of replication, of a leader and of a follower; a single node has none of them."""

from __future__ import annotations

from amqpstore_server.metrics.families import Described, Families, family, single
from amqpstore_server.metrics.source import MetricsSource
from amqpstore_server.terms.replication_figures import FollowerFigures

_PREFIX = "amqpstore_replication_"
_REFUSED = (
    "refused_frames_total",
    "Connections of members that were ended, as what came was not the next frame of the other one",
)


def families(source: MetricsSource) -> Families:
    """Yield those of a leader."""
    figures = source.replication()
    if figures is None:
        return
    for name, help_text, value in (
        ("term", "The term that this member leads", figures.term),
        ("in_sync", "Replicas in the in-sync list, the leader included", figures.in_sync),
        (
            "min_in_sync",
            "Replicas, the leader included, without which nothing is confirmed",
            figures.min_in_sync,
        ),
        (
            "in_reach",
            "Replicas in the in-sync list that this leader reaches now, itself included",
            figures.in_reach,
        ),
        (
            "blocked",
            "Whether publishers wait, as too few replicas have what was published",
            int(figures.is_blocked),
        ),
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
        (*_REFUSED, figures.refused_frames),
    ):
        yield single(Described(_PREFIX + name, help_text), value)
    name, help_text = f"{_PREFIX}left_total", "Followers that have left the in-sync list"
    left = family(Described(name, help_text))
    for reason, count in figures.left.items():
        left.add_sample(name, {"reason": reason}, count)
    yield left


def of_follower(figures: FollowerFigures) -> Families:
    """Yield those of a follower."""
    for name, help_text, value in (
        ("streaming", "Whether this follower gets all batches now", figures.is_streaming),
        ("batch", "The last batch on the disk of this follower", figures.batch),
        (
            "lag_batches",
            "Batches that are confirmed and not on the disk of this follower, as far as it knows",
            figures.lag_batches,
        ),
        (
            "copy_received_bytes",
            "Bytes of a copy of the store that are here",
            figures.received_bytes,
        ),
        (
            "copy_bytes",
            "Bytes of the copy of the store that this follower gets",
            figures.copy_bytes,
        ),
        (
            "stays_out",
            "Whether it stays out or does not lead, as it or its group may be older than before",
            figures.waits,
        ),
        (
            "etcd_refused",
            "Whether etcd is not used, as it is not the group's or is older than before",
            figures.is_etcd_refused,
        ),
        ("damage_found", "Whether the start of this follower has found damage", figures.is_damaged),
        (*_REFUSED, figures.refused_frames),
    ):
        yield single(Described(_PREFIX + name, help_text), value)
