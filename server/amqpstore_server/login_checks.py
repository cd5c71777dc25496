"""The queue for password checks: a few at a time, in turns.

A check takes 64 MiB and much processor time, by design of the hash: without a limit, anyone who can
connect could exhaust memory with wrong passwords.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import trio

MAX_CHECKS = 2
"""Checks that run at the same time; on a machine of two processors it is one."""

_NICENESS = 10
"""The niceness of the threads that check, four for each check. Without it they could have most of a
small machine; with it they have a fifth while clients have work for the rest, and else all of it.
"""


class _Line:
    """The logins of one user from one peer that wait."""

    __slots__ = ("_is_newest_next", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[trio.Event] = deque()
        self._is_newest_next = True

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def join(self, event: trio.Event) -> None:
        """Wait for a turn."""
        self._waiting.append(event)

    def leave(self, event: trio.Event) -> None:
        """Wait no longer."""
        self._waiting.remove(event)

    def next(self) -> trio.Event:
        """Remove and return the one whose turn it is."""
        # Not by turns of all lines together: with an even number of lines, each would always have
        # the same end of it served.
        is_newest = self._is_newest_next
        self._is_newest_next = not is_newest
        return self._waiting.pop() if is_newest else self._waiting.popleft()


class LoginChecks:
    """The logins that wait for a check. Each user of each peer has a line of its own, and the lines
    take turns: many wrong logins of one do not delay the others.

    In a line the newest and the oldest login take turns, so a right one that comes behind many
    wrong ones of the same user does not wait for all of them.

    Args: most, checks that run at the same time.
    """

    def __init__(self, most: int = MAX_CHECKS) -> None:
        self._free = most
        self._lines: dict[tuple[str, str], _Line] = {}
        self._threads = ThreadPoolExecutor(MAX_CHECKS, "login check", _step_back)

    async def run(self, check: Callable[..., object], *arguments: object) -> None:
        """Run a check in a thread that leaves the processor to others. To be called in a turn."""
        await trio.to_thread.run_sync(self._threads.submit(check, *arguments).result)

    @asynccontextmanager
    async def turn(self, host: str, user: str) -> AsyncIterator[None]:
        """Wait for a turn; leaving the context gives it to the next."""
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
        self._lines.setdefault(whose, _Line()).join(event)
        try:
            await event.wait()
        except trio.Cancelled:
            if event.is_set():
                self._next()
            else:
                self._lines[whose].leave(event)
                if not self._lines[whose]:
                    del self._lines[whose]
            raise

    def _next(self) -> None:
        if not self._lines:
            self._free += 1
            return
        whose = next(iter(self._lines))
        line = self._lines.pop(whose)
        line.next().set()
        if line:
            self._lines[whose] = line  # behind all other lines


def checks_at_once() -> int:
    """Return how many passwords are checked at the same time on this machine."""
    return MAX_CHECKS if (os.cpu_count() or 1) > MAX_CHECKS else 1


def _step_back() -> None:
    """Lower the priority of this thread, and of those that it starts."""
    if sys.platform == "linux":  # elsewhere it would be the process's
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
