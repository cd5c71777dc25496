"""Real members, and a real etcd, that come back older than they were: from a backup, as a copied
directory, or made anew. Nothing that was confirmed is given up, and each says why it waits.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.broker_process import REPOSITORY
from tests.cluster_processes import GroupProcesses, MemberProcess
from tests.interop.test_replication import numbers, publish
from tests.network_namespaces import LOOPBACK


@pytest.fixture
def pair(tmp_path: Path) -> Generator[GroupProcesses]:
    with GroupProcesses(str(tmp_path), 2) as group:
        group.start()
        yield group


@pytest.fixture
def three(tmp_path: Path) -> Generator[GroupProcesses]:
    with GroupProcesses(str(tmp_path), 3, 2) as group:
        group.start()
        yield group


def followers(group: GroupProcesses) -> list[MemberProcess]:
    leader = group.wait_for_leader()
    return [one for one in group.members if one is not leader]


def backed_up(member: MemberProcess) -> str:
    """Copy the directory of a member that does not run. Returns where the copy is."""
    copy = f"{member.directory}.backup"
    shutil.copytree(member.directory, copy)
    return copy


def status(member: MemberProcess) -> tuple[int, str]:
    """Return the exit code of `cluster status`, and what it tells an operator."""
    ran = subprocess.run(
        [
            *[sys.executable, "-m", "amqpstore_tools", "cluster", "status"],
            *["--data", member.directory],
        ],
        cwd=REPOSITORY,
        env={**os.environ, **member.environment, "COLUMNS": "500"},
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.returncode, ran.stdout


def waits(group: GroupProcesses, member: MemberProcess, text: str) -> None:
    """Wait until etcd shows why a member waits."""
    group.wait(lambda: text in str(group.view().shown(member.id).get("waits", "")))


def start_again(group: GroupProcesses, member: MemberProcess) -> None:
    """Start a member, and wait until it follows as the process that etcd names."""
    before = group.view().generation(member.id)
    member.start()
    group.wait(lambda: group.view().generation(member.id) != before)
    group.wait(lambda: bool(group.view().shown(member.id).get("follows")))


def what_is_known_is_noted(group: GroupProcesses) -> None:
    """Wait until etcd and each MEMBER say how far everything is confirmed."""
    shown = [group.view().shown(one.id) for one in group.members]
    end = max(int(one.get("position", 0)) for one in shown)
    group.wait(lambda: group.view().floor.lsn >= end)


@pytest.mark.long
def test_followers_from_a_backup_do_not_lead(three: GroupProcesses) -> None:
    leader, (first, other) = three.wait_for_leader(), followers(three)
    publish(leader, 0, 20)
    for member in (first, other):
        assert member.terminate() == 0
        backed_up(member)
        start_again(three, member)
    three.wait_until_in_sync(3)
    publish(leader, 20, 30)
    what_is_known_is_noted(three)
    for member in three.members:
        member.kill()
    for member in (first, other):
        shutil.rmtree(member.directory)
        os.rename(f"{member.directory}.backup", member.directory)
        member.start()
    for member in (first, other):
        waits(three, member, "older copy")
        assert "older copy" in member.log()
    code, output = status(first)
    assert code == 1
    assert output.count("waits: this directory is an older copy") == 2
    assert three.view().leader is None
    leader.start()
    three.wait_until_in_sync(3)
    assert three.wait_for_leader() is leader
    # Members that have caught up are as good as any: none waits any more.
    three.wait(lambda: status(first)[0] == 0)
    leader.kill()
    assert sorted(numbers(three.wait_for_leader(leader))) == list(range(50))


@pytest.mark.long
def test_a_copied_directory_is_not_its_member(pair: GroupProcesses, tmp_path: Path) -> None:
    leader, (follower,) = pair.wait_for_leader(), followers(pair)
    publish(leader, 0, 20)
    assert follower.terminate() == 0
    twin = MemberProcess(
        str(tmp_path / "elsewhere"), int(follower.id, 16), pair.etcd, LOOPBACK, proxy=False
    )
    shutil.copytree(follower.directory, twin.directory)
    start_again(pair, follower)
    pair.wait_until_in_sync(2)
    with contextlib.ExitStack() as stack:
        stack.callback(twin.kill)
        twin.start()
        pair.wait(lambda: "another process with the same MEMBER" in twin.log())
        pair.wait(lambda: "a second process" in status(leader)[1])
        assert status(leader)[0] == 1
        publish(leader, 20, 30)
        leader.kill()
        follower.kill()
        # The twin is now the only one, and knows that it is older.
        waits(pair, twin, "older copy")
        assert pair.view().leader is None
        leader.start()
        pair.wait(leader.serves)
        assert sorted(numbers(leader)) == list(range(50))
        pair.wait(lambda: status(leader)[0] == 0)
        leader.kill()
        pair.wait(twin.serves)
        assert sorted(numbers(twin)) == list(range(50))


@pytest.mark.long
def test_etcd_from_a_backup_elects_nobody(three: GroupProcesses) -> None:
    """The restored list names a member without which the group has gone on since."""
    etcd, (dropped, other) = three.etcd.members[0], followers(three)
    leader = three.wait_for_leader()
    publish(leader, 0, 20)
    etcd.kill()
    shutil.copytree(etcd.directory, f"{etcd.directory}.backup")
    three.etcd.start()
    three.wait_until_in_sync(3)
    dropped.kill()
    publish(leader, 20, 30)
    three.wait_until_in_sync(2)
    what_is_known_is_noted(three)
    leader.kill()
    other.kill()
    etcd.kill()
    shutil.rmtree(etcd.directory)
    os.rename(f"{etcd.directory}.backup", etcd.directory)
    three.etcd.start()
    three.forget_etcd()
    other.start()
    waits(three, other, "etcd is not used")
    dropped.start()
    waits(three, dropped, f"member {other.id} has seen")
    assert status(dropped)[0] == 1
    assert three.view().leader is None or not dropped.serves()
    other.kill()
    dropped.kill()
    three.wait(lambda: three.view().leader is None)
    leader.operate("init", "--from-leader", "--yes")
    leader.start()
    three.wait(leader.serves)
    assert sorted(numbers(leader)) == list(range(50))
    dropped.operate("join")
    dropped.start()
    three.wait_until_in_sync(2)


@pytest.mark.long
def test_etcd_made_anew_is_not_the_group_s(three: GroupProcesses) -> None:
    """The new etcd has the same cluster id, as that is derived from its arguments."""
    etcd, (dropped, other) = three.etcd.members[0], followers(three)
    leader = three.wait_for_leader()
    publish(leader, 0, 20)
    what_is_known_is_noted(three)
    before = three.view()
    dropped.kill()
    publish(leader, 20, 30)
    three.wait_until_in_sync(2)
    leader.kill()
    other.kill()
    etcd.kill()
    shutil.rmtree(etcd.directory)
    three.etcd.start()
    three.forget_etcd()
    assert three.view().cluster == before.cluster
    assert before.group_id
    other.start()
    three.wait(lambda: "it has no group with the id" in other.log())
    ran = subprocess.run(
        [sys.executable, "-m", "amqpstore_tools", "cluster", "init", "--data", dropped.directory],
        cwd=REPOSITORY,
        env={**os.environ, **dropped.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 5
    assert "--from-leader" in ran.stderr
    assert "cluster join" in ran.stderr
    other.kill()
    three.wait(lambda: not three.view().rows)
    leader.operate("init", "--from-leader", "--yes")
    leader.start()
    three.wait(leader.serves)
    assert sorted(numbers(leader)) == list(range(50))


@pytest.mark.long
def test_a_person_decides_which_history_holds(pair: GroupProcesses) -> None:
    """The leader is an older copy that an operator has made lead by force."""
    leader, (one,) = pair.wait_for_leader(), followers(pair)
    publish(leader, 0, 20)
    assert one.terminate() == 0
    publish(leader, 20, 30)
    pair.wait_until_in_sync(1)
    what_is_known_is_noted(pair)
    leader.kill()
    one.start()
    # It is not in the list: a person has it lead, and lives with what is lost.
    pair.wait(lambda: pair.view().is_alive(one.id) and not pair.view().is_alive(leader.id))
    one.operate("force-leader", one.id, "--yes")
    pair.wait(one.serves)
    assert sorted(numbers(one)) == list(range(20))
    leader.start()
    pair.wait_until_in_sync(2)
    quarantine = Path(leader.directory, "quarantine")
    assert any(quarantine.rglob("*"))
