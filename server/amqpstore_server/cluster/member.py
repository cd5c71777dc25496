"""One member of a group: follows, stands for election, leads, and follows again.

Past 600 lines because everything that a driver tells a member, and all that a member asks of it,
goes through this one door.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from math import inf

from amqpstore_server.cluster.effects import (
    Effect,
    Exit,
    HangUp,
    Open,
    Persist,
    ReadKeys,
    Revoke,
    ShowAlive,
    StepDown,
    TellOperator,
    WriteNotes,
)
from amqpstore_server.cluster.electing import Candidacy, Electing
from amqpstore_server.cluster.following import Following, Stream
from amqpstore_server.cluster.frames import (
    START,
    Ack,
    Beat,
    CaughtUp,
    Claim,
    Definition,
    DefinitionsSnapshot,
    Frame,
    Goodbye,
    Hello,
    Promise,
    Ready,
    ReceivedFile,
    Refused,
    Resign,
    ShippedBatch,
    StoreCopy,
    StorePiece,
    Welcome,
)
from amqpstore_server.cluster.keys import MemberIdentity, View, alive_key, outsider_key
from amqpstore_server.cluster.leading import Leader
from amqpstore_server.cluster.notes import Notes, objection, objection_of_others
from amqpstore_server.cluster.registering import Registered, Registering
from amqpstore_server.cluster.replica_log import ReplicaLog
from amqpstore_server.cluster.tenure import Leadership, Outcome
from amqpstore_server.cluster.timing import Health, Timing

_SURE = 3
"""The number of equal answers in a row that cannot be an older one that was overtaken."""


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

    Args: term, the highest durable one. make_request returns another string each time. notes, what
    the file MEMBER has.
    """

    def __init__(
        self,
        identity: MemberIdentity,
        term: int,
        log: ReplicaLog,
        now: float,
        make_request: Callable[[], str],
        timing: Timing | None = None,
        notes: Notes | None = None,
    ) -> None:
        self.effects: list[Effect] = []
        self.role = Role.FOLLOWING
        self.leader: Leader | None = None
        self.identity = identity
        self._log = log
        self._make_request = make_request
        self._timing = timing or Timing()
        self._started_at = now
        self._view: View | None = None
        self._vacant_since: float | None = None
        self._read_at = now
        self._show_at = now
        self._shown_follows = self._shown_disk_low = False
        self._noted = self.notes = notes or Notes()
        self._note_at = now
        self.proves_itself = True
        """Whether it stands only if it is not older than the group. Without, it is as members of
        versions that knew no floor are.
        """
        self._waits: dict[str, str] = {}
        self._etcd_says = ""
        self._objections = 0
        self._stand_at = now
        """The time before which it does not stand for election."""
        self.following = Following(identity, term, log, self._timing, self.effects)
        self.electing = Electing(identity, self._timing, self.effects, make_request)
        self.registering = Registering(identity, self.notes.generation, self.effects, make_request)

    def _go(self, role: Role) -> None:
        if role not in NEXT[self.role]:
            raise ValueError(f"a member cannot go from {self.role.name} to {role.name}")
        self.role = role

    # Time.

    def tick(self, now: float, health: Health) -> None:
        """Do what is due; to be called at least ten times a second."""
        follows = self._follows()
        changes = (follows, health.is_disk_low) != (self._shown_follows, self._shown_disk_low)
        is_due = now >= self._show_at or changes
        # One that hangs must not seem alive: in an election others would leave it its turn.
        if is_due and health.is_fit(now, self._timing) and self._may_show():
            self._show_at = now + self._timing.alive_every_s
            self._shown_follows, self._shown_disk_low = follows, health.is_disk_low
            self.effects.append(ShowAlive(self._alive_key(), self._status()))
        self._take_notes(now)
        if self.leader is not None:
            self.leader.tick(now, health)
            self._look_at_leader()
        elif self.role is Role.FOLLOWING:
            self._tick_follower(now, health)

    def _follows(self) -> bool:
        return self.leader is None and self.following.state is Stream.STREAMING

    # What is noted in MEMBER, and told to people.

    def _take_notes(self, now: float) -> None:
        """Have MEMBER written anew, if there is something new: at once for what changes seldom."""
        confirmed = self._log.confirmed()
        if self.leader is not None:
            confirmed = max(confirmed, self.leader.confirmed)
        self.notes = self.notes._replace(
            confirmed=max(self.notes.confirmed, confirmed),
            generation=self.registering.generation,
        )
        moves = self.notes._replace(floor=self._noted.floor, confirmed=self._noted.confirmed)
        is_due = now >= self._note_at or moves != self._noted
        if self.notes != self._noted and is_due:
            self._note_at = now + self._timing.note_every_s
            self._noted = self.notes
            self.effects.append(WriteNotes(self.notes))

    def noted(self, notes: Notes) -> None:
        """Notes are durable in MEMBER."""
        self.registering.noted(notes.generation)

    @property
    def waits(self) -> str:
        """The reason why this member stays out or does not lead, for people; empty if nothing is
        wrong.
        """
        return "; ".join(self._waits.values())

    @property
    def lag_batches(self) -> int:
        """The number of confirmed batches that are not on the disk here, as far as this member
        knows.
        """
        known = max(self.following.committed_number, self.notes.floor.number)
        return max(known - self._log.last().number, 0)

    @property
    def is_etcd_refused(self) -> bool:
        """Whether the etcd that answers is not used."""
        return bool(self._etcd_says)

    @property
    def waiting(self) -> int:
        """The number of processes that say that they stay out or do not lead, or that the leader
        knows to do so.
        """
        rows = self._view.rows if self._view is not None else {}
        shown = {
            key
            for key, row in rows.items()
            if key.startswith(alive_key("")) and "waits" in row.value
        }
        known = self.leader.withheld if self.leader is not None else {}
        return len(shown | {alive_key(name) for name in known})

    def _wait(self, what: str, reason: str) -> None:
        """Say why this member does not do something, when that has changed."""
        if self._waits.get(what, "") == reason:
            return
        if not reason:
            del self._waits[what]
            return
        self._waits[what] = reason
        self.effects.append(TellOperator(reason))
        self._show_at = -inf

    def _may_show(self) -> bool:
        """Tell whether it is known which process is that of this member."""
        return self._view is not None or bool(self._etcd_says)

    def _alive_key(self) -> str:
        member, incarnation = self.identity.member, self.identity.incarnation
        is_outsider = self.registering.is_outsider
        return outsider_key(member, incarnation) if is_outsider else alive_key(member)

    def _status(self) -> dict[str, object]:
        following = self.following
        is_copying = self.leader is None and following.state is Stream.COPYING
        left = (
            {one: reason.value for one, reason in self.leader.left.items()} if self.leader else {}
        )
        copied = {"bytes": following.received_bytes, "of": following.copy_bytes}
        return {
            "incarnation": self.identity.incarnation,
            "replicate": self.identity.replicate,
            "role": self.role.name.lower(),
            "term": self.following.term,
            "position": self._log.last().lsn,
            "follows": self._follows(),
            "damaged": self.identity.is_damaged,
            "disk_low": self._shown_disk_low,
            "generation": self.registering.generation,
            "seen": self.notes.shown(),
            **({"waits": self.waits} if self.waits else {}),
            **({"copied": copied} if is_copying else {}),
            **({"left": left} if left else {}),
        }

    def _tick_follower(self, now: float, health: Health) -> None:
        if self.electing.state is not Candidacy.NONE:
            if now >= self._read_at:
                self._read_at = now + self._timing.turn_s
                self.electing.tick()
            return
        if self._may_follow():
            self.following.tick(self._view, now)
            self._wait("history", self.following.withheld)
        if now >= self._read_at:
            self.changed()
            is_led = self._view is not None and self._view.leader is not None
            self._read_at = now + (self._timing.read_every_s if is_led else self._timing.turn_s)
        if self._view is None or not health.is_fit(now, self._timing):
            return
        if self._may_stand(self._view, now):
            # Take nothing more from the former leader: it may not count on what comes now.
            self.following.hang_up()
            term = max(self._view.term, self.following.term) + 1
            self.electing.stand(self._view, term, now)

    def changed(self) -> None:
        """A watch says that the keys have changed, or that it has lost its place: read them."""
        self.effects.append(ReadKeys())

    def _may_follow(self) -> bool:
        """Tell whether this is its member's process; one of no member has the leader say so."""
        is_member = self._view is not None and self._view.has_member(self.identity.member)
        return self.registering.state is Registered.YES or not is_member

    def _lacks(self, view: View) -> str:
        """Return why this member may be older than the group; empty if it is not."""
        last = self._log.last()
        for position, whence in (
            (view.floor if view.floor.term >= view.forced_term else START, "as etcd says"),
            (self.notes.binding(view), "as its MEMBER says"),
        ):
            if last.number < position.number or last.term < position.term:
                return (
                    f"this member's log ends with batch {last.number} of term {last.term}, and "
                    f"batch {position.number} of term {position.term} is confirmed, {whence}: it "
                    "does not stand for election, and waits for somebody to catch up from. If "
                    "nobody has that batch any more: `amqpstore cluster force-leader`"
                )
        return ""

    def _is_proven(self, view: View) -> bool:
        """Tell whether this member is not older than the group; it says so if it is."""
        if self.registering.state is not Registered.YES or not self.registering.is_proven:
            return False
        reason = self._lacks(view)
        self._wait("log", reason)
        return not reason

    def _may_stand(self, view: View, now: float) -> bool:
        """Tell whether this member may lead, has promised no other, and its turn has come."""
        identity = self.identity
        if identity.member not in view.in_sync or now < self._stand_at:
            return False
        if self._objections or self._etcd_says:
            return False
        if self.proves_itself and not self._is_proven(view):
            return False
        if view.leader is not None:
            # The key of an incarnation of its own that is gone: it made no promise to anybody else
            # since.
            leader = view.leader.value
            return bool(
                leader["member"] == identity.member
                and leader["incarnation"] != identity.incarnation
                and not identity.is_damaged
                # One that dies soon after each election would keep the others from leading.
                and (not leader.get("retaken", False) or view.in_sync == (identity.member,))
            )
        if now < self.following.promised_until or self._vacant_since is None:
            return False
        # It may have promised something just before it was started again.
        has_waited = now >= self._started_at + self._timing.promise_s
        return has_waited and now >= self._vacant_since + self._turn_s(view)

    def _turn_s(self, view: View) -> float:
        """Return for how long others come first: of those alive the oldest replica leads."""
        member, timing = self.identity.member, self._timing
        if view.handover == member:
            return 0.0
        if self.identity.is_damaged:
            return (len(view.in_sync) + 1) * timing.turn_s
        if view.last_leader == member:
            # It has given up, or died: whoever is alive may do better, and has to see it first.
            others = sum(view.is_alive(one) for one in view.in_sync if one != member)
            return others and timing.read_every_s + (1 + others) * timing.turn_s
        older = view.in_sync[: view.in_sync.index(member)]
        first = {*older, view.handover} - {view.last_leader}
        # Where publishers would wait for room, all others come first.
        later = len(view.in_sync) if self._shown_disk_low else 0
        return (later + sum(view.is_alive(one) for one in first)) * timing.turn_s

    # Answers of etcd.

    def viewed(self, view: View, now: float) -> bool:
        """Take over what a linearizable read has returned. Returns whether it is the newest, and of
        the etcd of this group.
        """
        if self._view is not None and view.revision < self._view.revision:
            return False  # an older answer that was overtaken
        if reason := self._objection(view):
            self._objections += 1
            if self._objections >= _SURE:
                self.etcd_is_another(reason)
            return False
        self._objections = 0
        self.etcd_is_another("")
        self._view = view
        self.notes = self.notes.seen(view)
        self.registering.viewed(view, self._log.last())
        self._wait("process", self.registering.objection)
        if self.identity.member not in view.in_sync:
            self._wait("log", "")
        self._take_notes(now)
        if self.leader is not None:
            self.leader.viewed(view, now)
            if self.registering.is_outsider and self.leader.deposed is None:
                self.leader.resign("another process of this member was started")
            self._look_at_leader()
            return True
        self.following.claim = Claim(self.registering.generation, self.notes.binding(view))
        if self.registering.is_outsider:
            self.following.hang_up()
        if view.leader is not None:
            self._vacant_since = None
            self.following.has_resigned = False
        elif self._vacant_since is None:
            self._vacant_since = now
        self.following.viewed(view)
        self._look_at_election(view, now)
        return True

    def _look_at_election(self, view: View, now: float) -> None:
        won = self.electing.viewed(view, now)
        if won is not None and self.role is Role.FOLLOWING:
            self._lead(won, now)

    def _objection(self, view: View) -> str:
        """Return why an etcd does not decide about this group; empty if it does."""
        cluster = self.identity.cluster
        if view.cluster != cluster:
            return (
                f"etcd cluster {view.cluster:x} answers, and this member belongs to {cluster:x}: "
                "it was made anew, or restored from a backup"
            )
        term = self.leader.term if self.leader is not None else self.following.term
        notes = self.notes._replace(term=max(self.notes.term, term))
        return objection(notes, view) or objection_of_others(view, self.identity.member)

    def etcd_is_another(self, reason: str) -> None:
        """An etcd answers that is not the one of this group, or an older state of it; with an empty
        reason, it is the right one again.
        """
        self._etcd_says = reason
        self._wait(
            "etcd",
            reason
            and f"etcd is not used: {reason}. A leader goes on as long as its followers are there, "
            "and nobody is elected. See `When somebody comes back older` in the manual",
        )

    def _lead(self, won: Leadership, now: float) -> None:
        self.following.withheld = ""
        self._wait("history", "")
        self._wait("log", "")
        self._go(Role.OPENING)
        self.leader = Leader(
            self.identity,
            won,
            self._log,
            self._timing,
            self.effects,
            self._make_request,
            now,
        )
        # Durable before the store is opened: after a crash this member must follow no leader of an
        # older term.
        self.effects.append(Persist(won.term))

    def granted(self, lease: int, now: float) -> None:
        """There is a lease."""
        if self.leader is not None:
            self.leader.granted(lease)
        elif self.role is Role.FOLLOWING:
            self.electing.granted(lease, now)
        else:
            self.effects.append(Revoke(lease))

    def grant_failed(self, now: float) -> None:
        """There is no lease."""
        if self.leader is not None:
            self.leader.grant_failed(now)
        else:
            self.electing.grant_failed()

    def attempted(self, request: str, outcome: Outcome, revision: int, now: float) -> None:
        """Hear what became of a transaction."""
        if self.registering.attempted(request, outcome):
            return
        if self.leader is not None:
            self.leader.attempted(request, outcome, revision, now)
            self._look_at_leader()
        else:
            self.electing.attempted(request, outcome, revision)
            if outcome == "refused":
                # Something has changed since the read: look again before standing again.
                self._view = None
                self.effects.append(ReadKeys())

    def kept_alive(self, lease: int, asked_at: float, now: float, *, is_alive: bool) -> None:
        """Hear whether a lease was renewed, by a request that was sent at `asked_at`."""
        if self.leader is not None:
            self.leader.kept_alive(lease, asked_at, now, is_alive=is_alive)
        elif is_alive and self._view is not None:
            self.electing.kept_alive(lease, asked_at)
            self._look_at_election(self._view, now)

    # The disk.

    def persisted(self, term: int, now: float) -> None:
        """A term is durable."""
        self.following.persisted(term, now)
        if self.role is Role.OPENING and self.leader is not None and term == self.leader.term:
            # A process that was paused may hear too late that it has won.
            self.leader.look_at_deadline(now)
            self._look_at_leader()
            if self.leader is not None:
                self.effects.append(Open(term))

    def found_received(self, term: int, received: tuple[ReceivedFile, ...], now: float) -> None:
        """Hear what is here of a copy that was cut off."""
        if self.leader is None:
            self.following.found_received(term, received, now)

    def synced(self, term: int, seq: int, now: float) -> None:
        """All that was asked for up to a frame of a term is durable here."""
        if self.leader is None:
            self.following.synced(term, seq)
        elif term == self.leader.term:
            self.leader.synced(seq, now)
            self._look_at_leader()

    def discarded(self) -> None:
        """Note that what was never committed is gone from the log."""
        self.following.discarded()

    def opened(self, now: float) -> None:
        """The store is recovered."""
        if self.role is Role.OPENING and self.leader is not None:
            self._go(Role.LEADING)
            self.leader.opened(now)

    # Leading.

    def seal(self, layout: bytes, content: bytes, now: float) -> ShippedBatch | None:
        """Ship a batch that is about to be written here: answered by `Committed`, after `synced`.

        Returns it with its position; None if this member does not lead any longer.
        """
        if self.leader is None or not self.leader.may_serve(now):
            return None
        return self.leader.seal(layout, content, now)

    def define(self, number: int, content: bytes, now: float) -> Definition | None:
        """Ship a change of definitions that is durable here: answered by `Committed`.

        It has to be asked for before the first batch that needs it is sealed. Returns None if this
        member does not lead any longer.
        """
        if self.leader is None or not self.leader.may_serve(now):
            return None
        definition = self.leader.define(number, content, now)
        self._look_at_leader()
        return definition

    def give_up(self, reason: str, now: float) -> None:
        """Lead no longer, as this machine cannot serve clients: others may be able to.

        `StepDown` follows, if it leads.
        """
        self._stand_at = now + self._timing.unable_s
        if self.leader is not None:
            self.leader.resign(reason)
            self._look_at_leader()

    def stop(self, now: float) -> None:
        """Stop in order: a leader lets the oldest follower take over once everything is committed.

        `StepDown` comes within `hand_over_s`; a follower may end at once: its leader knows then not
        to wait for it.
        """
        if self.leader is not None:
            self.leader.stop(now)
        elif self.role is Role.FOLLOWING:
            self.following.stop()

    def _look_at_leader(self) -> None:
        if self.leader is None or self.leader.deposed is None:
            return
        reason, is_unfit = self.leader.deposed
        self.notes = self.notes._replace(confirmed=max(self.notes.confirmed, self.leader.confirmed))
        self.effects.append(Exit(reason) if is_unfit else StepDown(reason))
        self._go(Role.CLOSING)
        self.leader = None

    def closed(self, now: float) -> None:
        """The store is closed after a leadership: this member follows, with what it has on disk."""
        if self.role is Role.CLOSING:
            self._go(Role.FOLLOWING)
            self._vacant_since = None
            term, claim = self.following.term, self.following.claim
            self.following = Following(self.identity, term, self._log, self._timing, self.effects)
            self.following.claim = claim
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

    def progressed(self, link: int, now: float) -> None:
        """A part of a large frame has come; to be told several times a second."""
        if self.leader is None:
            self.following.progressed(link, now)

    def received(self, link: int, frame: Frame, now: float) -> None:
        """Take a frame of another member."""
        if self.leader is not None:
            self._from_follower(self.leader, link, frame, now)
            self._look_at_leader()
        elif isinstance(frame, Hello):
            # It leads no longer, or not yet: whoever follows waits for an answer.
            self.effects.append(HangUp(link))
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
                leader.promise(link, frame, now)
            case Goodbye():
                leader.follower_stopped(link, frame, now)
            case Claim():
                leader.claim(link, frame)
            case _:
                pass

    def _from_leader(self, link: int, frame: Frame, now: float) -> None:
        following = self.following
        following.heard(link, now)
        match frame:
            case ShippedBatch():
                following.batch(link, frame)
            case Definition():
                following.definition(link, frame)
            case Beat():
                following.beat(link, frame, now)
            case Welcome():
                following.welcome(link, frame)
            case Refused():
                following.refused(link, frame)
            case DefinitionsSnapshot():
                following.snapshot(link, frame)
            case StorePiece():
                following.piece(link, frame)
            case StoreCopy():
                following.copy(link, frame)
            case CaughtUp():
                following.caught_up(link, frame)
            case Resign():
                following.resigned(link, frame)
                if following.has_resigned:
                    self._vacant_since = now
            case _:
                pass
