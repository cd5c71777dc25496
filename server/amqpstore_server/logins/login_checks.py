"""The queue for password checks: a few at a time, in turns.

A check takes 64 MiB and much processor time, by design of the hash: without a limit, anyone who can
connect could exhaust memory with wrong passwords.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import trio

from amqpstore_server.logins.peers import peer_of

MAX_CHECKS = 2
"""Checks that run at the same time; on a machine of two processors it is one."""

_NICENESS = 10
"""The niceness of the threads that check, four for each check. Without it they could have most of a
small machine; with it they have a fifth while clients have work for the rest, and else all of it.
"""


class _Line:
    """Logins that wait: the peers, below each peer its users, below each user its logins.

    The members of a line take turns. Every second turn is that of the newest of those that had none
    yet: who comes behind many others does not wait for all of them.
    """

    __slots__ = ("_is_newest_next", "_members", "_new")

    def __init__(self) -> None:
        self._members: dict[Hashable, _Line] = {}
        """In the order of their turns."""
        self._new: dict[Hashable, None] = {}
        """Members that had no turn yet, as they came."""
        # Of each line by itself: by turns of all together, an even number of them would always
        # have the same end of each served.
        self._is_newest_next = True

    def __bool__(self) -> bool:
        return bool(self._members)

    def join(self, path: Sequence[Hashable]) -> None:
        """Wait for a turn. Args: path, the member of this line, then of its line, and so on."""
        member, *rest = path
        if member not in self._members:
            self._members[member] = _Line()
            self._new[member] = None
        if rest:
            self._members[member].join(rest)

    def remove(self, path: Sequence[Hashable]) -> None:
        """Wait no longer."""
        member, *rest = path
        if rest:
            self._members[member].remove(rest)
        if not self._members[member]:
            del self._members[member]
            self._new.pop(member, None)

    def next(self) -> list[Hashable]:
        """Remove the one whose turn it is, and return its path."""
        is_newest = self._is_newest_next
        self._is_newest_next = not is_newest
        newest = next(reversed(self._new), None) if is_newest else None
        member = next(iter(self._members)) if newest is None else newest
        line = self._members.pop(member)
        self._new.pop(member, None)
        path = [member, *line.next()] if line else [member]
        if line:
            self._members[member] = line  # behind all others
        return path


class LoginChecks:
    """The logins that wait for a check. Peers (see `peers`) take turns, the users of a peer take
    turns, and so do the logins of a user: many wrong ones of one do not delay the others. And of
    each of these the newest has its turn soon: a right login that comes behind many wrong ones does
    not wait for all of them, whether they are of one user or of as many users, or peers, as they
    are.

    Args: most, checks that run at the same time.
    """

    def __init__(self, most: int = MAX_CHECKS) -> None:
        self._free = most
        self._line = _Line()
        self._threads = ThreadPoolExecutor(MAX_CHECKS, "login check", _step_back)

    async def run(self, check: Callable[..., object], *arguments: object) -> None:
        """Run a check in a thread that leaves the processor to others. To be called in a turn."""
        await trio.to_thread.run_sync(self._threads.submit(check, *arguments).result)

    @asynccontextmanager
    async def turn(self, host: str, user: str) -> AsyncIterator[None]:
        """Wait for a turn; leaving the context gives it to the next. Args: host, an address."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(host, user)
        try:
            yield
        finally:
            self._next()

    async def _wait(self, host: str, user: str) -> None:
        event = trio.Event()
        path = (peer_of(host), user, event)
        self._line.join(path)
        try:
            await event.wait()
        except trio.Cancelled:
            # The turn came at the same moment as the cancellation: it would be lost to all others.
            if event.is_set():
                self._next()
            else:
                self._line.remove(path)
            raise

    def _next(self) -> None:
        if not self._line:
            self._free += 1
            return
        event = self._line.next()[-1]
        assert isinstance(event, trio.Event)
        event.set()


def checks_at_once() -> int:
    """Return how many passwords are checked at the same time on this machine."""
    return MAX_CHECKS if (os.cpu_count() or 1) > MAX_CHECKS else 1


def _step_back() -> None:
    """Lower the priority of this thread, and of those that it starts."""
    if sys.platform == "linux":  # elsewhere it would be the process's
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
