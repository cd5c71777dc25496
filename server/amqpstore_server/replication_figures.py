"""What a leader's metrics tell of its followers."""

from __future__ import annotations

from typing import NamedTuple


class ReplicationFigures(NamedTuple):
    """Figures of one moment. Publishers wait while fewer than `min_in_sync` replicas, the leader
    included, are in the list; `in_sync` are there now. `joining` are waited for, and not in the
    list yet. `copied_bytes` were sent of copies of the store; `copies` are sent now, which will
    take `left_bytes` more. `waiting` processes stay out, or do not lead, because they or the group
    may be older than before; `is_etcd_refused`: etcd may be, and is not used.
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
