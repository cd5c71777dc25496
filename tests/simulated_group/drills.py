"""Histories in which one thing goes wrong: how long clients wait, and who leads then."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from amqpstore_server.cluster.keys import IN_SYNC
from tests.simulated_group.history import Group
from tests.simulated_group.machine import SimulatedMachine

Fault = Callable[[Group, SimulatedMachine], None]
"""A fault, as a function of the group and the machine that leads."""

WARM_S = 8.0


class DrillError(Exception):
    """The group did not even begin to confirm."""


def drill(seed: int, fault: Fault, duration_s: float = 15.0) -> tuple[float, Group]:
    """Let one thing go wrong in a group of three. Returns the longest time in seconds for which
    nothing was confirmed from then on, and the group as it is in the end.

    Raises:
        DrillError: there was no leader to begin with.
    """
    group = Group(seed)
    group.network.slow = group.etcd.loss = 0.0
    group.run(WARM_S)
    if not group.leaders:
        raise DrillError(f"seed {seed}: no member leads after {WARM_S} s")
    began = group.events.now
    fault(group, group.leaders[0])
    group.run(duration_s)
    times = [began, *(at for at in group.invariants.confirmed_at if at > began), group.events.now]
    longest_s = max(after - before for before, after in pairwise(times))
    return longest_s, group


def disk_hangs(group: Group, leader: SimulatedMachine) -> None:
    leader.is_disk_stuck = True


def loop_hangs(group: Group, leader: SimulatedMachine) -> None:
    leader.is_loop_stuck = True


def leader_killed(group: Group, leader: SimulatedMachine) -> None:
    leader.kill(with_power=False)


def killed_and_started(group: Group, leader: SimulatedMachine) -> None:
    leader.kill(with_power=True)
    group.events.after(0.5, leader.restart)


def killed_with_a_damaged_second(group: Group, leader: SimulatedMachine) -> None:
    """Kill the leader when the older follower has found damage at its start: the younger one has to
    lead.
    """
    second = _others(group, leader)[0]
    if second.member is not None:
        second.member.identity = second.member.identity._replace(is_damaged=True)
    second.is_damaged = True
    leader.kill(with_power=False)


def dies_soon_after_each_election(group: Group, leader: SimulatedMachine) -> None:
    """Kill each new leader; its supervisor has it up again before its lease is over."""

    def look() -> None:
        if leader.serves:
            leader.kill(with_power=True)
            group.events.after(1.0, leader.restart)
        group.events.after(0.3, look)

    look()


def killed_while_etcd_is_slow(group: Group, leader: SimulatedMachine) -> None:
    """Kill the leader while a request to etcd takes 900 ms, which is less than the time allowed for
    it.
    """
    group.etcd.least_s = group.etcd.slow_s = 0.45
    leader.kill(with_power=False)


def stops_in_order(group: Group, leader: SimulatedMachine) -> None:
    if leader.member is not None:
        leader.member.stop(leader.now)


def stops_a_follower_in_order(group: Group, leader: SimulatedMachine) -> None:
    other = _others(group, leader)[0]
    other.stop_in_order()


def loses_a_follower(group: Group, leader: SimulatedMachine) -> None:
    _others(group, leader)[0].kill(with_power=False)


def with_a_slow_follower(group: Group, leader: SimulatedMachine) -> None:
    """Make each sync of a follower take a second: no ack is overdue, and all clients wait for
    it.
    """
    _others(group, leader)[0].sync_s = 1.0


def newcomer_comes_in_an_outage(group: Group, leader: SimulatedMachine) -> None:
    """Have a member join that is not in the list while etcd is away, so that the list cannot
    change.
    """
    newcomer = _others(group, leader)[-1]
    newcomer.kill(with_power=True)
    group.run(6.0)
    group.etcd.is_away = True
    group.run(4.0)
    newcomer.restart()


def disk_of_a_follower_is_full(group: Group, leader: SimulatedMachine) -> None:
    """Fill a follower's disk: it connects again each second."""
    _others(group, leader)[0].is_disk_full = True


def sees_etcd_only(group: Group, leader: SimulatedMachine) -> None:
    for other in _others(group, leader):
        group.network.blocked |= {(leader.name, other.name), (other.name, leader.name)}


def cut_off(group: Group, leader: SimulatedMachine) -> None:
    sees_etcd_only(group, leader)
    group.etcd.cut_off.add(leader.name)


def etcd_is_away(group: Group, leader: SimulatedMachine) -> None:
    group.etcd.is_away = True


def etcd_loses_leases(group: Group, leader: SimulatedMachine) -> None:
    group.etcd.lose_leases()


def _others(group: Group, leader: SimulatedMachine) -> list[SimulatedMachine]:
    """Return the other members of the list, the oldest first."""
    names = group.etcd.view().rows[IN_SYNC].value["members"]
    machines = {one.name: one for one in group.machines}
    return [machines[name] for name in names if name != leader.name]
