"""A member that lacks what the leader's log no longer has: real processes, a real etcd, pika."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from amqpstore.system.filenames import is_compacted, segment_numbers
from amqpstore_server.etcd.client import EtcdClient
from amqpstore_tools.__main__ import main
from tests.cluster_processes import GroupProcesses, MemberProcess
from tests.etcd_process import EtcdCluster
from tests.interop.test_replication import PERSISTENT, numbers, pass_on, publish
from tests.network_namespaces import LOOPBACK
from tests.waiting import wait_until

pytestmark = pytest.mark.long

MANY = 100_000
REPLACED = "a copy of the leader's store is in the place of this one"
LARGE = 100
"""Messages of 1 MiB: a copy of them takes long enough to be cut off."""


def segments(member: MemberProcess) -> list[int]:
    names = [path.name for path in (Path(member.directory) / "segments").iterdir()]
    return [number for number in segment_numbers(names) if not is_compacted(number)]


def store_large(member: MemberProcess) -> None:
    connection = member.connect()
    channel = connection.channel()
    channel.queue_declare("large", durable=True)
    channel.confirm_delivery()
    for number in range(LARGE):
        channel.basic_publish("", "large", bytes([number]) * (1 << 20), PERSISTENT)
    connection.close()


def large(member: MemberProcess, *, acked: bool = False) -> list[int]:
    """The large messages, each by its first byte, if it has nothing else."""
    connection = member.connect()
    channel = connection.channel()
    found = []
    for _ in range(LARGE):
        _, _, body = channel.basic_get("large", auto_ack=acked)
        assert body is not None
        assert body == body[:1] * (1 << 20)
        found.append(body[0])
    connection.close()
    return found


def forget(member: MemberProcess, number: int, group: GroupProcesses) -> None:
    """Have a leader's log lack a segment, as if more had been written since than is kept."""
    pass_on(member)
    group.wait(lambda: number not in segments(member))
    for kept in (Path(member.directory) / "kept").glob("*.segment"):
        kept.unlink()


def is_receiving(member: MemberProcess) -> bool:
    return any((Path(member.directory) / "segments").glob("*.new"))


def grow(group: GroupProcesses) -> None:
    """Start the first member, and have its log lack its first segments."""
    first = group.members[0]
    first.settings["AMQPSTORE_SEGMENT_BYTES"] = str(1 << 20)
    first.start()
    group.wait_until_in_sync(1)
    forget(first, 1, group)
    publish(first, 0, 40)
    store_large(first)


@pytest.fixture
def group(tmp_path: Path) -> Generator[GroupProcesses]:
    """A leader whose log no longer has its first segments, and two new members beside it."""
    with GroupProcesses(str(tmp_path), 3) as made:
        grow(made)
        yield made


def whole_files(member: MemberProcess) -> dict[str, int]:
    """The segments that were received of a copy, all but the last, each by its inode."""
    places = sorted((Path(member.directory) / "segments").glob("*.new"))
    return {one.name.removesuffix(".new"): one.stat().st_ino for one in places[:-1]}


def test_a_copy_that_is_cut_off_goes_on(
    group: GroupProcesses, capsys: pytest.CaptureFixture[str]
) -> None:
    """The follower is killed in between, and then the leader, whose successor goes on."""
    first, second, third = group.members
    second.start()
    group.wait(lambda: len(whole_files(second)) > 5)
    second.kill()
    before = whole_files(second)
    second.start()
    group.wait_until_in_sync(2)
    place = Path(second.directory) / "segments"
    # None of these files was received a second time.
    assert before == {name: (place / name).stat().st_ino for name in before}
    publish(first, 40, 10)
    third.start()
    group.wait(lambda: is_receiving(third))
    first.kill()
    assert group.wait_for_leader(but=first) is second
    group.wait_until_in_sync(2)
    publish(second, 50, 10)
    first.start()
    group.wait_until_in_sync(3)
    second.kill()
    leader = group.wait_for_leader(but=second)
    assert sorted(numbers(leader)) == list(range(60))
    assert sorted(large(leader)) == list(range(LARGE))
    for member in (first, third):
        member.kill()
        assert main(["check", member.directory]) == 0, capsys.readouterr().out
        assert not (Path(member.directory) / "REPLACEMENT").exists()


def test_who_was_away_for_too_long_gets_a_copy_in_the_place_of_its_store(
    group: GroupProcesses, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, _ = group.members
    second.start()
    group.wait_until_in_sync(2)
    assert second.terminate() == 0
    before = segments(second)
    large(first, acked=True)
    forget(first, before[-1], group)
    assert len(group.view().in_sync) == 1
    publish(first, 40, 10)
    second.start()
    group.wait_until_in_sync(2)
    assert second.log().count(REPLACED) == 2
    assert before[-1] < segments(second)[-1]
    first.kill()
    assert group.wait_for_leader(but=first) is second
    assert sorted(numbers(second)) == list(range(50))
    second.kill()
    assert main(["check", second.directory]) == 0, capsys.readouterr().out


def test_a_new_machine_joins_a_broker_with_many_messages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A single node becomes a group of one, another machine joins while clients go on, and has
    everything when it leads.
    """
    with EtcdCluster(str(tmp_path)) as etcd:
        first, second, observer = members = [
            MemberProcess(str(tmp_path), number, etcd, LOOPBACK, proxy=False)
            for number in (1, 2, 3)
        ]
        try:
            _grow(first)

            first.operate("init")
            first.start()
            wait_until(first.serves, first.log)
            second.operate("join")
            observer.operate("join", "--observer")
            second.start()
            observer.start()
            with EtcdClient(etcd.settings, "/amqpstore/test/main/") as client:
                publish(first, 0, 100)
                wait_until(lambda: len(client.read().in_sync) == 2, second.log)
            assert REPLACED in second.log()

            def status() -> Any:
                return json.loads(first.operate("status", "--json"))

            def observed() -> Any:
                return next(one for one in status()["members"] if one["is_observer"])

            last = status()["members"][0]["batch"]
            wait_until(lambda: observed()["batch"] >= last, observer.log)
            assert REPLACED in observer.log()
            assert observed()["place"] == 0
            assert status()["problems"] == []
            first.kill()
            wait_until(second.serves, second.log)
            connection = second.connect()
            declared = connection.channel().queue_declare("many", passive=True)
            assert declared.method.message_count == MANY
            connection.close()
            assert numbers(second) == list(range(100))
            assert second.terminate() == 0
            assert main(["check", second.directory]) == 0, capsys.readouterr().out
        finally:
            for member in members:
                member.kill()


def _grow(member: MemberProcess) -> None:
    """Fill a single node's store, the first segments of which are gone then."""
    alone = {f"AMQPSTORE_CLUSTER_{key}": "" for key in ("NAME", "ETCD")}
    member.settings = {**alone, "AMQPSTORE_SEGMENT_BYTES": str(4 << 20)}
    member.start()
    wait_until(member.serves, member.log)
    pass_on(member, 20)
    connection = member.connect()
    channel = connection.channel()
    channel.queue_declare("many", durable=True)
    for number in range(MANY):
        channel.basic_publish("", "many", b"%1000d" % number, PERSISTENT)
    connection.close()
    wait_until(lambda: 1 not in segments(member), member.log)
    assert member.terminate() == 0
    member.settings = {}
