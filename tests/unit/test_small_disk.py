"""A disk that is made full while another process writes there."""

import errno
import os
from pathlib import Path

import pytest

from tests import small_disk
from tests.small_disk import fill

MIB = 1 << 20


class Room:
    """A disk of `free_bytes`, of which another program takes some at a call."""

    def __init__(self, free_bytes: int, taken: dict[int, int]) -> None:
        self.free_bytes = free_bytes
        self.calls = 0
        self._taken = taken

    def allocate(self, _descriptor: int, _offset: int, size: int) -> None:
        self.free_bytes -= self._taken.get(self.calls, 0)
        self.calls += 1
        if size > self.free_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.free_bytes -= size


@pytest.mark.parametrize("taken", [{}, {0: 40 * MIB}, {1: 30 * MIB, 3: 5 * MIB}, {2: 99 * MIB}])
def test_a_disk_is_filled_whoever_else_writes_there(
    taken: dict[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(100 * MIB, taken)
    monkeypatch.setattr(os, "posix_fallocate", room.allocate)
    monkeypatch.setattr(small_disk, "free_bytes", lambda _path: max(0, room.free_bytes))
    fill(str(tmp_path / "filler"), MIB)
    assert room.free_bytes <= MIB
    assert room.calls < 50
