"""Counts the turns of other tasks while something is done in steps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class Turns:
    """Counts the turns that another task has had."""

    def __init__(self) -> None:
        self.count = 0

    async def run(self) -> None:
        """Count until cancelled."""
        while True:
            self.count += 1
            await trio.lowlevel.checkpoint()


@asynccontextmanager
async def others() -> AsyncIterator[Turns]:
    """Have another task that is always ready, until the block ends."""
    turns = Turns()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run)
        await trio.lowlevel.checkpoint()
        turns.count = 0
        yield turns
        nursery.cancel_scope.cancel()
