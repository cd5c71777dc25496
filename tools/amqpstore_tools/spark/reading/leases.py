"""Leases: they keep the segments of a store readable while jobs read them.

A lease is a directory of hard links to segments. A broker may compact and remove segments
meanwhile; linked files stay, and take disk space until the lease is removed. Links are used instead
of open files because tasks run in other processes, and perhaps on other machines that see the same
files.

A lease is removed by

1. its watcher: a small process of its own, when the driver (Spark's JVM) has ended in whatever way,
   or when no task has read from the lease for `idle_s`;
2. if the watcher was killed too, the process that takes the next lease on that store. A lease has
   expired when its file `lease` is not locked and its driver has ended.

Order: the directory is created, `lease` is created and locked, links are made, the watcher starts
and inherits the lock. A crash before the last step leaves a lease that 2 removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable
from multiprocessing.connection import wait
from typing import Annotated, NamedTuple

import msgspec

from amqpstore.errors import StoreError
from amqpstore.identity.expected_segments import log_segments
from amqpstore.system.filenames import segment_name, segment_numbers
from amqpstore_tools.offline.pinning import CANNOT_LINK
from amqpstore_tools.offline.read_only_files import ReadOnlyFile

SUFFIX = ".leases"
"""Leases on the store DIR are in DIR.leases by default."""

_OWNER_FILE = "lease"

_YOUNG_S = 60
"""A directory without a lease may be one that is just being created."""

_COPY_BYTES = 1 << 20
_FOLLOW_S = 0.1
_LOOK_S = 2.0
"""A watcher ends within this time when somebody else has removed its lease."""


class LeaseError(StoreError):
    """The segments of a running broker cannot be linked."""

    def __init__(self, directory: str, error: OSError) -> None:
        super().__init__(
            f"the segments of the running broker cannot be linked into {directory}: {error}. Name "
            "a directory on the same file system that can be written to: "
            'option("lease_directory", PATH).'
        )
        self.directory = directory


class LeasedFile(NamedTuple):
    """A segment to be linked: its file, its name in the lease, and how many bytes of it count."""

    file: ReadOnlyFile
    name: str
    size: int


class Driver(NamedTuple):
    """A process on some machine. `started` distinguishes it from a later one with the same pid."""

    host: str
    pid: int
    started: str

    @classmethod
    def find(cls) -> Driver:
        """Return Spark's JVM above this process; the process itself, if there is none."""
        pid = os.getppid()
        while pid > 1:
            name, parent, _ = _stat(pid)
            if name == "java":
                return cls(_host(), pid, _started(pid))
            pid = parent
        return cls(_host(), os.getpid(), _started(os.getpid()))

    @property
    def is_here(self) -> bool:
        """Whether it runs on this machine, since its last boot."""
        return self.host == _host()

    @property
    def is_alive(self) -> bool:
        """Whether it still runs. Unknown for another machine."""
        return not self.is_here or _started(self.pid) == self.started


class _Owner(msgspec.Struct):
    """The owner of a lease, and the time without a reader after which it expires."""

    host: str
    pid: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
    started: str
    idle_s: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]


def take_lease(
    files: Iterable[LeasedFile],
    directory: str,
    *,
    idle_s: int,
    driver: Driver | None = None,
    follow: str = "",
) -> str:
    """Link files into a new lease in `directory`. Returns the directory of the lease itself.

    Args: follow, a directory: the watcher also links new segments in it as they appear.
    Raises: LeaseError, OSError.
    """
    driver = driver or Driver.find()
    try:
        os.makedirs(directory, exist_ok=True)
        sweep(directory)
        path = os.path.join(directory, uuid.uuid4().hex)
        os.mkdir(path)
    except OSError as error:
        raise LeaseError(directory, error) from error
    try:
        lease = os.open(
            os.path.join(path, _OWNER_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(lease, json.dumps(driver._asdict() | {"idle_s": idle_s}).encode())
            for file in files:
                _link(file, path)
            _start_watcher(path, lease, follow)
        finally:
            os.close(lease)
    except BaseException as error:
        _remove(path)
        if isinstance(error, OSError) and error.errno in CANNOT_LINK:
            raise LeaseError(directory, error) from error
        raise
    return path


def renew(path: str) -> None:
    """Note that somebody reads from a lease. Raises: FileNotFoundError, if it has expired."""
    os.utime(os.path.join(path, _OWNER_FILE))


def release(path: str) -> None:
    """Remove a lease now. A reader that has a file of it open can continue."""
    _remove(path)


def sweep(directory: str) -> None:
    """Remove the expired leases in a directory."""
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        with contextlib.suppress(OSError):
            if _has_expired(path):
                _remove(path)


def _has_expired(path: str) -> bool:
    try:
        lease = os.open(os.path.join(path, _OWNER_FILE), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return not os.listdir(path) and time.time() - os.stat(path).st_mtime > _YOUNG_S
    try:
        fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
        untouched_s = time.time() - os.fstat(lease).st_mtime
        driver, idle_s = _owner(lease)
    except BlockingIOError:
        return False
    except ValueError:
        # The process that made it died before it wrote the owner, or it was damaged since.
        return untouched_s > _YOUNG_S
    finally:
        os.close(lease)
    return untouched_s > idle_s or not driver.is_alive


def _owner(lease: int) -> tuple[Driver, int]:
    """Return the driver of a lease and its `idle_s`. Raises: ValueError, if they cannot be read."""
    try:
        found = msgspec.json.decode(os.pread(lease, 4096, 0), type=_Owner)
    except RecursionError as error:
        raise ValueError(str(error)) from None
    return Driver(found.host, found.pid, found.started), found.idle_s


def _link(one: LeasedFile, path: str) -> None:
    target = os.path.join(path, one.name)
    try:
        one.file.link(target)
    except FileNotFoundError:
        # Compaction has removed it since the snapshot was taken.
        with open(target, "xb") as copy:
            offset = 0
            while content := one.file.read(offset, min(_COPY_BYTES, one.size - offset)):
                copy.write(content)
                offset += len(content)


def _remove(path: str) -> None:
    """Remove a lease, its owner last: without the owner the rest would not be removed after a
    crash.
    """
    for name in sorted(os.listdir(path), key=_OWNER_FILE.__eq__):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(path, name))
    with contextlib.suppress(OSError):
        os.rmdir(path)
        # The last hold takes the directory of all holds with it.
        os.rmdir(os.path.dirname(path))


def link_new(segments: str, path: str, above: int = 0) -> None:
    """Link the segments of the log in a directory, with numbers from `above` on, into a lease."""
    for name in map(segment_name, log_segments(os.listdir(segments), above)):
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            os.link(os.path.join(segments, name), os.path.join(path, name))


def _start_watcher(path: str, lease: int, follow: str) -> None:
    # It returns when the watcher is a process of its own. It finds its modules where this process
    # does, and not in the working directory, where any file may have the name of one of Python's.
    command = [sys.executable, "-P", "-m", "amqpstore_tools.spark.reading.leases"]
    subprocess.run(  # noqa: S603 - this very module
        [*command, path, str(lease), follow],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[lease],
        start_new_session=True,
        check=True,
    )


def watch(path: str, lease: int, follow: str = "") -> None:
    """Be the watcher of a lease: returns when the lease is removed."""
    driver, idle_s = _owner(lease)
    touched, touched_at = os.fstat(lease).st_mtime, time.monotonic()
    try:
        watched = os.pidfd_open(driver.pid)
    except ProcessLookupError:
        watched = -1
    while watched >= 0 and driver.is_alive and os.path.isdir(path):
        if (now := os.fstat(lease).st_mtime) != touched:
            # Reads are noticed by a change of the time stamp: its age would depend on a clock that
            # may have been set.
            touched, touched_at = now, time.monotonic()
        left = idle_s - (time.monotonic() - touched_at)
        if left <= 0:
            break
        if wait([watched], min(left, _FOLLOW_S if follow else _LOOK_S)):
            break
        if follow:
            with contextlib.suppress(FileNotFoundError):
                linked = segment_numbers(os.listdir(path))
                link_new(follow, path, max(linked, default=0))
    with contextlib.suppress(FileNotFoundError):
        _remove(path)


def _host() -> str:
    """Return an identity of this machine since its last boot."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{socket.gethostname()} {file.read().strip()}"


def _stat(pid: int) -> tuple[str, int, str]:
    """Return name, parent and start time of a process; empty values if it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return "", 0, ""
    # The name is in parentheses and may contain anything.
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return name, int(fields[1]), fields[19] if fields[0] != "Z" else ""


def _started(pid: int) -> str:
    return _stat(pid)[2]


if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    watch(sys.argv[1], int(sys.argv[2]), sys.argv[3])
