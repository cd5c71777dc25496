"""Metrics of members move when what they tell happens in a simulated group of three: each
member is the state machine of a process, and its figures are rendered as a process renders its own.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from amqpstore_server.cluster.frames import Frame
from amqpstore_server.metrics.replicas import families, of_follower
from amqpstore_server.replication.controller import Controller
from amqpstore_server.replication.copying import CopyCounts
from amqpstore_server.replication.leading_term import LeadingTerm
from tests.simulated_group import returns
from tests.simulated_group.history import STEP_S, Group
from tests.simulated_group.machine import SimulatedMachine
from tests.simulated_group.returns import told
from tests.unit.replication.test_figures import values_of


def group_of_three() -> tuple[Group, SimulatedMachine, SimulatedMachine]:
    """A group whose members are all in sync, its leader, and a follower."""
    group = told(1, lambda _: None)
    leader = group.leaders[0]
    follower = next(one for one in group.machines if one is not leader)
    assert group.is_whole()
    return group, leader, follower


def of_leader(machine: SimulatedMachine) -> dict[str, float]:
    controller = SimpleNamespace(member=machine.member, copies=CopyCounts(), refused_frames=0)
    term: Any = SimpleNamespace(_controller=controller, is_blocked=machine._is_blocked)
    source: Any = SimpleNamespace(replication=lambda: LeadingTerm.figures(term))
    return values_of(families(source))


def of_one_that_follows(machine: SimulatedMachine) -> dict[str, float]:
    log = SimpleNamespace(last=machine.disk.last, free_bytes=lambda: 0)
    controller: Any = SimpleNamespace(member=machine.member, leader=None, log=log, refused_frames=0)
    figures = Controller.figures(controller, takes_clients=False, least_free_bytes=0)
    return values_of(of_follower(figures))


def until(group: Group, condition: Callable[[], bool], within_s: float = 30.0) -> None:
    """Let time pass until a condition holds."""
    end = group.events.now + within_s
    while not condition():
        assert group.events.now < end
        group.run(STEP_S)
    assert not group.invariants.violations


def test_a_new_leader_tells_a_later_term() -> None:
    group, leader, _ = group_of_three()
    before = of_leader(leader)
    leader.kill(with_power=True)
    until(group, lambda: bool(group.leaders))
    assert of_leader(group.leaders[0])["term"] == before["term"] + 1


def test_a_follower_that_dies_leaves_the_list_and_joins_again() -> None:
    group, leader, follower = group_of_three()
    before = of_leader(leader)
    follower.kill(with_power=True)
    until(group, lambda: of_leader(leader)["in_sync"] < before["in_sync"])
    after = of_leader(leader)
    assert sum(after[name] - before[name] for name in after if "left_total" in name) == 1
    # The leader waits for it from the moment at which it asks etcd to have it in the list.
    group.etcd.least_s = group.etcd.slow_s = 0.45
    assert of_leader(leader)["joining"] == 0
    follower.restart()
    until(group, lambda: of_leader(leader)["joining"] == 1)
    until(group, lambda: of_leader(leader)["in_sync"] == 3)
    assert of_leader(leader)["joining"] == 0


def test_an_operator_asks_for_more_replicas() -> None:
    group, leader, _ = group_of_three()
    assert of_leader(leader)["min_in_sync"] == 2
    group.etcd.set_min_in_sync(3)
    until(group, lambda: of_leader(leader)["min_in_sync"] == 3)


def test_an_etcd_from_a_backup_is_refused_by_the_leader_and_its_followers() -> None:
    group, leader, follower = group_of_three()
    backup = group.etcd.backed_up()
    group.run(4.0)
    assert of_leader(leader)["etcd_refused"] == of_one_that_follows(follower)["etcd_refused"] == 0
    group.etcd.put_back(backup)
    until(group, lambda: of_leader(leader)["etcd_refused"] == 1)
    until(group, lambda: of_one_that_follows(follower)["etcd_refused"] == 1)


def test_members_that_have_more_than_their_leader_stay_out_and_are_counted() -> None:
    group, leader, follower = group_of_three()
    assert of_leader(leader)["waiting"] == of_one_that_follows(follower)["stays_out"] == 0
    older, *others = returns.older_leader(group, is_idle=True)
    assert of_leader(older)["waiting"] >= 2
    assert [of_one_that_follows(one)["stays_out"] for one in others] == [1, 1]


def test_a_follower_with_a_slow_disk_lags_behind_what_the_others_confirm() -> None:
    group, leader, follower = group_of_three()
    assert of_one_that_follows(follower)["lag_batches"] < 10
    follower.is_disk_stuck = True
    until(group, lambda: of_leader(leader)["in_sync"] == 2)
    until(group, lambda: of_one_that_follows(follower)["lag_batches"] >= 10)


def test_a_follower_tells_how_much_of_a_copy_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader has given up the log that it lacks."""
    group, leader, follower = group_of_three()
    follower.kill(with_power=True)
    until(group, lambda: of_leader(leader)["in_sync"] == 2)
    group.run(5.0)
    leader.compact()
    assert leader.disk.compacted > follower.disk.last().number
    seen = []
    receive = follower.received

    def look(link: int, frame: Frame) -> None:
        receive(link, frame)
        figures = of_one_that_follows(follower)
        seen.append((figures["copy_received_bytes"], figures["copy_bytes"]))

    monkeypatch.setattr(follower, "received", look)
    follower.start()
    until(group, lambda: follower.copies == 1)
    changes = [after for before, after in pairwise(seen) if after != before]
    assert changes == [(1, 2), (2, 2), (0, 0)]
