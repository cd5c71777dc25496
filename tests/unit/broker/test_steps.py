"""Very many things are put in order in steps, none of which looks at all of them."""

from __future__ import annotations

import random
import weakref

from amqpstore_server.broker.work import steps

COUNT = 10
THINGS = 1000


class Thing:
    """Counts how often its key is looked at."""

    looks = 0

    def __init__(self, key: int) -> None:
        self._key = key

    @property
    def key(self) -> int:
        Thing.looks += 1
        return self._key


def shuffled() -> list[Thing]:
    keys = list(range(THINGS))
    random.Random(1).shuffle(keys)
    return [Thing(key) for key in keys]


def key_of(thing: Thing) -> int:
    return thing.key


def test_they_come_in_order_and_no_step_looks_at_all_of_them() -> None:
    found: list[int] = []
    looks = []
    Thing.looks = 0
    for batch in steps.in_order(shuffled(), key_of, COUNT):
        looks.append(Thing.looks)
        Thing.looks = 0
        found += [thing._key for thing in reversed(batch)]
    assert found == list(range(THINGS))
    # In each step a piece is sorted, or some are handled; the pieces are begun together.
    assert max(looks) <= (steps._SORTED + 1) * COUNT
    assert len(looks) >= THINGS // COUNT


def test_each_is_freed_once_it_was_handled() -> None:
    for kind in ("sorted", "as they come"):
        things = shuffled()
        alive = weakref.WeakSet(things)
        each = (
            steps.in_order(things, key_of, COUNT)
            if kind == "sorted"
            else steps.batches(things, COUNT)
        )
        left = THINGS
        for batch in each:
            left -= len(batch)
            batch.clear()
            assert len(alive) <= left + 2, kind  # the last that were compared
        assert (left, things) == (0, []), kind


def test_batches_keep_the_order() -> None:
    assert [*steps.batches([1, 2, 3, 4, 5], 2)] == [[2, 1], [4, 3], [5]]
