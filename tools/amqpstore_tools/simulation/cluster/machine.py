"""A machine of a simulated group: a process that dies and comes back, a log, and a clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from amqpstore_server.cluster.effects import (
    Append,
    Attempt,
    BlockPublishers,
    CatchUp,
    Committed,
    Dial,
    Discard,
    Effect,
    Grant,
    HangUp,
    KeepAlive,
    Open,
    Persist,
    ReadKeys,
    Revoke,
    Send,
    StepDown,
)
from amqpstore_server.cluster.frames import START, Frame, ReplicaPosition, ShippedBatch
from amqpstore_server.cluster.keys import View
from amqpstore_server.cluster.leading import Outcome
from amqpstore_server.cluster.member import GroupMember, Role
from amqpstore_server.cluster.timing import Timing
from amqpstore_tools.simulation.cluster.etcd import Etcd
from amqpstore_tools.simulation.cluster.events import Events
from amqpstore_tools.simulation.cluster.network import Network

TICK_S = 0.1
TIMING = Timing()


class LogEntry(NamedTuple):
    """A batch in a machine's log."""

    position: ReplicaPosition
    content: object


class Witness:
    """Sees what the outside is promised; `history.Checks` holds it against the rules."""

    def confirmed(self, entry: LogEntry) -> None:
        """A batch was confirmed to a client."""

    def opened(self, machine: SimulatedMachine) -> None:
        """A leader has recovered its store."""

    def broken(self, rule: str) -> None:
        """Something happened that never may."""


class SimulatedMachine:
    """A machine with one member of the group. `rate`: how fast its clock runs."""

    def __init__(
        self,
        name: str,
        events: Events,
        random: Random,
        etcd: Etcd,
        network: Network,
        witness: Witness,
        rate: float,
    ) -> None:
        self.name = name
        self.is_up = False
        self.disk_s = 0.003
        """What a sync takes about."""
        self.is_disk_stuck = False
        self.log: list[LogEntry] = []
        self.durable = 0
        """How many entries of the log would survive a power cut."""
        self.term = 0
        self.member: GroupMember | None = None
        self._events = events
        self._random = random
        self._etcd = etcd
        self._network = network
        self._witness = witness
        self._rate = rate
        self._starts = 0
        self._paused_until = 0.0
        self._jobs: deque[tuple[Callable[[], None], float]] = deque()
        self._is_working = False
        self._pending: dict[int, ShippedBatch] = {}
        self._requests = 0
        network.ends[name] = self

    # Process and clock.

    @property
    def now(self) -> float:
        """The machine's own monotonic time."""
        return self._events.now * self._rate + 1000.0

    def start(self) -> None:
        """Start the process on what the disk has."""
        self.is_up = True
        self._starts += 1
        self.durable = len(self.log)
        self._jobs.clear()
        self._is_working = False
        self._pending.clear()
        self.member = GroupMember(
            self.name, f"{self.name}.{self._starts}", self.term, self, self.now, self._make_request
        )
        self._tick(self._starts)
        self._show_alive(self._starts)

    def kill(self, *, with_power: bool) -> None:
        """End the process; without power, what was not synced is gone, or a part of it."""
        self.is_up = False
        self.member = None
        if not with_power:
            del self.log[self._random.randint(self.durable, len(self.log)) :]
        self._network.drop(self)

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
        )

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
            member.tick(self.now)
            self._events.after(TICK_S / self._rate, lambda: self._tick(start))

        self._alone(start, tick)

    def _show_alive(self, start: int) -> None:
        def show(_: GroupMember) -> None:
            self._etcd.show_alive(self.name)
            self._events.after(3.0, lambda: self._show_alive(start))

        self._alone(start, show)

    # What the member asks for.

    def _obey(self) -> None:
        member = self.member
        while member is not None and member.effects:
            effects, member.effects[:] = list(member.effects), []
            for effect in effects:
                self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:  # noqa: C901 - a case for each effect
        start = self._starts
        match effect:
            case ReadKeys():
                self._etcd.read(
                    self.name,
                    lambda view: self._alone(start, lambda one: one.viewed(view, self.now)),
                )
            case Grant():
                self._etcd.grant(
                    self.name,
                    TIMING.lease_s,
                    lambda lease: self._alone(start, lambda one: one.granted(lease, self.now)),
                    lambda: self._alone(start, lambda one: one.grant_failed()),
                )
            case KeepAlive(lease):
                asked_at = self.now
                self._etcd.keep_alive(
                    self.name,
                    lease,
                    lambda alive: self._alone(
                        start, lambda one: one.kept_alive(lease, asked_at, is_alive=alive)
                    ),
                )
            case Revoke(lease):
                self._etcd.revoke(self.name, lease)
            case Attempt(transaction):
                request = transaction.request

                def answered(outcome: Outcome, revision: int) -> None:
                    self._alone(
                        start, lambda one: one.attempted(request, outcome, revision, self.now)
                    )

                self._etcd.attempt(self.name, transaction, answered)
            case Dial(name):
                # Behind what is being written: what a follower says it has must be on disk.
                self._job(lambda: self._network.dial(self, name))
            case HangUp(link):
                self._network.hang_up(link)
            case Send(link, frame):
                self._network.send(self, link, frame)
            case CatchUp(link, behind, seq):
                self._catch_up(link, behind, seq)
            case Append(batch):
                self.append(batch)
            case Persist(term):
                self._job(lambda: self._persist(term))
            case Discard(behind):
                self._job(lambda: self._discard(behind))
            case Open():
                self._job(self._open)
            case StepDown():
                self._pending.clear()
                self._job(lambda: self._alone(start, lambda one: one.closed(self.now)))
            case Committed(seq):
                self._confirm(seq)
            case BlockPublishers():
                pass

    # The disk: one job after the other.

    def _job(self, finish: Callable[[], None], cost: float = 1.0) -> None:
        self._jobs.append((finish, cost))
        if not self._is_working:
            self._work(self._starts)

    def _work(self, start: int) -> None:
        if start != self._starts or not self._jobs:
            self._is_working = False
            return
        self._is_working = True
        if self.is_disk_stuck or self._events.now < self._paused_until:
            self._events.after(0.05, lambda: self._work(start))
            return
        finish, cost = self._jobs.popleft()

        def finished() -> None:
            if start == self._starts and self.member is not None:
                finish()
                self._obey()
                self._work(start)

        self._events.after(self._random.uniform(0.2, 2.0) * self.disk_s * cost, finished)

    def append(self, batch: ShippedBatch) -> None:
        if self.last().number + 1 != batch.position.number:
            self._witness.broken(f"{self.name} has {self.last()} and is given {batch.position}")
        self.log.append(LogEntry(batch.position, batch.content))
        count, start = len(self.log), self._starts

        def synced() -> None:
            self.durable = max(self.durable, count)
            self._alone(start, lambda one: one.appended(batch))

        self._job(synced)

    def _persist(self, term: int) -> None:
        self.term = max(self.term, term)
        self._alone(self._starts, lambda one: one.persisted(term, self.now))

    def _discard(self, behind: ReplicaPosition) -> None:
        keep = next((n + 1 for n, one in enumerate(self.log) if one.position == behind), 0)
        del self.log[keep:]
        self.durable = len(self.log)
        self._alone(self._starts, lambda one: one.discarded())

    def _open(self) -> None:
        self.durable = len(self.log)
        self._witness.opened(self)
        self._alone(self._starts, lambda one: one.opened(self.now))

    # The log, as the member sees it.

    def positions(self) -> tuple[ReplicaPosition, ...]:
        return (*[one.position for one in reversed(self.log[: self.durable])], START)

    def has(self, position: ReplicaPosition) -> bool:
        if position == START:
            return True
        found = self.log[position.number - 1] if position.number <= len(self.log) else None
        return found is not None and found.position == position

    def last(self) -> ReplicaPosition:
        return self.log[-1].position if self.log else START

    def _catch_up(self, link: int, behind: ReplicaPosition, seq: int) -> None:
        leader = self.member.leader if self.member else None
        if leader is None:
            return
        for one in self.log[behind.number :]:
            number = leader.seq_of(one.position)
            if number <= seq:
                self._network.send(
                    self,
                    link,
                    ShippedBatch(
                        leader.term, max(number, 0), one.position, one.content, leader.committed
                    ),
                )

    # Clients.

    def publish(self, content: object) -> None:
        """A client publishes; its message is the next batch."""
        leader = self.member.leader if self.member else None
        if leader is None or not self.serves or len(self._pending) >= 1:
            return
        batch = leader.seal(content, self.now)
        self._pending[batch.seq] = batch
        self.append(batch)
        self._obey()

    def _confirm(self, seq: int) -> None:
        for number in [one for one in self._pending if one <= seq]:
            batch = self._pending.pop(number)
            self._witness.confirmed(LogEntry(batch.position, batch.content))

    # Connections.

    def connected(self, link: int) -> None:
        self._alone(self._starts, lambda one: one.connected(link))

    def received(self, link: int, frame: Frame) -> None:
        self._alone(self._starts, lambda one: one.received(link, frame, self.now))

    def disconnected(self, link: int) -> None:
        self._alone(self._starts, lambda one: one.disconnected(link))

    def view(self) -> View:
        return self._etcd.view()
