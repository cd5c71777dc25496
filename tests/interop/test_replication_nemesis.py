"""A group of real processes under load, while its members are killed, stopped and paused: nothing
that was confirmed is lost.
"""

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pika.exceptions import AMQPError

from amqpstore_tools.__main__ import main
from tests.cluster_load import KEPT, PERSISTENT, Load
from tests.cluster_processes import GroupProcesses, MemberProcess
from tests.interop.test_replication import FAILOVER_S, publish

pytestmark = pytest.mark.long

STALL_S = 2.5
SEGMENT_BYTES = "1048576"


class Nemesis:
    """What happens to a group. Each returns the member that was gone."""

    def __init__(self, group: GroupProcesses, seed: int) -> None:
        self._group = group
        self._random = random.Random(seed)

    def strike(self) -> str:
        """Let something happen, and return once all members are in sync again."""
        whats: list[Callable[[MemberProcess], None]] = [
            self.kill_leader,
            self.kill_and_restart_leader,
            self.stop_leader,
            self.pause_leader,
            self.kill_follower,
            self.pause_follower,
        ]
        what = self._random.choice(whats)
        what(self._group.wait_for_leader())
        self._group.wait_until_in_sync(len(self._group.members))
        return what.__name__

    def kill_leader(self, leader: MemberProcess) -> None:
        leader.kill()
        self._group.wait_for_leader(but=leader)
        leader.start()

    def kill_and_restart_leader(self, leader: MemberProcess) -> None:
        leader.kill()
        leader.start()

    def stop_leader(self, leader: MemberProcess) -> None:
        assert leader.terminate() == 0, leader.log()
        self._group.wait_for_leader(but=leader)
        leader.start()

    def pause_leader(self, leader: MemberProcess) -> None:
        leader.signal(signal.SIGSTOP)
        self._group.wait_for_leader(but=leader)
        leader.signal(signal.SIGCONT)

    def kill_follower(self, leader: MemberProcess) -> None:
        follower = self._follower(leader)
        follower.kill()
        self._wait_until_dropped(follower)
        follower.start()

    def pause_follower(self, leader: MemberProcess) -> None:
        follower = self._follower(leader)
        follower.signal(signal.SIGSTOP)
        self._wait_until_dropped(follower)
        follower.signal(signal.SIGCONT)

    def _follower(self, leader: MemberProcess) -> MemberProcess:
        return self._random.choice([one for one in self._group.members if one is not leader])

    def _wait_until_dropped(self, follower: MemberProcess) -> None:
        self._group.wait(lambda: follower.id not in self._group.view().in_sync)


@pytest.mark.parametrize(("size", "min_in_sync", "seed"), [(2, 1, 1), (3, 2, 2)])
def test_nothing_that_was_confirmed_is_lost(
    tmp_path: Path,
    size: int,
    min_in_sync: int,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("AMQPSTORE_SEGMENT_BYTES", SEGMENT_BYTES)
    with GroupProcesses(str(tmp_path), size, min_in_sync) as group:
        group.start()
        load = Load(group, seed)
        nemesis = Nemesis(group, seed)
        load.start()
        for _ in range(8):
            load.wait_for_confirms(20)
            nemesis.strike()
        load.wait_for_confirms(20)
        load.stop()
        load.verify()
        for one in group.members:
            assert one.terminate() == 0, one.log()
        for one in group.members:
            assert main(["check", one.directory]) == 0, capsys.readouterr().out


def test_a_leader_without_enough_replicas_confirms_nothing(tmp_path: Path) -> None:
    """Publishers are told, and go on once a replica is back; one of two costs a stall."""
    with GroupProcesses(str(tmp_path), 3, 2) as group:
        group.start()
        leader = group.wait_for_leader()
        first, second = [one for one in group.members if one is not leader]
        load = Load(group, 0)
        load.start()
        load.wait_for_confirms(5)
        load.longest_s = 0.0
        first.kill()
        load.wait_for_confirms(20)
        assert load.longest_s <= STALL_S, group.logs()
        load.stop()
        second.kill()
        blocked: list[str] = []
        connection = leader.connect()
        connection.add_on_connection_blocked_callback(
            lambda _, frame: blocked.append(frame.method.reason)
        )
        channel = connection.channel()

        def is_blocked() -> bool:
            if not blocked:
                channel.basic_publish("", KEPT, b"0", PERSISTENT)
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
