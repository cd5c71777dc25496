"""Connections between machines: in order each way, until they break."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from amqpstore_server.cluster.frames import Beat, Frame, ShippedBatch
from tests.simulated_group.events import Events

_PROGRESS_S = 0.2
"""How often a machine notices that a part of a large frame has come."""


class NetworkEnd(Protocol):
    """A machine, as the network sees it."""

    name: str

    def is_listening(self) -> bool: ...

    def connected(self, link: int) -> None: ...

    def received(self, link: int, frame: Frame) -> None: ...

    def progressed(self, link: int) -> None: ...

    def disconnected(self, link: int) -> None: ...


class _Link:
    __slots__ = ("ends", "is_broken", "next_at")

    def __init__(self, dialler: NetworkEnd, answerer: NetworkEnd) -> None:
        self.ends = (dialler, answerer)
        self.is_broken = False
        self.next_at = {dialler.name: 0.0, answerer.name: 0.0}


class Network:
    """All connections. `blocked` has the pairs (from, to) between which nothing arrives."""

    def __init__(self, events: Events, random: Random) -> None:
        self.blocked: set[tuple[str, str]] = set()
        self.ends: dict[str, NetworkEnd] = {}
        self.slow = 0.05
        """How often a frame takes long."""
        self.transfer_s = 0.0
        """How long a batch is on its way at least: it arrives bit by bit."""
        self.astray = 0.0
        """How often a connection comes to a machine other than the intended one."""
        self._events = events
        self._random = random
        self._links: dict[int, _Link] = {}
        self._count = 0

    def dial(self, dialler: NetworkEnd, name: str) -> None:
        """Connect to a machine; nothing happens if it cannot be reached."""
        if self._random.random() < self.astray:
            name = self._random.choice([one for one in self.ends if one != dialler.name])
        answerer = self.ends[name]
        ways = {(dialler.name, name), (name, dialler.name)}
        if ways & self.blocked or not answerer.is_listening():
            return
        self._count += 1
        link = self._count
        self._links[link] = _Link(dialler, answerer)
        self._events.after(
            self._delay(), lambda: self._reach(link, lambda: dialler.connected(link))
        )

    def _delay(self) -> float:
        return (
            self._random.uniform(0.0001, 0.03)
            if self._random.random() >= self.slow
            else self._random.uniform(0.03, 0.6)
        )

    def _reach(self, link: int, happen: Callable[[], None]) -> None:
        if link in self._links:
            happen()

    def send(self, sender: NetworkEnd, link: int, frame: Frame) -> None:
        """Send a frame; it arrives behind those before it, or the connection breaks."""
        connection = self._links.get(link)
        if connection is None or connection.is_broken:
            return
        other = connection.ends[1] if connection.ends[0] is sender else connection.ends[0]
        if (sender.name, other.name) in self.blocked:
            # Nothing that is sent behind a lost piece arrives either; both ends find out in time.
            connection.is_broken = True
            self._events.after(self._random.uniform(0.2, 5.0), lambda: self.hang_up(link))
            return
        at = self._events.now + self._delay()
        if not isinstance(frame, Beat):
            # A beat goes before all that waits to be sent.
            at = max(connection.next_at[other.name], at)
            if isinstance(frame, ShippedBatch):
                at = self._transfer(link, other, at)
            connection.next_at[other.name] = at
        self._events.after(
            at - self._events.now, lambda: self._reach(link, lambda: other.received(link, frame))
        )

    def _transfer(self, link: int, receiver: NetworkEnd, begin: float) -> float:
        """Have a large frame arrive in parts, from a time on. Returns when it is whole."""
        end = begin + self.transfer_s
        while (begin := begin + _PROGRESS_S) < end:
            self._events.after(
                begin - self._events.now,
                lambda: self._reach(link, lambda: receiver.progressed(link)),
            )
        return end

    def close(self, closer: NetworkEnd, link: int) -> None:
        """End a connection from one end: what was sent before arrives."""
        found = self._links.get(link)
        if found is not None:
            found.is_broken = True
            other = found.ends[1] if found.ends[0] is closer else found.ends[0]
            delay_s = max(found.next_at[other.name] - self._events.now, 0.0)
            self._events.after(delay_s, lambda: self.hang_up(link))

    def hang_up(self, link: int) -> None:
        """End a connection: both ends are told, and what was under way is lost."""
        found = self._links.pop(link, None)
        if found is not None:
            for end in found.ends:
                self._events.after(0.0, lambda end=end: end.disconnected(link))  # type: ignore[misc]

    def remove(self, end: NetworkEnd) -> None:
        """End all connections of a machine that stops, behind what it has sent."""
        for link, found in list(self._links.items()):
            if end in found.ends:
                self.close(end, link)

    def drop(self, end: NetworkEnd) -> None:
        """End all connections of a machine that has died."""
        for link, found in list(self._links.items()):
            if end in found.ends:
                self.hang_up(link)
