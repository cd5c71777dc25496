"""A real disk that is small and a test's own, so that it is full when the test says so."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


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
    """Make a file there that takes all of its disk but so much."""
    disk = os.statvfs(os.path.dirname(path))
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, disk.f_bavail * disk.f_frsize - left_bytes)
