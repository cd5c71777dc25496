"""Counts of the bytes that this process writes to disks, and directories in which they are
counted.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

KIB = 1024


def process_bytes() -> int:
    """Return the bytes that this process has made dirty for disks: the kernel counts whole units of
    its cache.
    """
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes:"))


def device_bytes(path: str) -> int:
    """Return the bytes that the device of a path has written since its start, for any process."""
    number = os.stat(path).st_dev
    stat = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat")
    return int(stat.read_text().split()[6]) * 512


@contextmanager
def counted_directory() -> Iterator[str]:
    """A directory on a file system whose writes the kernel counts: not in memory, where temporary
    files may be. Skips the test if there is none.
    """
    for parent in ("/var/tmp", str(Path(__file__).parent)):
        if not os.access(parent, os.W_OK):
            continue
        with tempfile.TemporaryDirectory(prefix="bytes-written-", dir=parent) as directory:
            if _is_counted(directory):
                yield directory
                return
    pytest.skip("no file system here counts what is written to it: they are in memory")


def _is_counted(directory: str) -> bool:
    try:
        before = process_bytes()
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            file.write(bytes(64 * KIB))
            os.fdatasync(file.fileno())
        return process_bytes() > before
    except OSError:  # no /proc, or not that file
        return False


@contextmanager
def disk_of(kind: str, path: str, mebibytes: int) -> Iterator[str]:
    """A new file system of a kind, such as xfs, at `path`. Skips the test where none can be made or
    mounted.
    """
    image = f"{path}.image"
    os.mkdir(path)
    with open(image, "wb") as file:
        file.truncate(mebibytes << 20)
    for command in (["mkfs", "-t", kind, image], ["mount", "-o", "loop", image, path]):
        try:
            subprocess.run(command, capture_output=True, check=True)
        except FileNotFoundError as error:
            pytest.skip(f"no {kind} can be made here: {error}")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no {kind} can be made here: {error.stderr.decode().strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)
        os.unlink(image)
