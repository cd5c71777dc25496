"""Garbage is collected in short pauses, though as many objects are freed as are made."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator
from itertools import count

import pytest
import trio

from amqpstore_server.garbage import _WORK_S, YoungCollector

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
    times = count(0.0, _WORK_S)
    assert most_young(YoungCollector(lambda: next(times))) < 5 * IN_A_TURN


def test_each_is_of_all_generations_but_the_oldest() -> None:
    generations: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generations.append(info["generation"])

    times = count(0.0, _WORK_S)
    gc.callbacks.append(note)
    try:
        most_young(YoungCollector(lambda: next(times)))
    finally:
        gc.callbacks.remove(note)
    # The first is that of the test.
    assert generations[1:6] == [1, 1, 1, 1, 1]
