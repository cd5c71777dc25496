"""A machine of a simulated group: a process that dies and comes back, a disk, and a clock.

Past 600 lines because each effect of a member is carried out here, on one process and one disk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from amqpstore_server.cluster.effects import (
    Adopt,
    Append,
    Attempt,
    BlockPublishers,
    CatchUp,
    CheckpointUpTo,
    Committed,
    Define,
    Dial,
    Discard,
    Effect,
    Exit,
    FindReceived,
    Grant,
    HangUp,
    KeepAlive,
    Open,
    Persist,
    ReadKeys,
    Receive,
    Restore,
    Revoke,
    Send,
    SendCopy,
    ShowAlive,
    StepDown,
    Sync,
    TellOperator,
    WriteNotes,
)
from amqpstore_server.cluster.frames import (
    DefinitionsSnapshot,
    Frame,
    ReplicaPosition,
    ShippedBatch,
    StoreCopy,
    StorePiece,
    Welcome,
)
from amqpstore_server.cluster.keys import MemberIdentity, View
from amqpstore_server.cluster.member import GroupMember, Role
from amqpstore_server.cluster.notes import Notes
from amqpstore_server.cluster.tenure import Outcome
from amqpstore_server.cluster.timing import Health, Timing
from tests.simulated_group.disk import LogEntry, ReplicaDisk
from tests.simulated_group.etcd import CLUSTER, GroupEtcd
from tests.simulated_group.events import Events
from tests.simulated_group.network import Network

TICK_S = 0.1
SYNC_S = 0.003
"""The usual time of a sync."""
TIMING = Timing()


class Witness(ABC):
    """Sees what the outside is promised; `invariants.Invariants` holds it against the rules."""

    @abstractmethod
    def confirmed(self, entry: LogEntry) -> None:
        """A batch was confirmed to a client."""

    @abstractmethod
    def answered(self, definition: bytes) -> None:
        """A declaration was answered."""

    @abstractmethod
    def committed(self, machine: SimulatedMachine, number: int) -> None:
        """A leader says that its log is committed up to a batch."""

    @abstractmethod
    def covers(self, machine: SimulatedMachine, number: int) -> None:
        """A checkpoint covers the log up to a batch."""

    @abstractmethod
    def discards(self, machine: SimulatedMachine, entries: list[LogEntry]) -> None:
        """Batches are removed from a log, as the leader has it that is followed."""

    @abstractmethod
    def opened(self, machine: SimulatedMachine) -> None:
        """A leader has recovered its store."""

    @abstractmethod
    def broken(self, rule: str) -> None:
        """Something happened that never may."""


class _Job(NamedTuple):
    """Work of the disk: `begin` changes files, and by `finish` that is durable."""

    begin: Callable[[], None]
    finish: Callable[[], None]


class SimulatedMachine:
    """A machine with one member of the group. `rate`: how fast its clock runs."""

    def __init__(
        self,
        name: str,
        events: Events,
        random: Random,
        etcd: GroupEtcd,
        network: Network,
        witness: Witness,
        rate: float,
    ) -> None:
        self.name = name
        self.is_up = False
        self.is_disk_stuck = False
        self.is_disk_full = False
        """Whether what a leader sends cannot be written."""
        self.is_disk_low = False
        """Whether there is so little room that a leader takes no publishes."""
        self.is_loop_stuck = False
        self.is_stopping = False
        """Whether this follower has said that it stops, and takes long to do so."""
        self.is_recovery_stuck = False
        """Whether a store that is to be opened by a leader never is."""
        self.is_damaged = False
        self.sync_s = SYNC_S
        """The usual time of a sync of this machine: a slow disk takes longer."""
        self.store_id = "store"
        self.member_of = ""
        """The machine whose file MEMBER this one has, if not its own."""
        self.is_of_older_version = False
        """Whether the machine's member stands for election whatever its log has."""
        self.disk = ReplicaDisk()
        self.member: GroupMember | None = None
        self.reports: list[str] = []
        self.copies = 0
        """How often the machine has replaced its store with a copy of a leader's."""
        self.followed = ""
        """The leader that welcomed the machine last."""
        self._events = events
        self._random = random
        self._etcd = etcd
        self._network = network
        self._witness = witness
        self._rate = rate
        self._starts = 0
        self._attempts: set[str] = set()
        """Transactions that etcd has not answered yet."""
        self._revokes: list[int] = []
        self._paused_until = 0.0
        self._stopped_at: float | None = None
        self._right_at = 0.0
        self._jobs: deque[_Job] = deque()
        self._busy_since: float | None = None
        self._turned_at = 0.0
        self._opening_since: float | None = None
        self._pending: dict[int, LogEntry | bytes] = {}
        self._is_blocked = False
        self._is_broken = False
        """Whether the stream of a leader could not be written: nothing more of it is."""
        self._requests = 0
        self._least_revision = 0
        self.is_etcd_older = False
        """Whether the process has seen etcd's revisions go back, and no longer uses it."""
        network.ends[name] = self

    # Process and clock.

    @property
    def now(self) -> float:
        """The machine's own monotonic time."""
        if self._stopped_at is not None:
            return self._stopped_at
        return self._events.now * self._rate + 1000.0

    def start(self) -> None:
        """Start the process on what the disk has."""
        self.is_up = True
        self._starts += 1
        self._attempts.clear()
        self._revokes.clear()
        self.disk.recover()
        self._jobs.clear()
        self._busy_since = None
        self._turned_at = self.now
        self._opening_since = None
        self._pending.clear()
        self._is_blocked = self._is_broken = False
        self._least_revision = 0
        self.is_etcd_older = False
        identity = MemberIdentity(
            self.member_of or self.name,
            f"{self.name}.{self._starts}",
            self.store_id,
            CLUSTER,
            self.name,
            is_damaged=self.is_damaged,
        )
        self.member = GroupMember(
            identity,
            self.disk.term,
            self.disk,
            self.now,
            self._make_request,
            TIMING,
            self.disk.notes,
        )
        if self.is_of_older_version:
            self.member.proves_itself = False
        self._tick(self._starts)

    def restart(self) -> None:
        """Start the process unless it runs. A process that was to stop has ended by then."""
        if self.is_up and self.is_stopping:
            self.kill(with_power=True)
        if not self.is_up:
            self.is_stopping = False
            self.start()

    def kill(self, *, with_power: bool) -> None:
        """End the process; without power, what was not synced is gone, or a part of it."""
        self.is_up = False
        self.member = None
        if not with_power:
            self.disk.cut_power(self._random)
        self._network.drop(self)

    def stop_in_order(self) -> None:
        """Stop a follower: what it has sent by then still arrives."""
        self._alone(self._starts, lambda one: one.stop(self.now))
        self.is_up = False
        self.member = None
        self._network.remove(self)

    def _exit(self, start: int) -> None:
        if start == self._starts and self.is_up:
            self.kill(with_power=True)
            self._events.after(self._random.uniform(0.5, 3.0), self.restart)

    def pause(self, duration_s: float) -> None:
        """Stop the process for a while; connections stay."""
        self._paused_until = max(self._paused_until, self._events.now + duration_s)

    def is_listening(self) -> bool:
        return self.is_up

    @property
    def serves(self) -> bool:
        """Whether a client would be served now."""
        leader = self.member.leader if self.member else None
        return (
            leader is not None
            and self.member is not None
            and self.member.role is Role.LEADING
            and leader.may_serve(self.now)
            and self._events.now >= self._paused_until
            and not self.is_loop_stuck
        )

    def stop_clock(self) -> None:
        """Let time stand still here: a leader does not notice that its lease is over."""
        self._stopped_at = self.now

    def mend_clock(self) -> None:
        """Let a clock that stood still be right again."""
        if self._stopped_at is not None:
            self._stopped_at = None
            self._right_at = self._events.now + TIMING.promise_s

    @property
    def has_wrong_clock(self) -> bool:
        """Whether its clock stands still, or did when it promised what may still count."""
        return self._stopped_at is not None or self._events.now < self._right_at

    @property
    def relies_on_lease(self) -> bool:
        """Whether it serves because of its lease, be that as it may with promises."""
        leader = self.member.leader if self.member else None
        return leader is not None and leader.lease_until > self.now

    def _make_request(self) -> str:
        self._requests += 1
        return f"{self.name}.{self._starts}.{self._requests}"

    def _alone(self, start: int, happen: Callable[[GroupMember], None]) -> None:
        """Let something happen to the process of one start, once it is not paused, and obey it."""
        if start != self._starts or self.member is None:
            return
        if self._events.now < self._paused_until:
            self._events.after(
                self._paused_until - self._events.now, lambda: self._alone(start, happen)
            )
            return
        happen(self.member)
        self._obey()

    def _tick(self, start: int) -> None:
        def tick(member: GroupMember) -> None:
            member.tick(self.now, self._health(member))
            self._events.after(TICK_S / self._rate, lambda: self._tick(start))

        self._alone(start, tick)

    def _health(self, member: GroupMember) -> Health:
        """Return what a driver knows: there is an event loop while clients are served only, and the
        disk of a store that is being opened is out of its sight.
        """
        if not self.is_loop_stuck or member.role is not Role.LEADING:
            self._turned_at = self.now
        busy_since = self._busy_since if self._opening_since is None else None
        return Health(busy_since, self._turned_at, self._opening_since, self.is_disk_low)

    def watched(self) -> None:
        """A watch of etcd says that the keys have changed."""
        self._alone(self._starts, GroupMember.changed)

    # What the member asks for.

    def _obey(self) -> None:
        member = self.member
        while member is not None and member.effects:
            effects = member.effects.copy()
            member.effects.clear()
            for effect in effects:
                self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:  # noqa: C901 - a case for each effect
        start = self._starts
        match effect:
            case Send(link, frame):
                self._network.send(self, link, frame)
            case Sync(term, seq):
                self._stream_job(lambda: None, lambda: self._synced(term, seq))
            case CheckpointUpTo(number):
                self._stream_job(lambda: None, lambda: self._checkpoint(number))
            case Committed(seq, number):
                self._confirm(seq, number)
            case ReadKeys():
                least = self._least_revision
                self._etcd.read(
                    self.name,
                    lambda view: self._alone(start, lambda one: self._viewed(one, view, least)),
                )
            case Grant():
                self._etcd.grant(
                    self.name,
                    TIMING.lease_s,
                    lambda lease: self._alone(start, lambda one: one.granted(lease, self.now)),
                    lambda: self._alone(start, lambda one: one.grant_failed(self.now)),
                )
            case KeepAlive(lease):
                asked_at = self.now
                self._etcd.keep_alive(
                    self.name,
                    lease,
                    lambda alive: self._alone(
                        start,
                        lambda one: one.kept_alive(lease, asked_at, self.now, is_alive=alive),
                    ),
                )
            case Revoke(lease):
                # The driver asks for one thing after the other: the end of a lease does not
                # overtake the resignation that names who is to stand first.
                if self._attempts:
                    self._revokes.append(lease)
                else:
                    self._etcd.revoke(self.name, lease)
            case ShowAlive(key, value):
                self._etcd.show_alive(self.name, key, value)
            case WriteNotes(notes):
                self._events.after(
                    self._random.uniform(0.2, 2.0) * SYNC_S, lambda: self._note(start, notes)
                )
            case Attempt(transaction):
                request = transaction.request

                def answered(outcome: Outcome, revision: int) -> None:
                    if start == self._starts:
                        self._attempts.discard(request)
                        self._revoke()
                    self._alone(
                        start, lambda one: one.attempted(request, outcome, revision, self.now)
                    )

                self._attempts.add(request)
                self._etcd.attempt(self.name, transaction, answered)
            case Dial(_, address):
                self._job(lambda: None, lambda: self._dial(address))
            case HangUp(link):
                self._network.close(self, link)
            case CatchUp(link, behind, number):
                self._catch_up(link, behind, number)
            case SendCopy(link, _):
                self._send_copy(link)
            case Persist(term):
                self._job(lambda: None, lambda: self._persist(term))
            case Append(batch):
                self._append(batch)
            case Define(definition):
                self._stream_job(
                    lambda: None,
                    lambda: self._define(definition.content, definition.term, definition.seq),
                )
            case Restore(snapshot):
                self._stream_job(lambda: None, lambda: self._restore(snapshot))
            case FindReceived(term):
                self._job(
                    lambda: None,
                    lambda: self._alone(start, lambda one: one.found_received(term, (), self.now)),
                )
            case Receive():
                self._job(lambda: None, lambda: None)
            case Adopt(copy):
                self._job(lambda: None, lambda: self._adopt(copy))
            case Discard(behind):
                self._stream_job(lambda: None, lambda: self._discard(behind))
            case Open():
                self._opening_since = self.now
                self._job(lambda: None, self._open)
            case BlockPublishers(is_blocked):
                self._is_blocked = is_blocked
            case StepDown():
                self._pending.clear()
                self._opening_since = None
                self._job(
                    lambda: None, lambda: self._alone(start, lambda one: one.closed(self.now))
                )
            case Exit():
                self._events.after(0.1, lambda: self._exit(start))
            case TellOperator(text):
                self.reports.append(text)

    # etcd, and the file MEMBER.

    def _revoke(self) -> None:
        """End the leases that were waiting for transactions, unless one is still under way."""
        while self._revokes and not self._attempts and self.member is not None:
            self._etcd.revoke(self.name, self._revokes.pop(0))

    def _viewed(self, member: GroupMember, view: View, least: int) -> None:
        """Take an answer of etcd. A client that has seen etcd's revisions go back no longer uses
        it.
        """
        self.is_etcd_older |= view.revision < least
        if self.is_etcd_older:
            member.etcd_is_another("its revisions went back: was it restored from a backup?")
            return
        self._least_revision = max(self._least_revision, view.revision)
        member.viewed(view, self.now)

    def _note(self, start: int, notes: Notes) -> None:
        if start == self._starts and self.member is not None:
            self.disk.notes = notes
            self._alone(start, lambda one: one.noted(notes))

    # The disk: one job after the other.

    def _job(self, begin: Callable[[], None], finish: Callable[[], None]) -> None:
        self._jobs.append(_Job(begin, finish))
        if self._busy_since is None:
            self._busy_since = self.now
            self._work(self._starts)

    def _stream_job(self, begin: Callable[[], None], finish: Callable[[], None]) -> None:
        """Do what a stream asks for, unless it is broken by then."""

        def begin_unbroken() -> None:
            if not self._is_broken:
                begin()

        def finish_unbroken() -> None:
            if not self._is_broken:
                finish()

        self._job(begin_unbroken, finish_unbroken)

    def _dial(self, name: str) -> None:
        self._is_broken = False
        self._network.dial(self, name)

    def _work(self, start: int) -> None:
        if start != self._starts or self.member is None:
            return
        if not self._jobs:
            self._busy_since = None
            return
        if self.is_disk_stuck or self._events.now < self._paused_until:
            self._events.after(0.05, lambda: self._work(start))
            return
        self._busy_since = self.now
        begin, finish = self._jobs.popleft()
        begin()

        def finished() -> None:
            if start != self._starts or self.member is None:
                return
            if self.is_disk_stuck or self._events.now < self._paused_until:
                self._events.after(0.05, finished)
                return
            finish()
            self._obey()
            self._work(start)

        self._events.after(self._random.uniform(0.2, 2.0) * self.sync_s, finished)

    def _synced(self, term: int, seq: int) -> None:
        self._alone(self._starts, lambda one: one.synced(term, seq, self.now))

    def _append(self, batch: ShippedBatch) -> None:
        disk = self.disk

        def write() -> None:
            if self.is_disk_full and self.member is not None and self.member.leader is None:
                self._is_broken = True
                self._network.drop(self)
                return
            if len(disk.log) + 1 != batch.position.number:
                has = f"has {len(disk.log)} batches"
                self._witness.broken(f"{self.name} {has} and is given {batch.position}")
            disk.log.append(LogEntry(batch.position, batch.content))

        def sync() -> None:
            disk.durable = len(disk.log)
            self._synced(batch.term, batch.seq)

        self._stream_job(write, sync)

    def _persist(self, term: int) -> None:
        self.disk.term = max(self.disk.term, term)
        self._alone(self._starts, lambda one: one.persisted(term, self.now))

    def _define(self, definition: bytes, term: int, seq: int) -> None:
        self.disk.definitions.append(definition)
        self._synced(term, seq)

    def _restore(self, snapshot: DefinitionsSnapshot) -> None:
        self.disk.definitions = snapshot.content.split(b",")

    def _adopt(self, copy: StoreCopy) -> None:
        """Exchange the log for a copy: its positions and contents, as `_send_copy` wrote them."""
        entries = [
            LogEntry(ReplicaPosition(int(term), number), content)
            for number, (term, _, content) in enumerate(
                (one.partition(b":") for one in copy.content.split(b",") if one), 1
            )
        ]
        disk = self.disk
        kept = set(entries)
        self._witness.discards(self, [one for one in disk.log if one not in kept])
        disk.log, disk.durable = entries, len(entries)
        disk.covered = disk.compacted = len(entries)
        self.copies += 1

    def _discard(self, behind: ReplicaPosition) -> None:
        disk = self.disk
        self._witness.discards(self, disk.log[behind.number :])
        del disk.log[behind.number :]
        disk.known = min(disk.known, behind.number)
        disk.durable = len(disk.log)
        self._alone(self._starts, lambda one: one.discarded())

    def _checkpoint(self, number: int) -> None:
        number = min(number, self.disk.durable)
        if number > self.disk.covered:
            self._witness.covers(self, number)
            self.disk.covered = number
        self.disk.known = max(self.disk.known, number)

    def compact(self) -> None:
        """Give up what a checkpoint covers: a follower that lacks it needs a whole copy."""
        self.disk.compacted = self.disk.covered

    def _open(self) -> None:
        if self.is_recovery_stuck:
            return
        self._opening_since = None
        self.disk.durable = len(self.disk.log)
        self._is_blocked = self._is_broken = False
        self._witness.opened(self)
        self._alone(self._starts, lambda one: one.opened(self.now))

    def _send_copy(self, link: int) -> None:
        """Send the log up to the last checkpoint, in two pieces."""
        leader = self.member.leader if self.member else None
        if leader is None:
            return
        content = b",".join(
            b"%d:%s" % (one.position.term, one.content)
            for one in self.disk.log[: self.disk.covered]
        )
        for sent in (1, 2):
            piece = StorePiece(leader.term, "segments", sent, sent, 2, b"")
            self._network.send(self, link, piece)
        self._network.send(self, link, StoreCopy(leader.term, content))

    def _catch_up(self, link: int, behind: ReplicaPosition, number: int) -> None:
        leader = self.member.leader if self.member else None
        if leader is None:
            return
        disk, term = self.disk, leader.term
        definitions = b",".join(disk.definitions)
        self._network.send(
            self, link, DefinitionsSnapshot(term, len(disk.definitions), definitions)
        )
        for one in disk.log[behind.number : number]:
            batch = ShippedBatch(term, 0, one.position, 0, b"", one.content)
            self._network.send(self, link, batch)

    # Clients.

    def publish(self, content: bytes) -> None:
        """A client publishes; its message is the next batch. One is under way at a time."""
        is_writing = any(isinstance(one, LogEntry) for one in self._pending.values())
        if self.member is None or not self.serves or is_writing or self._is_blocked:
            return
        content += b"|" + self.disk.definitions[-1]
        batch = self.member.seal(b"", content, self.now)
        if batch is not None:
            self._pending[batch.seq] = LogEntry(batch.position, batch.content)
            self._append(batch)
        self._obey()

    def declare(self, content: bytes) -> None:
        """A client declares a queue."""
        if self.member is None or not self.serves:
            return

        def ship() -> None:
            self.disk.definitions.append(content)
            number = len(self.disk.definitions)
            frame = self.member and self.member.define(number, content, self.now)
            if frame:
                self._pending[frame.seq] = content

        self._job(lambda: None, ship)

    def _confirm(self, seq: int, number: int) -> None:
        self._witness.committed(self, number)
        for one in [one for one in self._pending if one <= seq]:
            pending = self._pending.pop(one)
            if isinstance(pending, LogEntry):
                self._witness.confirmed(pending)
            else:
                self._witness.answered(pending)

    # Connections.

    def connected(self, link: int) -> None:
        self._alone(self._starts, lambda one: one.connected(link))

    def received(self, link: int, frame: Frame) -> None:
        if isinstance(frame, Welcome):
            self.followed = frame.incarnation.partition(".")[0]
        self._alone(self._starts, lambda one: one.received(link, frame, self.now))

    def progressed(self, link: int) -> None:
        self._alone(self._starts, lambda one: one.progressed(link, self.now))

    def disconnected(self, link: int) -> None:
        self._alone(self._starts, lambda one: one.disconnected(link))
