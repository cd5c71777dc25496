"""A group of real processes under load, while members, etcd, network and disks fail: nothing that
was confirmed is lost, and nothing comes twice without saying so.
"""

import contextlib
import itertools
import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest
import trustme
from pika.exceptions import AMQPError

from amqpstore_server.cluster.keys import IN_SYNC
from amqpstore_server.cluster.timing import Timing
from amqpstore_tools.__main__ import main
from tests.cluster_load import PERSISTENT, QUEUES, Load
from tests.cluster_processes import GroupProcesses
from tests.interop.test_replication import FAILOVER_S, publish
from tests.interop.test_whole_copy import REPLACED, segments
from tests.nemesis import BANDWIDTHS, DELAYS_S, Nemesis
from tests.network_namespaces import HostNetwork, Way
from tests.slow_links import Pace
from tests.small_disk import small_disk

pytestmark = pytest.mark.long

STALL_S = 2.5
SEGMENT_BYTES = "1048576"
LEAST_FREE_BYTES = "2097152"
DISK_MIB = 192
OUTAGE_S = 20.0
"""Longer than all leases."""
SLOW_S = 3.0
LARGE_S = 1.5 * Timing().ack_timeout_s
COPIED_MIB = 30
COPY_S = 120.0


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMQPSTORE_SEGMENT_BYTES", SEGMENT_BYTES)


def end(group: GroupProcesses, capsys: pytest.CaptureFixture[str]) -> None:
    """Stop all members in order, and check what each has on disk."""
    group.wait_until_in_sync(len(group.members))
    for one in group.members:
        assert one.terminate() == 0, one.log()
    for one in group.members:
        assert main(["check", one.directory]) == 0, capsys.readouterr().out


@pytest.mark.rounds(1)
@pytest.mark.parametrize(("size", "min_in_sync"), [(2, 1), (3, 2)])
def test_nothing_that_was_confirmed_is_lost(
    tmp_path: Path, size: int, min_in_sync: int, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with GroupProcesses(str(tmp_path), size, min_in_sync) as group:
        group.start()
        load, nemesis = Load(group, seed), Nemesis(group, seed)
        load.start()
        for fault in nemesis.faults:
            load.wait_for_confirms(20)
            nemesis.strike(fault)
        load.wait_for_confirms(20)
        load.verify()
        end(group, capsys)


@pytest.fixture
def scattered(tmp_path: Path) -> Generator[tuple[GroupProcesses, HostNetwork]]:
    """Three members, three of etcd and the clients, each on a host of its own, and each member
    with a disk of its own. Members show each other certificates.
    """
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(HostNetwork(("a", "b", "c", "x", "y", "z", "clients")))
        stack.enter_context(network.hosts["clients"].entered())
        disks = [
            stack.enter_context(small_disk(str(tmp_path / f"disk-{name}"), DISK_MIB))
            for name in "abc"
        ]
        group = stack.enter_context(
            GroupProcesses(
                str(tmp_path),
                3,
                2,
                hosts=[network.hosts[name] for name in "abc"],
                etcd_hosts=[network.hosts[name] for name in "xyz"],
                disks=disks,
            )
        )
        ca = trustme.CA()
        ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        for member in group.members:
            path = tmp_path / f"{member.id}.pem"
            leaf = ca.issue_cert(member.host.address)
            leaf.private_key_and_cert_chain_pem.write_to_path(str(path))
            member.settings = {
                "AMQPSTORE_CLUSTER_CERTIFICATE": str(path),
                "AMQPSTORE_CLUSTER_CA": str(tmp_path / "ca.pem"),
                "AMQPSTORE_LEAST_FREE_BYTES": LEAST_FREE_BYTES,
            }
        group.start()
        yield group, network


@pytest.mark.rounds(1)
def test_nothing_is_lost_whatever_is_cut_off_killed_or_full(
    scattered: tuple[GroupProcesses, HostNetwork], seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each fault once, and some of them two at a time."""
    group, network = scattered
    load = Load(group, seed, publishers=20, pace_s=0.2)
    nemesis = Nemesis(group, seed, network)
    load.start()
    for strike in [(one,) for one in nemesis.faults] + [nemesis.pair() for _ in range(8)]:
        load.wait_for_confirms(20)
        nemesis.strike(*strike)
    load.wait_for_confirms(20)
    load.verify()
    end(group, capsys)


def test_nobody_notices_that_etcd_is_away(
    scattered: tuple[GroupProcesses, HostNetwork],
) -> None:
    """Members go on by their promises: no client is disconnected, and the leader stays the same."""
    group, _ = scattered
    load = Load(group, 4, publishers=4, pace_s=0.1)
    load.start()
    load.wait_for_confirms(20)
    leader, term, connections = group.wait_for_leader(), group.view().term, load.connections
    group.etcd.kill()
    load.goes_on_for(OUTAGE_S)
    assert load.connections == connections, group.logs()
    group.etcd.start()
    assert group.wait_for_leader() is leader
    assert group.view().term == term
    load.wait_for_confirms(20)
    assert load.connections == connections, group.logs()
    load.verify()


def ways_between_members(network: HostNetwork) -> list[Way]:
    return list(itertools.permutations([network.hosts[name] for name in "abc"], 2))


@contextlib.contextmanager
def all_stay_in_sync(group: GroupProcesses, load: Load) -> Generator[None]:
    """Neither who leads nor the list changes, and no client is disconnected."""
    load.start()
    load.wait_for_confirms(20)
    before, connections = group.view(), load.connections
    yield
    after = group.view()
    assert after.term == before.term, group.logs()
    assert after.changed(IN_SYNC) == before.changed(IN_SYNC), group.logs()
    assert load.connections == connections, group.logs()
    load.verify()


def test_slow_links_cost_no_member_its_place(
    scattered: tuple[GroupProcesses, HostNetwork],
) -> None:
    group, network = scattered
    ways, load = ways_between_members(network), Load(group, 5, publishers=20, pace_s=0.2)
    with all_stay_in_sync(group, load):
        for delay_s in DELAYS_S:
            slow = Pace(delay_s=delay_s)
            network.slow_down(ways, slow)
            load.goes_on_for(SLOW_S)
            network.speed_up(ways, slow)


def test_narrow_links_cost_no_member_its_place(
    scattered: tuple[GroupProcesses, HostNetwork],
) -> None:
    """Each time a message is on its way for longer than a follower may be silent."""
    group, network = scattered
    ways, load = ways_between_members(network), Load(group, 6, publishers=20, pace_s=0.2)
    with all_stay_in_sync(group, load):
        channel = group.wait_for_leader().connect().channel()
        channel.queue_declare("large", durable=True)
        channel.confirm_delivery()
        for bandwidth in BANDWIDTHS:
            narrow = Pace(bytes_per_s=bandwidth)
            network.slow_down(ways, narrow)
            load.goes_on_for(SLOW_S)
            channel.basic_publish("", "large", bytes(int(bandwidth * LARGE_S)), PERSISTENT)
            network.speed_up(ways, narrow)
        channel.connection.close()


def test_a_copy_over_a_narrow_link_ends(
    scattered: tuple[GroupProcesses, HostNetwork], capsys: pytest.CaptureFixture[str]
) -> None:
    """Clients get confirms meanwhile, and the leader stays the same."""
    group, network = scattered
    ways = ways_between_members(network)
    load = Load(group, 7, publishers=20, pace_s=0.2)
    load.start()
    load.wait_for_confirms(20)
    leader, term = group.wait_for_leader(), group.view().term
    follower = next(one for one in group.members if one is not leader)
    follower.kill()
    last = segments(follower)[-1]
    group.wait(lambda: last not in segments(leader))
    for kept in (Path(leader.directory) / "kept").glob("*.segment"):
        kept.unlink()
    channel = leader.connect().channel()
    channel.queue_declare("large", durable=True)
    channel.confirm_delivery()
    for _ in range(COPIED_MIB):
        channel.basic_publish("", "large", os.urandom(1 << 20), PERSISTENT)
    channel.connection.close()
    narrow = Pace(bytes_per_s=BANDWIDTHS[-1])
    network.slow_down(ways, narrow)
    follower.start()
    began = time.monotonic()
    while len(group.view().in_sync) < len(group.members):
        load.goes_on_for(1.0)
        assert time.monotonic() - began < COPY_S, group.logs()
    assert time.monotonic() - began > COPIED_MIB * (1 << 20) / narrow.bytes_per_s
    assert REPLACED in follower.log()
    assert (group.leader(), group.view().term) == (leader, term), group.logs()
    network.speed_up(ways, narrow)
    load.verify()
    end(group, capsys)


def test_a_leader_without_enough_replicas_confirms_nothing(tmp_path: Path) -> None:
    """Publishers are told, and go on once a replica is back; one of two costs a stall."""
    with GroupProcesses(str(tmp_path), 3, 2) as group:
        group.start()
        leader = group.wait_for_leader()
        first, second = [one for one in group.members if one is not leader]
        load = Load(group, 0)
        load.start()
        load.wait_for_confirms(5)
        load.history.longest_s = 0.0
        first.kill()
        load.wait_for_confirms(20)
        assert load.history.longest_s <= STALL_S, group.logs()
        load.verify()
        second.kill()
        blocked: list[str] = []
        connection = leader.connect()
        connection.add_on_connection_blocked_callback(
            lambda _, frame: blocked.append(frame.method.reason)
        )
        channel = connection.channel()

        def is_blocked() -> bool:
            if not blocked:
                channel.basic_publish("", QUEUES[0], b"0", PERSISTENT)
            connection.process_data_events(0.1)
            return bool(blocked)

        group.wait(is_blocked)
        assert blocked == ["short of replicas"]
        first.start()
        publish(leader, 0, 5)
        with pytest.raises(AMQPError):
            leader.kill()
            connection.process_data_events(1)


def test_a_killed_leader_is_replaced_in_time(tmp_path: Path) -> None:
    with GroupProcesses(str(tmp_path), 2) as group:
        group.start()
        for _ in range(5):
            leader = group.wait_for_leader()
            publish(leader, 0, 5)
            leader.kill()
            began = time.monotonic()
            group.wait_for_leader(but=leader)
            assert time.monotonic() - began < FAILOVER_S, group.logs()
            leader.start()
            group.wait_until_in_sync(2)
