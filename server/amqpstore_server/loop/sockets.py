"""All clients' sockets in one selector: those that are ready are read together, without tasks.

A task that waits for its own socket costs two system calls and a round of the scheduler for each
read, which is a third of the price of a client that waits for each confirm. So trio waits for the
selector alone, and while there is traffic not even that: `wait` waits for it in trio's place, up to
a millisecond at a time. What a client does rarely (log in, be held back, leave) stays with its own
task, see `socket_connection`. The end of a batch is signalled through the selector too.

All that the broker does for what a client has sent is done here, in reads: one that would take long
is continued in the next rounds. So one rule says whose turn it is.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import time
from collections import deque
from itertools import islice
from typing import Protocol

import trio

from amqpstore_server.loop.loop_limits import LoopLimits
from amqpstore_server.loop.share import Share

_LEFT = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR


class SocketReader(Protocol):
    """A client whose socket is in the selector."""

    is_costly: bool
    """Whether others are read first: it takes much longer than they do for as much."""

    @property
    def has_more(self) -> bool:
        """Whether the last read is to be continued, before anything else is read."""

    def read_ready(self, now: float) -> None:
        """Read once from the socket and handle what came, or continue the last read."""

    def took_long(self) -> None:
        """Note that the last read took so long that it may have been a costly one."""


class SocketAcceptor(Protocol):
    """Accepts those who connect to a listener."""

    def has_arrived(self, now: float) -> bool:
        """Accept those that have connected. Returns whether none is left."""


class HasDescriptor(Protocol):
    """A socket, for the selector."""

    def fileno(self) -> int:
        """Return its descriptor."""


class Sockets:
    """The sockets that are read from, each with its reader."""

    def __init__(self, limits: LoopLimits) -> None:
        self.limits = limits
        self._selector = select.epoll()
        self._readers: dict[int, SocketReader] = {}
        self.signal = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """An eventfd: a write to it does the same as `wake`."""
        # Reports each write to it once, so it does not have to be read.
        self._selector.register(self.signal, select.EPOLLIN | select.EPOLLET)
        self._listeners: dict[int, SocketAcceptor] = {}
        self._arrived: list[SocketAcceptor] = []
        """The acceptors of listeners to which somebody has connected."""
        self._ready: deque[tuple[int, SocketReader, int]] = deque()
        """Readable, but left over by the last round: the selector would begin with the same ones
        again."""
        self._unwatched: set[int] = set()
        """Sockets that are not in the selector, which would find them again and again: those of the
        next three."""
        self._continuing: dict[int, SocketReader] = {}
        """The readers whose last read is to be continued."""
        self._costly: dict[int, SocketReader] = {}
        """Readable, or to be continued, but costly: they wait for the others."""
        self._closing: dict[int, SocketReader] = {}
        """The readers whose clients have closed their side: they wait for the others too."""
        self._closing_since = 0.0
        """The time at which the first of those was found."""
        self._share = Share(limits.costly_pause_ratio, limits)
        """Decides whether costly clients have had their share of the time."""
        self._costly_was_read = False
        """In this round."""
        self.read_at = 0.0
        """The time at which something was last read from a client that is not costly."""
        self._has_looked = False
        """`wait` has just asked the selector."""
        self._is_reading = False
        self._others_run_at = 0.0
        self._hurried: dict[object, float] = {}
        """The time until which each is in a hurry."""
        self._return_at = math.inf
        """The time at which the next `wait` returns at the latest."""

    def let_accept(self, listener: HasDescriptor, arrivals: SocketAcceptor) -> None:
        """Have those accepted who connect to a listener, until it is closed: behind the ends of
        others, and before anything else is read. Other tasks run after that if somebody is left.
        """
        self._listeners[listener.fileno()] = arrivals
        # Edge-triggered: while none may be let in, those who have connected would end each `wait`
        # at once.
        self._selector.register(listener.fileno(), select.EPOLLIN | select.EPOLLET)

    def add(self, sock: HasDescriptor, reader: SocketReader) -> None:
        """Start reading from a socket: whenever it is readable, and at once if the reader has
        more.
        """
        descriptor = sock.fileno()
        self._readers[descriptor] = reader
        self._unwatched.add(descriptor)
        self._sort(descriptor, reader)
        if reader.has_more and not self._is_reading:
            self.wake()

    def remove(self, sock: HasDescriptor) -> None:
        """Stop reading from a socket. To be called before it is closed."""
        descriptor = sock.fileno()
        del self._readers[descriptor]
        for waiting in (self._continuing, self._costly, self._closing):
            waiting.pop(descriptor, None)
        if descriptor in self._unwatched:
            self._unwatched.remove(descriptor)
        else:
            self._selector.unregister(descriptor)

    def _sort(self, descriptor: int, reader: SocketReader) -> None:
        """Decide what a reader waits for, after a read, or when it is new."""
        if self._readers.get(descriptor) is not reader:
            return  # the read has ended its connection, or has stopped reading
        if not reader.has_more:
            if descriptor in self._unwatched:
                self._unwatched.remove(descriptor)
                # Level-triggered: a read is bounded, and what it leaves in the socket is found
                # again in the next round.
                self._selector.register(descriptor, select.EPOLLIN | select.EPOLLRDHUP)
            return
        self._unwatch(descriptor)
        self._continuing[descriptor] = reader

    def _unwatch(self, descriptor: int) -> None:
        if descriptor not in self._unwatched:
            self._unwatched.add(descriptor)
            self._selector.unregister(descriptor)

    def charge(self, seconds: float) -> None:
        """Count the time of work that the reads of this round have led to, for those who are costly
        if one of them was read.
        """
        if self._costly_was_read:
            self._share.took(time.perf_counter(), seconds)

    def wake(self) -> None:
        """Make the current `wait`, or the next one, return. Any thread may call it."""
        # Full, so that it is woken already; or closed, after a failure.
        with contextlib.suppress(OSError, ValueError):
            os.eventfd_write(self.signal, 1)

    def let_others_run(self) -> None:
        """Have the next `wait` let other tasks run: one of them has something to do."""
        self._others_run_at = 0.0

    def hurry(self, whom: object) -> None:
        """Keep rounds short for a moment, and let other tasks run after each of them, until
        `end_hurry` is called: a request has come whose answer takes many turns of other tasks, and
        each of them would wait for some milliseconds.
        """
        self._hurried[whom] = time.perf_counter() + self.limits.hurry_s
        self.let_others_run()

    def end_hurry(self, whom: object) -> None:
        """Note that somebody is no longer in a hurry."""
        self._hurried.pop(whom, None)

    def return_in(self, seconds: float) -> None:
        """Have the next `wait` return in that time at the latest, after other tasks have run."""
        at = time.perf_counter() + seconds
        if at < self._return_at:
            self._return_at = at
        self.let_others_run()

    async def wait(self) -> None:
        """Return when a client can be read, when `wake` was called, or when it was asked to.

        Other tasks run before that, unless they did some milliseconds ago.
        """
        if self._costly and not self._pause_s():
            self.let_others_run()  # what they are about to do may take long
        now = time.perf_counter()
        wait_s = self._wait_s(now)
        self._return_at = math.inf
        linger_s = min(wait_s, self.limits.linger_s)
        if self._others_run_at > now and (not wait_s or self._look(linger_s)):
            return
        self._others_run_at = math.inf
        if not wait_s:
            await trio.lowlevel.checkpoint()
        elif wait_s < math.inf:
            # Two milliseconds at most: not worth a timeout of trio's.
            self._look(linger_s)
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.wait_readable(self._selector.fileno())
        self._note_run()

    def _note_run(self) -> None:
        """Decide when other tasks run again: they just did."""
        now = time.perf_counter()
        self._hurried = {whom: until for whom, until in self._hurried.items() if until > now}
        if self._others_run_at == math.inf:
            # Another turn of theirs has not been asked for meanwhile.
            self._others_run_at = now + (0.0 if self._hurried else self.limits.alone_s)

    def _wait_s(self, now: float) -> float:
        """Return how long to wait, unless anything happens: 0 if there is something to do."""
        if self._ready or self._continuing or self._closing or self._arrived:
            return 0.0
        wait_s = max(0.0, self._return_at - now)
        return min(wait_s, self._pause_s()) if self._costly else wait_s

    def _pause_s(self) -> float:
        """Return how long those who are costly have to wait, unless others are read meanwhile."""
        return self._share.wait_s(time.perf_counter(), self.read_at)

    def _look(self, timeout_s: float) -> bool:
        """Wait for the selector, and note which sockets are readable. Returns whether any is, or
        `wake` was called.
        """
        if found := self._selector.poll(timeout_s):
            readers, ready = self._readers, self._ready
            for descriptor, events in found:
                if reader := readers.get(descriptor):
                    ready.append((descriptor, reader, events))
                elif arrivals := self._listeners.get(descriptor):
                    self._arrived.append(arrivals)
            self._has_looked = True
            return True
        return False

    def read(self, now: float) -> bool:
        """Read once from each readable socket, until none is left or some milliseconds are over:
        also from those that become readable meanwhile. Reads of earlier rounds are continued after
        that, one at least. One that is costly is read last, and only if the others have had their
        time; of those that have closed their side a few are read in each round, and whoever has
        connected waits for that.

        Returns whether the time was over.
        """
        self._is_reading = True
        if self._arrived:
            self._set_closing_apart()
            self._read_closing(now)
            if not self.ends_come_first():
                self._accept(now)
        began = time.perf_counter()
        self._costly_was_read = False
        count = len(self._continuing) if self._continuing else 0
        is_busy = self._read_ordinary(now, began)
        if count:
            self._continue(count, now, began)
        if self._costly:
            self._read_costly(now)
        if self._closing:
            self._read_closing(now)
        self._is_reading = False
        return is_busy

    def ends_come_first(self) -> bool:
        """Tell whether clients have left whose end is to be read before anybody is let in: one of
        them may be back, and declare what is exclusively its own.
        """
        until = self._closing_since + self.limits.ends_first_s
        return bool(self._closing) and time.perf_counter() < until

    def _set_closing_apart(self) -> None:
        """Find those among the readable that have closed their side."""
        ready, self._ready = self._ready, deque()
        for descriptor, reader, events in ready:
            if events & _LEFT and not reader.is_costly:
                if self._readers.get(descriptor) is reader:
                    self._note_closing(descriptor, reader)
            else:
                self._ready.append((descriptor, reader, events))

    def _note_closing(self, descriptor: int, reader: SocketReader) -> None:
        """Have a client wait that has closed its side."""
        if not self._closing:
            self._closing_since = time.perf_counter()
        self._unwatch(descriptor)
        self._closing[descriptor] = reader

    def _accept(self, now: float) -> None:
        """Have those accepted who have connected."""
        arrived, self._arrived = self._arrived, []
        for arrivals in arrived:
            if not arrivals.has_arrived(now):
                self.let_others_run()

    def _read_ordinary(self, now: float, began: float) -> bool:
        """Read from those that are readable and not costly. Returns as `read`."""
        ready = self._ready
        readers = self._readers
        limits = self.limits
        reading_s = limits.hurried_reading_s if self._hurried else limits.reading_s
        seen: set[int] = set()
        last_s = began
        while True:
            if not ready:
                # Those that are readable by now belong to this round: their acks make room for
                # deliveries, and their publishes share this batch.
                if self._has_looked:
                    self._has_looked = False
                    return False
                if not self._look_again(seen):
                    return False
            self._has_looked = False
            descriptor, reader, events = ready.popleft()
            # An earlier read of this round may have ended this connection.
            if readers.get(descriptor) is not reader:
                continue
            if reader.is_costly:
                self._unwatch(descriptor)
                self._costly[descriptor] = reader
                continue
            if events & _LEFT:
                self._note_closing(descriptor, reader)
                continue
            seen.add(descriptor)
            reader.read_ready(now)
            if reader.has_more:
                self._sort(descriptor, reader)
            self.read_at = now_s = time.perf_counter()
            if now_s - last_s > limits.suspect_s:
                reader.took_long()
            last_s = now_s
            spent = now_s - began
            if spent > reading_s:
                return True
            if len(seen) == 1 and not ready and spent < limits.short_round_s:
                return False

    def _look_again(self, seen: set[int]) -> bool:
        """Note which other sockets have become readable meanwhile. Returns whether any has."""
        readers, ready = self._readers, self._ready
        for descriptor, events in self._selector.poll(0):
            if reader := readers.get(descriptor):
                # A client that sends without a break is read once, so that deliveries keep up.
                if descriptor not in seen:
                    ready.append((descriptor, reader, events))
            elif arrivals := self._listeners.get(descriptor):
                self._arrived.append(arrivals)
        return bool(ready)

    def _continue(self, count: int, now: float, began: float) -> None:
        """Continue the reads of those who have waited longest, one at least, until the time is
        over.
        """
        for _ in range(min(count, len(self._continuing))):
            descriptor = next(iter(self._continuing))
            reader = self._continuing.pop(descriptor)
            if reader.is_costly:
                self._costly[descriptor] = reader
                continue
            reader.read_ready(now)
            self._sort(descriptor, reader)
            self.read_at = now_s = time.perf_counter()
            if now_s - began > self.limits.reading_s or not self._continuing:
                return

    def _read_costly(self, now: float) -> None:
        """Read from those that have waited longest, unless the others have to be read first. While
        no others are at work their publishes share this batch, as those of others do.
        """
        began = time.perf_counter()
        until = began + self.limits.costly_reading_s
        for _ in range(len(self._costly)):
            # An earlier read may have ended this connection.
            if not self._costly or self._pause_s():
                return
            self._costly_was_read = True
            descriptor = next(iter(self._costly))
            reader = self._costly.pop(descriptor)
            reader.read_ready(now)
            self._sort(descriptor, reader)
            ended = time.perf_counter()
            self._share.took(ended, ended - began)
            if ended > until:
                return
            began = ended

    def _read_closing(self, now: float) -> None:
        """Read once from some clients that have closed their side: what they sent before, or the
        end.
        """
        closing = self._closing
        for descriptor in list(islice(closing, self.limits.max_closing)):
            reader = closing.pop(descriptor)
            closing[descriptor] = reader  # behind all others, unless this is the end
            reader.read_ready(now)

    def close(self) -> None:
        """Close the selector. No socket may be left in it."""
        self._selector.close()
        signal, self.signal = self.signal, -1
        os.close(signal)  # another thread may still call `wake`
