"""Work on very many things in steps: others may have their turn after each.

Each batch is a list that is to be emptied from its end, and its things come in that order. They are
kept nowhere else: to free very many at once would take long, too.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

ThingT = TypeVar("ThingT")

_SORTED = 16
"""How many things are sorted in a step for each one that is handled: sorting is that much faster.
"""


def batches(things: list[ThingT], count: int) -> Iterator[list[ThingT]]:
    """Yield batches of some things. The list is emptied."""
    things.reverse()
    while things:
        batch = things[-count:]
        del things[-count:]
        yield batch


def in_order(
    things: list[ThingT], key: Callable[[ThingT], int], count: int
) -> Iterator[list[ThingT]]:
    """Yield batches in the order of the keys; the first ones are empty, while things are sorted.
    The list is emptied.
    """
    pieces: list[Iterator[ThingT]] = []
    most = _SORTED * count
    while things:
        if pieces:
            yield []
        pieces.append(_emptied(sorted(things[-most:], key=key, reverse=True)))
        del things[-most:]
    merged = heapq.merge(*pieces, key=key)
    while batch := list(islice(merged, count)):
        batch.reverse()
        yield batch


def _emptied(things: list[ThingT]) -> Iterator[ThingT]:
    """Yield the last of them first."""
    while things:
        yield things.pop()
