"""The line in front of the password checks: few at a time, each in its turn.

A check takes 64 MiB and much processor time, by design of the hash: anyone who may connect could
fill memory with wrong passwords.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

MAX_CHECKS = 2
"""At a time."""


class LoginChecks:
    """Who waits for a check. Each user of each peer has a line of its own, and the lines have their
    turns: many wrong logins of one of them do not hold up the others."""

    def __init__(self) -> None:
        self._free = MAX_CHECKS
        self._lines: dict[tuple[str, str], deque[trio.Event]] = {}

    @asynccontextmanager
    async def turn(self, host: str, user: str) -> AsyncIterator[None]:
        """Enter when it is this one's turn; the next one's is when this is left."""
        if self._free:
            self._free -= 1
        else:
            await self._wait((host, user))
        try:
            yield
        finally:
            self._next()

    async def _wait(self, whose: tuple[str, str]) -> None:
        event = trio.Event()
        self._lines.setdefault(whose, deque()).append(event)
        try:
            await event.wait()
        except trio.Cancelled:
            if event.is_set():
                self._next()
            else:
                self._lines[whose].remove(event)
                if not self._lines[whose]:
                    del self._lines[whose]
            raise

    def _next(self) -> None:
        if not self._lines:
            self._free += 1
            return
        whose = next(iter(self._lines))
        line = self._lines.pop(whose)
        line.popleft().set()
        if line:
            self._lines[whose] = line  # behind all others
