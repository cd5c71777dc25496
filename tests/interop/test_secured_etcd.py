"""A group on an etcd that asks for certificates and logins: real processes, pika."""

from pathlib import Path

import pytest

from amqpstore_server.cluster.timing import Timing
from tests.cluster_load import Load
from tests.cluster_processes import GroupProcesses
from tests.secured_etcd import Authority, SecuredEtcd

pytestmark = pytest.mark.long


def test_a_group_elects_renews_and_fails_over(tmp_path: Path) -> None:
    """The group goes on when etcd is started again: etcd then knows none of its tokens, and shows
    another certificate.
    """
    authority, place = Authority(tmp_path), str(tmp_path)
    with (
        SecuredEtcd(place, authority) as etcd,
        GroupProcesses(place, 3, 2, etcd=etcd) as group,
    ):
        group.start()
        load = Load(group, 8, publishers=4, pace_s=0.05)
        load.start()
        load.wait_for_confirms(20)
        leader, term, connections = group.wait_for_leader(), group.view().term, load.connections
        load.goes_on_for(2 * Timing().lease_s)
        etcd.kill()
        authority.issue()
        etcd.start()
        load.goes_on_for(2 * Timing().lease_s)
        assert (group.leader(), group.view().term) == (leader, term), group.logs()
        assert load.connections == connections, group.logs()
        leader.kill()
        assert group.wait_for_leader(but=leader) is not leader
        leader.start()
        group.wait_until_in_sync(3)
        assert group.view().term == term + 1
        load.wait_for_confirms(20)
        load.verify()
        for member in group.members:
            assert member.terminate() == 0, member.log()
