"""Work on very many things in steps: others may have their turn after each."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

ThingT = TypeVar("ThingT")

_SORTED = 16
"""How many times as many are sorted in a step as are handled: sorting is that much faster."""


def some_at_once(things: Iterable[ThingT], count: int) -> Iterator[ThingT | None]:
    """Yield things, and None after so many of them, where others may have their turn."""
    for number, thing in enumerate(things):
        if number and not number % count:
            yield None
        yield thing


def in_order(
    things: list[ThingT], key: Callable[[ThingT], int], count: int
) -> Iterator[ThingT | None]:
    """Yield things in the order of their keys, and None where others may have their turn.

    The list is emptied, and none of them is kept longer than it takes to yield it: to free very
    many at once would take long, too.
    """
    pieces: list[Iterator[ThingT]] = []
    most = _SORTED * count
    while things:
        if pieces:
            yield None
        pieces.append(_emptied(sorted(things[-most:], key=key, reverse=True)))
        del things[-most:]
    yield from some_at_once(heapq.merge(*pieces, key=key), count)


def _emptied(things: list[ThingT]) -> Iterator[ThingT]:
    """Yield the last of them first."""
    while things:
        yield things.pop()
