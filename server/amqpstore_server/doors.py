"""The doors: limits how many clients may be connected, so that the store never lacks a descriptor.

A connected client that has not logged in yet is a stranger. When there are too many strangers, or
sockets, one that has not sent a login is disconnected for the newest: the oldest one, of the peer
that has most of them. So neither many silent connections nor one peer can keep others out. If
nobody can be disconnected, the newest is refused. What a peer is `peers` says.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from amqpstore_server.admission import MAX_WAITING, AdmissionLine
from amqpstore_server.broker.log_limit import LogLimit
from amqpstore_server.peers import peer_of

MAX_STRANGERS = 2048
_MAX_RESERVED = 1024
_LOG_EVERY_S = 10.0

_log = logging.getLogger(__name__)


class Visitor:
    """One client, from `Doors.enter` to `leave`. Args: turn_away, ends its connection."""

    __slots__ = ("_doors", "peer", "turn_away")

    def __init__(self, doors: Doors, peer: str, turn_away: Callable[[], None]) -> None:
        self._doors = doors
        self.peer = peer
        self.turn_away = turn_away

    @property
    def is_stranger(self) -> bool:
        """Whether it has not logged in."""
        return self in self._doors.strangers

    def identified(self) -> None:
        """Note that the client has sent a login, which is being checked: it need not make room
        now."""
        self._doors.forget_silent(self)

    def refused(self) -> None:
        """Note that its login was wrong: it may stay for a moment, unless others need its place."""
        self._doors.remember_silent(self)

    def logged_in(self) -> None:
        """Note that the client has logged in."""
        self._doors.forget_silent(self)
        self._doors.strangers.discard(self)

    def leave(self) -> None:
        """Note that its socket is closed."""
        self.logged_in()
        self._doors.forget(self)


class Doors:
    """The connected clients. Args: descriptors, the most that the process may have open.

    Half of them, but at most 1,024, are reserved for the store; of the others at most half may be
    used by strangers. `admission` has those that wait to be let in, a quarter at most.
    """

    def __init__(self, descriptors: int) -> None:
        self._places = descriptors - min(descriptors // 2, _MAX_RESERVED)
        self.admission = AdmissionLine(min(self._places // 4, MAX_WAITING))
        self.limit(0, 0)
        self._of_peer: Counter[str] = Counter()
        self.visitors: set[Visitor] = set()
        self.strangers: set[Visitor] = set()
        self._silent: dict[str, dict[Visitor, None]] = {}
        self.log_limit = LogLimit()
        """Limits how many clients are logged before they have logged in."""
        self._turned_away = 0
        self._log_at = 0.0

    def limit(self, connections: int, per_peer: int, accepts_per_s: int = 0) -> None:
        """Limit the clients, those of one peer, and how many are let in a second; 0 is no limit,
        besides the descriptors.
        """
        self.admission.rate.per_s = accepts_per_s
        self.max_visitors = min(connections or self._places, self._places)
        self.max_strangers = min(max(self.max_visitors // 2, 1), MAX_STRANGERS)
        self.max_per_peer = per_peer or self._places

    def enter(self, host: str, turn_away: Callable[[], None], now: float) -> Visitor | None:
        """Admit a client that has connected; None if it is refused. Args: host, its address."""
        peer = peer_of(host)
        if self._is_peer_full(peer):
            self.note(host, now)
            self._make_room(self._silent.get(peer, {}))
        elif self._is_full:
            self.note(host, now)
            self._make_room(max(self._silent.values(), key=len, default={}))
        if self._is_full or self._is_peer_full(peer):
            return None
        visitor = Visitor(self, peer, turn_away)
        self.visitors.add(visitor)
        self._of_peer[peer] += 1
        self.strangers.add(visitor)
        self.remember_silent(visitor)
        return visitor

    def remember_silent(self, visitor: Visitor) -> None:
        """Note that a visitor makes room for others if there is none."""
        if visitor in self.visitors:
            self._silent.setdefault(visitor.peer, {})[visitor] = None

    def forget_silent(self, visitor: Visitor) -> None:
        """Note that a visitor has sent a login, or has left."""
        silent = self._silent.get(visitor.peer)
        if silent is not None:
            silent.pop(visitor, None)
            if not silent:
                del self._silent[visitor.peer]

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
            oldest.leave()
            oldest.turn_away()

    def _is_peer_full(self, peer: str) -> bool:
        return self._of_peer[peer] >= self.max_per_peer

    @property
    def has_room(self) -> bool:
        """Whether one more may enter, and nobody has to leave for it."""
        return not self._is_full

    @property
    def _is_full(self) -> bool:
        return (
            len(self.visitors) >= self.max_visitors
            or len(self.strangers) >= self.max_strangers
            or len(self.visitors) + len(self.admission) >= self._places
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
