"""How long things may take. Safety of confirms depends on none of it: see `leading`."""

from __future__ import annotations

from typing import NamedTuple


class Timing(NamedTuple):
    """Durations in seconds, on each machine's monotonic clock."""

    lease_s: float = 3.0
    """How long the leader's key outlives its last renewal. etcd grants at least 2."""
    margin_s: float = 0.5
    """A leader stops serving this long before its proof of leadership ends."""
    keep_alive_s: float = 1.0
    beat_s: float = 0.5
    promise_s: float = 3.0
    """How long a follower does not stand for election after it has answered a beat."""
    ack_timeout_s: float = 2.0
    """A follower that has not acked for so long, while frames wait for it, leaves the list."""
    turn_s: float = 0.3
    """Between the candidacies of two members that could both lead."""
    stall_s: float = 5.0
    """A leader that cannot commit for so long lets others try."""
    read_every_s: float = 1.0
    """A follower without a leader looks at etcd this often, whatever its watch tells."""
