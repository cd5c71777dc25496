"""The members of a group are upgraded one after the other, by the steps of server/REPLICAS.md,
while clients go on.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from amqpstore_tools.__main__ import main
from tests.cluster_load import Load
from tests.cluster_processes import GroupProcesses, MemberProcess

pytestmark = pytest.mark.long


def upgrade(
    group: GroupProcesses,
    load: Load,
    cluster: Callable[..., int],
    install: Callable[[MemberProcess], None] = lambda _member: None,
) -> None:
    """Restart all members by the documented steps. Args: cluster, runs `amqpstore cluster`."""

    def restart(member: MemberProcess) -> None:
        assert member.terminate() == 0, member.log()
        install(member)
        member.start()
        group.wait(lambda: cluster("status") == 0)
        load.wait_for_confirms(50)

    group.wait(lambda: cluster("status") == 0)
    load.wait_for_confirms(50)
    old = list(group.members)
    while old:
        leader = group.wait_for_leader()
        followers = [one for one in old if one is not leader]
        if followers:
            restart(followers[0])
            old.remove(followers[0])
        else:
            group.wait(lambda: cluster("switchover") == 0)
            group.wait(lambda: group.leader() not in (None, old[0]))
            load.wait_for_confirms(50)


def test_no_confirm_is_lost_in_a_rolling_upgrade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with GroupProcesses(str(tmp_path), 3, 2) as group:
        group.start()
        for name, value in group.members[0].environment.items():
            monkeypatch.setenv(name, value)

        def cluster(action: str) -> int:
            code = main(["cluster", action])
            capsys.readouterr()
            return code

        load = Load(group, 5)
        load.start()
        upgrade(group, load, cluster)
        load.verify()
