"""One member of a group: follows, stands for election, leads, and follows again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

from amqpstore_server.cluster.effects import Effect, Open, Persist, ReadKeys, Revoke, StepDown
from amqpstore_server.cluster.electing import Candidacy, Electing
from amqpstore_server.cluster.following import Following
from amqpstore_server.cluster.frames import (
    Ack,
    Beat,
    Frame,
    Hello,
    Promise,
    Ready,
    Resign,
    ShippedBatch,
    Welcome,
)
from amqpstore_server.cluster.keys import HANDOVER, View
from amqpstore_server.cluster.leading import Leader, Leadership, Outcome, ReplicaLog
from amqpstore_server.cluster.timing import Timing


class Role(Enum):
    FOLLOWING = "following"
    OPENING = "elected, recovering the store"
    LEADING = "leading"
    CLOSING = "deposed, closing the store"


NEXT = {
    Role.FOLLOWING: {Role.OPENING},
    Role.OPENING: {Role.LEADING, Role.CLOSING},
    Role.LEADING: {Role.CLOSING},
    Role.CLOSING: {Role.FOLLOWING},
}


class GroupMember:
    """The state machine of one process. `effects` is what the driver has to carry out, in order; it
    empties the list.

    Args: term, the highest durable one; is_damaged, whether the last recovery found damage: such a
    member stands for election last. make_request returns another string each time.
    """

    def __init__(
        self,
        member: str,
        incarnation: str,
        term: int,
        log: ReplicaLog,
        now: float,
        make_request: Callable[[], str],
        *,
        is_damaged: bool = False,
        timing: Timing | None = None,
        addresses: Mapping[str, str] | None = None,
    ) -> None:
        self.effects: list[Effect] = []
        self.role = Role.FOLLOWING
        self.leader: Leader | None = None
        self._member = member
        self._incarnation = incarnation
        self._log = log
        self._make_request = make_request
        self._is_damaged = is_damaged
        self._timing = timing or Timing()
        self._started_at = now
        self._view: View | None = None
        self._vacant_since: float | None = None
        self._read_at = now
        self.following = Following(member, incarnation, term, log, self._timing, self.effects)
        self.electing = Electing(
            member, incarnation, self._timing, self.effects, make_request, addresses or {}
        )

    def _go(self, role: Role) -> None:
        if role not in NEXT[self.role]:
            raise ValueError(f"a member cannot go from {self.role.name} to {role.name}")
        self.role = role

    # Time.

    def tick(self, now: float) -> None:
        """Do what is due; to be called at least ten times a second."""
        if self.leader is not None:
            self.leader.tick(now)
            self._look_at_leader()
        elif self.role is Role.FOLLOWING:
            self._tick_follower(now)

    def _tick_follower(self, now: float) -> None:
        if self.electing.state is not Candidacy.NONE:
            if now >= self._read_at:
                self._read_at = now + self._timing.turn_s
                self.electing.tick()
            return
        self.following.tick(self._view, now)
        if now >= self._read_at:
            self._read_at = now + self._timing.read_every_s
            self.effects.append(ReadKeys())
        if self._view is not None and self._may_stand(self._view, now):
            # Take nothing more from the former leader: it may not count on what comes now.
            self.following.hang_up()
            self.electing.stand(self._view, now)

    def _may_stand(self, view: View, now: float) -> bool:
        """Tell whether this member may lead, nobody has its promise, and its turn has come."""
        if self._member not in view.in_sync:
            return False
        leader = view.leader
        if leader is not None:
            # The key of an incarnation of its own that is gone: it made no promise to anybody else
            # since.
            value = leader.value
            return bool(
                value["member"] == self._member and value["incarnation"] != self._incarnation
            )
        if now < self.following.promised_until or self._vacant_since is None:
            return False
        # It may have promised something just before it was started again.
        has_waited = now >= self._started_at + self._timing.promise_s
        return has_waited and now >= self._vacant_since + self._turn(view) * self._timing.turn_s

    def _turn(self, view: View) -> int:
        """Return how many candidates come first: of those alive the oldest replica leads."""
        row = view.rows.get(HANDOVER)
        if row is not None and row.value["to"] == self._member:
            return 0
        if self._is_damaged:
            return len(view.in_sync) + 1
        older = view.in_sync[: view.in_sync.index(self._member)]
        return sum(view.is_alive(one) for one in older)

    # Answers of etcd.

    def viewed(self, view: View, now: float) -> None:
        """Take over what a linearizable read has returned."""
        if self._view is not None and view.cluster != self._view.cluster:
            # Another etcd, or one that was restored from a backup: its revisions mean nothing here.
            return
        if view.term < self.following.term and self.leader is None:
            # An etcd that has forgotten a term is no authority about who leads.
            return
        if self._view is not None and view.revision < self._view.revision:
            return  # an older answer that was overtaken
        self._view = view
        if self.leader is not None:
            self.leader.viewed(view, now)
            self._look_at_leader()
            return
        if view.leader is not None:
            self._vacant_since = None
            self.following.has_resigned = False
        elif self._vacant_since is None:
            self._vacant_since = now
        self.following.viewed(view)
        won = self.electing.viewed(view, now)
        if won is not None and self.role is Role.FOLLOWING:
            self._lead(won, now)

    def _lead(self, won: Leadership, now: float) -> None:
        self._go(Role.OPENING)
        self.leader = Leader(
            self._member,
            self._incarnation,
            won,
            self._log,
            self._timing,
            self.effects,
            self._make_request,
            now,
        )
        self.effects.append(Persist(won.term))

    def granted(self, lease: int, now: float) -> None:
        """There is a lease."""
        if self.leader is not None:
            self.leader.granted(lease)
        elif self.role is Role.FOLLOWING:
            self.electing.granted(lease, now)
        else:
            self.effects.append(Revoke(lease))

    def grant_failed(self) -> None:
        """There is no lease."""
        if self.leader is not None:
            self.leader.grant_failed()
        else:
            self.electing.grant_failed()

    def attempted(self, request: str, outcome: Outcome, revision: int, now: float) -> None:
        """Hear what became of a transaction."""
        if self.leader is not None:
            self.leader.attempted(request, outcome, revision, now)
            self._look_at_leader()
        else:
            self.electing.attempted(request, outcome)
            if outcome == "refused":
                # Something has changed since the read: look again before standing again.
                self._view = None
                self.effects.append(ReadKeys())

    def kept_alive(self, lease: int, asked_at: float, *, is_alive: bool) -> None:
        """Hear whether a lease was renewed."""
        if self.leader is not None:
            self.leader.kept_alive(lease, asked_at, is_alive)

    # The disk.

    def persisted(self, term: int, now: float) -> None:
        """A term is durable."""
        self.following.persisted(term, now)
        if self.role is Role.OPENING and self.leader is not None and term == self.leader.term:
            self.effects.append(Open(term))

    def appended(self, batch: ShippedBatch) -> None:
        """A batch, and all before it, is on this member's disk."""
        if self.leader is not None:
            if batch.term == self.leader.term:
                self.leader.appended(batch.seq)
        else:
            self.following.appended(batch)

    def discarded(self) -> None:
        """What was never committed is gone from the log."""
        self.following.discarded()

    def opened(self, now: float) -> None:
        """The store is recovered."""
        if self.role is Role.OPENING and self.leader is not None:
            self._go(Role.LEADING)
            self.leader.opened(now)

    def resign(self, reason: str) -> None:
        """Give up leadership: an operator asks for it, or this machine is not fit for it."""
        if self.leader is not None:
            self.leader.resign(reason)
            self._look_at_leader()

    def _look_at_leader(self) -> None:
        if self.leader is not None and self.leader.deposed is not None:
            self.effects.append(StepDown(self.leader.deposed.reason))
            self._go(Role.CLOSING)
            self.leader = None

    def closed(self, now: float) -> None:
        """The store is closed after a leadership: this member follows, with what it has on disk."""
        if self.role is Role.CLOSING:
            self._go(Role.FOLLOWING)
            self._vacant_since = None
            term = self.following.term
            self.following = Following(
                self._member, self._incarnation, term, self._log, self._timing, self.effects
            )
            self._read_at = now

    # Connections.

    def connected(self, link: int) -> None:
        """The leader has answered a dial."""
        self.following.connected(link)

    def disconnected(self, link: int) -> None:
        """A connection is gone."""
        if self.leader is not None:
            self.leader.disconnected(link)
        else:
            self.following.disconnected(link)

    def received(self, link: int, frame: Frame, now: float) -> None:
        """Take a frame of another member."""
        if self.leader is not None:
            self._from_follower(self.leader, link, frame, now)
            self._look_at_leader()
        elif self.role is Role.FOLLOWING:
            self._from_leader(link, frame, now)

    def _from_follower(self, leader: Leader, link: int, frame: Frame, now: float) -> None:
        match frame:
            case Hello():
                leader.hello(link, frame, now)
            case Ready():
                leader.ready(link, frame, now)
            case Ack():
                leader.ack(link, frame, now)
            case Promise():
                leader.promise(link, frame)
            case _:
                pass

    def _from_leader(self, link: int, frame: Frame, now: float) -> None:
        match frame:
            case Welcome():
                self.following.welcome(link, frame)
            case ShippedBatch():
                self.following.batch(link, frame)
            case Beat():
                self.following.beat(link, frame, now)
            case Resign():
                self.following.resigned(link, frame)
                if self.following.has_resigned:
                    self._vacant_since = now
            case _:
                pass
