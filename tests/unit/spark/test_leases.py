"""Leases: links that outlive their segments, and who removes them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from amqpstore_tools.offline.read_only_files import ReadOnlyFile, ReadOnlyFiles
from amqpstore_tools.spark.reading import leases
from amqpstore_tools.spark.reading.leases import Driver, LeasedFile, release, sweep, take_lease
from tests.waiting import wait_until


@pytest.fixture
def leased_file(tmp_path: Path) -> LeasedFile:
    path = tmp_path / "0000000001.segment"
    path.write_bytes(b"bytes of a segment")
    file = ReadOnlyFiles().open(str(path))
    assert isinstance(file, ReadOnlyFile)
    return LeasedFile(file, path.name, 5)


@pytest.fixture
def driver() -> subprocess.Popen[bytes]:
    """A process that leases are taken for; the test ends it."""
    return subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )


def as_driver(process: subprocess.Popen[bytes]) -> Driver:
    return Driver(leases._host(), process.pid, leases._started(process.pid))


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdin:
        process.stdin.close()


def watcher_of(path: str) -> int:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as file:
                if path in file.read().split("\0"):
                    return int(pid)
        except OSError:
            continue
    return 0


def test_a_lease_goes_with_its_driver(
    tmp_path: Path, leased_file: LeasedFile, driver: subprocess.Popen[bytes]
) -> None:
    path = take_lease([leased_file], str(tmp_path / "h"), idle_s=60, driver=as_driver(driver))
    os.unlink(tmp_path / leased_file.name)
    sweep(str(tmp_path / "h"))
    assert Path(path, leased_file.name).read_bytes() == b"bytes of a segment"
    end(driver)
    wait_until(lambda: not os.path.exists(tmp_path / "h"))


def test_a_segment_that_is_gone_already_is_copied(
    tmp_path: Path, leased_file: LeasedFile, driver: subprocess.Popen[bytes]
) -> None:
    os.unlink(tmp_path / leased_file.name)
    path = take_lease([leased_file], str(tmp_path / "h"), idle_s=60, driver=as_driver(driver))
    assert Path(path, leased_file.name).read_bytes() == b"bytes"
    release(path)
    assert not os.path.exists(tmp_path / "h")
    end(driver)


OWNER = {"host": "other", "pid": 1, "started": "1", "idle_s": 60}


@pytest.mark.parametrize(
    "owner",
    [
        *(b"", b"null", b"[]", b"5", b"\xff", b"[" * 4096),
        *(
            json.dumps({**OWNER, key: value}).encode()
            for key, value in (
                *(("host", None), ("pid", "../../x"), ("pid", -1), ("pid", 1 << 80)),
                *(("started", []), ("idle_s", "1"), ("idle_s", float("inf")), ("idle_s", 1 << 80)),
            )
        ),
    ],
)
def test_a_lease_whose_owner_is_not_readable_is_removed_when_it_is_old(
    tmp_path: Path, owner: bytes
) -> None:
    path = tmp_path / "h" / "x"
    path.mkdir(parents=True)
    (path / "0000000001.segment").write_bytes(b"leased")
    (path / "lease").write_bytes(owner)
    sweep(str(tmp_path / "h"))
    assert path.exists(), "it may be one that is being made"
    os.utime(path / "lease", (1, 1))
    sweep(str(tmp_path / "h"))
    assert not path.exists()


def test_a_lease_that_nobody_reads_from_expires(
    tmp_path: Path, leased_file: LeasedFile, driver: subprocess.Popen[bytes]
) -> None:
    path = take_lease([leased_file], str(tmp_path / "h"), idle_s=1, driver=as_driver(driver))
    wait_until(lambda: not os.path.exists(path))
    end(driver)


def test_what_a_killed_watcher_left_is_removed_by_the_next(
    tmp_path: Path, leased_file: LeasedFile, driver: subprocess.Popen[bytes]
) -> None:
    path = take_lease([leased_file], str(tmp_path / "h"), idle_s=60, driver=as_driver(driver))
    wait_until(lambda: watcher_of(path) > 0)
    os.kill(watcher_of(path), signal.SIGKILL)
    wait_until(lambda: watcher_of(path) == 0)
    sweep(str(tmp_path / "h"))
    assert os.path.exists(path), "its driver still runs"
    end(driver)

    def is_swept() -> bool:
        # What is being killed may hold its lock a little longer.
        if os.path.exists(tmp_path / "h"):
            sweep(str(tmp_path / "h"))
        return not os.path.exists(path)

    wait_until(is_swept)


def test_new_segments_are_linked_as_they_come(
    tmp_path: Path, driver: subprocess.Popen[bytes]
) -> None:
    segments = tmp_path / "segments"
    segments.mkdir()
    path = take_lease(
        [], str(tmp_path / "h"), idle_s=60, driver=as_driver(driver), follow=str(segments)
    )
    (segments / "0000000007.segment").write_bytes(b"seven")
    (segments / "2147483648.segment").write_bytes(b"compacted")
    wait_until(lambda: os.path.exists(os.path.join(path, "0000000007.segment")))
    (segments / "0000000007.segment").unlink()
    assert sorted(os.listdir(path)) == ["0000000007.segment", "lease"]
    end(driver)
    wait_until(lambda: not os.path.exists(path))
