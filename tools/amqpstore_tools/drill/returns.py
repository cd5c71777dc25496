"""Members and an etcd of a drilled group that come back older than they were: a copy of a data
directory is put back, or the end of a log is lost.

A `Comeback` keeps what they are now, and later, when no member runs any longer, puts that back.
What was confirmed in between only the former leader has then, and it stays away until the others
have said that they wait for it.
"""

from __future__ import annotations

import os
import shutil
import signal
from typing import Protocol

from amqpstore.system.filenames import SEGMENTS, is_compacted, segment_number
from amqpstore_tools.cluster.founding import found_again
from amqpstore_tools.cluster.joining import join, set_min_in_sync
from amqpstore_tools.drill.group import DrilledGroup, DrilledMember

_BLOCK_BYTES = 1 << 20


class Comeback(Protocol):
    """A part of a group that comes back older. `leader` is who leads when it is made: that one has
    everything.
    """

    did: str
    """The event, in words."""

    def __init__(self, group: DrilledGroup, leader: DrilledMember) -> None: ...

    def keep(self) -> None:
        """Keep what is there now. All members run before and afterwards."""

    def put_back(self) -> None:
        """Let it be as it was. No member runs."""

    def mend(self) -> None:
        """Have the former leader lead again. The others run, and have it to wait for."""


def _kept(directory: str) -> str:
    return f"{directory}.kept"


def _keep(directory: str) -> None:
    # Who was killed while it stopped has left its socket, which cannot be copied.
    shutil.copytree(directory, _kept(directory), ignore=shutil.ignore_patterns("*.sock"))


def _put_back(directory: str) -> None:
    shutil.rmtree(directory)
    os.rename(_kept(directory), directory)


class CopiedFollowers:
    """Data directories of followers are put back from a copy."""

    did = "followers put back from a copy"

    def __init__(self, group: DrilledGroup, leader: DrilledMember) -> None:
        self._group, self._leader = group, leader
        self._followers = [one for one in group.members if one is not leader]

    def keep(self) -> None:
        for one in self._followers:
            one.end(signal.SIGTERM)
            _keep(one.directory)
            one.start()
            self._group.wait_until_in_sync()

    def put_back(self) -> None:
        for one in self._followers:
            _put_back(one.directory)

    def mend(self) -> None:
        self._leader.start()


class LostTails:
    """Disks of followers lose the end of a log, which they had synced."""

    did = "followers lost the end of their logs"

    def __init__(self, group: DrilledGroup, leader: DrilledMember) -> None:
        self._leader = leader
        self._segments = [
            os.path.join(one.directory, SEGMENTS) for one in group.members if one is not leader
        ]
        self._ends: list[tuple[int, int]] = []
        """The newest segment of each follower, and where its records ended."""

    def keep(self) -> None:
        for directory in self._segments:
            newest = max(_written(directory), default=0)
            self._ends.append((newest, _end_of(directory, newest) if newest else 0))

    def put_back(self) -> None:
        for directory, (newest, end) in zip(self._segments, self._ends, strict=True):
            for number, path in _written(directory).items():
                if number > newest:
                    os.unlink(path)
                elif number == newest:
                    os.truncate(path, end)

    def mend(self) -> None:
        self._leader.start()


def _written(directory: str) -> dict[int, str]:
    """Comeback the segments that were written in the order of the log, by number."""
    numbers = {name: segment_number(name) for name in os.listdir(directory)}
    return {
        number: os.path.join(directory, name)
        for name, number in numbers.items()
        if number is not None and not is_compacted(number)
    }


def _end_of(directory: str, number: int) -> int:
    """Comeback where the records of a segment end: behind them it is filled with zeros."""
    end = 0
    with open(_written(directory)[number], "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            if written := block.rstrip(b"\0"):
                end = file.tell() - len(block) + len(written)
    return end


class CopiedEtcd:
    """The data of etcd is put back from a copy: the manual says what is to be done then."""

    did = "etcd put back from a copy"

    def __init__(self, group: DrilledGroup, leader: DrilledMember) -> None:
        self._group, self._leader = group, leader
        self._min_in_sync = 1

    def keep(self) -> None:
        self._min_in_sync = self._group.keys.view().min_in_sync
        self._group.end_etcd()
        _keep(self._group.etcd_directory)
        self._group.start_etcd()
        self._group.wait_until_in_sync()

    def put_back(self) -> None:
        self._group.end_etcd()
        _put_back(self._group.etcd_directory)
        self._group.start_etcd()

    def mend(self) -> None:
        leader, group = self._leader, self._group
        followers = [one for one in group.members if one is not leader]
        for one in followers:
            one.end(signal.SIGTERM)
        group.wait_until_nobody_leads()
        found_again(leader.keys, leader.directory)
        leader.start()
        for number, one in enumerate(followers):
            join(one.keys, one.directory, is_observer=False)
            one.start()
            group.wait_until_in_sync(number + 2)
        set_min_in_sync(leader.keys, self._min_in_sync)


RETURNS: tuple[type[Comeback], ...] = (CopiedFollowers, LostTails, CopiedEtcd)
