"""Garbage is collected in short pauses, though as many objects are freed as are made."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator
from itertools import count

import pytest
import trio

from amqpstore_server.loop.garbage import WholeCollector, YoungCollector
from amqpstore_server.loop.loop_limits import LOOP_LIMITS

IN_FLIGHT = 50_000
IN_A_TURN = 1_000


class Message:
    """An object that the collector looks at."""


@pytest.fixture(autouse=True)
def _collects_nothing_by_itself() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def most_young(*instruments: trio.abc.Instrument) -> int:
    """Return how many objects a collection would look at, at most, under steady load."""
    in_flight = deque((Message() for _ in range(IN_FLIGHT)), maxlen=IN_FLIGHT)

    async def run() -> int:
        for instrument in instruments:
            trio.lowlevel.add_instrument(instrument)
        most = 0
        for _ in range(IN_FLIGHT // IN_A_TURN):
            in_flight.extend(Message() for _ in range(IN_A_TURN))
            most = max(most, sum(len(gc.get_objects(one)) for one in (0, 1)))
            await trio.lowlevel.checkpoint()
        return most

    gc.collect()
    return trio.run(run)


def test_a_collection_looks_at_what_some_turns_have_made() -> None:
    """Each reading of the clock is in another turn, after some milliseconds of work."""
    times = count(0.0, LOOP_LIMITS.collect_young_s)
    assert most_young(YoungCollector(LOOP_LIMITS, lambda: next(times))) < 5 * IN_A_TURN


def test_each_is_of_all_generations_but_the_oldest() -> None:
    generations: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generations.append(info["generation"])

    times = count(0.0, LOOP_LIMITS.collect_young_s)
    gc.callbacks.append(note)
    try:
        most_young(YoungCollector(LOOP_LIMITS, lambda: next(times)))
    finally:
        gc.callbacks.remove(note)
    # The first is that of the test.
    assert generations[1:6] == [1, 1, 1, 1, 1]


class WholeWork:
    """A collector of everything that has ticked for some minutes, and the processor time that each
    collection takes.
    """

    def __init__(self, takes_s: float) -> None:
        self._takes_s = takes_s
        self._readings = 0
        self.collector = WholeCollector(LOOP_LIMITS, self._clock)

    def _clock(self) -> float:
        self._readings += 1
        return self._readings // 2 * self._takes_s

    def collections(self, minutes: int, *, is_serving: bool) -> int:
        """Return how many collections a number of further minutes brings."""
        before = self._readings
        for now in range(60 * minutes):
            self.collector.tick(
                before * 1e6 + now * LOOP_LIMITS.collect_all_every_s / 60, is_serving=is_serving
            )
        return (self._readings - before) // 2


@pytest.fixture
def frozen() -> Iterator[None]:
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("frozen")
def test_everything_is_looked_at_once_a_minute_where_that_takes_little_time() -> None:
    assert WholeWork(0.001).collections(5, is_serving=True) == 4


@pytest.mark.usefixtures("frozen")
def test_it_is_not_done_again_while_clients_are_served_if_it_took_long() -> None:
    """A collection is made while no client is served, unless it takes longer than a client that
    connects then would wait.
    """
    work = WholeWork(0.05)
    held = [Message() for _ in range(1000)]
    assert work.collections(5, is_serving=True) == 1
    assert work.collections(5, is_serving=False) >= 4
    assert held
    assert WholeWork(0.5).collections(5, is_serving=False) == 1


def test_nothing_is_looked_at_in_somebody_elses_program() -> None:
    assert WholeWork(0.001).collections(5, is_serving=False) == 0
