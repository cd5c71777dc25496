"""Long work in steps: the clients of the broker have their turn after some milliseconds of it.

The event loop is that of the broker. A list of 10,000 queues takes a tenth of a second to build,
which in one go would be a tenth of a second without a confirm for anybody.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, TypeVar

import trio

_STEP_S = 0.005
_LOOK_AFTER = 32
"""Items after which the clock is read."""
_SORTED_AT_ONCE = 1024

T = TypeVar("T")
ResultT = TypeVar("ResultT")


class InSteps:
    """A piece of work that is done in steps."""

    def __init__(self) -> None:
        self._ends_at = time.perf_counter() + _STEP_S

    async def pause(self) -> None:
        """Let others have their turn, if this step has taken long."""
        if time.perf_counter() >= self._ends_at:
            await trio.lowlevel.checkpoint()
            self._ends_at = time.perf_counter() + _STEP_S

    async def each(self, items: Iterable[T], function: Callable[[T], ResultT]) -> list[ResultT]:
        """Return what a function returns for each item."""
        left = iter(items)
        found: list[ResultT] = []
        while some := list(islice(left, _LOOK_AFTER)):
            await self.pause()
            found += map(function, some)
        return found

    async def chosen(self, items: Iterable[T], function: Callable[[T], bool]) -> list[T]:
        """Return the items that a function is true for."""
        left = iter(items)
        found: list[T] = []
        while some := list(islice(left, _LOOK_AFTER)):
            await self.pause()
            found += filter(function, some)
        return found

    async def ordered(
        self,
        items: Sequence[T],
        columns: Sequence[Sequence[Any]],
        *,
        reverse: bool,
        end: int | None,
    ) -> list[T]:
        """Return items by their values in some columns, up to a position: only what is before it is
        put in order. The values of one column have to be comparable with each other.

        A sort of many items cannot be interrupted, so it is one of parts, which are then merged.
        """
        # No two positions are equal, so that items are never compared.
        keyed = list(zip(*columns, range(len(items)), items, strict=True))
        parts = []
        for first in range(0, len(keyed), _SORTED_AT_ONCE):
            await self.pause()
            parts.append(sorted(keyed[first : first + _SORTED_AT_ONCE], reverse=reverse))
        merged = iter(parts[0]) if len(parts) == 1 else heapq.merge(*parts, reverse=reverse)
        return await self.each(islice(merged, end), itemgetter(-1))
