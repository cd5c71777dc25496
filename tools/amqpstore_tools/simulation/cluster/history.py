"""A random history of a group, with faults, and what must hold in it."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from amqpstore_server.cluster.frames import ReplicaPosition
from amqpstore_tools.simulation.cluster.etcd import Etcd
from amqpstore_tools.simulation.cluster.events import Events
from amqpstore_tools.simulation.cluster.machine import TIMING, LogEntry, SimulatedMachine, Witness
from amqpstore_tools.simulation.cluster.network import Network

HEAL_S = 25.0
STEP_S = 0.05


class GroupOutcome(NamedTuple):
    """What a history came to. `violations` is empty if every rule held."""

    seed: int
    confirmed: int
    terms: int
    violations: tuple[str, ...]


class Checks(Witness):
    """Holds what is promised against the logs.

    Rules: what was confirmed is in the log of every later leader, at its place; no two confirms are
    for one place; nobody is given a batch that does not follow what it has; two machines never
    serve clients at once.
    """

    def __init__(self) -> None:
        self.confirms: dict[ReplicaPosition, object] = {}
        self.places: dict[int, ReplicaPosition] = {}
        self.violations: list[str] = []

    def confirmed(self, entry: LogEntry) -> None:
        before = self.places.setdefault(entry.position.number, entry.position)
        if before != entry.position:
            self.broken(f"{before} and {entry.position} are confirmed for one place")
        self.confirms[entry.position] = entry.content

    def opened(self, machine: SimulatedMachine) -> None:
        has = dict(machine.log)
        lost = [one for one, content in self.confirms.items() if has.get(one) != content]
        if lost:
            self.broken(
                f"{machine.name} leads without {len(lost)} confirmed batches, first {lost[0]}"
            )

    def broken(self, rule: str) -> None:
        self.violations.append(rule)


class Group:
    """Machines, etcd and the network between them."""

    def __init__(self, seed: int, size: int = 3, min_in_sync: int = 2) -> None:
        self.random = Random(seed)  # noqa: S311
        self.events = Events()
        self.checks = Checks()
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
                self.checks,
                self.random.uniform(0.99, 1.01),
            )
            for name in names
        ]
        # Some histories have an etcd that answers badly all the time.
        self.etcd.loss = self.random.choice((0.01, 0.01, 0.1, 0.4))
        self.etcd.slow_s = self.random.choice((0.02, 0.02, 0.6))
        self._published = 0
        for one in self.machines:
            self.events.after(self.random.uniform(0, 1.0), one.start)

    def run(self, duration_s: float) -> None:
        """Let time pass, with clients that publish, and look who serves."""
        end = self.events.now + duration_s
        while self.events.now < end and not self.checks.violations:
            self.events.run_until(self.events.now + STEP_S)
            serving = [one.name for one in self.machines if one.serves]
            # A leader whose lease etcd lost by mistake finds out within the lease's time.
            if len(serving) > 1 and self.events.now > self.etcd.lost_leases_at + TIMING.lease_s:
                self.checks.broken(f"{' and '.join(serving)} serve clients at once")
            for one in self.machines:
                if one.serves:
                    self._published += 1
                    one.publish(self._published)

    # Faults.

    def fault(self) -> None:  # noqa: C901 - a case for each fault
        """Let one thing go wrong, or come right."""
        random, machine = self.random, self.random.choice(self.machines)
        leading = [one for one in self.machines if one.serves]
        if leading and random.random() < 0.5:
            machine = random.choice(leading)
        match random.randrange(14):
            case 0 | 1:
                if machine.is_up:
                    machine.kill(with_power=random.random() < 0.5)
                    self.events.after(random.uniform(0.1, 8.0), lambda: self._start(machine))
            case 2:
                machine.pause(random.uniform(0.5, 12.0))
            case 3 | 4:
                other = random.choice(self.machines)
                self.network.blocked.add((machine.name, other.name))
                if random.random() < 0.6:
                    self.network.blocked.add((other.name, machine.name))
            case 5:
                for other in self.machines:
                    self.network.blocked |= {(machine.name, other.name), (other.name, machine.name)}
                self.etcd.cut_off.add(machine.name)
            case 6:
                self.etcd.cut_off.add(machine.name)
            case 7:
                self.etcd.is_away = True
            case 8:
                random.choice((self.etcd.lose_leases, self.etcd.extend_leases))()
            case 9:
                machine.is_disk_stuck = True
            case 10:
                for one in self.machines:
                    one.kill(with_power=False)
                    self.events.after(random.uniform(0.1, 8.0), lambda one=one: self._start(one))  # type: ignore[misc]
            case 11:
                if machine.member is not None:
                    machine.member.resign("asked to")
            case _:
                self._mend_one()

    def _start(self, machine: SimulatedMachine) -> None:
        if not machine.is_up:
            machine.start()

    def _mend_one(self) -> None:
        match self.random.randrange(4):
            case 0:
                self.network.blocked.clear()
            case 1:
                self.etcd.is_away = False
                self.etcd.cut_off.clear()
            case _:
                for one in self.machines:
                    one.is_disk_stuck = False

    def heal(self) -> None:
        """Mend all of it."""
        self.network.blocked.clear()
        self.etcd.is_away = False
        self.etcd.cut_off.clear()
        self.etcd.loss, self.etcd.slow_s = 0.0, 0.02
        for one in self.machines:
            one.is_disk_stuck = False
            self._start(one)


def run(seed: int, faults: int = 12, size: int = 3, min_in_sync: int = 2) -> GroupOutcome:
    """Run one history: faults, then mending, then there must be a leader that commits, and a full
    list.
    """
    group = Group(seed, size, min_in_sync)
    group.run(6.0)
    for _ in range(faults):
        if group.checks.violations:
            break
        group.fault()
        group.run(group.random.choice((0.05, 0.3, 1.0, 3.0, 6.0)))
    if not group.checks.violations:
        group.heal()
        group.run(HEAL_S)
        before = len(group.checks.confirms)
        group.run(5.0)
        view = group.etcd.view()
        if len(group.checks.confirms) == before:
            group.checks.broken("nothing is confirmed although all is mended")
        elif len(view.in_sync) < size:
            group.checks.broken(f"the list is {view.in_sync} although all is mended")
    view = group.etcd.view()
    return GroupOutcome(seed, len(group.checks.confirms), view.term, tuple(group.checks.violations))
