"""Three members of a group with an etcd, all on this machine, one of which is lost again and again
while publishers wait for confirms.

Each round something happens to the leader or to a follower, and in the end the leader is killed, or
stopped in order: another one takes over. In each third round all members are killed, and followers
or etcd come back older than they were, before the leader does. Then all messages are taken, and
compared with what was confirmed. At the very end all members are killed at once, and what the
manual says is done with what is left of them. What happens depends on the seed; how far the members
had come by then depends on the machine.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

from amqpstore import StoreError
from amqpstore_tools.check.engine import check
from amqpstore_tools.client.connection import Address, Connection
from amqpstore_tools.copying.copier import CopyOptions, copy_store
from amqpstore_tools.drill.broker import BrokerEndedError
from amqpstore_tools.drill.client import (
    FANOUT,
    MARKS,
    QUEUES,
    Drainer,
    DrillPublisher,
    Key,
    body_of,
    key_of,
    routes_of,
)
from amqpstore_tools.drill.group import DrilledGroup, DrilledMember
from amqpstore_tools.drill.invariants import Fault
from amqpstore_tools.drill.manual import DOING, FOLLOWED, after_crash, exported
from amqpstore_tools.drill.returns import RETURNS
from amqpstore_tools.drill.run import DrillRun, LeftOutError
from amqpstore_tools.drill.verdict import Step
from amqpstore_tools.offline.exits import ToolError

ABOUT = (
    "three replicas and an etcd on this machine: members are lost under load, or come back older"
)

_CHECKED_EACH_ROUND = ("I1", "I2", "I5", "I9")
CHECKED = (*_CHECKED_EACH_ROUND, *FOLLOWED)
_TIMEOUT_S = 60.0
_PUBLISHERS = (0, 1)
_REFUSED = (StoreError, ToolError, OSError)
_FORCED = "320 CONNECTION_FORCED"
"""The error that clients get when their leader leads no longer."""
_RETURNS_EVERY = 3
"""One round out of this many is one in which somebody comes back older."""
_NOTED_S = 2.0
"""Longer than it takes until the group notes how far everything is confirmed."""
_ELECTED_S = 6.0
"""Longer than it takes until one is elected who may lead."""
_FAILOVER_S = 15.0
"""A group should not be without a leader for longer, whatever else the machine does."""


class _Known:
    """The clients' knowledge, over all rounds: `taken` was acked, queue by queue. The deliveries of
    `logged` are in the log of enough members, so that these messages come back flagged, if at all.
    """

    def __init__(self) -> None:
        self.sent: set[Key] = set()
        self.confirmed: set[Key] = set()
        self.taken: dict[str, set[Key]] = {name: set() for name in QUEUES}
        self.logged: dict[str, set[Key]] = {name: set() for name in QUEUES}

    @property
    def promised_count(self) -> int:
        return sum(len(self.promised(name)) for name in QUEUES)

    def promised(self, name: str) -> set[Key]:
        return {key for key in self.confirmed if name in routes_of(key)} - self.taken[name]


def run(run: DrillRun) -> None:
    """Lose one member or two in each round, on one group."""
    if run.settings.data is not None:
        raise LeftOutError("cluster drills a group of its own, and no copy of a data directory")
    run.rounds_follow = run.settings.round is None
    known = _Known()
    with DrilledGroup(os.path.join(run.settings.work, "group")) as group:
        run.show("the group starts")
        group.found()
        _declare(group.wait_for_leader().address)
        run.begin()
        try:
            for rng in run.rounds():
                _round(run, group, known, rng)
            _end(run, group, known)
        except (BrokerEndedError, ToolError) as error:
            run.found("I9", str(error), f"round {run.round}")


def _round(run: DrillRun, group: DrilledGroup, known: _Known, rng: random.Random) -> None:
    comes_back = run.round % _RETURNS_EVERY == 0
    did, confirms = (_return if comes_back else _work)(run, group, known, rng)
    promised = known.promised_count
    faults = [*_look(run, group.wait_for_leader().address, known)]
    run.saw(_CHECKED_EACH_ROUND)
    for invariant, text in faults:
        run.found(invariant, text, f"round {run.round}: {did}")
    run.account.did["confirms"] += confirms
    survived = promised - sum(len(known.promised(name)) for name in QUEUES)
    run.step(Step(run.round, 1, did, promised, survived, survived, is_violated=bool(faults)))
    run.show("all join again")
    group.wait_until_in_sync()


def _declare(address: Address) -> None:
    connection = Connection(address)
    connection.declare_exchange(FANOUT, "fanout")
    for name in QUEUES:
        connection.declare_queue(name, {})
        connection.bind_queue(name, FANOUT)
    connection.declare_queue(MARKS, {"x-max-length": 1})
    connection.close()


def _work(run: DrillRun, group: DrilledGroup, known: _Known, rng: random.Random) -> tuple[str, int]:
    """Let publishers work while members are lost. Returns what was done, and the confirms."""
    leader = group.wait_for_leader()
    followers = [one for one in group.members if one is not leader]
    publishers = _Publishers(run, run.round, leader, rng)
    publishers.wait_for_confirms("before anything was lost")
    name, disturb = rng.choice(_DISTURBANCES)
    run.show(name or "publishers work")
    disturb(leader, followers, rng)
    if name.startswith("follower "):
        publishers.wait_for_confirms(f"after {name}")
    number = rng.choice([signal.SIGKILL, signal.SIGTERM])
    last = "killed" if number == signal.SIGKILL else "stopped in order"
    did = f"{name}, leader {last}" if name else f"leader {last}"
    run.show(did)
    began = time.monotonic()
    leader.end(number)
    confirms = publishers.end(known, did)
    for follower in followers:
        follower.restart()
    group.wait_for_leader(but=leader)
    seconds = time.monotonic() - began
    if seconds > _FAILOVER_S:
        run.found("I9", f"nobody led for {seconds:.1f} s", did)
    run.account.did["members lost"] += 1 + bool(name)
    leader.restart()
    return did, confirms


def _return(
    run: DrillRun, group: DrilledGroup, known: _Known, rng: random.Random
) -> tuple[str, int]:
    """Kill all members under load, and have some come back older while the leader is away."""
    leader = group.wait_for_leader()
    older = rng.choice(RETURNS)(group, leader)
    did = older.did
    publishers = _Publishers(run, run.round, leader, rng, windows=(1,))
    publishers.wait_for_confirms(f"before {did}")
    run.show("a copy is kept")
    older.keep()
    time.sleep(_NOTED_S + rng.uniform(0.0, 2.0))
    publishers.wait_for_confirms(f"before {did}")
    for member in group.members:
        member.end()
    confirms = publishers.end(known, did)
    run.show(did)
    older.put_back()
    for member in group.members:
        if member is not leader:
            member.start()
    group.wait_until_settled(_ELECTED_S)
    if (led := group.leader()) is not None:
        run.found(
            "I1", f"{os.path.basename(led.directory)} leads, and is older than the group", did
        )
    older.mend()
    run.account.did["members lost"] += len(group.members)
    return did, confirms


class _Publishers:
    """Publishers at a leader, which work until it is lost."""

    def __init__(
        self,
        run: DrillRun,
        number: int,
        leader: DrilledMember,
        rng: random.Random,
        windows: tuple[int, ...] = (1, 20, 200),
    ) -> None:
        self._run = run
        self._leader = leader
        self._rng = rng
        self._confirms = threading.Semaphore(0)
        window = rng.choice(windows)
        self._publishers = [
            DrillPublisher(leader.address, number, publisher, window, self._confirms)
            for publisher in _PUBLISHERS
        ]
        for publisher in self._publishers:
            publisher.start()

    def wait_for_confirms(self, when: str) -> None:
        """Return when some more came, or too long after the last one."""
        for _ in range(self._rng.randint(1, 300)):
            if not self._confirms.acquire(timeout=_TIMEOUT_S):
                text = f"no confirm came for {_TIMEOUT_S:.0f} s: {self._leader.log_tail()}"
                self._run.found("I9", text, when)
                return

    def end(self, known: _Known, did: str) -> int:
        """Note what was sent and confirmed, after the leader was lost. Returns the confirms."""
        for publisher in self._publishers:
            publisher.join(_TIMEOUT_S)
            if publisher.failure and _FORCED not in publisher.failure:
                self._run.found("I9", publisher.failure, did)
            known.sent.update(publisher.sent)
            known.confirmed |= publisher.confirmed
        return sum(len(publisher.confirmed) for publisher in self._publishers)


def _end(run: DrillRun, group: DrilledGroup, known: _Known) -> None:
    """Kill all members at once, and do what the manual says with what they leave behind."""
    min_in_sync = group.keys.view().min_in_sync
    leader = _kill_group(run, group, known)
    did = "all members killed"
    faults: list[Fault] = []
    missing = {one: _missing(run, one, known, faults) for one in group.members}
    if some := missing[leader]:
        text = f"{len(some)} confirmed messages are not in an export of the leader: {some[:3]}"
        faults.append(("I14", text))
    if (whole := sum(not one for one in missing.values())) < min_in_sync:
        text = f"{whole} members have all that was confirmed, with min_in_sync {min_in_sync}"
        faults.append(("I14", text))
    run.show(DOING)
    copy = os.path.join(run.settings.work, "copy")
    try:
        copy_store(leader.directory, copy, CopyOptions())
    except _REFUSED as error:
        faults.append(("I14", f"copy of the leader: {error}"))
    else:
        faults += after_crash(copy, run.settings.work)
    run.account.checked(FOLLOWED)
    for invariant, text in faults:
        run.found(invariant, text, did)
    promised = known.promised_count
    run.step(Step(run.round, 2, did, promised, promised, promised, is_violated=bool(faults)))


def _kill_group(run: DrillRun, group: DrilledGroup, known: _Known) -> DrilledMember:
    """Kill all members while publishers work. Returns which one led."""
    rng = run.rng("end")
    leader = group.wait_for_leader()
    publishers = _Publishers(run, run.round + 1, leader, rng)
    publishers.wait_for_confirms("before all members were killed")
    for one in group.members:
        one.end()
    run.account.did["confirms"] += publishers.end(known, "all members killed")
    return leader


def _missing(run: DrillRun, member: DrilledMember, known: _Known, faults: list[Fault]) -> list[str]:
    """Check and export a member's store. Returns what was confirmed, and is not in the export."""
    name = os.path.basename(member.directory)
    run.show(f"check and export of member {name}")
    try:
        harm = check(member.directory).findings.of_harm()
        lines = exported(member.directory, f"{member.directory}.jsonl")
    except _REFUSED as error:
        faults.append(("I14", f"check and export of member {name}: {error}"))
        return ["everything"]
    faults += [("I14", f"check of member {name}: {finding}") for finding in harm]
    there = {(line.key.name, key_of(line.body)) for line in lines}
    promised = {(queue, key) for queue in QUEUES for key in known.promised(queue)}
    return [str(one) for one in sorted(promised - there)]


def _kill(_leader: DrilledMember, followers: list[DrilledMember], rng: random.Random) -> None:
    rng.choice(followers).end()


def _kill_all(_leader: DrilledMember, followers: list[DrilledMember], rng: random.Random) -> None:
    """Kill all followers: from now on the leader alone has what it confirms."""
    for one in followers:
        one.end()
    time.sleep(rng.uniform(0.1, 1.5))


def _pause(member: DrilledMember, rng: random.Random) -> None:
    member.send(signal.SIGSTOP)
    time.sleep(rng.uniform(0.2, 5.0))
    member.send(signal.SIGCONT)


_Disturb: TypeAlias = Callable[[DrilledMember, list[DrilledMember], random.Random], None]
_DISTURBANCES: tuple[tuple[str, _Disturb], ...] = (
    ("", lambda _leader, _followers, _rng: None),
    ("follower killed", _kill),
    ("followers killed", _kill_all),
    ("follower paused", lambda _leader, followers, rng: _pause(rng.choice(followers), rng)),
    ("leader paused", lambda leader, _followers, rng: _pause(leader, rng)),
)


def _look(run: DrillRun, address: Address, known: _Known) -> Iterator[Fault]:
    """Take all messages. Yield what is lost, strange, or was delivered before and is not flagged.

    A delivery that no follower had in its log when the leader was lost is unknown to the group.
    """
    for name in QUEUES:
        drainer = Drainer(address, name)
        drainer.start()
        drainer.join(_TIMEOUT_S)
        if drainer.failure or not drainer.is_done:
            yield "I9", drainer.failure or f"{name} cannot be read"
            continue
        here: set[Key] = set()
        for body, is_redelivered in drainer.bodies:
            key = key_of(body)
            if key is None or key not in known.sent or name not in routes_of(key):
                yield "I2", f"{name} has a message that was never sent there ({key})"
                continue
            if body != body_of(key):
                yield "I2", f"the body of {key} in {name} differs from what was sent"
            if key in here:
                yield "I1", f"{key} is in {name} twice"
            if key in known.logged[name] and not is_redelivered:
                yield "I5", f"{key} was taken from {name}, and is back without a flag"
            here.add(key)
        if lost := sorted(known.promised(name) - here):
            yield "I1", f"{name}: {len(lost)} confirmed messages are lost: {lost[:3]}"
        known.taken[name] |= here
        if drainer.is_logged:
            known.logged[name] |= here
        run.account.did["deliveries"] += len(drainer.bodies)
