"""Tests that every implementation of `Clock` passes, whatever moves it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio.testing

from amqpstore.system.clock import SYSTEM_CLOCK, Clock, SimulatedClock
from amqpstore_tools.testing.clock import VirtualClock
from tests.unit.test_app_clock import TaskClock

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000

Told = tuple[Clock, Callable[[int], None]]
"""A clock, and what moves it by some milliseconds, which may be none."""


def simulated() -> Told:
    clock = SimulatedClock(START_MS)
    return clock, clock.advance


def virtual() -> Told:
    clock = VirtualClock(START_MS)
    return clock, lambda ms: clock.advance_to(clock.now_ms + ms)


def of_tasks() -> Told:
    clock = trio.testing.MockClock()
    return TaskClock(clock.current_time), lambda ms: clock.jump(ms / 1000)


TOLD: dict[str, Callable[[], Told]] = {
    "simulated": simulated,
    "virtual": virtual,
    "of tasks": of_tasks,
}


@pytest.fixture(params=TOLD)
def told(request: pytest.FixtureRequest) -> Told:
    return TOLD[request.param]()


@pytest.fixture(params=[*TOLD, "the system's"])
def clock(request: pytest.FixtureRequest) -> Clock:
    return TOLD[request.param]()[0] if request.param in TOLD else SYSTEM_CLOCK


def test_times_are_whole_milliseconds(clock: Clock) -> None:
    assert type(clock.wall_ms()) is int
    assert type(clock.monotonic_ms()) is int


def test_the_wall_clock_counts_from_1970(clock: Clock) -> None:
    assert START_MS <= clock.wall_ms() < 2 * START_MS


def test_the_monotonic_clock_is_more_than_zero_from_the_first_look_on(clock: Clock) -> None:
    """Zero means `never` where such a time is kept."""
    assert clock.monotonic_ms() > 0


def test_the_monotonic_clock_never_goes_back(clock: Clock) -> None:
    times = [clock.monotonic_ms() for _ in range(1000)]
    assert times == sorted(times)


@pytest.mark.parametrize("ms", [0, 1, 999, HOUR_MS])
def test_time_that_passes_is_seen_on_both(told: Told, ms: int) -> None:
    clock, move = told
    wall_ms, monotonic_ms = clock.wall_ms(), clock.monotonic_ms()
    move(ms)
    assert clock.monotonic_ms() == monotonic_ms + ms
    assert clock.wall_ms() == wall_ms + ms


def test_nobody_moves_it_back(told: Told) -> None:
    clock, move = told
    move(HOUR_MS)
    monotonic_ms = clock.monotonic_ms()
    with pytest.raises(ValueError, match="time"):
        move(-1)
    assert clock.monotonic_ms() == monotonic_ms


def test_a_wall_clock_that_is_set_moves_no_other() -> None:
    simulated_clock, task_clock = SimulatedClock(START_MS), TaskClock(lambda: 5.0)
    for clock in (simulated_clock, task_clock):
        wall_ms, monotonic_ms = clock.wall_ms(), clock.monotonic_ms()
        if isinstance(clock, SimulatedClock):
            clock.set_wall(wall_ms - HOUR_MS)
        else:
            clock.ahead_ms -= HOUR_MS
        assert clock.wall_ms() == wall_ms - HOUR_MS
        assert clock.monotonic_ms() == monotonic_ms
