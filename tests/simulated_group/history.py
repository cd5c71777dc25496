"""A random history of a group, with faults, and what must hold in it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from amqpstore_server.cluster.keys import IN_SYNC
from amqpstore_server.cluster.timing import Timing
from tests.simulated_group.etcd import Etcd, keep_none
from tests.simulated_group.events import Events
from tests.simulated_group.invariants import Invariants
from tests.simulated_group.machine import SYNC_S, SimulatedMachine
from tests.simulated_group.nemesis import Nemesis, Story
from tests.simulated_group.network import Network

LATE_S = 8.0
"""The time after which etcd has carried out all requests that it held back."""
HEAL_S = 25.0
PATIENCE_S = LATE_S + Timing().longest_wait_s + 7.0
"""A follower that was dropped again and again, the last time by a request that etcd carried out
late, waits up to a minute before it may enter the list.
"""
STEP_S = 0.05


class GroupOutcome(NamedTuple):
    """The outcome of a history. `violations` is empty if every rule held."""

    seed: int
    confirmed: int
    terms: int
    violations: tuple[str, ...]


class Group:
    """Machines, etcd and the network between them, and clients that publish and declare."""

    def __init__(self, seed: int, size: int = 3, min_in_sync: int = 2) -> None:
        self.random = Random(seed)
        self.events = Events()
        self.invariants = Invariants(self.events)
        names = tuple("ABCDE"[:size])
        self.etcd = Etcd(self.events, self.random, names, min_in_sync)
        self.network = Network(self.events, self.random)
        self.machines = [
            SimulatedMachine(
                name,
                self.events,
                self.random,
                self.etcd,
                self.network,
                self.invariants,
                self.random.uniform(0.99, 1.01),
            )
            for name in names
        ]
        self.invariants.watch(self.machines, self.etcd)
        self.etcd.changed = self._changed
        self.publishes = True
        """Whether clients publish and declare."""
        self._published = 0
        for machine in self.machines:
            self.events.after(self.random.uniform(0, 1.0), machine.restart)

    def add_twin(self, machine: SimulatedMachine) -> SimulatedMachine:
        """Add a machine that has the MEMBER of another one, and does not run yet."""
        twin = SimulatedMachine(
            machine.name * 2,
            self.events,
            self.random,
            self.etcd,
            self.network,
            self.invariants,
            1.0,
        )
        twin.member_of = machine.name
        self.machines.append(twin)
        return twin

    def _changed(self, key: str) -> None:
        if key == IN_SYNC:
            self.invariants.list_changed()
        for one in self.machines:
            # A watch is a hint: it may be late, or never come.
            if self.random.random() < 0.8 and not self.etcd.is_cut(one.name):
                self.events.after(self.random.uniform(0.001, 0.3), one.watched)

    @property
    def leaders(self) -> list[SimulatedMachine]:
        return [one for one in self.machines if one.serves]

    def run(self, duration_s: float) -> None:
        """Let time pass, with clients that publish, and look who serves."""
        end = self.events.now + duration_s
        while self.events.now < end and not self.invariants.violations:
            self.events.run_until(self.events.now + STEP_S)
            leaders = self.leaders
            self.invariants.look(leaders, self.etcd.lost_leases_at)
            for one in leaders if self.publishes else ():
                self._published += 1
                if self.random.random() < 0.05:
                    one.declare(b"queue %d" % self._published)
                one.publish(b"%d" % self._published)

    def heal(self) -> None:
        """Mend all faults."""
        self.network.blocked.clear()
        self.network.astray = 0.0
        self.etcd.is_away = False
        self.etcd.cut_off.clear()
        self.etcd.hold = keep_none
        self.etcd.loss = 0.0
        self.hurry()
        # As long as one frame in twenty is late, a follower is late for most of the time now and
        # then, and leaves the list again.
        self.network.slow = 0.0
        for one in self.machines:
            one.is_disk_stuck = one.is_disk_full = one.is_loop_stuck = False
            one.mend_clock()
            one.restart()

    def hurry(self) -> None:
        """Let disks, links and etcd be as fast as usual."""
        self.etcd.least_s, self.etcd.slow_s = 0.0005, 0.02
        self.network.transfer_s = 0.0
        for one in self.machines:
            one.sync_s = SYNC_S

    # The end.

    def is_whole(self) -> bool:
        """Tell whether all members are in the list."""
        return len(self.etcd.in_sync) == len(self.machines)

    def goes_on(self, patience_s: float) -> None:
        """Mend everything, after which there must be a leader that confirms soon, and a full list
        in time.
        """
        mended_at = self.events.now
        self.run(LATE_S)
        if not self._comes_within(mended_at + HEAL_S, self._confirms_more()):
            self.invariants.broken("nothing is confirmed although all is mended")
        if not self._comes_within(mended_at + patience_s, self.is_whole):
            self.invariants.broken(f"the list is {self.etcd.in_sync} although all is mended")

    def _confirms_more(self) -> Callable[[], bool]:
        before = len(self.invariants.confirms)
        return lambda: len(self.invariants.confirms) > before

    def _comes_within(self, end: float, condition: Callable[[], bool]) -> bool:
        """Let time pass until a condition holds. Returns whether it does by then."""
        while not condition() and self.events.now < end and not self.invariants.violations:
            self.run(1.0)
        return condition()

    def outcome(self, seed: int) -> GroupOutcome:
        invariants = self.invariants
        return GroupOutcome(
            seed, len(invariants.confirms), self.etcd.view().term, tuple(invariants.violations)
        )


def run(
    seed: int, faults: int = 12, size: int = 3, min_in_sync: int = 2, story: Story | None = None
) -> GroupOutcome:
    """Run one history: faults, then their repair, after which there must be a leader that commits,
    and a full list.

    Args: story, which is played again and again instead of other faults.
    """
    group = Group(seed, size, min_in_sync)
    random, nemesis = group.random, Nemesis(group)
    if story is not None:
        group.run(6.0)
        for _ in range(3):
            nemesis.tell(story)
            group.run(random.uniform(18.0, 22.0))
    else:
        # Some histories have an etcd that answers badly all the time.
        group.etcd.loss = random.choice((0.01, 0.01, 0.1, 0.4))
        group.etcd.slow_s = random.choice((0.02, 0.02, 0.6))
        group.run(6.0)
        for _ in range(faults):
            nemesis.strike()
            group.run(random.choice((0.05, 0.3, 1.0, 3.0, 6.0)))
    if not group.invariants.violations:
        group.heal()
        group.goes_on(PATIENCE_S)
    return group.outcome(seed)
