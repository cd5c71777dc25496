"""The registration of a process as that of a member.

A data directory may be copied, or put back from a backup, and the file MEMBER with it. Each start
counts a generation: in MEMBER first, and then in etcd. So whoever finds a higher one in etcd than
in its MEMBER knows that its directory is an older copy: somebody has started with a newer one
since. And a process whose generation in etcd is replaced knows that another one runs. Only the
process that etcd names is let in by a leader, and may be elected.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from amqpstore_server.cluster.effects import Attempt, Effect, ReadKeys
from amqpstore_server.cluster.frames import ReplicaPosition
from amqpstore_server.cluster.keys import Generation, MemberIdentity, View, registration
from amqpstore_server.cluster.tenure import Outcome


class Registered(Enum):
    """The stage of a registration."""

    NO = "not registered"
    NOTING = "counting the start in MEMBER"
    ASKING = "the transaction is under way"
    BARRED = "another process of this member runs, with a newer directory"
    YES = "registered"
    REPLACED = "another process of this member was registered since"


NEXT = {
    Registered.NO: {Registered.NOTING, Registered.BARRED, Registered.YES},
    Registered.NOTING: {Registered.ASKING, Registered.YES},
    Registered.ASKING: {Registered.NO, Registered.YES},
    Registered.BARRED: {Registered.NOTING, Registered.BARRED, Registered.YES},
    Registered.YES: {Registered.REPLACED},
    Registered.REPLACED: set[Registered](),
}


class Registering:
    """The registration of one process. Args: former, the generation in MEMBER when it started."""

    def __init__(
        self,
        identity: MemberIdentity,
        former: int,
        effects: list[Effect],
        make_request: Callable[[], str],
    ) -> None:
        self.state = Registered.NO
        self.generation = former
        """The one that MEMBER has, or is to have."""
        self.is_proven = False
        """Whether its directory is not an older copy, or has caught up since."""
        self._identity = identity
        self._former = former
        self._effects = effects
        self._make_request = make_request
        self._view: View | None = None
        self._wanted: Generation | None = None
        self._request = ""

    def _go(self, state: Registered) -> None:
        if state not in NEXT[self.state]:
            raise ValueError(f"a registration cannot go from {self.state.name} to {state.name}")
        self.state = state

    @property
    def is_outsider(self) -> bool:
        """Whether another process is that of this member."""
        return self.state in (Registered.BARRED, Registered.REPLACED)

    @property
    def objection(self) -> str:
        """The reason why this process stays out, or does not stand for election; empty if nothing
        is wrong.
        """
        member = self._identity.member
        if self.state is Registered.REPLACED:
            return (
                f"another process with the same MEMBER {member} was started since, from a copy of "
                "this directory: this one stays out. Stop one of the two, and have its machine "
                "join as a new member"
            )
        if self.state is Registered.BARRED:
            return (
                f"another process with the same MEMBER {member} runs, and this directory is an "
                "older copy of its: this one stays out. Have this machine join as a new member, "
                "with an empty directory"
            )
        if self.state is Registered.YES and not self.is_proven:
            return (
                "this directory is an older copy, or has lost data: this member waits for somebody "
                "to catch up from, and does not lead before that"
            )
        return ""

    def viewed(self, view: View, last: ReplicaPosition) -> None:
        """Compare what etcd names with this process. Args: last, the end of its log."""
        member = self._identity.member
        self._view = view
        if not view.has_member(member):
            return
        found = view.generation(member)
        if found is not None and found.incarnation == self._identity.incarnation:
            if self.state is not Registered.YES:
                self._go(Registered.YES)
            self.is_proven = found.is_proven
        elif self.state is Registered.YES:
            self._go(Registered.REPLACED)
        elif self.state in (Registered.NO, Registered.BARRED):
            self._register(view, found, last)

    def _register(self, view: View, found: Generation | None, last: ReplicaPosition) -> None:
        known = found.number if found is not None else 0
        shown = view.shown(self._identity.member)
        is_older = known > self._former
        if is_older and shown and shown.get("incarnation") != self._identity.incarnation:
            # If that process is gone, its key is soon.
            self._go(Registered.BARRED)
            return
        has_lost = view.shown_position(self._identity.member) > last.lsn
        was_proven = found is None or found.is_proven
        self._wanted = Generation(
            max(known, self.generation) + 1,
            self._identity.incarnation,
            was_proven and not is_older and not has_lost,
        )
        # MEMBER first: a process that ends in between is not taken for an older copy.
        self.generation = self._wanted.number
        self._go(Registered.NOTING)

    def noted(self, generation: int) -> None:
        """A generation is durable in MEMBER: register it."""
        wanted, view = self._wanted, self._view
        if self.state is Registered.NOTING and wanted and view and generation == wanted.number:
            self._request = self._make_request()
            self._go(Registered.ASKING)
            transaction = registration(view, self._identity.member, wanted, self._request)
            self._effects.append(Attempt(transaction))

    def attempted(self, request: str, outcome: Outcome) -> bool:
        """Hear what became of a transaction. Returns whether it was this one."""
        if not self._request or request != self._request:
            return False
        self._request = ""
        if self.state is Registered.ASKING and outcome != "done":
            self._go(Registered.NO)
        # A read tells whether it happened.
        self._effects.append(ReadKeys())
        return True
