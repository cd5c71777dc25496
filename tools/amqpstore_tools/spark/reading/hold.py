"""Keeping the segments of a store there while jobs read them.

A hold is a directory of hard links to segments. A broker may compact and remove what it likes
meanwhile; what the links name stays, and takes room on the disk as long. Links were chosen over
open files, as tasks run in other processes, and maybe on other machines that see the same files.

Who removes it:

1. Its keeper: a small process of its own that ends with the hold. It removes it when the driver
   (Spark's JVM) is gone, however it ended, or when no task has read from it for `idle_s`.
2. If the keeper was killed too: the process that takes the next hold on that store. A hold is given
up
   when nobody has its `lease` locked and its driver is gone.

Order: the directory is made, `lease` is created and locked, links are made, the keeper starts and
inherits the lock. A crash before the last leaves a hold that 2 removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable
from typing import Annotated, NamedTuple

import msgspec

from amqpstore.errors import StoreError
from amqpstore.filenames import FIRST_COMPACTED, segment_number
from amqpstore_tools.offline.pinning import CANNOT_LINK
from amqpstore_tools.offline.reading import ReadOnlyFile

LEASE = "lease"
SUFFIX = ".holds"

_YOUNG_S = 60
"""A directory without a lease may be one that is being made."""

_COPY_BYTES = 1 << 20
_FOLLOW_S = 0.1
_LOOK_S = 2.0
"""A keeper ends that soon when somebody else has removed its hold."""


class HoldError(StoreError):
    """The segments of a running broker cannot be held."""

    def __init__(self, directory: str, error: OSError) -> None:
        super().__init__(
            f"the segments of the running broker cannot be linked into {directory}: {error}. Name "
            'a directory on the same file system that can be written to: option("hold", PATH).'
        )
        self.directory = directory


class HeldFile(NamedTuple):
    """A segment that is to be held: its file, the name in the hold, and how much of it counts."""

    file: ReadOnlyFile
    name: str
    size: int


class Driver(NamedTuple):
    """A process of some machine. `started` tells it from a later one with the same pid."""

    host: str
    pid: int
    started: str

    @classmethod
    def find(cls) -> Driver:
        """Spark's JVM above this process; the process itself, where there is none."""
        pid = os.getppid()
        while pid > 1:
            name, parent, _ = _stat(pid)
            if name == "java":
                return cls(_host(), pid, _started(pid))
            pid = parent
        return cls(_host(), os.getpid(), _started(os.getpid()))

    @property
    def is_here(self) -> bool:
        """Whether it runs on this machine, since its last start."""
        return self.host == _host()

    @property
    def is_alive(self) -> bool:
        """Whether it still runs. On another machine nobody knows."""
        return not self.is_here or _started(self.pid) == self.started


class _Owner(msgspec.Struct):
    """What a lease says: whose hold it is, and how long nobody may read before it is given up."""

    host: str
    pid: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
    started: str
    idle_s: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]


def hold(
    files: Iterable[HeldFile],
    directory: str,
    *,
    idle_s: int,
    driver: Driver | None = None,
    follow: str = "",
) -> str:
    """Link files into a new hold in `directory`. Returns the hold's own directory.

    Args: follow, a directory: the keeper links new segments of it as they come, too.
    Raises: HoldError, OSError.
    """
    driver = driver or Driver.find()
    try:
        os.makedirs(directory, exist_ok=True)
        sweep(directory)
        path = os.path.join(directory, uuid.uuid4().hex)
        os.mkdir(path)
    except OSError as error:
        raise HoldError(directory, error) from error
    try:
        lease = os.open(os.path.join(path, LEASE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(lease, json.dumps(driver._asdict() | {"idle_s": idle_s}).encode())
            for one in files:
                _link(one, path)
            _start_keeper(path, lease, follow)
        finally:
            os.close(lease)
    except BaseException as error:
        _remove(path)
        if isinstance(error, OSError) and error.errno in CANNOT_LINK:
            raise HoldError(directory, error) from error
        raise
    return path


def touch(path: str) -> None:
    """Somebody reads from a hold. Raises: FileNotFoundError, where it was given up."""
    os.utime(os.path.join(path, LEASE))


def release(path: str) -> None:
    """Remove a hold now. Whoever has a file of it open can go on reading."""
    _remove(path)


def sweep(directory: str) -> None:
    """Remove the holds in a directory that nobody keeps any more."""
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        with contextlib.suppress(OSError):
            if _is_given_up(path):
                _remove(path)


def _is_given_up(path: str) -> bool:
    try:
        lease = os.open(os.path.join(path, LEASE), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return not os.listdir(path) and time.time() - os.stat(path).st_mtime > _YOUNG_S
    try:
        fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
        untouched_s = time.time() - os.fstat(lease).st_mtime
        driver, idle_s = _owner(lease)
    except BlockingIOError:
        return False
    except ValueError:
        # Whoever made it died before it said so, or it was damaged since: nobody keeps it.
        return untouched_s > _YOUNG_S
    finally:
        os.close(lease)
    return untouched_s > idle_s or not driver.is_alive


def _owner(lease: int) -> tuple[Driver, int]:
    """Raises: ValueError, where the lease does not say it."""
    try:
        found = msgspec.json.decode(os.pread(lease, 4096, 0), type=_Owner)
    except RecursionError as error:
        raise ValueError(str(error)) from None
    return Driver(found.host, found.pid, found.started), found.idle_s


def _link(one: HeldFile, path: str) -> None:
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
    """Remove a hold, the lease last: without it nobody would."""
    for name in sorted(os.listdir(path), key=LEASE.__eq__):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(path, name))
    with contextlib.suppress(OSError):
        os.rmdir(path)
        # The last one takes the directory of all with it.
        os.rmdir(os.path.dirname(path))


def link_new(segments: str, path: str, above: int = 0) -> None:
    """Link the segments of the log in a directory, with numbers from `above` on, into a hold."""
    for name in os.listdir(segments):
        number = segment_number(name)
        if number is None or not above <= number < FIRST_COMPACTED:
            continue
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            os.link(os.path.join(segments, name), os.path.join(path, name))


def _start_keeper(path: str, lease: int, follow: str) -> None:
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    # It returns when the keeper is a process of its own.
    subprocess.run(  # noqa: S603 - this very module
        [sys.executable, "-m", "amqpstore_tools.spark.reading.hold", path, str(lease), follow],
        cwd=root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[lease],
        start_new_session=True,
        check=True,
    )


def keep(path: str, lease: int, follow: str = "") -> None:
    """Be the keeper of a hold: returns when it is removed."""
    driver, idle_s = _owner(lease)
    touched, touched_at = os.fstat(lease).st_mtime, time.monotonic()
    try:
        watched = os.pidfd_open(driver.pid)
    except ProcessLookupError:
        watched = -1
    while watched >= 0 and driver.is_alive and os.path.isdir(path):
        if (now := os.fstat(lease).st_mtime) != touched:
            # Whether somebody reads is seen by that it changes: how old it is depends on a clock
            # that may have been set.
            touched, touched_at = now, time.monotonic()
        left = idle_s - (time.monotonic() - touched_at)
        if left <= 0:
            break
        ended, _, _ = select.select([watched], [], [], min(left, _FOLLOW_S if follow else _LOOK_S))
        if ended:
            break
        if follow:
            with contextlib.suppress(FileNotFoundError):
                link_new(follow, path, _highest(path))
    with contextlib.suppress(FileNotFoundError):
        _remove(path)


def _highest(path: str) -> int:
    """The highest number of a segment in a hold."""
    return max((number for name in os.listdir(path) if (number := segment_number(name))), default=0)


def _host() -> str:
    """This machine, since its last start."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{socket.gethostname()} {file.read().strip()}"


def _stat(pid: int) -> tuple[str, int, str]:
    """Name, parent and time of start of a process; nothing where it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return "", 0, ""
    # The name is in parentheses and may hold anything.
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return name, int(fields[1]), fields[19] if fields[0] != "Z" else ""


def _started(pid: int) -> str:
    return _stat(pid)[2]


if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    keep(sys.argv[1], int(sys.argv[2]), sys.argv[3])
