"""Costly work has a part of the time while others are at work, and all of it otherwise."""

import pytest

from amqpstore_server.loop.loop_limits import LOOP_LIMITS
from amqpstore_server.loop.share import Share


def time_of_work(others_every_s: float, *, seconds: float = 10.0) -> float:
    """Return how much of the time is for work that always has more to do, 3 ms at a time."""
    share = Share(4.0, LOOP_LIMITS)
    now = worked_s = 0.0
    while now < seconds:
        others_at = now if others_every_s == 0 else now // others_every_s * others_every_s
        if wait_s := share.wait_s(now, others_at):
            now += min(wait_s, 0.0005)
            continue
        now += 0.003
        worked_s += 0.003
        share.took(now, 0.003)
    return worked_s / now


def test_it_has_a_fifth_of_the_time_while_others_are_at_work() -> None:
    assert time_of_work(0) == pytest.approx(0.2, abs=0.03)


def test_it_has_all_of_the_time_alone() -> None:
    assert time_of_work(1000.0) == pytest.approx(1.0, abs=0.03)


def test_it_has_what_is_left_by_others_that_are_seldom_at_work() -> None:
    assert time_of_work(0.1) > 0.9


def test_it_begins_at_once() -> None:
    assert not Share(4.0, LOOP_LIMITS).wait_s(0.0, 0.0)


def test_what_follows_from_it_counts_too() -> None:
    share = Share(4.0, LOOP_LIMITS)
    share.took(1.0, 0.001)
    share.took(1.0, 0.002)
    assert share.wait_s(1.0, 1.011) == pytest.approx(0.012)


def test_it_waits_no_longer_than_others_are_at_work() -> None:
    share = Share(4.0, LOOP_LIMITS)
    share.took(1.0, 1.0)
    assert share.wait_s(1.0, 1.0) < 0.01
    assert share.wait_s(1.1, 1.0) == 0.0


def test_what_was_done_alone_is_not_made_up_for() -> None:
    """An hour of work at night does not keep its clients out in the morning."""
    share = Share(9.0, LOOP_LIMITS)
    now = 0.0
    while now < 3600.0:
        now += 0.5
        share.took(now, 0.5)
    share.took(now, 0.001)
    assert share.wait_s(now, now + 60.0) == pytest.approx(4.5), "the last piece"
    now += 10.0
    for _ in range(1000):
        now += 0.001
        share.took(now, 0.001)
    assert share.wait_s(now, now + 60.0) == pytest.approx(0.1)


def test_a_long_piece_is_not_forgotten_behind_short_ones() -> None:
    share = Share(9.0, LOOP_LIMITS)
    share.took(1.0, 0.1)
    share.took(1.0, 0.001)
    assert share.wait_s(1.0, 2.0) == pytest.approx(0.9)
