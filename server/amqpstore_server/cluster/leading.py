"""A leader: whom it waits for before it confirms, and until when it may serve.

The in-sync list in etcd names the members of which any may be elected. The leader waits for a set
that always contains every other member of the list *as etcd may have it*:

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

from collections import deque
from collections.abc import Callable, Iterable
from math import inf
from typing import Literal, NamedTuple, Protocol

from amqpstore_server.cluster.effects import (
    Attempt,
    BlockPublishers,
    CatchUp,
    Committed,
    Effect,
    Grant,
    HangUp,
    KeepAlive,
    ReadKeys,
    Revoke,
    Send,
)
from amqpstore_server.cluster.frames import (
    START,
    Ack,
    Beat,
    Hello,
    Promise,
    Ready,
    ReplicaPosition,
    Resign,
    ShippedBatch,
    Welcome,
)
from amqpstore_server.cluster.keys import (
    LEADER,
    STATE,
    View,
    list_change,
    regain,
    resignation,
)
from amqpstore_server.cluster.timing import Timing

Outcome = Literal["done", "refused", "unknown"]
"""What became of a transaction. Without an answer it is unknown: it may happen later."""


class ReplicaLog(Protocol):
    """What a member has on disk."""

    def positions(self) -> tuple[ReplicaPosition, ...]:
        """Return durable positions, newest first: enough of them for another member to find a
        common one.
        """

    def has(self, position: ReplicaPosition) -> bool:
        """Tell whether a batch is there."""

    def last(self) -> ReplicaPosition:
        """Return the position of the last batch."""


class Deposed(NamedTuple):
    """Why a leader has to step down."""

    reason: str


class _Follower:
    """One follower, as the leader sees it; it outlives its connections."""

    __slots__ = ("acked", "heard_at", "is_streaming", "link", "promised_until")

    def __init__(self) -> None:
        self.link: int | None = None
        self.is_streaming = False
        self.acked = 0
        self.heard_at = -inf
        """When it last acked something."""
        self.promised_until = -inf


class _Change(NamedTuple):
    """A change of the list that etcd has been asked for."""

    request: str
    members: tuple[str, ...]
    offered: str
    """The member that it adds; empty if it removes one."""
    list_revision: int
    """The revision of the list that it replaces."""


class Leadership(NamedTuple):
    """What an election won."""

    term: int
    fence: int
    """The `create_revision` of the key `leader`: compared by each change of the list."""
    lease: int
    lease_until: float
    view: View
    """The group's keys after the election."""


class Leader:
    """Leads one term.

    Effects are appended to `effects`. Args: make_request, returns another string each time.
    """

    def __init__(
        self,
        member: str,
        incarnation: str,
        won: Leadership,
        log: ReplicaLog,
        timing: Timing,
        effects: list[Effect],
        make_request: Callable[[], str],
        now: float,
    ) -> None:
        self.term = won.term
        self.members = won.view.in_sync
        self.committed = 0
        self.deposed: Deposed | None = None
        self.is_open = False
        self._member = member
        self._incarnation = incarnation
        self._log = log
        self._timing = timing
        self._effects = effects
        self._make_request = make_request
        self._fence = won.fence
        self._leader_row = won.view.rows[LEADER]
        self._state_revision = won.view.changed(STATE)
        self._min_in_sync = won.view.min_in_sync
        self._list_revision = won.view.changed("in_sync")
        self._lease = won.lease
        self._lease_until = won.lease_until
        self._lease_asked: dict[int, float] = {}
        self._followers: dict[str, _Follower] = {}
        self._names: dict[int, str] = {}
        self._waiting: list[tuple[int, Hello]] = []
        self._growing: dict[str, int] = {}
        """Members that are waited for, but not offered yet: with the last frame when that began."""
        self._offered: dict[str, int] = {}
        """Members that were offered, with the revision of the list that a lost request compares."""
        self._change: _Change | None = None
        self._is_unsure = False
        """Whether a request has failed, or its answer was lost, and etcd was not read since."""
        self._regaining = ""
        self._grant_asked: float | None = None
        self._base = START
        self._seq = 0
        self._local = 0
        self._sealed: deque[tuple[int, float]] = deque()
        """Frames that are not committed, with the time when they were sealed."""
        self._is_blocked = False
        self._stalled_since: float | None = None
        self._beats: dict[int, float] = {}
        self._beat = 0
        self._beat_at = now
        self._keep_alive_at = now
        self._read_at = now

    # What the driver asks.

    @property
    def waits_for(self) -> frozenset[str]:
        """The members without whose ack nothing is committed."""
        return frozenset({*self.members, *self._growing, *self._offered} - {self._member})

    def may_serve(self, now: float) -> bool:
        """Tell whether nobody else can lead yet: by the lease, or by the promises of all
        candidates.
        """
        return now < self.serves_until()

    def serves_until(self) -> float:
        """Return the time until which this leader may deliver and accept clients."""
        promised = min(
            (
                self._followers[one].promised_until if one in self._followers else -inf
                for one in self.waits_for
            ),
            default=inf,
        )
        return max(self._lease_until, promised)

    # The log.

    def opened(self, now: float) -> None:
        """The store is recovered, and clients are served."""
        self.is_open = True
        self._base = self._log.last()
        waiting, self._waiting = self._waiting, []
        for link, hello in waiting:
            self.hello(link, hello, now)

    def seal(self, content: object, now: float) -> ShippedBatch:
        """Ship a batch to all followers that are streaming. Returns it, for the own disk."""
        self._seq += 1
        position = ReplicaPosition(self.term, self._base.number + self._seq)
        batch = ShippedBatch(self.term, self._seq, position, content, self.committed)
        self._sealed.append((self._seq, now))
        for follower in self._followers.values():
            if follower.link is not None and follower.is_streaming:
                self._effects.append(Send(follower.link, batch))
        return batch

    def appended(self, seq: int) -> None:
        """The leader's own disk has all frames up to this one."""
        self._local = max(self._local, seq)
        self._commit()

    def _commit(self) -> None:
        if len(self.members) < self._min_in_sync:
            return
        acked = [
            self._followers[one].acked if one in self._followers else 0 for one in self.waits_for
        ]
        durable = min([self._local, *acked])
        if durable <= self.committed:
            return
        self.committed = durable
        while self._sealed and self._sealed[0][0] <= durable:
            self._sealed.popleft()
        self._stalled_since = None
        self._effects.append(Committed(durable))
        self._block(is_blocked=False)

    # Followers.

    def hello(self, link: int, hello: Hello, now: float) -> None:
        """A follower has connected."""
        if hello.term > self.term:
            # It follows somebody who was elected later, so this leader has been deposed.
            self._effects += (HangUp(link), ReadKeys())
            return
        if not self.is_open:
            self._waiting.append((link, hello))
            return
        follower = self._followers.setdefault(hello.member, _Follower())
        if follower.link is not None:
            self._names.pop(follower.link, None)
            self._effects.append(HangUp(follower.link))
        follower.link, follower.is_streaming, follower.heard_at = link, False, now
        self._names[link] = hello.member
        common = next((one for one in hello.positions if self._log.has(one)), START)
        is_destructive = bool(hello.positions) and hello.positions[0] != common
        welcome = Welcome(
            self._member, self._incarnation, self.term, common, is_destructive, self.seq_of(common)
        )
        self._effects.append(Send(link, welcome))

    def seq_of(self, position: ReplicaPosition) -> int:
        return position.number - self._base.number if position.term == self.term else 0

    def ack(self, link: int, ack: Ack, now: float) -> None:
        """A follower has all frames up to one on disk."""
        follower = self._follower(link)
        if follower is None or ack.term != self.term:
            return
        follower.acked = max(follower.acked, ack.seq)
        follower.heard_at = now
        self._commit()

    def ready(self, link: int, ready: Ready, now: float) -> None:
        """A follower wants what it lacks, and then all that comes."""
        follower = self._follower(link)
        if follower is None or follower.is_streaming or ready.term != self.term:
            return
        follower.is_streaming = True
        follower.heard_at = now
        self._effects.append(CatchUp(link, ready.behind, self._seq))

    def promise(self, link: int, promise: Promise) -> None:
        """A follower will not stand for election for a while, counted from the beat."""
        follower = self._follower(link)
        sent = self._beats.get(promise.number)
        if follower is not None and sent is not None and promise.term == self.term:
            until = sent + self._timing.promise_s - self._timing.margin_s
            follower.promised_until = max(follower.promised_until, until)

    def disconnected(self, link: int) -> None:
        """A follower's connection is gone. What it has acked and promised stays true."""
        name = self._names.pop(link, None)
        if name is not None:
            self._followers[name].link = None
            self._followers[name].is_streaming = False
        self._waiting = [one for one in self._waiting if one[0] != link]

    def _follower(self, link: int) -> _Follower | None:
        name = self._names.get(link)
        return self._followers[name] if name is not None else None

    # The list.

    def _tend_list(self, now: float) -> None:
        """Ask etcd for the next change of the list, one at a time."""
        for name, follower in self._followers.items():
            if name not in self.waits_for and self._is_live(follower, now):
                self._growing[name] = self._seq
        if self._change is not None or self._is_unsure:
            return
        overdue = [one for one in reversed(self.members) if self._is_overdue(one, now)]
        if overdue and len(self.members) - 1 >= self._min_in_sync:
            self._ask_for(tuple(one for one in self.members if one != overdue[0]), "")
            return
        for name in [one for one in (*self._growing, *self._offered) if one not in self.members]:
            if self._is_gone(name, now):
                # It was not offered, or no request that offers it can be carried out any more.
                self._growing.pop(name, None)
                if name in self._offered:
                    self._ask_for(self.members, "")
                    return
            elif self._followers[name].acked >= self._growing.get(name, 0):
                self._ask_for((*self.members, name), name)
                return

    def _is_live(self, follower: _Follower, now: float) -> bool:
        """Tell whether a follower is at most a second behind."""
        if not (follower.is_streaming and self.is_open):
            return False
        behind = next((at for seq, at in self._sealed if seq > follower.acked), now)
        # What is committed already is not among the sealed ones.
        return follower.acked >= self.committed and now - behind < 1.0

    def _is_overdue(self, name: str, now: float) -> bool:
        if name == self._member:
            return False
        follower = self._followers.get(name)
        acked, heard = (follower.acked, follower.heard_at) if follower else (0, -inf)
        oldest = next((at for seq, at in self._sealed if seq > acked), None)
        return oldest is not None and now - max(oldest, heard) > self._timing.ack_timeout_s

    def _is_gone(self, name: str, now: float) -> bool:
        follower = self._followers[name]
        return not follower.is_streaming or self._is_overdue(name, now)

    def _ask_for(self, members: tuple[str, ...], offered: str) -> None:
        request = self._make_request()
        if offered:
            self._growing.pop(offered, None)
            self._offered[offered] = self._list_revision
        self._change = _Change(request, members, offered, self._list_revision)
        self._effects.append(
            Attempt(list_change(self._fence, self._list_revision, members, self.term, request))
        )

    # Answers of etcd.

    def attempted(self, request: str, outcome: Outcome, revision: int, now: float) -> None:
        """Hear what became of a transaction; `revision` is that of etcd after it."""
        if self._change is not None and request == self._change.request:
            change, self._change = self._change, None
            if outcome == "done":
                for name in set(self.members) - set(change.members):
                    self._hang_up(name)
                self._adopt(change.members, revision)
            else:
                self._look(now)
        elif request == self._regaining:
            self._regaining = ""
            self._look(now)

    def _look(self, now: float) -> None:
        """Read what etcd has, and again until there is an answer: reads are lost as well."""
        self._is_unsure = True
        self._read_at = now + self._timing.read_every_s
        self._effects.append(ReadKeys())

    def _hang_up(self, name: str) -> None:
        """Close the connection of a follower that did not ack in time, so that it notices."""
        follower = self._followers.get(name)
        if follower is not None and follower.link is not None:
            self._effects.append(HangUp(follower.link))

    def _adopt(self, members: tuple[str, ...], revision: int) -> None:
        """Take over the list that etcd has for certain."""
        self.members = members
        self._list_revision = revision
        # Requests that compare an older revision of the list can never be carried out again.
        self._offered = {
            name: compared for name, compared in self._offered.items() if compared >= revision
        }
        for name in members:
            self._growing.pop(name, None)
        self._commit()

    def viewed(self, view: View, now: float) -> None:
        """Compare what etcd has with what this leader knows."""
        if view.revision < self._list_revision:
            # Answers overtake each other: this one is older than a list that was written since.
            return
        self._is_unsure = False
        row = view.leader
        if view.term != self.term or view.last_leader != self._member:
            self.deposed = Deposed(f"term {view.term} has begun")
            return
        if row is None:
            self._lease_until = -inf
            if not self._regaining and self._grant_asked is None:
                self._grant_asked = now
                self._effects.append(Grant())
        elif row.created != self._fence:
            if row.value["incarnation"] != self._incarnation:
                self.deposed = Deposed("another incarnation of this member leads")
                return
            self._fence = row.created
            self._leader_row = row
        self._min_in_sync = view.min_in_sync
        if view.changed("in_sync") != self._list_revision and self._change is None:
            self._adopt(view.in_sync, view.changed("in_sync"))
        self._give_way(view, now)

    def granted(self, lease: int) -> None:
        """There is a new lease, to regain the leader's key with."""
        if self._grant_asked is None:
            return
        self._lease, self._grant_asked = lease, None
        self._regaining = self._make_request()
        self._effects.append(
            Attempt(regain(self._state_revision, self._leader_row.value, lease, self._regaining))
        )

    def grant_failed(self) -> None:
        """No lease was granted: look at etcd again, and ask again if the key is still missing."""
        self._grant_asked = None
        self._is_unsure = True

    def kept_alive(self, lease: int, asked_at: float, is_alive: bool) -> None:
        """The lease was renewed by a request of that time; or it is gone."""
        if lease != self._lease:
            return
        if is_alive:
            until = asked_at + self._timing.lease_s - self._timing.margin_s
            self._lease_until = max(self._lease_until, until)
        else:
            self._is_unsure = True
            self._effects.append(ReadKeys())

    # Time.

    def tick(self, now: float) -> None:
        """Do what is due."""
        if not self.may_serve(now):
            self.deposed = Deposed("neither the lease nor the followers' promises hold any longer")
            return
        if now >= self._beat_at:
            self._beat_at = now + self._timing.beat_s
            self._send_beat(now)
        if now >= self._keep_alive_at:
            self._keep_alive_at = now + self._timing.keep_alive_s
            self._effects.append(KeepAlive(self._lease))
        if self.is_open:
            self._tend_list(now)
            self._look_for_stalls(now)
        is_stalled = self._stalled_since is not None
        if (self._is_unsure or is_stalled) and now >= self._read_at:
            self._read_at = now + self._timing.read_every_s
            self._effects.append(ReadKeys())

    def _send_beat(self, now: float) -> None:
        self._beat += 1
        self._beats[self._beat] = now
        self._beats.pop(self._beat - 20, None)
        for follower in self._followers.values():
            if follower.link is not None and follower.is_streaming:
                self._effects.append(
                    Send(follower.link, Beat(self.term, self._beat, self.committed))
                )

    def _look_for_stalls(self, now: float) -> None:
        """Block publishers while nothing can be committed."""
        too_few = len(self.members) < self._min_in_sync
        late = bool(self._sealed) and now - self._sealed[0][1] > self._timing.ack_timeout_s
        if too_few or late:
            if self._stalled_since is None:
                self._stalled_since = now
            self._block(is_blocked=True)
        elif not self._sealed:
            self._stalled_since = None
            self._block(is_blocked=False)

    def _block(self, *, is_blocked: bool) -> None:
        if self._is_blocked != is_blocked:
            self._is_blocked = is_blocked
            self._effects.append(BlockPublishers(is_blocked))

    def _give_way(self, view: View, now: float) -> None:
        """Resign if others could commit, and this leader has not been able to for a while."""
        if self._stalled_since is None or now - self._stalled_since < self._timing.stall_s:
            return
        others = [one for one in self.members if one != self._member and view.is_alive(one)]
        if len(others) >= max(self._min_in_sync - 1, 1) and not self._hears(others):
            self.resign("the others are alive, and out of reach")

    def _hears(self, members: Iterable[str]) -> bool:
        return all(one in self._followers and self._followers[one].is_streaming for one in members)

    def resign(self, reason: str) -> None:
        """Give up, and let a follower stand at once."""
        self._effects.append(Attempt(resignation(self._fence, self._make_request())))
        for follower in self._followers.values():
            if follower.link is not None:
                self._effects.append(Send(follower.link, Resign(self.term)))
        self._effects.append(Revoke(self._lease))
        self.deposed = Deposed(reason)
