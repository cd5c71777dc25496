"""A leadership in etcd: its key, the lease of that, and how it is regained or given up."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Literal, NamedTuple

from amqpstore_server.cluster.effects import Attempt, Effect, Grant, KeepAlive, Revoke
from amqpstore_server.cluster.keys import STATE, EtcdRow, MemberIdentity, View, regain, resignation
from amqpstore_server.cluster.timing import Timing

Outcome = Literal["done", "refused", "unknown"]
"""The outcome of a transaction. Without an answer it is unknown: it may happen later."""


class Leadership(NamedTuple):
    """The leadership that an election won."""

    term: int
    row: EtcdRow
    """The key `leader`."""
    lease: int
    lease_until: float
    view: View
    """The group's keys after the election."""


class Tenure:
    """The key of one leader, as far as it is known.

    `fence` is the revision at which the key was put: each change of the list compares it, so that
    those of a deposed leader fail. `until`: how long the key is there for certain, on the own
    clock.
    """

    def __init__(
        self,
        identity: MemberIdentity,
        won: Leadership,
        timing: Timing,
        effects: list[Effect],
        make_request: Callable[[], str],
        now: float,
    ) -> None:
        self.term = won.term
        self.fence = won.row.changed
        self.until = won.lease_until
        self._identity = identity
        self._timing = timing
        self._effects = effects
        self._make_request = make_request
        self._row = won.row
        self._state_revision = won.view.changed(STATE)
        self._leases = {won.row.value["request"]: won.lease}
        """The leases under which the key was asked for, by request: any of them may be its own."""
        self._lease = won.lease
        self._regaining = ""
        self._is_granting = False
        self._keep_alive_at = now

    def tick(self, now: float) -> None:
        """Renew the lease when it is time."""
        if now >= self._keep_alive_at:
            self._keep_alive_at = now + self._timing.keep_alive_s
            self._effects.append(KeepAlive(self._lease))

    def kept_alive(self, lease: int, asked_at: float) -> None:
        """The lease was renewed by a request of that time."""
        if lease == self._lease:
            # From when it was asked for: etcd counts from when it hears of it, which is later.
            until = asked_at + self._timing.lease_s - self._timing.margin_s
            self.until = max(self.until, until)

    def is_lost_with(self, lease: int) -> bool:
        """Tell whether the key goes with this lease."""
        return lease == self._lease

    def viewed(self, view: View) -> str:
        """Compare the key with what is known of it. Returns why this leader is deposed, if it is.

        If the key is gone and no member was elected since, it is regained.
        """
        if view.term != self.term or view.last_leader != self._identity.member:
            return f"term {view.term} has begun, led by {view.last_leader}"
        row = view.leader
        if row is None:
            # Somebody else may be elected at any moment: only promises of followers hold now.
            self.until = -inf
            if not self._regaining and not self._is_granting:
                self._is_granting = True
                self._effects.append(Grant())
        elif row.value["incarnation"] != self._identity.incarnation:
            return "another process of this member leads"
        elif row.changed != self.fence:
            # Regained; by which of the requests, and so under which lease, its value tells.
            self.fence, self._row = row.changed, row
            self._lease = self._leases[row.value["request"]]
        return ""

    def granted(self, lease: int) -> None:
        """There is a new lease, to regain the key with."""
        if not self._is_granting:
            self._effects.append(Revoke(lease))
            return
        self._is_granting = False
        self._regaining = self._make_request()
        self._leases[self._regaining] = lease
        self._effects.append(
            Attempt(regain(self._state_revision, self._row.value, lease, self._regaining))
        )

    def grant_failed(self) -> None:
        """No lease was granted: the next view asks again."""
        self._is_granting = False

    def attempted(self, request: str) -> bool:
        """Tell whether this was the request to regain the key: a read tells what became of it."""
        if request != self._regaining:
            return False
        self._regaining = ""
        return True

    def resign(self, successor: str) -> None:
        """Give the key up, and name the member that is to stand first, if any."""
        request = self._make_request()
        self._effects += (
            Attempt(resignation(self.fence, self.term, successor, request)),
            Revoke(self._lease),
        )
