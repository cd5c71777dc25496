"""Histories in which something comes back in an older state: a machine from a backup, a log that
has lost its end, a copied directory, an etcd from a backup or made anew.

No member may lead without what was confirmed, and nothing confirmed may be thrown away, however
long the group has no leader because of that.
"""

from __future__ import annotations

from collections.abc import Callable

from amqpstore_server.cluster.group_changes import forced_succession
from tests.simulated_group.history import Group
from tests.simulated_group.machine import SimulatedMachine

Return = Callable[[Group], None]
"""A story of something that comes back."""

_WARM_S = 8.0


class ReturnError(Exception):
    """The group did not even begin to confirm."""


def told(seed: int, story: Return, min_in_sync: int = 2) -> Group:
    """Play a story, and return the group as it is in the end.

    Raises:
        ReturnError: there was no leader to begin with.
    """
    group = Group(seed, 3, min_in_sync)
    group.network.slow = group.etcd.loss = 0.0
    group.run(_WARM_S)
    if len(group.leaders) != 1:
        raise ReturnError(f"seed {seed}: no member leads after {_WARM_S} s")
    story(group)
    return group


def _followers(group: Group) -> list[SimulatedMachine]:
    leader = group.leaders[0]
    return [one for one in group.machines if one is not leader]


def _kill(group: Group, *machines: SimulatedMachine) -> None:
    for one in machines:
        one.kill(with_power=True)
    group.invariants.older |= {one.name for one in machines}


def followers_from_a_backup(group: Group) -> None:
    """Both followers are put back from a backup while the leader is away, and it returns."""
    leader, (one, other) = group.leaders[0], _followers(group)
    backups = [machine.disk.backed_up() for machine in (one, other)]
    group.run(group.random.uniform(3.0, 10.0))
    _kill(group, leader, one, other)
    one.disk, other.disk = backups
    group.run(group.random.uniform(0.0, 14.0))
    one.start()
    other.start()
    group.run(12.0)
    leader.start()
    group.run(20.0)


def follower_with_a_lost_end(group: Group) -> None:
    """A follower's log has lost its end, as a torn tail does, while no other member is there."""
    leader, (one, other) = group.leaders[0], _followers(group)
    group.run(2.0)
    _quiet(group, one, other, leader)
    one.disk.lose_last(group.random.randint(1, 5))
    one.start()
    group.run(12.0)
    leader.start()
    other.start()
    group.run(20.0)


def leader_with_a_lost_end(group: Group) -> None:
    """A leader's log has lost its end when it takes its own key back."""
    leader, (one, other) = group.leaders[0], _followers(group)
    group.run(2.0)
    _quiet(group, leader, one, other)
    leader.disk.lose_last(group.random.randint(1, 5))
    leader.start()
    group.run(group.random.uniform(0.5, 6.0))
    one.start()
    other.start()
    group.run(20.0)


def _quiet(group: Group, *machines: SimulatedMachine) -> None:
    """Let publishers pause until all that is confirmed is noted, and kill machines."""
    group.publishes = False
    group.run(3.0)
    group.publishes = True
    _kill(group, *machines)


def twins(group: Group) -> None:
    """A follower's directory is copied, and its twin is started beside it, and again; then the
    leader dies with one of the two.
    """
    random, leader, (copied, other) = group.random, group.leaders[0], _followers(group)
    twin = group.add_twin(copied)
    twin.disk = copied.disk.backed_up()
    group.invariants.older |= {copied.name}
    other.kill(with_power=True)
    group.run(random.uniform(0.5, 6.0))
    # The leader goes on by promises, and no other member is told how far it confirms.
    group.etcd.cut_off.add(leader.name)
    twin.start()
    group.run(random.uniform(4.0, 8.0))
    if random.random() < 0.5:
        copied.kill(with_power=True)
        copied.start()
        group.run(random.uniform(1.0, 12.0))
    first, last = (copied, twin) if random.random() < 0.5 else (twin, copied)
    group.etcd.cut_off.clear()
    leader.kill(with_power=True)
    first.kill(with_power=True)
    group.run(10.0)
    last.restart()
    group.run(5.0)
    leader.start()
    other.start()
    group.run(20.0)


def etcd_from_a_backup(group: Group) -> None:
    """etcd is put back from a backup whose list names a follower that was dropped since."""
    random, leader, (one, other) = group.random, group.leaders[0], _followers(group)
    backup = group.etcd.backed_up()
    one.kill(with_power=True)
    group.invariants.older |= {one.name}
    group.run(random.uniform(6.0, 9.0))
    running = random.random() < 0.5
    if not running:
        _kill(group, leader, other)
        group.run(4.0)
    group.etcd.put_back(backup)
    if not running:
        other.start()
    one.start()
    group.run(10.0)
    leader.restart()
    group.run(10.0)


def etcd_made_anew(group: Group) -> None:
    """etcd is lost, and a follower that was dropped before founds the group anew in another one
    that has the same cluster id: the members, the list, but not the group's id.
    """
    random, leader, (one, other) = group.random, group.leaders[0], _followers(group)
    one.kill(with_power=True)
    group.invariants.older |= {one.name}
    group.run(random.uniform(6.0, 9.0))
    _kill(group, leader, other)
    names = (one.name, leader.name, other.name)
    group.etcd.make_anew(names, 2, random.choice(("", "another")))
    # By its own term the new etcd is not older than what the members know.
    for machine in random.sample([leader, one, other], 3):
        machine.start()
        group.run(random.uniform(0.0, 4.0))
    group.run(20.0)


def older_leader(group: Group, *, is_idle: bool = False) -> tuple[SimulatedMachine, ...]:
    """Have a member lead that does not know these rules, after it was put back from a backup.
    Returns that member, the former leader, which has more, and the third member.

    Args: is_idle, whether no client publishes then; otherwise the older member cannot commit, and
    gives way in time.
    """
    leader, (older, other) = group.leaders[0], _followers(group)
    backup = older.disk.backed_up()
    group.run(group.random.uniform(3.0, 6.0))
    _kill(group, leader, older, other)
    group.etcd.set_min_in_sync(1 if is_idle else 2)
    group.publishes = not is_idle
    older.disk = backup
    older.is_of_older_version = True
    older.start()
    group.run(12.0)
    other.start()
    leader.start()
    group.run(20.0)
    return older, leader, other


def member_of_an_older_version_leads(group: Group) -> None:
    """Members that have more than the older leader stay out, and keep what they have. Then an
    operator has one of them lead.
    """
    one, leader, _ = older_leader(group)
    one.kill(with_power=True)
    group.run(4.0)
    group.etcd.operate(forced_succession(group.etcd.view(), leader.name, "a person"))
    group.run(10.0)
    one.is_of_older_version = False
    one.start()
    group.run(20.0)
