"""Tests of followers that hold up the others, where each message waits for the confirm of the one
before it: a frame is sent when the slowest follower has the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest

from amqpstore_server.cluster.progress import FollowerProgress
from amqpstore_server.cluster.slow_followers import SlowFollowers
from amqpstore_server.cluster.timing import Timing

TICK_S = 0.05
OTHERS_S = 0.002
"""How long the leader and the other follower take for a frame."""

Takes = Callable[[float], float]


def left_at(takes: Takes, others_s: float = OTHERS_S, until: float = 20.0) -> float:
    """Return when a follower has held the others up for too long; `inf` if it never has.

    Args: takes, how long it takes for a frame that is sent at a time.
    """
    slow = SlowFollowers(Timing(), 0.0)
    follower = FollowerProgress(0.0)
    follower.link = 1
    seq, sent_at = 1, 0.0
    now = 0.0
    while now < until:
        while (acked_at := sent_at + takes(sent_at)) <= now:
            follower.acked = seq
            seq, sent_at = seq + 1, max(acked_at, sent_at + others_s)
        is_there = now - sent_at >= others_s
        lacked_s = 0.0 if is_there else now - sent_at
        slow.look(now, seq if is_there else seq - 1, lacked_s, {"C": follower}, {"C"})
        if slow.includes(follower):
            return now
        now += TICK_S
    return inf


@pytest.mark.parametrize("sync_s", [0.3, 0.4, 0.5, 1.0, 1.9])
def test_who_holds_others_up_is_noticed_in_time(sync_s: float) -> None:
    assert left_at(lambda _: sync_s) < 2.5


@pytest.mark.parametrize("sync_s", [0.002, 0.1, 0.19])
def test_who_takes_less_than_a_quarter_of_a_second_stays(sync_s: float) -> None:
    assert left_at(lambda _: sync_s) == inf


@pytest.mark.parametrize(("every_s", "long_s"), [(1.0, 0.4), (3.0, 1.0)])
def test_who_is_slow_now_and_then_stays(every_s: float, long_s: float) -> None:
    """A checkpoint slows a disk, or the work of another program on it."""
    assert left_at(lambda at: long_s if at % every_s < 0.01 else 0.004) == inf


def test_who_is_as_slow_as_the_others_stays() -> None:
    assert left_at(lambda _: 0.6, others_s=0.5) == inf
