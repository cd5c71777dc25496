"""Faults in a history: single ones, and stories of several that belong together.

A story is a schedule that a random order of single faults hardly ever comes to, such as a
transaction that etcd carries out long after its answer was lost, just when its sender no longer
counts on it.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from amqpstore_server.cluster.keys import IN_SYNC, LEADER, STATE, EtcdTransaction
from tests.simulated_group.etcd import keep_none
from tests.simulated_group.machine import SimulatedMachine

if TYPE_CHECKING:
    from tests.simulated_group.history import Group


class Story(Enum):
    """Faults that belong together."""

    LATE_CHANGES = "changes of the list are carried out late, while followers come and go"
    OLD_LIST = "a follower stands with a list from before the leader went on without it"
    LATE_ELECTION = "an election is carried out when the former leader has come back"
    LOST_TAIL = "a leader loses what its followers have, and takes its key back"
    TWO_LEADERS = "a deposed leader knows nothing of it, and followers come to it"
    CUT_OFF = "a leader is cut off from everybody but its clients"
    LOST_LINKS = "followers connect again and again while the leader's disk hangs"
    SLOW_WORLD = "a disk, the links or etcd are slow, or a leader dies soon after each election"
    LATE_RESIGNATION = "a leader resigns, and is started again before etcd has heard of it"


_MIXED = tuple(one for one in Story if one not in (Story.LATE_RESIGNATION, Story.SLOW_WORLD))
"""The stories that are told among other faults. One more would change the history of each seed, and
some seeds are the examples of faults that were found.
"""


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
        match random.randrange(21):
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
                for victim in self._machines:
                    self._kill(victim)
            case 11:
                if machine.member is not None:
                    machine.is_stopping = machine.member.leader is None
                    machine.member.stop(machine.now)
            case 12:
                machine.is_loop_stuck = True
            case 13:
                machine.compact()
            case 14:
                machine.stop_clock()
                self._network.astray = 0.2
            case 15:
                self.tell(random.choice(_MIXED))
            case 16:
                machine.is_disk_full = True
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

    def _mend_one(self) -> None:
        match self._random.randrange(4):
            case 0:
                self._network.blocked.clear()
                self._network.astray = 0.0
            case 1:
                self._etcd.is_away = False
                self._etcd.cut_off.clear()
            case _:
                for one in self._machines:
                    one.is_disk_stuck = one.is_disk_full = one.is_loop_stuck = False
                    one.mend_clock()

    # Stories.

    def tell(self, story: Story) -> None:
        """Begin a story, about the machine that leads now. It ends within 20 seconds."""
        leaders = self._group.leaders
        machine = self._random.choice(leaders or self._machines)
        match story:
            case Story.LATE_CHANGES:
                self._late_changes(machine)
            case Story.OLD_LIST:
                self._old_list(machine)
            case Story.LATE_ELECTION:
                self._late_election(machine)
            case Story.LOST_TAIL:
                self._lost_tail(machine)
            case Story.TWO_LEADERS:
                self._two_leaders(machine)
            case Story.CUT_OFF:
                self._isolate(machine)
                self._events.after(self._random.uniform(3.0, 8.0), self._mend_story)
            case Story.LOST_LINKS:
                self._lost_links(machine)
            case Story.SLOW_WORLD:
                self._slow_world(machine)
            case Story.LATE_RESIGNATION:
                self._late_resignation(machine)

    def _late_changes(self, machine: SimulatedMachine) -> None:
        """Changes of the list are carried out late; a follower that is added may die soon."""
        random = self._random

        def hold(transaction: EtcdTransaction) -> float:
            if [one.key for one in transaction.puts] != [IN_SYNC] or random.random() < 0.5:
                return 0.0
            members = transaction.puts[0].value["members"]
            added = set(members) - set(self._etcd.view().in_sync)
            for other in self._machines:
                if other.name in added and random.random() < 0.7:
                    self._events.after(random.uniform(0.05, 2.5), lambda one=other: self._kill(one))  # type: ignore[misc]
            return random.uniform(1.0, 8.0)

        def come_and_go() -> None:
            if self._etcd.hold is not hold:
                return
            self._network.blocked.clear()
            for other in random.sample(self._machines, len(self._machines) // 2):
                if other is not machine:
                    self._cut(machine, other)
            self._events.after(random.uniform(1.0, 4.0), come_and_go)

        self._etcd.hold = hold
        come_and_go()
        self._events.after(18.0, self._mend_story)

    def _old_list(self, machine: SimulatedMachine) -> None:
        """A follower sees that there is no leader, and is then cut off: the leader goes on without
        it. The follower can reach etcd again at the moment when the leader has lost its lease
        again.
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

    def _lost_tail(self, machine: SimulatedMachine) -> None:
        """A leader's disk hangs: followers have its last batch, and the leader does not when it is
        back.
        """
        machine.is_disk_stuck = True

        def die() -> None:
            if machine.is_up:
                machine.kill(with_power=False)
            machine.is_disk_stuck = False
            self._events.after(self._random.uniform(0.01, 0.5), machine.restart)

        self._events.after(self._random.uniform(0.1, 1.0), die)

    def _two_leaders(self, machine: SimulatedMachine) -> None:
        """A leader's clock stands still, and the leader is cut off until another one is elected,
        and then from etcd only: followers of the other one connect to it.
        """
        random = self._random
        machine.stop_clock()
        self._isolate(machine)

        def meet() -> None:
            self._network.blocked.clear()
            self._network.astray = 0.7
            for other in self._machines:
                if other is not machine and random.random() < 0.6:
                    self._kill(other) if random.random() < 0.5 else self._network.drop(other)

        for at in (6.0, 8.0, 10.0, 12.0):
            self._events.after(at + random.uniform(0.0, 1.0), meet)
        self._events.after(16.0, self._mend_story)

    def _lost_links(self, machine: SimulatedMachine) -> None:
        """Followers have a batch that the leader's disk does not have: when they connect again, the
        leader takes the batch back, and sends it once more. Meanwhile the disk goes on.
        """
        random = self._random
        machine.is_disk_stuck = True

        def lose_links() -> None:
            if machine.is_disk_stuck:
                self._network.drop(random.choice(self._machines))
                self._events.after(random.uniform(0.05, 0.5), lose_links)

        def go_on() -> None:
            machine.is_disk_stuck = False

        self._events.after(random.uniform(0.2, 0.5), lose_links)
        self._events.after(random.uniform(0.5, 2.5), go_on)

    def _slow_world(self, machine: SimulatedMachine) -> None:
        """Everything takes long: a second for each sync of one machine, or for each request to
        etcd, or seconds for the batches that a follower catches up with. Meanwhile a leader dies
        soon after each election, or a new member joins while etcd is away.
        """
        random, follower = self._random, self._random.choice(self._machines)
        match random.randrange(3):
            case 0:
                follower.sync_s = random.uniform(0.2, 1.0)
            case 1:
                self._etcd.least_s = self._etcd.slow_s = random.uniform(0.2, 0.45)
            case _:
                self._network.transfer_s = random.uniform(0.02, 0.2)
        if random.random() < 0.5:
            self._die_again_and_again(machine, self._events.now + 12.0)
        else:
            self._kill(follower)
            self._etcd.is_away = random.random() < 0.5
        self._events.after(16.0, self._hurry)

    def _die_again_and_again(self, machine: SimulatedMachine, until: float) -> None:
        if machine.serves:
            machine.kill(with_power=self._random.random() < 0.5)
            self._events.after(self._random.uniform(0.5, 2.0), machine.restart)
        if self._events.now < until:
            again = self._random.uniform(0.1, 1.0)
            self._events.after(again, lambda: self._die_again_and_again(machine, until))

    def _hurry(self) -> None:
        self._group.hurry()
        self._etcd.is_away = False

    def _late_resignation(self, machine: SimulatedMachine) -> None:
        """A leader stops in order, and a supervisor starts it again at once. Its resignation is on
        its way meanwhile, and the end of its lease is lost, so it takes its key back. Before any
        follower has connected to it, it is cut off, and the resignation is carried out.
        """

        def hold(transaction: EtcdTransaction) -> float:
            if LEADER not in transaction.deletes:
                return 0.0
            self._etcd.hold = keep_none
            self._etcd.loss, loss = 1.0, self._etcd.loss

            def start_again() -> None:
                self._etcd.loss = loss
                machine.kill(with_power=True)
                machine.restart()
                for other in self._machines:
                    self._cut(machine, other)

            held_s = self._random.uniform(0.2, 1.0)
            self._events.after(0.01, start_again)
            self._events.after(held_s - 0.001, lambda: self._etcd.cut_off.add(machine.name))
            return held_s

        self._etcd.hold = hold
        if machine.member is not None:
            machine.member.stop(machine.now)
        self._events.after(10.0, self._mend_story)

    def _mend_story(self) -> None:
        self._network.blocked.clear()
        self._etcd.cut_off.clear()
        self._etcd.hold = keep_none
        self._network.astray = 0.0
