"""A member that lacks what the leader's log no longer has: real processes, a real etcd, pika."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

from amqpstore.filenames import is_compacted, segment_numbers
from amqpstore_tools.__main__ import main
from tests.cluster_processes import GroupProcesses, MemberProcess
from tests.interop.test_replication import PERSISTENT, numbers, publish

pytestmark = pytest.mark.long


@pytest.fixture
def pair(tmp_path: Path) -> Generator[GroupProcesses]:
    """A leader whose log no longer has its first segments, and a new member beside it."""
    with GroupProcesses(str(tmp_path), 2) as group:
        first = group.members[0]
        first.settings["AMQPSTORE_SEGMENT_BYTES"] = str(1 << 20)
        first.start()
        group.wait_until_in_sync(1)
        fill(first)
        group.wait(lambda: 1 not in segments(first))
        # As if more had been written since than is kept.
        for kept in (Path(first.directory) / "kept").glob("*.segment"):
            kept.unlink()
        first.terminate()
        first.start()
        group.wait_until_in_sync(1)
        yield group


def fill(member: MemberProcess) -> None:
    """Publish and consume some segments, and then leave messages behind them."""
    connection = member.connect()
    channel = connection.channel()
    channel.queue_declare("passing", durable=True)
    channel.confirm_delivery()
    for _ in range(10):
        channel.basic_publish("", "passing", bytes(1 << 20), PERSISTENT)
        channel.basic_get("passing", auto_ack=True)
    connection.close()
    publish(member, 0, 40)


def segments(member: MemberProcess) -> list[int]:
    names = [path.name for path in (Path(member.directory) / "segments").iterdir()]
    return [number for number in segment_numbers(names) if not is_compacted(number)]


def test_a_new_member_gets_a_copy_of_the_store(
    pair: GroupProcesses, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = pair.members
    second.start()
    pair.wait_until_in_sync(2)
    assert "a copy of the leader's store is in the place" in second.log()
    publish(first, 40, 10)
    first.kill()
    assert pair.wait_for_leader(but=first) is second
    assert sorted(numbers(second)) == list(range(50))
    second.terminate()
    assert not (Path(second.directory) / "REPLACEMENT").exists()
    assert main(["check", second.directory]) == 0, capsys.readouterr().out
    shutil.rmtree(second.directory)
