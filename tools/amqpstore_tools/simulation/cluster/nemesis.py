"""What goes wrong in a history: single faults, and stories of several that belong together.

A story is a schedule that a random order of single faults hardly ever comes to, such as a
transaction that etcd carries out long after its answer was lost, just when its sender no longer
counts on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpstore_server.cluster.keys import IN_SYNC, LEADER, STATE, EtcdTransaction
from amqpstore_tools.simulation.cluster.etcd import keep_none
from amqpstore_tools.simulation.cluster.machine import TIMING, SimulatedMachine

if TYPE_CHECKING:
    from amqpstore_tools.simulation.cluster.history import Group

STOPPED = TIMING._replace(margin_s=-60.0)


class Nemesis:
    """Lets things go wrong in a group."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._random = group.random
        self._events = group.events
        self._etcd = group.etcd
        self._network = group.network
        self._machines = group.machines

    def strike(self) -> None:  # noqa: C901 - a case for each fault
        """Let one thing go wrong, or come right."""
        random, machine = self._random, self._random.choice(self._machines)
        leaders = self._group.leaders
        if leaders and random.random() < 0.5:
            machine = random.choice(leaders)
        match random.randrange(20):
            case 0 | 1:
                self._kill(machine)
            case 2:
                machine.pause(random.uniform(0.5, 12.0))
            case 3 | 4:
                self._cut(machine, random.choice(self._machines), both=random.random() < 0.6)
            case 5:
                self._isolate(machine)
            case 6:
                self._etcd.cut_off.add(machine.name)
            case 7:
                self._etcd.is_away = True
            case 8:
                random.choice((self._etcd.lose_leases, self._etcd.extend_leases))()
            case 9:
                machine.is_disk_stuck = True
            case 10:
                for one in self._machines:
                    self._kill(one)
            case 11:
                if machine.member is not None:
                    machine.member.stop(machine.now)
            case 12:
                machine.is_loop_stuck = True
            case 13:
                machine.compact()
            case 14:
                random.choice((self._late_changes, self._old_list, self._late_election))(machine)
            case _:
                self._mend_one()

    # Single faults.

    def _kill(self, machine: SimulatedMachine) -> None:
        if machine.is_up:
            machine.kill(with_power=self._random.random() < 0.5)
            self._events.after(self._random.uniform(0.1, 8.0), machine.restart)

    def _cut(self, one: SimulatedMachine, other: SimulatedMachine, *, both: bool = True) -> None:
        self._network.blocked.add((one.name, other.name))
        if both:
            self._network.blocked.add((other.name, one.name))

    def _isolate(self, machine: SimulatedMachine) -> None:
        for other in self._machines:
            self._cut(machine, other)
        self._etcd.cut_off.add(machine.name)

    def stop_clocks(self) -> None:
        """Let leaders of some machines never step down by themselves: what is confirmed must be
        safe without any clock. Connections go astray, so that followers come to such leaders.
        """
        for one in self._machines:
            if self._random.random() < 0.6:
                one.timing = STOPPED
        self._network.astray = 0.2

    def _mend_one(self) -> None:
        match self._random.randrange(4):
            case 0:
                self._network.blocked.clear()
            case 1:
                self._etcd.is_away = False
                self._etcd.cut_off.clear()
            case _:
                for one in self._machines:
                    one.is_disk_stuck = one.is_loop_stuck = False

    # Stories.

    def _late_changes(self, machine: SimulatedMachine) -> None:
        """Changes of the list are carried out late, while followers come and go."""
        random = self._random

        def hold(transaction: EtcdTransaction) -> float:
            is_change = [one.key for one in transaction.puts] == [IN_SYNC]
            return random.uniform(1.0, 5.0) if is_change and random.random() < 0.4 else 0.0

        def come_and_go() -> None:
            if self._etcd.hold is not hold:
                return
            self._network.blocked.clear()
            for other in random.sample(self._machines, len(self._machines) // 2):
                if other is not machine:
                    self._cut(machine, other)
            self._events.after(random.uniform(0.5, 3.0), come_and_go)

        self._etcd.hold = hold
        come_and_go()
        self._events.after(20.0, self._mend_story)

    def _old_list(self, machine: SimulatedMachine) -> None:
        """A follower sees that nobody leads, and nothing more: the leader goes on without it. It
        can reach etcd again at the moment at which the leader has lost its lease again.
        """
        follower = self._random.choice(self._machines)
        self._etcd.lose_leases()

        def cut() -> None:
            self._cut(machine, follower)
            self._etcd.cut_off.add(follower.name)

        def swap() -> None:
            self._etcd.cut_off = {machine.name}
            self._etcd.lose_lease_of(LEADER)

        self._events.after(self._random.uniform(0.05, 0.4), cut)
        self._events.after(self._random.uniform(4.0, 7.0), swap)
        self._events.after(11.0, self._mend_story)

    def _late_election(self, machine: SimulatedMachine) -> None:
        """A follower's election is carried out when the former leader, which has regained its key
        meanwhile, has lost its lease once more.
        """
        random = self._random

        def hold(transaction: EtcdTransaction) -> float:
            if not any(one.key == STATE for one in transaction.puts):
                return 0.0
            self._network.blocked.clear()
            self._etcd.cut_off.clear()
            held_s = random.uniform(1.5, 2.9)
            self._events.after(held_s - 0.001, lambda: self._etcd.lose_lease_of(LEADER))
            return held_s

        self._etcd.lose_leases()
        for other in self._machines:
            self._cut(machine, other)
        self._etcd.cut_off.add(machine.name)
        self._etcd.hold = hold
        self._events.after(10.0, self._mend_story)

    def _mend_story(self) -> None:
        self._network.blocked.clear()
        self._etcd.cut_off.clear()
        self._etcd.hold = keep_none
