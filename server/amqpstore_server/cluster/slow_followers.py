"""Which followers hold the others up: each of their acks may come in time, and all clients wait for
it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

from amqpstore_server.cluster.progress import FollowerProgress
from amqpstore_server.cluster.timing import Timing

_FORGIVEN = 2
"""How many times as long as it has held others up a follower has to keep up, to be as before."""


class SlowFollowers:
    """Holds each follower against the others, and not against the clock: where all are slow it is
    the load, or the leader.
    """

    def __init__(self, timing: Timing, now: float) -> None:
        self._timing = timing
        self._looked_at = now
        self._had: deque[tuple[float, int]] = deque()
        """Up to which frame enough others had everything, by the time of each look."""
        self._usual_s = 0.0
        """How long these have lately taken for a frame."""

    def look(
        self,
        now: float,
        had: int,
        lacked_s: float,
        followers: Mapping[str, FollowerProgress],
        waits_for: Collection[str],
    ) -> None:
        """Note who lacks what enough members to commit it have had for a while.

        Args: had, the last frame that so many members have; lacked_s, for how long they have lacked
        the next one; waits_for, the followers that anybody waits for.
        """
        timing = self._timing
        passed_s, self._looked_at = min(now - self._looked_at, timing.slow_s), now
        self._usual_s = max(lacked_s, self._usual_s - passed_s / _FORGIVEN)
        wait_s = timing.slow_s + self._usual_s
        self._had.append((now, had))
        while len(self._had) > 1 and self._had[1][0] <= now - wait_s:
            self._had.popleft()
        at, seq = self._had[0]
        if at > now - wait_s:
            return
        for name, follower in followers.items():
            if name not in waits_for or follower.link is None:
                follower.held_up_s = 0.0  # nobody waits for it, or it is gone, which is seen to
                continue
            is_receiving = now - follower.received_at < timing.slow_s
            if follower.acked < seq and not is_receiving:
                longest_s = timing.held_up_s + timing.slow_s
                follower.held_up_s = min(follower.held_up_s + passed_s, longest_s)
            else:
                follower.held_up_s = max(follower.held_up_s - passed_s / _FORGIVEN, 0.0)

    def includes(self, follower: FollowerProgress | None) -> bool:
        """Tell whether a follower has held the others up for most of the time."""
        return follower is not None and follower.held_up_s > self._timing.held_up_s
