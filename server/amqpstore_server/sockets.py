"""All clients' sockets in one selector: those that are ready are read together, without tasks.

A task that waits for its own socket costs two system calls and a round of the scheduler for each
read, which is a third of the price of a client that waits for each confirm. So trio waits for the
selector alone, and while there is traffic not even that: `wait` waits for it in trio's place, up to
a millisecond at a time. What a client does rarely (log in, be held back, leave) stays with its own
task, see `socket_connection`. The end of a batch is signalled through the selector too.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections import deque
from itertools import islice
from typing import Protocol

import trio

_READING_S = 0.005
"""How long one round reads before the messages are delivered and their batch is started."""

_SHORT_ROUND_S = 0.0002
"""A round that read from one socket in less than this time ends: hardly any other client can have
written meanwhile, and its batch can be started."""

_LINGER_S = 0.001
"""How long trio does not hear of its own timers and sockets, at most, when nothing happens here. A
sync ends sooner, and so does the answer of a client that waits for it."""

_ALONE_S = 0.005
"""And how long while something happens."""


_REST = 9.0
"""A client that is costly waits that many times as long as its last read took, while others are
ready: so it has a tenth of the time.
"""


_LEAVE_AT_ONCE = 8
"""From how many clients that have closed their side a round reads. What follows from the end of a
connection takes about as long as twenty messages: of thousands that leave at once, the others
should notice little.
"""

_LEFT = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR


class SocketReader(Protocol):
    """A client whose socket is in the selector."""

    is_costly: bool
    """Whether others are read first: it takes much longer than they do for as much."""

    def read_ready(self, now: float) -> None:
        """Read once from the socket and handle what came."""


class HasDescriptor(Protocol):
    """A socket, for the selector."""

    def fileno(self) -> int:
        """Return its descriptor."""


class Sockets:
    """The sockets that are read from, each with its reader."""

    def __init__(self) -> None:
        self._selector = select.epoll()
        self._readers: dict[int, SocketReader] = {}
        self.signal = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """What is written to this eventfd does the same as `wake`."""
        # Reports each write to it once, so nobody has to read it.
        self._selector.register(self.signal, select.EPOLLIN | select.EPOLLET)
        self._ready: deque[tuple[int, SocketReader]] = deque()
        """Readable, but left over by the last round: the selector would begin with the same ones
        again."""
        self._costly: dict[int, SocketReader] = {}
        """Readable, but costly: they wait for the others."""
        self._leaving: dict[int, SocketReader] = {}
        """Their clients have closed their side: they wait for the others too. They are not in the
        selector, which would find them again and again.
        """
        self._costly_at = 0.0
        self._others_were_read = False
        self.read_at = 0.0
        """When something was read from a client that is not costly."""
        self._has_looked = False
        """`wait` has just asked the selector."""
        self._others_run_at = 0.0

    def add(self, sock: HasDescriptor, reader: SocketReader) -> None:
        """Start reading from a socket whenever it is readable."""
        descriptor = sock.fileno()
        self._readers[descriptor] = reader
        self._selector.register(descriptor, select.EPOLLIN | select.EPOLLRDHUP)

    def remove(self, sock: HasDescriptor) -> None:
        """Stop reading from a socket. To be called before it is closed."""
        descriptor = sock.fileno()
        del self._readers[descriptor]
        self._costly.pop(descriptor, None)
        if self._leaving.pop(descriptor, None) is None:
            self._selector.unregister(descriptor)

    def wake(self) -> None:
        """Make the current `wait`, or the next one, return. Any thread may call it."""
        # Full, so that it is woken already; or closed, after a failure.
        with contextlib.suppress(OSError):
            os.eventfd_write(self.signal, 1)

    def let_others_run(self) -> None:
        """Have the next `wait` let other tasks run: one of them has something to do."""
        self._others_run_at = 0.0

    async def wait(self) -> None:
        """Return when a socket is readable or `wake` was called.

        Other tasks run before that, unless they did some milliseconds ago.
        """
        if time.perf_counter() < self._others_run_at and (
            self._ready or self._leaving or self._look(_LINGER_S)
        ):
            return
        if self._ready or self._leaving:
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.wait_readable(self._selector.fileno())
        self._others_run_at = time.perf_counter() + _ALONE_S

    def _look(self, timeout_s: float) -> bool:
        """Wait for the selector, and note which sockets are readable. Returns whether any is, or
        `wake` was called.
        """
        if found := self._selector.poll(timeout_s):
            readers = self._readers
            for descriptor, events in found:
                if reader := readers.get(descriptor):
                    if events & _LEFT and not reader.is_costly:
                        self._leave(descriptor, reader)
                    else:
                        self._ready.append((descriptor, reader))
            self._has_looked = True
            return True
        return False

    def _leave(self, descriptor: int, reader: SocketReader) -> None:
        """Read from a client that has closed its side when the others have been read."""
        self._leaving[descriptor] = reader
        self._selector.unregister(descriptor)

    def read(self, now: float) -> bool:
        """Read once from each readable socket, until none is left or some milliseconds are over.

        Sockets that become readable meanwhile are read too: their acks make room for deliveries,
        and their publishes share this batch. But a client that sends without a break is read once,
        so that deliveries keep up with it. One that is costly is read last, and only if the others
        have had their time; of those that have closed their side a few are read in each round.
        Returns whether the time was over.
        """
        is_busy = self._read_ordinary(now)
        if self._costly:
            self._read_costly(now)
        if self._leaving:
            self._read_leaving(now)
        return is_busy

    def _read_ordinary(self, now: float) -> bool:
        """Read from those that are not costly. Returns as `read`."""
        ready = self._ready
        readers = self._readers
        seen: set[int] = set()
        began = time.perf_counter()
        while True:
            if not ready:
                if self._has_looked:
                    self._has_looked = False
                    return False
                for descriptor, events in self._selector.poll(0):
                    if descriptor not in seen and (reader := readers.get(descriptor)):
                        if events & _LEFT and not reader.is_costly:
                            self._leave(descriptor, reader)
                        else:
                            ready.append((descriptor, reader))
                if not ready:
                    return False
            self._has_looked = False
            descriptor, reader = ready.popleft()
            seen.add(descriptor)
            # An earlier read of this round may have ended this connection.
            if readers.get(descriptor) is not reader:
                continue
            if reader.is_costly:
                self._costly[descriptor] = reader
                continue
            self._others_were_read = True
            reader.read_ready(now)
            self.read_at = now_s = time.perf_counter()
            spent = now_s - began
            if spent > _READING_S:
                return True
            if len(seen) == 1 and not ready and spent < _SHORT_ROUND_S:
                return False

    def _read_costly(self, now: float) -> None:
        """Read from the one that has waited longest, unless the others have to be read first."""
        began = time.perf_counter()
        others_were_read, self._others_were_read = self._others_were_read, False
        if others_were_read and began < self._costly_at:
            return
        descriptor = next(iter(self._costly))
        reader = self._costly.pop(descriptor)
        reader.read_ready(now)
        ended = time.perf_counter()
        self._costly_at = ended + (ended - began) * _REST

    def _read_leaving(self, now: float) -> None:
        """Read once from some clients that have closed their side: what they sent before, or the
        end.
        """
        leaving = self._leaving
        for descriptor in list(islice(leaving, _LEAVE_AT_ONCE)):
            reader = leaving.pop(descriptor)
            leaving[descriptor] = reader  # behind all others, unless this is the end
            reader.read_ready(now)

    def close(self) -> None:
        """Close the selector. No socket may be left in it."""
        self._selector.close()
        os.close(self.signal)
