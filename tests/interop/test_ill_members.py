"""Real members that are ill and do not die: an event loop that hangs, a disk that is slow, one that
is full. The others go on without them. How soon is held by the tests in virtual time.
"""

import contextlib
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

from amqpstore_server.cluster.progress import DropReason
from tests.cluster_processes import GroupProcesses
from tests.interop.test_older_members import followers
from tests.interop.test_replication import PERSISTENT, numbers, publish
from tests.small_disk import fill, small_disk

pytestmark = pytest.mark.long

UNFIT = 70
HANGS = signal.SIGRTMIN + 1
FAULTS = f"""
import os, platform, signal, time

def hang(*_):
    while True:
        time.sleep(1)

def slow_down(sync):
    def synced(descriptor):
        if os.path.exists(os.environ["IS_SLOW"]):
            time.sleep(0.5)
        return sync(descriptor)
    return synced

signal.signal({HANGS}, hang)
os.fdatasync = slow_down(os.fdatasync)
# Syncs are calls of Python, and not the kernel's asynchronous ones.
platform.machine = lambda: "of a test"
"""
DISK_MIB = 192
LEFT_BYTES = 100_000


@pytest.fixture
def three(tmp_path: Path) -> Generator[GroupProcesses]:
    """Three members, each of which can be made ill."""
    (tmp_path / "sitecustomize.py").write_text(FAULTS)
    with GroupProcesses(str(tmp_path), 3, 2) as group:
        for one in group.members:
            one.settings = {
                "PYTHONPATH": str(tmp_path),
                "IS_SLOW": str(tmp_path / f"{one.id} is slow"),
            }
        group.start()
        yield group


def test_a_leader_whose_event_loop_hangs_is_deposed(three: GroupProcesses) -> None:
    """The leader's threads go on, and would renew its lease and answer its followers for ever."""
    leader = three.wait_for_leader()
    publish(leader, 0, 20)
    leader.signal(HANGS)
    other = three.wait_for_leader(but=leader)
    assert numbers(other) == list(range(20))
    three.wait(lambda: leader.exit_code == UNFIT)
    assert "hangs" in leader.log()


def test_a_follower_whose_disk_is_slow_leaves_the_list_and_comes_back(
    three: GroupProcesses,
) -> None:
    leader, (slow, _) = three.wait_for_leader(), followers(three)
    is_slow = Path(slow.settings["IS_SLOW"])
    with contextlib.closing(leader.connect()) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("orders", durable=True)
        is_slow.touch()

        def has_left() -> bool:
            channel.basic_publish("", "orders", b"1", PERSISTENT)
            return slow.id not in three.view().in_sync

        three.wait(has_left)
    left = f"{slow.id} has left the in-sync list: {DropReason.SLOW.value}"
    three.wait(lambda: left in leader.log())
    is_slow.unlink()
    three.wait_until_in_sync(3)


def test_a_leader_whose_disk_is_full_lets_another_one_lead(tmp_path: Path) -> None:
    place = str(tmp_path)
    with (
        small_disk(str(tmp_path / "small"), DISK_MIB) as small,
        GroupProcesses(place, 3, 2, disks=[small, place, place]) as group,
    ):
        for one in group.members:
            one.settings = {"AMQPSTORE_LEAST_FREE_BYTES": str(8 << 20)}
        group.start()
        leader = group.wait_for_leader()
        assert leader is group.members[0]
        publish(leader, 0, 20)
        fill(f"{small}/ballast", LEFT_BYTES)
        other = group.wait_for_leader(but=leader)
        publish(other, 20, 20)
        assert numbers(other) == list(range(40))
        assert group.view().shown(leader.id)["disk_low"]
