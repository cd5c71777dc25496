"""A candidacy: one lease, one transaction, and what to make of an answer that was lost."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from math import inf

from amqpstore_server.cluster.effects import Attempt, Effect, Grant, KeepAlive, ReadKeys, Revoke
from amqpstore_server.cluster.keys import MemberIdentity, View, election
from amqpstore_server.cluster.tenure import Leadership, Outcome
from amqpstore_server.cluster.timing import Timing


class Candidacy(Enum):
    """The stage of a candidacy."""

    NONE = "not standing"
    GRANTING = "asking for a lease"
    ATTEMPTING = "the transaction is under way"
    CONFIRMING = "it happened: reading what it put"
    DOUBTFUL = "its answer was lost"


NEXT = {
    Candidacy.NONE: {Candidacy.GRANTING},
    Candidacy.GRANTING: {Candidacy.ATTEMPTING, Candidacy.NONE},
    Candidacy.ATTEMPTING: {Candidacy.CONFIRMING, Candidacy.DOUBTFUL, Candidacy.NONE},
    Candidacy.CONFIRMING: {Candidacy.NONE},
    Candidacy.DOUBTFUL: {Candidacy.NONE},
}


class Electing:
    """The candidacies of one member.

    While one is under way the member takes no frame and answers no beat: what it would ack or
    promise then, the former leader would rely on.
    """

    def __init__(
        self,
        identity: MemberIdentity,
        timing: Timing,
        effects: list[Effect],
        make_request: Callable[[], str],
    ) -> None:
        self.state = Candidacy.NONE
        self._identity = identity
        self._timing = timing
        self._effects = effects
        self._make_request = make_request
        self._view: View | None = None
        self._term = 0
        self._request = ""
        self._lease = 0
        self._revision = 0
        """The term of a won election."""
        self._until = -inf
        """The time until which the lease is there for certain."""
        self._dead_at = inf
        """The time at which the lease of a doubtful candidacy is gone, and with it the request."""

    def _go(self, state: Candidacy) -> None:
        if state not in NEXT[self.state]:
            raise ValueError(f"a candidacy cannot go from {self.state.name} to {state.name}")
        self.state = state

    def stand(self, view: View, term: int, now: float) -> None:
        """Begin to stand for a term, on what a read has returned."""
        self._go(Candidacy.GRANTING)
        self._view = view
        self._term = term
        # From before the lease is asked for: etcd counts from when it grants it, which is later.
        self._until = now + self._timing.lease_s - self._timing.margin_s
        self._effects.append(Grant())

    def granted(self, lease: int, now: float) -> None:
        """Ask for the election under the new lease.

        The lease is this candidacy's own, and is renewed only if it wins. So the request cannot be
        carried out any more once the lease is gone.
        """
        if self.state is not Candidacy.GRANTING or self._view is None:
            self._effects.append(Revoke(lease))
            return
        self._lease = lease
        # The lease was granted before now, so by then it is gone, if it was not renewed.
        self._dead_at = now + self._timing.lease_s
        self._request = self._make_request()
        self._go(Candidacy.ATTEMPTING)
        self._effects.append(
            Attempt(election(self._view, self._identity, self._term, lease, self._request))
        )

    def grant_failed(self) -> None:
        """There is no lease: another one may try."""
        if self.state is Candidacy.GRANTING:
            self._go(Candidacy.NONE)

    def attempted(self, request: str, outcome: Outcome, revision: int) -> None:
        """Hear what became of the election; `revision` is that of etcd after it."""
        if self.state is not Candidacy.ATTEMPTING or request != self._request:
            return
        if outcome == "refused":
            self._effects.append(Revoke(self._lease))
            self._go(Candidacy.NONE)
            return
        self._go(Candidacy.CONFIRMING if outcome == "done" else Candidacy.DOUBTFUL)
        self._revision = revision
        self._effects.append(ReadKeys())
        self._keep()

    def _keep(self) -> None:
        """Renew the lease of a won election: where etcd is slow it would be over before the answers
        to all requests are here. Not before it is won: a request must not outlive its lease.
        """
        if self.state is Candidacy.CONFIRMING:
            self._effects.append(KeepAlive(self._lease))

    def kept_alive(self, lease: int, asked_at: float) -> None:
        """The lease was renewed by a request of that time."""
        if lease == self._lease:
            until = asked_at + self._timing.lease_s - self._timing.margin_s
            self._until = max(self._until, until)

    def viewed(self, view: View, now: float) -> Leadership | None:
        """Return what was won, if the keys say so."""
        if self.state not in (Candidacy.CONFIRMING, Candidacy.DOUBTFUL):
            return None
        if view.revision < self._revision:
            return None  # read before the election
        row = view.leader
        if row is not None and row.value["request"] == self._request:
            if self.state is Candidacy.CONFIRMING and now > self._until - self._timing.lease_s / 2:
                return None  # its lease is being renewed: it would be over soon after the beginning
            self._go(Candidacy.NONE)
            return Leadership(self._term, row, self._lease, self._until, view)
        if self.state is Candidacy.CONFIRMING:
            # It was won, and the lease is gone already.
            self._go(Candidacy.NONE)
        elif now >= self._dead_at:
            self._go(Candidacy.NONE)
        return None

    def tick(self) -> None:
        """Look again what a candidacy came to: a read may be lost as well."""
        if self.state in (Candidacy.CONFIRMING, Candidacy.DOUBTFUL):
            self._effects.append(ReadKeys())
            self._keep()
