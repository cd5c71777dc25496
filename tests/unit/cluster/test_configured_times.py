"""The times of a group that the configuration sets, at both ends of what is valid."""

import pytest

from amqpstore_server.cluster.timing import Timing
from amqpstore_server.config.config import Config
from amqpstore_server.replication.settings import cluster_settings
from tests.simulated_group import machine
from tests.simulated_group.history import Group
from tests.simulated_group.machine import SimulatedMachine


def timing(**keys: float) -> Timing:
    settings = cluster_settings(
        Config(cluster_name="shop", cluster_etcd=["http://127.0.0.1:1"], **keys)  # type: ignore[arg-type]
    )
    assert settings is not None
    return settings.timing


def led(patch: pytest.MonkeyPatch, **keys: float) -> tuple[Group, SimulatedMachine]:
    """A group with these keys, without a fault, and its leader."""
    patch.setattr(machine, "TIMING", timing(**keys))
    group = Group(0)
    group.etcd.loss = group.network.slow = 0.0
    group.run(8.0)
    (leader,) = group.leaders
    return group, leader


@pytest.mark.parametrize(("lease_s", "is_replaced"), [(2, True), (60, False)])
def test_a_leader_is_replaced_after_its_lease(
    monkeypatch: pytest.MonkeyPatch, lease_s: float, is_replaced: bool
) -> None:
    group, leader = led(monkeypatch, cluster_lease_s=lease_s)
    leader.kill(with_power=True)
    group.run(15.0)
    assert bool(group.leaders) is is_replaced
    if not is_replaced:
        group.run(60.0)
        assert group.leaders


@pytest.mark.parametrize(("timeout_s", "is_dropped"), [(0.5, True), (60.0, False)])
def test_who_acks_nothing_leaves_the_list_after_the_configured_time(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float, is_dropped: bool
) -> None:
    group, leader = led(monkeypatch, cluster_ack_timeout_s=timeout_s)
    slow = [one for one in group.machines if one is not leader][-1]
    slow.sync_s = 2.0
    group.run(4.0)
    assert (slow.name not in group.etcd.view().in_sync) is is_dropped


@pytest.mark.parametrize(("stall_s", "is_replaced"), [(1.0, True), (60.0, False)])
def test_a_leader_whose_disk_hangs_is_replaced_after_the_configured_time(
    monkeypatch: pytest.MonkeyPatch, stall_s: float, is_replaced: bool
) -> None:
    group, leader = led(monkeypatch, cluster_stall_s=stall_s)
    leader.is_disk_stuck = True
    group.run(4.0)
    assert (leader not in group.leaders) is is_replaced
