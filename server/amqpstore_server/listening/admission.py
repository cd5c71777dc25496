"""Admission: how fast connected clients are let in, and in which order.

Whoever is to have a turn has to be accepted first, because the kernel's backlog does not tell whose
connections are in it. So those that come faster than they are let in wait here, with a descriptor
each and nothing else, and peers (see `peers`) take turns: one that floods the port delays itself.
"""

from __future__ import annotations

import math
import socket
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from amqpstore_server.logins.peers import peer_of

MAX_WAITING = 16_384
_LET_IN_AT_ONCE = 32
_HELD_S = 0.004
"""How long the line waits before it asks again whether the next one may be let in."""
_GONE_SHARE = 0.1

Admit = Callable[[socket.socket, str], bool]
"""Takes a socket and the address of its client; tells whether there was room without making any."""


class _Waiting(NamedTuple):
    client: socket.socket
    host: str
    admit: Admit


class AcceptRate:
    """The rate at which clients may be let in: `per_s` a second, and as many at once after a quiet
    second. 0 is any number.
    """

    def __init__(self, per_s: int = 0) -> None:
        self.per_s = per_s
        self._free_at = -math.inf
        """The time at which all clients that were let in will have had their share."""

    def wait_s(self, now: float) -> float:
        """Return how long the next one has to wait."""
        return max(self._free_at - now, 0.0) if self.per_s else 0.0

    def note(self, now: float, share: float = 1.0) -> None:
        """Note that one was let in. Args: share, what this one counts."""
        if self.per_s:
            # No more than a second is saved up: a quiet night does not let in a flood.
            self._free_at = max(self._free_at, now - 1.0) + share / self.per_s


class AdmissionLine:
    """The clients that wait to be let in.

    Args: most, how many may wait; when there are more, the newest of the peer that has most of them
    is refused. make_way, for the next one, at a time by the clock; it returns whether there is one.
    """

    def __init__(
        self,
        most: Callable[[], int] = lambda: MAX_WAITING,
        make_way: Callable[[float], bool] = lambda _now: True,
    ) -> None:
        self.rate = AcceptRate()
        self._make_way = make_way
        self._most = most
        self._waiting: dict[str, deque[_Waiting]] = {}
        """By peer, in the order of their turns."""
        self._count = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return self._count

    def join(self, client: socket.socket, host: str, admit: Admit) -> None:
        """Add a client that has connected. Args: host, its address; admit, lets it in."""
        self._waiting.setdefault(peer_of(host), deque()).append(_Waiting(client, host, admit))
        self._count += 1
        if self._count > self._most():
            peer = max(self._waiting, key=lambda one: len(self._waiting[one]))
            self._waiting[peer].pop().client.close()
            self._left(peer)

    def let_in(self, now: float) -> float:
        """Let in those whose turn it is, some at once: the caller has its turn only every few
        milliseconds while there is traffic. Those that make others leave, who close their sockets
        in a turn of their own, are let in one by one.

        Returns for how many seconds no other client may be let in.
        """
        for _ in range(_LET_IN_AT_ONCE):
            if not self._count or self.rate.wait_s(now):
                break
            if not self._make_way(now):
                return max(self.rate.wait_s(now), _HELD_S)
            arrival = self._next()
            if _is_gone(arrival.client):
                # It costs little, and so counts little: those behind it are not to wait for it.
                arrival.client.close()
                self.rate.note(now, _GONE_SHARE)
                continue
            self.rate.note(now)
            if not arrival.admit(arrival.client, arrival.host):
                break
        return self.rate.wait_s(now)

    def close(self) -> None:
        """Refuse all that wait."""
        while self._count:
            self._next().client.close()

    def _next(self) -> _Waiting:
        """Remove the one whose turn it is: the oldest of the next peer."""
        peer = next(iter(self._waiting))
        arrival = self._waiting[peer].popleft()
        self._waiting[peer] = self._waiting.pop(peer)  # behind all others
        self._left(peer)
        return arrival

    def _left(self, peer: str) -> None:
        self._count -= 1
        if not self._waiting[peer]:
            del self._waiting[peer]


def _is_gone(client: socket.socket) -> bool:
    """Tell whether a client has reset its connection before it was let in."""
    try:
        # The byte stays there: it is the connection's to read.
        client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return False
