"""Figures of a member about its group, for metrics: of a leader, and of a follower."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class ReplicationFigures(NamedTuple):
    """Figures of one moment. Publishers wait while fewer than `min_in_sync` replicas, the leader
    included, are in the list; `in_sync` are there now, of which the leader reaches `in_reach`.
    `is_blocked`: publishers wait, for this reason or because acks are late. `joining` are waited
    for, and not in the list yet. `copied_bytes` were sent of copies of the store; `copies` are sent
    now, which will take `left_bytes` more. `waiting` processes stay out, or do not lead, because
    they or the group may be older than before; `is_etcd_refused`: etcd may be, and is not used.
    `left` has how many followers have left the list in this term, by the reason. `refused_frames`:
    how many connections of members this process has ended, as what came was not the other one's
    next frame.
    """

    term: int
    in_sync: int
    joining: int
    copies: int
    copied_bytes: int
    left_bytes: int
    min_in_sync: int
    waiting: int = 0
    is_etcd_refused: bool = False
    left: Mapping[str, int] = {}
    refused_frames: int = 0
    in_reach: int = 0
    is_blocked: bool = False


class FollowerFigures(NamedTuple):
    """Figures of one moment. `leader` is the address of the leader, and empty while none is known;
    `takes_clients`: clients that come here are passed on to it. `batch` is the last one on disk
    here, and `lag_batches` are confirmed and not here, as far as this member knows.
    `received_bytes` of `copy_bytes` of the leader's store are here, while it gets a copy. `waits`:
    it stays out, or does not lead, because it or the group may be older than before. `free_bytes`
    are those of its disk. `refused_frames` as those of a leader.
    """

    leader: str
    takes_clients: bool
    is_streaming: bool
    batch: int
    lag_batches: int
    received_bytes: int
    copy_bytes: int
    waits: bool
    is_etcd_refused: bool
    is_damaged: bool
    free_bytes: int
    least_free_bytes: int
    refused_frames: int
