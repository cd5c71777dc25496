"""All clients' sockets in one selector: those that are ready are read together, without tasks.

A task that waits for its own socket costs two system calls and a round of the scheduler for each
read, which is a third of the price of a client that waits for each confirm. So trio waits for the
selector alone. What a client does rarely (log in, be held back, leave) stays with its own task, see
`connection`. The committer's thread wakes trio through the selector too.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import trio

_READING_S = 0.005
"""How long one round reads before the messages are delivered and their batch is started."""

_MANY_RINGS = 4096


class SocketReader(Protocol):
    """A client whose socket is in the selector."""

    def read_ready(self, now: float) -> None:
        """Read once from the socket and handle what came."""


class Sockets:
    """The sockets that are read from, each with its reader."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._bell, self._rung = socket.socketpair()
        for end in (self._bell, self._rung):
            end.setblocking(False)
        self._selector.register(self._rung, selectors.EVENT_READ)
        self._ready: deque[selectors.SelectorKey] = deque()
        """Readable, but left over by the last round: the selector would begin with the same ones
        again."""

    def add(self, sock: socket.socket, reader: SocketReader) -> None:
        """Start reading from a socket whenever it is readable."""
        self._selector.register(sock, selectors.EVENT_READ, reader)

    def remove(self, sock: socket.socket) -> None:
        """Stop reading from a socket. To be called before it is closed."""
        self._selector.unregister(sock)

    def wake(self) -> None:
        """Make the current `wait`, or the next one, return. Any thread may call it."""
        # Full, so that it is woken already; or closed, after a failure.
        with contextlib.suppress(OSError):
            self._bell.send(b"\0")

    async def wait_for_wake(self) -> None:
        """Return when `wake` was called; readable sockets do not count."""
        await trio.lowlevel.wait_readable(self._rung)
        # Otherwise the next call would return at once, and so on while the disk is slow.
        self._hear()

    def _hear(self) -> None:
        """Take in all calls of `wake`. There may be none, if a round left it to the next."""
        with contextlib.suppress(BlockingIOError):
            self._rung.recv(_MANY_RINGS)

    async def wait(self) -> None:
        """Return when a socket is readable, and not before other tasks had their turn."""
        if self._ready:
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.wait_readable(self._selector.fileno())

    def read(self, now: float, may_go_on: Callable[[], bool]) -> None:
        """Read once from each readable socket, until none is left or some milliseconds are over.

        Sockets that become readable meanwhile are read too: their acks make room for deliveries,
        and their publishes share this batch. But a client that sends without a break is read once,
        so that deliveries keep up with it. Args: may_go_on, asked before each read.
        """
        ready = self._ready
        watched = self._selector.get_map()
        seen: set[int] = set()
        until = time.perf_counter() + _READING_S
        while may_go_on():
            if not ready:
                ready.extend([key for key, _ in self._selector.select(0) if key.fd not in seen])
                if not ready:
                    return
            key = ready.popleft()
            seen.add(key.fd)
            # An earlier read of this round may have ended this connection.
            if watched.get(key.fd) is not key:
                continue
            if key.data is None:
                self._hear()
            else:
                key.data.read_ready(now)
            if time.perf_counter() > until:
                return

    def close(self) -> None:
        """Close the selector. No socket may be left in it."""
        self._selector.close()
        self._bell.close()
        self._rung.close()
