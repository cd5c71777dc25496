"""Notes of durable positions in a group: what a follower notes is true over the terms of several
leaders, whatever it discards, and what it lost is noticed.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amqpstore.evidence import read_positions
from amqpstore.identity import marker
from amqpstore.replica import FollowerStore
from amqpstore.system.clock import SimulatedClock
from amqpstore.system.filenames import segment_path
from amqpstore.terms import term_of
from amqpstore_tools.simulation import stores
from amqpstore_tools.simulation.memory_files import MemoryFiles
from tests.replicas import DIRECTORY, NOW_MS, OPTIONS, Group, busy, log_files, promoted

NO_CHECKPOINTS = OPTIONS._replace(checkpoint_bytes=1 << 60)


class Members:
    """A group whose follower is told the time, and makes no checkpoint."""

    def __init__(self) -> None:
        self.group = Group.new(NO_CHECKPOINTS)
        self._clock = SimulatedClock(NOW_MS)
        self._start()

    def _start(self) -> None:
        disk = self.group.follower_disk
        follower = stores.open_follower(DIRECTORY, disk, NO_CHECKPOINTS, clock=self._clock)
        self.group.follower = follower
        assert not follower.recovery_report.shortfall
        self.group.join()

    def busy(self, rounds: int = 3) -> None:
        """Publish some messages, a second apart."""
        for _ in range(rounds):
            self.group.publish(["orders"], b"one", b"two")
            self.group.sync()
            self._clock.advance(1500)

    def end_leader(self) -> None:
        """Have another leader, of the next term."""
        self.group._go_on(self.group.leader_disk)
        self.group.join()

    def restart_follower(self) -> None:
        self.group.kill_follower()
        self._start()


def reopened(disk: MemoryFiles) -> FollowerStore:
    return stores.open_follower(DIRECTORY, disk.fork(), NO_CHECKPOINTS)


def noted_terms(disk: MemoryFiles) -> list[tuple[int, int]]:
    """The terms of the first and the last LSN of what is noted on a disk."""
    found = marker.read(disk, DIRECTORY)
    assert found is not None
    return [
        (term_of(one.first_lsn), term_of(one.lsn))
        for one in read_positions(disk, DIRECTORY, found.seed)
    ]


def test_numbers_that_a_new_leader_skips_are_not_missing() -> None:
    members = Members()
    for _ in range(3):
        members.busy()
        members.end_leader()
    members.busy()
    disk = members.group.follower_disk
    assert noted_terms(disk) == [(1, 1), (2, 2), (3, 3), (4, 4)]
    report = reopened(disk).recovery_report
    assert report.is_clean
    assert report.lost_count == 0
    with promoted(disk.fork(), members.group.term + 1, NO_CHECKPOINTS) as store:
        assert store.recovery_report.is_clean


def after_another_leader(members: Members) -> None:
    members.end_leader()
    members.busy()


def after_a_restart(members: Members) -> None:
    members.restart_follower()
    members.busy()


def after_batches_that_nobody_committed(members: Members) -> None:
    members.group.lose_leader(b"never committed")
    members.group.join()
    members.busy()


def after_a_copy_of_the_leaders_store(members: Members) -> None:
    group = members.group
    assert group.follower is not None
    group.copy(group.follower.last.lsn)
    group.join()
    members.busy()


HISTORIES = (
    after_another_leader,
    after_a_restart,
    after_batches_that_nobody_committed,
    after_a_copy_of_the_leaders_store,
)


@pytest.mark.parametrize("then", HISTORIES)
def test_a_follower_that_was_killed_lacks_nothing(then: Callable[[Members], None]) -> None:
    members = Members()
    members.busy()
    then(members)
    assert noted_terms(members.group.follower_disk)
    assert reopened(members.group.follower_disk).recovery_report.is_clean


@pytest.mark.parametrize("before", HISTORIES[:3])
def test_a_follower_that_lost_the_end_of_its_log_says_so(
    before: Callable[[Members], None],
) -> None:
    members = Members()
    members.busy()
    before(members)
    members.busy()
    disk = members.group.follower_disk.fork()
    path = segment_path(DIRECTORY, max(log_files(disk)))
    content = disk.content(path)
    disk.replace(path, bytes(len(content)))
    report = reopened(disk).recovery_report
    assert report.shortfall.batches
    assert report.shortfall.batches < 20
    assert report.lost_count == 2 * report.shortfall.batches


def test_a_follower_whose_last_segment_is_gone_ends_before_it() -> None:
    """A checkpoint covers it: the leader has to send a copy."""
    group = Group.new()
    group.join()
    busy(group)
    assert group.follower is not None
    group.follower.checkpoint()
    before = group.follower.last
    group.kill_follower()
    group.follower_disk.remove(segment_path(DIRECTORY, max(log_files(group.follower_disk))))
    follower = group.start_follower()
    assert follower.last.lsn < before.lsn
    assert follower.committed_lsn >= before.lsn
    assert not follower.recovery_report.is_clean
