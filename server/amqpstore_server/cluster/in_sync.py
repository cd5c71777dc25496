"""The list of in-sync replicas, and whom the leader waits for before it confirms.

The list in etcd names the members of which any may be elected. The leader waits for a set that
always contains every other member of the list *as etcd may have it*:

- A member is waited for before it is offered to etcd for the list. Otherwise it could be elected in
  between without what was confirmed meanwhile.
- A member is waited for until a transaction without it is known to have happened. Otherwise it
  could be elected after a confirm that it has not seen.
- If a member was offered and the answer was lost, it is waited for until a later transaction on the
  list is known to have happened: the lost one may be carried out at any time, and put it in the
  list after all.

Let a member be elected at some revision of etcd. It was in the list then, so the former leader
waited for it at each commit, and it has all that was ever confirmed. From that revision on all
changes of the list by the former leader fail on the fence. So a former leader can confirm nothing
that the new one lacks, however late it learns of it. No clock occurs in this: leases and promises
decide only how soon somebody takes over, and how long a former leader may still deliver.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from amqpstore_server.cluster.effects import Attempt, Effect
from amqpstore_server.cluster.keys import IN_SYNC, FloorChange, View, list_change
from amqpstore_server.cluster.tenure import Outcome


class _Change(NamedTuple):
    """A change of the list that etcd has been asked for."""

    request: str
    members: tuple[str, ...]


class InSyncList:
    """The list as it is known, and what may have become of it. One change is asked for at a time.

    `members`: as etcd had it for certain, oldest first.
    """

    def __init__(
        self,
        member: str,
        term: int,
        view: View,
        effects: list[Effect],
        make_request: Callable[[], str],
    ) -> None:
        self.members = view.in_sync
        self._member = member
        self._term = term
        self._revision = view.changed(IN_SYNC)
        self._effects = effects
        self._make_request = make_request
        self._growing: dict[str, int] = {}
        """Members that are waited for, but not offered yet: with the last frame when that began."""
        self._offered: dict[str, int] = {}
        """Members that were offered, with the revision of the list that a lost request compares."""
        self._change: _Change | None = None
        self.floor: FloorChange | None = None
        """The position up to which everything is confirmed, as the next change says it."""

    @property
    def waits_for(self) -> frozenset[str]:
        """The members without whose ack nothing is committed."""
        # Also those that only a request would add: its answer may be lost, and then etcd has them
        # in the list, and lets them be elected, before this leader knows. One that is to leave is
        # waited for until etcd has dropped it, for the same reason.
        return frozenset({*self.members, *self._growing, *self._offered} - {self._member})

    @property
    def is_changing(self) -> bool:
        return self._change is not None

    def newcomers(self) -> list[tuple[str, int]]:
        """Return the members that are waited for and not in the list, each with the frame that it
        has to ack before it is offered.
        """
        both = {**dict.fromkeys(self._offered, 0), **self._growing}
        return [(name, seq) for name, seq in both.items() if name not in self.members]

    def wait_for(self, name: str, seq: int) -> None:
        """Commit nothing behind the frame `seq` without this member."""
        self._growing[name] = seq

    def give_up(self, name: str, fence: int) -> None:
        """Wait no longer for a newcomer that is gone; at once only if it was never offered."""
        self._growing.pop(name, None)
        if name in self._offered:
            # The same list once more: no request that offers it can be carried out behind that.
            self._ask_for(self.members, fence)

    def offer(self, name: str, fence: int) -> None:
        """Ask etcd to add a member, at the end: the youngest."""
        self._growing.pop(name, None)
        self._offered[name] = self._revision
        self._ask_for((*self.members, name), fence)

    def drop(self, name: str, fence: int) -> None:
        """Ask etcd to remove a member."""
        self._ask_for(tuple(one for one in self.members if one != name), fence)

    def _ask_for(self, members: tuple[str, ...], fence: int) -> None:
        self._change = _Change(self._make_request(), members)
        transaction = list_change(
            fence, self._revision, members, self._term, self._change.request, self.floor
        )
        self._effects.append(Attempt(transaction))

    def attempted(self, request: str, outcome: Outcome, revision: int) -> bool | None:
        """Hear what became of a request. Returns whether it was done; None if it was not for the
        list. What was not done for certain may be done later: read the keys.
        """
        if self._change is None or request != self._change.request:
            return None
        change, self._change = self._change, None
        if outcome != "done":
            return False
        self._adopt(change.members, revision)
        return True

    def viewed(self, view: View) -> None:
        """Take over the list that a read has returned."""
        revision = view.changed(IN_SYNC)
        if revision > self._revision and self._change is None:
            self._adopt(view.in_sync, revision)

    def _adopt(self, members: tuple[str, ...], revision: int) -> None:
        self.members = members
        self._revision = revision
        # Requests that compare an older revision of the list can never be carried out again.
        self._offered = {
            name: compared for name, compared in self._offered.items() if compared >= revision
        }
        for name in members:
            self._growing.pop(name, None)
