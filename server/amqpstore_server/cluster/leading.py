"""A leader: what it ships, what is committed, and until when it may serve.

Past 600 lines because it is one state machine: what was shipped, acked and promised decides
together what is committed, who is in the list, and when another one is to lead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from math import inf
from typing import NamedTuple

from amqpstore_server.cluster.effects import (
    Attempt,
    BlockPublishers,
    CatchUp,
    CheckpointUpTo,
    Committed,
    Effect,
    HangUp,
    ReadKeys,
    Send,
    SendCopy,
    TellOperator,
)
from amqpstore_server.cluster.frames import (
    START,
    Ack,
    Beat,
    CaughtUp,
    Claim,
    Definition,
    Goodbye,
    Hello,
    Join,
    Promise,
    Ready,
    Refused,
    ReplicaPosition,
    Resign,
    ShippedBatch,
    Welcome,
)
from amqpstore_server.cluster.in_sync import InSyncList
from amqpstore_server.cluster.keys import (
    FLOOR,
    EtcdTransaction,
    FloorChange,
    MemberIdentity,
    View,
    floor_change,
    naming,
    proof,
)
from amqpstore_server.cluster.progress import DropReason, FollowerProgress
from amqpstore_server.cluster.replica_log import ReplicaLog
from amqpstore_server.cluster.slow_followers import SlowFollowers
from amqpstore_server.cluster.tenure import Leadership, Outcome, Tenure
from amqpstore_server.cluster.timing import Health, Timing


class Deposed(NamedTuple):
    """The reason why a leader has to step down. `is_unfit`: its machine hangs, and the process has
    to end.
    """

    reason: str
    is_unfit: bool = False


class _Sealed(NamedTuple):
    """A frame that is not committed. `number`: of the last batch up to it."""

    seq: int
    number: int
    at: float
    frame: ShippedBatch | Definition


class _Handover(NamedTuple):
    """A leadership that is to be given to another member as soon as everything is committed.

    `to` is empty if no follower can take it. `is_stopping`: it is given up in any case.
    Publishers wait from now on, but acks and deliveries go on, so that under load something is
    always under way: behind `quiet_at` nothing new is waited for, only what is sealed by then, up
    to `last`. What follows has been sent to the successor, too, and was not confirmed.
    """

    to: str
    until: float
    is_stopping: bool
    quiet_at: float
    last: int | None = None


class Leader:
    """Leads one term. Effects are appended to `effects`."""

    def __init__(
        self,
        identity: MemberIdentity,
        won: Leadership,
        log: ReplicaLog,
        timing: Timing,
        effects: list[Effect],
        make_request: Callable[[], str],
        now: float,
    ) -> None:
        self.term = won.term
        self.committed = 0
        """The last frame that is committed."""
        self.deposed: Deposed | None = None
        self.is_open = False
        self._identity = identity
        self._log = log
        self._timing = timing
        self._effects = effects
        self._view = won.view
        self._tenure = Tenure(identity, won, timing, effects, make_request, now)
        self._list = InSyncList(identity.member, won.term, won.view, effects, make_request)
        self._followers: dict[str, FollowerProgress] = {}
        self._names: dict[int, str] = {}
        self._claims: dict[int, Claim] = {}
        self.withheld: dict[str, str] = {}
        """The members that stay out because this leader lacks what they know to be confirmed."""
        self._make_request = make_request
        self._asked = ""
        """The request under way that changes neither the list nor the leader's key."""
        self._ask_at = now
        self._floor = FloorChange(won.view.floor, won.view.changed(FLOOR))
        """The position up to which everything is confirmed, as it is in etcd."""
        self._waiting: list[tuple[int, Hello]] = []
        self._is_unsure = False
        """Whether a request has failed, or its answer was lost, and etcd was not read since."""
        self._read_at = now
        self._seq = 0
        self._number = 0
        self._base = START
        """The last batch of the log when the term began: committed with the frame 1."""
        self._committed_number = 0
        self._sealed: deque[_Sealed] = deque()
        self._unsynced: deque[_Sealed] = deque()
        self._opened_at = now
        self._viewed_at = now
        self._slow = SlowFollowers(timing, now)
        self._drop_reason: DropReason | None = None
        """The reason why the member leaves the list that etcd is asked to drop."""
        self.left: dict[str, DropReason] = {}
        """The members that have left the list in this term and are not back, and why."""
        self.drop_counts = dict.fromkeys(DropReason, 0)
        self._stalled_since: float | None = None
        self._is_blocked = False
        self._full_since: float | None = None
        """The time since which the disk here has been nearly full, or at which this leader last
        tried to give way for that.
        """
        self._handover: _Handover | None = None
        self._beats: dict[int, float] = {}
        self._beat = 0
        self._beat_at = now

    # What the driver asks.

    @property
    def members(self) -> tuple[str, ...]:
        """The in-sync list, oldest first, as etcd had it for certain."""
        return self._list.members

    @property
    def min_in_sync(self) -> int:
        """The number of members that must be in that list for anything to be committed."""
        return self._view.min_in_sync

    @property
    def in_reach(self) -> int:
        """The number of members of that list that are connected and get all batches, this one
        included.
        """
        return sum(not self._is_other(one) or self._is_streaming(one) for one in self.members)

    @property
    def waits_for(self) -> frozenset[str]:
        """The members without whose ack nothing is committed."""
        return self._list.waits_for

    @property
    def lease_until(self) -> float:
        """The time until which the key in etcd is there for certain."""
        return self._tenure.until

    @property
    def confirmed(self) -> ReplicaPosition:
        """Up to where everything is confirmed; `START` if nothing is by this leader yet."""
        if not self.committed:
            return START
        number = self._committed_number
        return ReplicaPosition(self.term, number) if number > self._base.number else self._base

    def may_serve(self, now: float) -> bool:
        """Tell whether no other member can lead yet: by the lease, or by the promises of all
        candidates.
        """
        return self.deposed is None and (now < self._tenure.until or now < self.serves_until())

    def serves_until(self) -> float:
        """Return the time until which this leader may deliver and accept clients."""
        promised = min(
            (
                self._followers[one].promised_until if one in self._followers else -inf
                for one in self.waits_for
            ),
            default=inf,
        )
        return max(self.lease_until, promised)

    # The log.

    def opened(self, now: float) -> None:
        """The store is recovered, and clients are served."""
        self.is_open = True
        self._opened_at = now
        self._seq = 1
        self._base = self._log.last()
        self._number = self._base.number
        self._commit(now)
        waiting, self._waiting = self._waiting, []
        for link, hello in waiting:
            self.hello(link, hello, now)

    def seal(self, layout: bytes, content: bytes, now: float) -> ShippedBatch:
        """Ship a batch, which is about to be written here. Returns it; `synced` has to follow."""
        self._number += 1
        self._seq += 1
        batch = ShippedBatch(
            self.term,
            self._seq,
            ReplicaPosition(self.term, self._number),
            self._committed_number,
            layout,
            content,
        )
        self._unsynced.append(self._ship(batch, now))
        return batch

    def define(self, number: int, content: bytes, now: float) -> Definition:
        """Ship a change of definitions, the next `number`, which is durable here already."""
        self._seq += 1
        definition = Definition(self.term, self._seq, number, self._committed_number, content)
        self._ship(definition, now)
        self._commit(now)
        return definition

    def _ship(self, frame: ShippedBatch | Definition, now: float) -> _Sealed:
        sealed = _Sealed(self._seq, self._number, now, frame)
        self._sealed.append(sealed)
        for follower in self._followers.values():
            if follower.link is not None and follower.is_streaming:
                self._effects.append(Send(follower.link, frame))
        return sealed

    def synced(self, seq: int, now: float) -> None:
        """The leader's own disk has all frames up to this one."""
        while self._unsynced and self._unsynced[0].seq <= seq:
            self._unsynced.popleft()
        self._commit(now)

    def _durable(self) -> int:
        """Return the last frame that this leader's disk has, and all before it."""
        return self._unsynced[0].seq - 1 if self._unsynced else self._seq

    def _commit(self, now: float) -> None:
        if len(self.members) < self._view.min_in_sync or not self.is_open:
            return
        acked = [
            self._followers[one].acked if one in self._followers else 0 for one in self.waits_for
        ]
        # All that are waited for, not most of them: each of these may be the next leader.
        durable = min([self._durable(), *acked])
        if durable <= self.committed:
            return
        self.committed = durable
        self._committed_number = max(self._committed_number, self._base.number)
        while self._sealed and self._sealed[0].seq <= durable:
            self._committed_number = self._sealed.popleft().number
        self._stalled_since = None
        self._effects += (
            Committed(durable, self._committed_number),
            CheckpointUpTo(self._committed_number),
        )
        self._block(is_blocked=False)
        self._look_at_handover(now)

    # Followers.

    def claim(self, link: int, claim: Claim) -> None:
        """A follower says which process it is, and what it knows to be confirmed."""
        self._claims[link] = claim

    def hello(self, link: int, hello: Hello, now: float) -> None:
        """A follower has connected."""
        if hello.term > self.term:
            # It follows somebody who was elected later, so this leader has been deposed.
            self._effects += (HangUp(link), ReadKeys())
            return
        if reason := self._refusal(hello, self._claims.get(link)):
            self._effects += (Send(link, Refused(reason)), HangUp(link), ReadKeys())
            return
        if not self.is_open:
            self._waiting.append((link, hello))
            return
        is_known = hello.member in self._followers
        follower = self._followers.setdefault(hello.member, FollowerProgress(now))
        # Of each member one connection counts: that the former one is gone may not have been
        # noticed.
        self._hang_up(follower)
        follower.link, follower.spoke_at, follower.is_stopped = link, now, False
        # One whose disk is full connects each second, and must not seem well because of that.
        follower.is_retrying = is_known and not follower.acked
        # It may have acked a batch that this leader's own disk has not yet, and is about to discard
        # it: without this the batch would be committed when that disk goes on.
        follower.acked = 0
        self._names[link] = hello.member
        common = next((one.position for one in hello.tail if self._log.has(one)), START)
        if hello.member in self.members and common.number < self._committed_number:
            self._expel(hello.member, common)
        follower.common = common
        follower.generation = claim.generation if (claim := self._claims.get(link)) else 0
        last = hello.tail[0].position if hello.tail else START
        join = Join.STREAM if common == last else Join.REPLACE
        if not self._log.keeps_behind(common):
            join = Join.COPY
        self._look_at_claim(hello, claim, common, join)
        welcome = Welcome(
            self._identity.member,
            self._identity.incarnation,
            self._view.protocol,
            self.term,
            join,
            common,
        )
        self._effects.append(Send(link, welcome))

    def _look_at_claim(
        self, hello: Hello, claim: Claim | None, common: ReplicaPosition, join: Join
    ) -> None:
        """Say that a member knows more to be confirmed than this log has. It finds that out
        itself, and stays out.
        """
        name = hello.member
        kept = self._log.last().number if join is Join.STREAM else common.number
        if claim is None or join is Join.COPY or claim.confirmed.number <= kept:
            self.withheld.pop(name, None)
            return
        text = (
            f"{name} knows batch {claim.confirmed.number} of term {claim.confirmed.term} to be "
            f"confirmed, and this leader has no more than batch {kept} in common with it: {name} "
            "stays out. Decide which history holds: `amqpstore cluster force-leader`"
        )
        if self.withheld.get(name) != text:
            self.withheld[name] = text
            self._effects.append(TellOperator(text))

    def _refusal(self, hello: Hello, claim: Claim | None) -> str:
        """Return why a member cannot follow; empty if it can."""
        if hello.store_id != self._identity.store_id:
            return (
                f"this group's store is {self._identity.store_id}, and {hello.member} has "
                f"{hello.store_id}: let it join with an empty data directory"
            )
        if hello.protocol < self._view.protocol:
            return (
                f"this group speaks version {self._view.protocol} of the protocol, and "
                f"{hello.member} only {hello.protocol}: upgrade it"
            )
        if not self._view.has_member(hello.member):
            return f"{hello.member} is not a member of this group: let it join first"
        registered = self._view.generation(hello.member)
        if claim is not None and registered is not None and claim.generation < registered.number:
            return (
                f"another process with the MEMBER of {hello.member} was started since, as its "
                f"generation {registered.number}, and this is {claim.generation}: stop one of them"
            )
        return ""

    def _expel(self, name: str, common: ReplicaPosition) -> None:
        """Let a member leave the list that has less than it acked, however few are left: it could
        be elected without what was confirmed.
        """
        follower = self._followers[name]
        follower.has_lost = True
        self._effects.append(
            TellOperator(
                f"{name} has acked batch {self._committed_number} and has no more than "
                f"{common.number} now: its disk has lost data. It leaves the in-sync list."
            )
        )

    def _hang_up(self, follower: FollowerProgress) -> None:
        """End a follower's connection, if it has one. What it has acked stays true."""
        if follower.link is not None:
            self._names.pop(follower.link, None)
            self._effects.append(HangUp(follower.link))
        follower.link, follower.is_streaming = None, False

    def ready(self, link: int, ready: Ready, now: float) -> None:
        """A follower wants what it lacks, and then all that comes."""
        follower = self._follower(link)
        if follower is None or follower.is_streaming or ready.term != self.term:
            return
        if ready.join is Join.COPY:
            # It has less than it acked, unless it is not waited for: then it leaves the list first.
            is_waited_for = self._names[link] in self.waits_for
            self._effects.append(HangUp(link) if is_waited_for else SendCopy(link, ready.received))
            return
        follower.is_streaming, follower.spoke_at = True, now
        # Its promise is asked for at once: a follower is not waited for without one.
        self._beat_at = now
        # What this disk does not have yet cannot be read from the log: it is sent from memory.
        written = self._unsynced[0].number - 1 if self._unsynced else self._number
        self._effects.append(CatchUp(link, follower.common, written))
        for one in self._sealed:
            if one.seq > self._durable():
                self._effects.append(Send(link, one.frame))
        self._effects.append(Send(link, CaughtUp(self.term, self._seq, self._committed_number)))

    def ack(self, link: int, ack: Ack, now: float) -> None:
        """A follower has all frames up to one on disk; with 0, it is receiving."""
        follower = self._follower(link)
        # An ack of another term, or of what was not sent yet, would count for a batch that the
        # follower does not have.
        if follower is None or ack.term != self.term or ack.seq > self._seq:
            return
        follower.acked = max(follower.acked, ack.seq)
        follower.spoke_at = now
        if follower.acked or not follower.is_retrying:
            follower.heard_at = now
            if not ack.seq:
                follower.received_at = now
        self._commit(now)

    def promise(self, link: int, promise: Promise, now: float) -> None:
        """A follower will not stand for election for a while, counted from the beat."""
        follower = self._follower(link)
        sent = self._beats.get(promise.number)
        if follower is not None and sent is not None and promise.term == self.term:
            follower.spoke_at = now
            # From when the beat was sent: the follower counts from when it came, which is later.
            until = sent + self._timing.promise_s - self._timing.margin_s
            follower.promised_until = max(follower.promised_until, until)

    def follower_stopped(self, link: int, goodbye: Goodbye, now: float) -> None:
        """A follower stops: it leaves the list at once, where enough others are in it."""
        follower = self._follower(link)
        if follower is not None and goodbye.term == self.term:
            follower.is_stopped = True
            if self._names[link] not in self.members:
                self._hang_up(follower)
            elif self.is_open:
                self._tend_list(now)

    def disconnected(self, link: int) -> None:
        """A follower's connection is gone. What it has acked stays true until it connects again,
        and what it has promised in any case.
        """
        name = self._names.pop(link, None)
        if name is not None:
            self._followers[name].link = None
            self._followers[name].is_streaming = False
        self._claims.pop(link, None)
        self._waiting = [one for one in self._waiting if one[0] != link]

    def _follower(self, link: int) -> FollowerProgress | None:
        name = self._names.get(link)
        return self._followers[name] if name is not None else None

    # The list.

    def _tend_list(self, now: float) -> None:
        """Ask etcd for the next change of the list, one at a time."""
        for name, follower in self._followers.items():
            if name not in self.waits_for and self._may_enter(name, follower, now):
                self._list.wait_for(name, self._seq)
        if self._list.is_changing or self._is_unsure:
            return
        self._list.floor = self._next_floor() if not self._asked else None
        fence = self._tenure.fence
        # The youngest first: if only some may leave, the oldest stays, which is to lead next.
        for name in reversed(self.members):
            if reason := self._reason_to_drop(name, now):
                self._drop_reason = reason
                self._list.drop(name, fence)
                return
        for name, seq in self._list.newcomers():
            if self._is_gone(name, now):
                self._list.give_up(name, fence)
                return
            if self._followers[name].acked >= seq:
                self._list.offer(name, fence)
                return

    def _tend_group(self, now: float) -> None:
        """Ask etcd for what the group should know besides the list: one thing at a time, and at
        most once a second.
        """
        if self._asked or self._is_unsure or now < self._ask_at:
            return
        fence, request = self._tenure.fence, self._make_request()
        transaction = next(filter(None, self._proofs(fence, request)), None)
        if transaction is None and not self._view.group_id and self._view.store_id:
            transaction = naming(fence, self._view, request, request)
        if transaction is None and (floor := self._next_floor()) and not self._list.is_changing:
            transaction = floor_change(fence, floor, request)
        if transaction is not None:
            self._ask_at = now + self._timing.note_every_s
            self._asked = request
            self._effects.append(Attempt(transaction))

    def _next_floor(self) -> FloorChange | None:
        """Return what etcd is to say of how far everything is confirmed; None if it does."""
        is_there = self.confirmed <= self._floor.position
        return None if is_there else FloorChange(self.confirmed, self._floor.revision)

    def _proofs(self, fence: int, request: str) -> Iterator[EtcdTransaction | None]:
        """Yield what tells that members have caught up that came with a copy of their directory."""
        for name in self.members:
            follower = self._followers.get(name)
            if follower is None or not follower.is_streaming or follower.has_lost:
                continue
            registered = self._view.generation(name)
            if (
                registered is not None
                and registered.number == follower.generation
                and follower.acked >= max(self.committed, 1)
            ):
                yield proof(fence, self._view, name, request)

    def _may_enter(self, name: str, follower: FollowerProgress, now: float) -> bool:
        """Tell whether a follower is a voter, and at most a second behind."""
        if not follower.is_streaming or follower.is_stopped or not self._view.is_voter(name):
            return False
        # While etcd does not answer no follower can enter the list; and where only promises hold,
        # one that has not promised yet would end this leader's term.
        if now >= self._tenure.until or now >= follower.promised_until:
            return False
        behind = next((one.at for one in self._sealed if one.seq > follower.acked), now)
        # What is committed already is not among the sealed ones.
        return (
            follower.acked >= max(self.committed, 1)
            and now - behind < 1.0
            # A follower that was dropped again and again is better than none.
            and (now >= follower.may_enter_at or self._is_blocked)
        )

    def _reason_to_drop(self, name: str, now: float) -> DropReason | None:
        """Return why a member has to leave the list; None if it has not: it has lost data, is
        overdue, silent or too slow, or no longer of the group.
        """
        if name == self._identity.member:
            return None
        if name in self._followers and self._followers[name].has_lost:
            # In any case: elected, it would lack what was confirmed.
            return DropReason.LOST
        # Nothing is committed below the minimum: there a shorter list would only cost candidates.
        if len(self.members) <= self._view.min_in_sync:
            return None
        if not self._view.is_voter(name):
            return DropReason.REMOVED
        if name in self._followers and self._followers[name].is_stopped:
            return DropReason.STOPPED
        if self._is_overdue(name, now):
            return DropReason.OVERDUE
        if self._is_silent(name, now):
            return DropReason.SILENT
        if self._slow.includes(self._followers.get(name)):
            return DropReason.SLOW
        return None

    def _is_silent(self, name: str, now: float) -> bool:
        """Tell whether nothing has come from a member for too long, or never in this term."""
        follower = self._followers.get(name)
        if follower is None:
            return now - self._opened_at > self._timing.ack_timeout_s
        return now - max(follower.spoke_at, self._opened_at) > self._timing.silent_s

    def _look_for_slow(self, now: float) -> None:
        others = [one for one in self.members if self._is_other(one)]
        acked = [self._followers[one].acked if one in self._followers else 0 for one in others]
        have = sorted([self._durable(), *acked], reverse=True)
        least = self._view.min_in_sync
        had = have[least - 1] if len(have) >= least else 0
        lacked_s = next((now - one.at for one in self._sealed if one.seq > had), 0.0)
        self._slow.look(now, had, lacked_s, self._followers, self.waits_for)

    def _is_overdue(self, name: str, now: float) -> bool:
        follower = self._followers.get(name)
        acked, heard = (follower.acked, follower.heard_at) if follower else (0, -inf)
        oldest = next((one.at for one in self._sealed if one.seq > acked), None)
        return oldest is not None and now - max(oldest, heard) > self._timing.ack_timeout_s

    def _is_gone(self, name: str, now: float) -> bool:
        is_streaming = self._followers[name].is_streaming
        return (
            not is_streaming
            or self._followers[name].is_stopped
            or self._is_overdue(name, now)
            or self._slow.includes(self._followers.get(name))
        )

    def _dropped(self, name: str, now: float) -> None:
        """A follower has left the list. Hang up, so that it notices; if that happens often, let it
        wait before it enters again.
        """
        follower = self._followers.setdefault(name, FollowerProgress())
        follower.has_lost = False
        follower.held_up_s = 0.0
        self._hang_up(follower)
        reason, self._drop_reason = self._drop_reason or DropReason.UNKNOWN, None
        self.left[name] = reason
        self.drop_counts[reason] += 1
        self._effects.append(TellOperator(f"{name} has left the in-sync list: {reason.value}"))
        if follower.is_stopped:
            return  # it was well, and may come back at once
        timing = self._timing
        recent = [at for at in follower.dropped_at if at > now - timing.drops_within_s]
        follower.dropped_at = [*recent, now]
        if len(recent) >= 2:
            wait_s = min(timing.first_wait_s * 2 ** (len(recent) - 2), timing.longest_wait_s)
            follower.may_enter_at = now + wait_s

    def _forget_who_is_back(self) -> None:
        """Forget why a member left the list, if it is back, or is not a member any longer."""
        self.left = {
            name: reason
            for name, reason in self.left.items()
            if name not in self.members and self._view.has_member(name)
        }

    # Answers of etcd.

    def attempted(self, request: str, outcome: Outcome, revision: int, now: float) -> None:
        """Hear what became of a transaction; `revision` is that of etcd after it."""
        before = self.members
        if request == self._asked:
            # A read tells what became of it.
            self._asked = ""
            self._look(now)
            return
        done = self._list.attempted(request, outcome, revision)
        if done:
            if self._list.floor is not None:
                self._floor = self._list.floor._replace(revision=revision)
            # Hung up now, so that they notice.
            for name in set(before) - set(self.members):
                self._dropped(name, now)
            self._forget_who_is_back()
            self._commit(now)
        elif done is False or self._tenure.attempted(request):
            self._look(now)

    def _look(self, now: float) -> None:
        """Read what etcd has, and again until there is an answer: reads are lost as well."""
        self._is_unsure = True
        self._read_at = now + self._timing.read_every_s
        self._effects.append(ReadKeys())

    def viewed(self, view: View, now: float) -> None:
        """Compare what etcd has with what this leader knows."""
        if reason := self._tenure.viewed(view):
            self.deposed = Deposed(reason)
            return
        self._view, self._viewed_at = view, now
        self._is_unsure = False
        self._floor = FloorChange(view.floor, view.changed(FLOOR))
        self._list.viewed(view)
        self._forget_who_is_back()
        self._hang_up_on_replaced(view)
        self._commit(now)
        if view.handover not in ("", self._identity.member):
            self.hand_over(view.handover, now)

    def _hang_up_on_replaced(self, view: View) -> None:
        """Count no ack of a process that is not that of its member any longer."""
        for name, follower in self._followers.items():
            registered = view.generation(name)
            if (
                follower.link is not None
                and follower.generation
                and registered is not None
                and follower.generation < registered.number
            ):
                self._effects.append(HangUp(follower.link))
                self.disconnected(follower.link)
                follower.acked = 0

    def granted(self, lease: int) -> None:
        """There is a new lease, to regain the leader's key with."""
        self._tenure.granted(lease)

    def grant_failed(self, now: float) -> None:
        """No lease was granted: look at etcd again, and ask again if the key is still missing."""
        self._tenure.grant_failed()
        self._look(now)

    def kept_alive(self, lease: int, asked_at: float, now: float, *, is_alive: bool) -> None:
        """The lease was renewed by a request of that time; or it is gone."""
        if is_alive:
            self._tenure.kept_alive(lease, asked_at)
        elif self._tenure.is_lost_with(lease):
            self._look(now)

    # Time.

    def look_at_deadline(self, now: float) -> None:
        """Step down if somebody else may lead by now."""
        if self.deposed is None and not self.may_serve(now):
            self.deposed = Deposed("neither the lease nor the followers' promises hold any longer")

    def tick(self, now: float, health: Health) -> None:
        """Do what is due. Renewals and beats are given by a machine that is fit only."""
        self.look_at_deadline(now)
        if self.deposed is not None:
            return
        # A lease that a thread renews without looking is never lost: so LavinMQ kept leaders whose
        # disk hung (its issue 2151).
        if not health.is_fit(now, self._timing):
            self.resign(
                "the disk or the event loop of this machine hangs, or its store cannot be opened "
                "in time",
                is_unfit=True,
            )
            return
        if now >= self._beat_at:
            self._beat_at = now + self._timing.beat_s
            self._send_beat(now)
        self._tenure.tick(now)
        if self.is_open:
            self._look_for_slow(now)
            self._hang_up_on_the_silent(now)
            self._tend_list(now)
            self._tend_group(now)
            self._look_for_stalls(now)
            if reason := self._reason_to_give_way(now):
                self.resign(reason)
                return
            self._look_for_room(now, is_disk_low=health.is_disk_low)
            self._look_at_handover(now)
        if now >= self._read_at:
            # A watch may miss who left the list by a lost request that was carried out late.
            self._read_at = now + self._timing.read_every_s
            self._effects.append(ReadKeys())

    def _send_beat(self, now: float) -> None:
        self._beat += 1
        self._beats[self._beat] = now
        self._beats.pop(self._beat - 20, None)
        for follower in self._followers.values():
            if follower.link is not None and follower.is_streaming:
                beat = Beat(self.term, self._beat, self._committed_number)
                self._effects.append(Send(follower.link, beat))

    def _hang_up_on_the_silent(self, now: float) -> None:
        """End connections on which no beat is answered: TCP takes much longer to notice."""
        for follower in self._followers.values():
            if follower.is_streaming and now - follower.spoke_at > self._timing.promise_s:
                self._hang_up(follower)

    def _look_for_stalls(self, now: float) -> None:
        """Block publishers while nothing can be committed."""
        too_few = len(self.members) < self._view.min_in_sync
        late = bool(self._sealed) and now - self._sealed[0].at > self._timing.ack_timeout_s
        if too_few or late:
            if self._stalled_since is None:
                self._stalled_since = self._sealed[0].at if late else now
            self._block(is_blocked=True)
        elif not self._sealed:
            self._stalled_since = None
            self._block(is_blocked=False)

    def _block(self, *, is_blocked: bool) -> None:
        is_blocked = is_blocked or self._handover is not None
        if self._is_blocked != is_blocked:
            self._is_blocked = is_blocked
            self._effects.append(BlockPublishers(is_blocked))

    def _reason_to_give_way(self, now: float) -> str:
        """Return why to resign, if others could commit and this leader has not been able to for a
        while; empty if it has not to.
        """
        view, timing = self._view, self._timing
        if self._stalled_since is None or now - self._stalled_since < timing.stall_s:
            return ""
        if now - self._viewed_at > 2 * timing.read_every_s:
            return ""  # etcd does not answer
        # The key of a member that has died stays for some seconds. One counts that says that it has
        # no leader, as it does once it misses the beats.
        others = [one for one in self.members if self._is_other(one) and view.is_adrift(one)]
        out_of_reach = [one for one in others if not self._is_streaming(one)]
        if len(out_of_reach) < max(view.min_in_sync - 1, 1):
            return ""
        return "the others are alive, and out of reach"

    def _is_other(self, name: str) -> bool:
        return name != self._identity.member

    def _is_streaming(self, name: str) -> bool:
        return name in self._followers and self._followers[name].is_streaming

    # Giving up.

    def stop(self, now: float) -> None:
        """Give leadership to the oldest follower that is there, and up in any case: an orderly
        stop.
        """
        ready = [one for one in self.members if self._is_other(one) and self._is_streaming(one)]
        self._hand_over(ready[0] if ready else "", now, is_stopping=True)

    def hand_over(self, to: str, now: float) -> None:
        """Give leadership to a member, once everything is committed; not if it is not in sync."""
        if self._handover is not None:
            return
        if to in self.members and self._is_streaming(to):
            self._hand_over(to, now, is_stopping=False)

    def _look_for_room(self, now: float, *, is_disk_low: bool) -> None:
        """Hand leadership over once the disk here has been nearly full for a while, and a follower
        has room: else publishers would wait beside it, perhaps for ever.
        """
        if not is_disk_low:
            self._full_since = None
            return
        if self._full_since is None:
            self._full_since = now
        if now - self._full_since < self._timing.disk_low_s or self._handover is not None:
            return
        self._full_since = now
        for name in self.members:
            is_sound = not self._view.shown(name).get("damaged", False)
            is_there = self._is_other(name) and self._is_streaming(name)
            if is_there and is_sound and self._view.has_room(name):
                self._effects.append(
                    TellOperator(
                        f"the disk of this leader is nearly full, and {name} has room: it is to "
                        "lead. Make room here"
                    )
                )
                self.hand_over(name, now)
                return

    def _hand_over(self, to: str, now: float, *, is_stopping: bool) -> None:
        timing = self._timing
        until, quiet_at = now + timing.hand_over_s, now + timing.quiet_s
        self._handover = _Handover(to, until, is_stopping, quiet_at)
        self._block(is_blocked=True)

    def _look_at_handover(self, now: float) -> None:
        handover = self._handover
        if handover is None:
            return
        if handover.last is None and now >= handover.quiet_at:
            handover = self._handover = handover._replace(last=self._seq)
        last = self._seq if handover.last is None else handover.last
        if self.committed >= last:
            self.resign("leadership is handed over", handover.to)
        elif now > handover.until and handover.is_stopping:
            self.resign("this member stops, and not everything could be committed", handover.to)
        elif now > handover.until:
            self._handover = None
            self._block(is_blocked=False)
            self._effects.append(
                TellOperator(
                    f"leadership stays here: {handover.to} has not acked everything in time"
                )
            )

    def resign(self, reason: str, successor: str = "", *, is_unfit: bool = False) -> None:
        """Give up, and let a follower stand at once."""
        self._tenure.resign(successor)
        for follower in self._followers.values():
            if follower.link is not None:
                self._effects.append(Send(follower.link, Resign(self.term)))
        self.deposed = Deposed(reason, is_unfit)
