"""Followers that hold the others up: each of their acks may come in time, and all clients wait for
it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from amqpstore_server.cluster.progress import FollowerProgress
from amqpstore_server.cluster.timing import Timing


class SlowFollowers:
    """Holds each follower against the others, and not against the clock: where all are slow it is
    the load, or the leader.

    Of each follower one frame is followed at a time: the last one that enough others had when it
    was looked at. If it takes too long for that, all of that time counts: where publishers wait for
    their confirms, each frame begins when the one before it is there, and the part of it that is
    bearable would else be taken for time in which the follower kept up.
    """

    def __init__(self, timing: Timing, now: float) -> None:
        self._timing = timing
        self._looked_at = now
        self._usual_s = 0.0
        """How long enough others have lately taken for a frame."""

    def look(
        self,
        now: float,
        had: int,
        lacked_s: float,
        followers: Mapping[str, FollowerProgress],
        waits_for: Collection[str],
    ) -> None:
        """Note who lacks what enough members to commit it have had for a while.

        Args: had, the last frame that enough members have; lacked_s, for how long they have lacked
        the next one; waits_for, the followers that anybody waits for.
        """
        timing = self._timing
        # A leader that has not looked for longer was held up itself.
        passed_s, self._looked_at = min(now - self._looked_at, timing.slow_s / 2), now
        self._usual_s = max(lacked_s, self._usual_s - passed_s / 2)
        for name, follower in followers.items():
            if name not in waits_for or follower.link is None:
                # The group does not wait for it, or it is gone, which is seen to.
                follower.held_up_s = 0.0
                follower.follow_frame(0, 0.0)
            elif now - follower.received_at < timing.slow_s:
                self._forgive(follower, passed_s)
                follower.follow_frame(had, passed_s / 2)
            else:
                self._look_at(follower, had, passed_s)

    def _look_at(self, follower: FollowerProgress, had: int, passed_s: float) -> None:
        follower.late_s += passed_s
        is_here = follower.acked >= follower.followed
        if follower.late_s >= self._timing.slow_s + self._usual_s and follower.followed:
            longest_s = self._timing.held_up_s + self._timing.slow_s
            more_s, follower.counted_s = follower.late_s - follower.counted_s, follower.late_s
            follower.held_up_s = min(follower.held_up_s + more_s, longest_s)
        elif is_here and not follower.counted_s:
            self._forgive(follower, follower.late_s)
        if is_here:
            # It may have lacked the next one since any time after the last look.
            follower.follow_frame(had, passed_s / 2)

    @staticmethod
    def _forgive(follower: FollowerProgress, kept_up_s: float) -> None:
        follower.held_up_s = max(follower.held_up_s - kept_up_s, 0.0)

    def includes(self, follower: FollowerProgress | None) -> bool:
        """Tell whether a follower has held the others up for most of the time."""
        return follower is not None and follower.held_up_s > self._timing.held_up_s
