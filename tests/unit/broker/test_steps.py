"""Very many things are put in order in steps, none of which looks at all of them."""

from __future__ import annotations

import random
import weakref

from amqpstore_server.broker import steps

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
    for thing in steps.in_order(shuffled(), key_of, COUNT):
        if thing is None:
            looks.append(Thing.looks)
            Thing.looks = 0
        else:
            found.append(thing._key)
    assert found == list(range(THINGS))
    # In each step a piece is sorted, or some are handled; the pieces are begun together.
    assert max(looks) <= steps._SORTED * COUNT + COUNT
    assert len(looks) >= THINGS // COUNT


def test_each_is_freed_once_it_was_handled() -> None:
    things = shuffled()
    alive = weakref.WeakSet(things)
    left = []
    for thing in steps.in_order(things, key_of, COUNT):
        if thing is None:
            left.append(len(alive))
        del thing
    assert things == []
    handled = [count for count in left if count < THINGS]
    assert handled == list(range(THINGS - COUNT, 0, -COUNT))
