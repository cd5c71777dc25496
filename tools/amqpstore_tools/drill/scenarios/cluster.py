"""Three members of a group with an etcd, all on this machine, one of which is lost again and again
while publishers wait for confirms.

Each round something happens to the leader or to a follower, and in the end the leader is killed, or
stopped in order: another one takes over. Then all messages are taken, and compared with what was
confirmed. What happens depends on the seed; how far the members had come by then depends on the
machine.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

from amqpstore_tools.client.connection import Address, Connection
from amqpstore_tools.drill.broker import BrokerEndedError
from amqpstore_tools.drill.client import (
    FANOUT,
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
from amqpstore_tools.drill.run import DrillRun, LeftOutError
from amqpstore_tools.drill.verdict import Step

ABOUT = "three replicas and an etcd on this machine: the leader or a follower is lost under load"

CHECKED = ("I1", "I2", "I5", "I9")
_TIMEOUT_S = 60.0
_PUBLISHERS = (0, 1)
_FORCED = "320 CONNECTION_FORCED"
"""What clients are told when their leader leads no longer."""
_FAILOVER_S = 15.0
"""Longer than this nobody should lead, whatever else the machine does."""


class _Known:
    """What the clients know, over all rounds: `taken` was acked, queue by queue."""

    def __init__(self) -> None:
        self.sent: set[Key] = set()
        self.confirmed: set[Key] = set()
        self.taken: dict[str, set[Key]] = {name: set() for name in QUEUES}

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
        group.found()
        _declare(group.wait_for_leader().address)
        for rng in run.rounds():
            try:
                _round(run, group, known, rng)
            except BrokerEndedError as error:
                run.found("I9", str(error), f"round {run.round}")
                return


def _round(run: DrillRun, group: DrilledGroup, known: _Known, rng: random.Random) -> None:
    did, confirms = _work(run, group, known, rng)
    promised = known.promised_count
    faults = [*_look(run, group.wait_for_leader().address, known)]
    run.saw(CHECKED)
    for invariant, text in faults:
        run.found(invariant, text, f"round {run.round}: {did}")
    run.account.did["confirms"] += confirms
    survived = promised - sum(len(known.promised(name)) for name in QUEUES)
    run.step(Step(run.round, 1, did, promised, survived, survived, is_violated=bool(faults)))
    group.wait_until_in_sync()


def _declare(address: Address) -> None:
    connection = Connection(address)
    connection.declare_exchange(FANOUT, "fanout")
    for name in QUEUES:
        connection.declare_queue(name, {})
        connection.bind_queue(name, FANOUT)
    connection.close()


def _work(run: DrillRun, group: DrilledGroup, known: _Known, rng: random.Random) -> tuple[str, int]:
    """Let publishers work while members are lost. Returns what was done, and the confirms."""
    leader = group.wait_for_leader()
    followers = [one for one in group.members if one is not leader]
    confirms = threading.Semaphore(0)
    window = rng.choice([1, 20, 200])
    publishers = [
        DrillPublisher(leader.address, run.round, number, window, confirms)
        for number in _PUBLISHERS
    ]
    for publisher in publishers:
        publisher.start()

    def wait_for_confirms(when: str) -> None:
        for _ in range(rng.randint(1, 300)):
            if not confirms.acquire(timeout=_TIMEOUT_S):
                text = f"no confirm came for {_TIMEOUT_S:.0f} s: {leader.log_tail()}"
                run.found("I9", text, when)
                return

    wait_for_confirms("before anything was lost")
    name, disturb = rng.choice(_DISTURBANCES)
    disturb(leader, followers, rng)
    if name.startswith("follower "):
        wait_for_confirms(f"after {name}")
    number = rng.choice([signal.SIGKILL, signal.SIGTERM])
    began = time.monotonic()
    leader.end(number)
    last = "killed" if number == signal.SIGKILL else "stopped in order"
    did = f"{name}, leader {last}" if name else f"leader {last}"
    for publisher in publishers:
        publisher.join(_TIMEOUT_S)
        if publisher.failure and _FORCED not in publisher.failure:
            run.found("I9", publisher.failure, did)
        known.sent.update(publisher.sent)
        known.confirmed |= publisher.confirmed
    for one in followers:
        one.restart()
    group.wait_for_leader(but=leader)
    seconds = time.monotonic() - began
    if seconds > _FAILOVER_S:
        run.found("I9", f"nobody led for {seconds:.1f} s", did)
    run.account.did["members lost"] += 1 + bool(name)
    leader.restart()
    return did, sum(len(publisher.confirmed) for publisher in publishers)


def _kill(_leader: DrilledMember, followers: list[DrilledMember], rng: random.Random) -> None:
    rng.choice(followers).end()


def _kill_all(_leader: DrilledMember, followers: list[DrilledMember], rng: random.Random) -> None:
    """What the leader confirms from now on, nobody else would have."""
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
    """Take all messages. Yield what is lost, strange, or was acked before and is not flagged."""
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
            if key in known.taken[name] and not is_redelivered:
                yield "I5", f"{key} was taken from {name}, and is back without a flag"
            here.add(key)
        if lost := sorted(known.promised(name) - here):
            yield "I1", f"{name}: {len(lost)} confirmed messages are lost: {lost[:3]}"
        known.taken[name] |= here
        run.account.did["deliveries"] += len(drainer.bodies)
