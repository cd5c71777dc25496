"""A real disk that is small and a test's own, so that it is full when the test says so."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_PIECE_BYTES = 16 << 20
_BLOCK_BYTES = 4096


@contextmanager
def small_disk(path: str, mebibytes: int) -> Iterator[str]:
    """A new tmpfs of that size at `path`. Skips the test where nothing can be mounted."""
    os.mkdir(path)
    options = ["-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs"]
    mounted = subprocess.run(["mount", *options, path], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def fill(path: str, left_bytes: int) -> None:
    """Make a file that takes all of its disk except `left_bytes`, even while other processes write
    there.
    """
    piece_bytes = _PIECE_BYTES
    size = 0
    with open(path, "wb") as file:
        # What another process has taken since the last look cannot be had.
        while piece_bytes >= _BLOCK_BYTES and (room_bytes := free_bytes(path) - left_bytes) > 0:
            try:
                os.posix_fallocate(file.fileno(), size, min(piece_bytes, room_bytes))
                size += min(piece_bytes, room_bytes)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                piece_bytes //= 2


def free_bytes(path: str) -> int:
    """Return how much is free on the disk of a file."""
    disk = os.statvfs(os.path.dirname(path))
    return disk.f_bavail * disk.f_frsize
