"""The doors: limits how many clients may be connected, so that the store never lacks a descriptor.

A connected client that has not logged in yet is a stranger. When there are too many strangers, or
sockets, one that has not sent a login is disconnected for the newest: the oldest one, of the peer
that has most of them. So neither many silent connections nor one peer can keep others out. If none
can be disconnected, the newest is refused. What a peer is `peers` says.

Only some strangers at a time are expected to send a login, each for a moment, and the others wait
to be let in: when all clients come back at once after a failure, they would otherwise throw each
other out. The moment becomes shorter with each one that lets it pass, and longer with each login:
silent connections do not delay the others for long.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Protocol

from amqpstore_server.broker.monitoring.log_limit import LogLimit
from amqpstore_server.listening.admission import MAX_WAITING, AdmissionLine
from amqpstore_server.logins.peers import peer_of

MAX_STRANGERS = 2048
_MAX_EXPECTED = 256
_LONGEST_MOMENT_S = 1.0
_SHORTEST_MOMENT_S = 0.1
_MAX_RESERVED = 1024
_LOG_EVERY_S = 10.0

_log = logging.getLogger(__name__)


class Guest(Protocol):
    """The connection of a client."""

    def evict(self) -> None:
        """End the connection at once: its place is needed for another."""

    def has_unread(self) -> bool:
        """Whether the client has sent what was not read yet."""


class Visitor:
    """One client, from `Doors.enter` to `disconnected`. Args: since, when it came."""

    __slots__ = ("_doors", "_guest", "_since", "peer")

    def __init__(self, doors: Doors, peer: str, guest: Guest, since: float) -> None:
        self._doors = doors
        self._guest = guest
        self._since = since
        self.peer = peer

    def has_had(self, moment_s: float, now: float) -> bool:
        """Whether it has had the time to send something, and all that it has sent was read."""
        # What has arrived and was not read yet is the delay of this process, not of the client.
        return now >= self._since + moment_s and not self._guest.has_unread()

    def evict(self) -> None:
        """End its connection: its place is needed for another."""
        self.disconnected()
        self._guest.evict()

    @property
    def is_in_the_way(self) -> bool:
        """Whether somebody else can only be admitted once this one has left."""
        return self._doors.is_full_for(self.peer)

    @property
    def is_stranger(self) -> bool:
        """Whether it has not logged in."""
        return self in self._doors.strangers

    def identified(self) -> None:
        """Note that the client has sent a login, which is being checked: it need not make room
        now."""
        self._doors.forget_silent(self)
        self._doors.expect_no_more(self)

    def refused(self) -> None:
        """Note that its login was wrong: it may stay for a moment, unless others need its place."""
        self._doors.remember_silent(self)

    def logged_in(self) -> None:
        """Note that the client has logged in."""
        self._doors.forget_stranger(self)
        self._doors.lengthen_moment()

    def disconnected(self) -> None:
        """Note that its socket is closed."""
        self._doors.forget_stranger(self)
        self._doors.forget(self)


class Doors:
    """The connected clients. Args: descriptors, the most that the process may have open.

    Half of them, but at most 1,024, are reserved for the store; of the others at most half may be
    used by strangers. `admission` has those that wait to be let in, in a part of the free places.
    """

    def __init__(self, descriptors: int) -> None:
        self._capacity = descriptors - min(descriptors // 2, _MAX_RESERVED)
        self.admission = AdmissionLine(self._max_waiting, self._make_way)
        self.limit(0, 0)
        self._of_peer: Counter[str] = Counter()
        self.visitors: set[Visitor] = set()
        self.strangers: set[Visitor] = set()
        self._silent: dict[str, dict[Visitor, None]] = {}
        self._expected: dict[Visitor, None] = {}
        """Clients that are about to send a login, in the order in which they came."""
        self._moment_s = _LONGEST_MOMENT_S
        self.log_limit = LogLimit()
        """Limits how many clients are logged before they have logged in."""
        self._turned_away = 0
        self._log_at = 0.0

    def limit(self, connections: int, per_peer: int, accepts_per_s: int = 0) -> None:
        """Limit the clients, those of one peer, and how many are let in a second; 0 means no limit,
        besides the descriptors.
        """
        self.admission.rate.per_s = accepts_per_s
        self.max_visitors = min(connections or self._capacity, self._capacity)
        self.max_strangers = min(max(self.max_visitors // 2, 1), MAX_STRANGERS)
        self.max_per_peer = per_peer or self._capacity

    def enter(self, host: str, guest: Guest, now: float) -> Visitor | None:
        """Admit a client that has connected; None if it is refused. Args: host, its address."""
        peer = peer_of(host)
        if self._is_peer_full(peer):
            self.note(host, now)
            # Only the peer's own connections make room: others are not to pay for a peer that is
            # at its limit.
            self._make_room(self._silent.get(peer, {}))
        elif self._is_full:
            self.note(host, now)
            self._make_room(self._most_silent)
        if self.is_full_for(peer):
            return None
        visitor = Visitor(self, peer, guest, now)
        self.visitors.add(visitor)
        self._of_peer[peer] += 1
        self.strangers.add(visitor)
        self._expected[visitor] = None
        self.remember_silent(visitor)
        return visitor

    def remember_silent(self, visitor: Visitor) -> None:
        """Note that a visitor makes room for others if there is none."""
        # A client may leave while its login is checked.
        if visitor in self.visitors:
            self._silent.setdefault(visitor.peer, {})[visitor] = None

    def forget_silent(self, visitor: Visitor) -> None:
        """Note that a visitor has sent a login, or has left."""
        silent = self._silent.get(visitor.peer)
        if silent is not None:
            silent.pop(visitor, None)
            if not silent:
                del self._silent[visitor.peer]

    def forget_stranger(self, visitor: Visitor) -> None:
        """Note that a visitor has logged in, or has left."""
        self.forget_silent(visitor)
        self.expect_no_more(visitor)
        self.strangers.discard(visitor)

    def expect_no_more(self, visitor: Visitor) -> None:
        """Note that a visitor has sent its login, or has left."""
        self._expected.pop(visitor, None)

    def lengthen_moment(self) -> None:
        """Have strangers wait longer for the others to log in: one has."""
        self._moment_s = min(2 * self._moment_s, _LONGEST_MOMENT_S)

    def forget(self, visitor: Visitor) -> None:
        """Note that a visitor has left."""
        if visitor in self.visitors:
            self.visitors.remove(visitor)
            self._of_peer[visitor.peer] -= 1
            if not self._of_peer[visitor.peer]:
                del self._of_peer[visitor.peer]

    @staticmethod
    def _make_room(silent: dict[Visitor, None]) -> None:
        """Turn the oldest of these away."""
        if oldest := next(iter(silent), None):
            oldest.evict()

    def _max_waiting(self) -> int:
        """Return how many may wait to be let in."""
        return min((self._capacity - len(self.visitors)) * 3 // 4, MAX_WAITING)

    def _make_way(self, now: float) -> bool:
        """Make way for the next one that waits: as many as possible may be expected to log in, and
        then those who have let their moment pass are not expected any more.

        Returns whether it may be let in: not if all of them still have time, if the logins of all
        strangers are being checked, or if somebody would have to leave who just came.
        """
        while len(self._expected) >= _MAX_EXPECTED:
            oldest = next(iter(self._expected))
            if not oldest.has_had(self._moment_s, now):
                return False
            self._moment_s = max(self._moment_s / 2, _SHORTEST_MOMENT_S)
            del self._expected[oldest]
        if not self._is_full:
            return True
        evicted = next(iter(self._most_silent), None)
        if evicted is None:
            return len(self.strangers) < self.max_strangers
        return evicted.has_had(_LONGEST_MOMENT_S, now)

    @property
    def _most_silent(self) -> dict[Visitor, None]:
        """The silent strangers of the peer that has most of them."""
        return max(self._silent.values(), key=len, default={})

    def is_full_for(self, peer: str) -> bool:
        """Tell whether no client of a peer can be admitted."""
        return self._is_full or self._is_peer_full(peer)

    def _is_peer_full(self, peer: str) -> bool:
        return self._of_peer[peer] >= self.max_per_peer

    @property
    def has_room(self) -> bool:
        """Whether one more may enter without disconnecting another."""
        return not self._is_full

    @property
    def _is_full(self) -> bool:
        # Each client that waits has a descriptor as well.
        return (
            len(self.visitors) >= self.max_visitors
            or len(self.strangers) >= self.max_strangers
            or len(self.visitors) + len(self.admission) >= self._capacity
        )

    def note(self, host: str, now: float) -> None:
        """Log that a client was disconnected, at a limited rate: clients must not fill the log."""
        self._turned_away += 1
        if now >= self._log_at:
            extra = {
                "turned_away": self._turned_away,
                "connections": len(self.visitors),
                "not_logged_in": len(self.strangers),
                "newest": host,
            }
            _log.warning("too many connections", extra=extra)
            self._turned_away = 0
            self._log_at = now + _LOG_EVERY_S
