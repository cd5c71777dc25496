"""Runs a command whose temporary files are in a directory of its own, in memory, and removes those
that dead runs have left there.

The stores of a whole run take gigabytes, and a run that is killed removes none of them. What the
last run has left is there until the next one begins, for whoever looks into a failed test.

    python -m tests.in_memory /dev/shm COMMAND...
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
from pathlib import Path

PREFIX = "amqptest-"
"""Short, as the path of a socket has at most 107 octets."""
_LOCK = "lock"


def new_directory(parent: Path) -> tuple[Path, int]:
    """Make a directory that is locked until a descriptor is closed. Returns both."""
    unnamed = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=parent))
    unnamed.chmod(0o1777)  # as /tmp: some tests are another user for a while
    lock = os.open(unnamed / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    # Another run may look at any time: under its name it is locked from the first moment.
    return unnamed.rename(parent / unnamed.name.removeprefix(".")), lock


def remove_dead(parent: Path) -> list[str]:
    """Remove the directories of this user's runs that no running process has locked. Returns their
    names.
    """
    removed = []
    for directory in sorted(parent.glob(f"{PREFIX}*")):
        try:
            lock = os.open(directory / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # another user's, or another run removes it this moment
            continue
        try:
            if os.fstat(lock).st_uid == os.getuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(directory)
                removed.append(directory.name)
        except BlockingIOError:
            pass  # it runs
        finally:
            os.close(lock)
    return removed


def _remove(directory: Path) -> None:
    """Remove the lock last: what is left if this process is killed is found again."""
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != _LOCK:
            path.unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)


def main(parent: str, *command: str) -> None:
    """Replace this process by a command."""
    remove_dead(Path(parent))
    directory, lock = new_directory(Path(parent))
    # The command keeps the lock; what it starts does not, as Python closes descriptors there.
    os.set_inheritable(lock, True)
    os.environ["TMPDIR"] = str(directory)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
