"""The owner of what root creates in a store.

A broker runs as a user of its own, and root works on its store with tools. What root creates would
be root's, and the broker could then neither read nor write it. So each new file and directory is
given to the owner of the directory that it is in. If that is root's (a volume that is mounted, or a
directory that an earlier version created), it is given to the owner of the store: that of its
directory, or else that of its marker.

Root is any process with that effective user, also one that may not give files away (a container
without that capability, a network file system that does not trust root): there they stay its own.
"""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

from amqpstore.system.filenames import MARKER

_NOT_POSSIBLE = {errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}
_MAX_LEVELS = 5
"""From a file in `quarantine/repair-N/new/segments/` to the directory of its store."""

ROOT = 0


class Owner(NamedTuple):
    """A user and a group, by their numbers."""

    uid: int
    gid: int


def owner_of(path: str) -> Owner:
    """Return who owns a file or a directory. Raises: OSError."""
    return _owner(os.stat(path))


def _owner(found: os.stat_result) -> Owner:
    return Owner(found.st_uid, found.st_gid)


def owner_in(directory: str) -> Owner:
    """Return who is to own what is created in a directory. Raises: OSError."""
    here = owner_of(directory or os.curdir)
    path = os.path.abspath(directory)
    for _ in range(_MAX_LEVELS):
        if here.uid != ROOT:
            return here
        try:
            marked = os.lstat(os.path.join(path, MARKER))
        except OSError:
            path = os.path.dirname(path)
            continue
        store = owner_of(path)
        return store if store.uid != ROOT else _owner(marked)
    return here


def give(descriptor: int, directory: str) -> None:
    """Give an open file, which root has created in `directory`, to whom that is to belong.

    Does nothing if this process is not root's, nor to a file with several names: others of them may
    be in another store.
    Raises: OSError.
    """
    if os.geteuid() != ROOT:
        return
    found = os.fstat(descriptor)
    if found.st_nlink == 1:
        _give_to(descriptor, found, owner_in(directory))


def give_directory(path: str, owner: Owner | None = None) -> None:
    """Give a directory that root has created to an owner: by default to whom belongs what is
    created beside it.

    Does nothing if this process is not root's. Raises: OSError.
    """
    if os.geteuid() != ROOT:
        return
    # Not where a link leads to that somebody else has put in its place.
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        parent = os.path.dirname(os.path.abspath(path))
        _give_to(descriptor, os.fstat(descriptor), owner or owner_in(parent))
    finally:
        os.close(descriptor)


def _give_to(descriptor: int, found: os.stat_result, owner: Owner) -> None:
    if _owner(found) != owner:
        try:
            os.fchown(descriptor, *owner)
        except OSError as error:
            if error.errno not in _NOT_POSSIBLE:
                raise


def make_directories(path: str) -> None:
    """Create a directory of a store, and its missing parents, unless it exists. Not durable.

    Raises: OSError.
    """
    if os.path.isdir(path):
        return
    parent = os.path.dirname(os.path.abspath(path))
    make_directories(parent)
    try:
        os.mkdir(path, 0o750)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    else:
        give_directory(path)


def prepare_file(path: str) -> None:
    """Have a file that LMDB opens, or creates, belong to the owner of its store.

    If this process is root's it is created here, empty, which LMDB takes for missing. It must not
    be open: closing a descriptor of it drops LMDB's lock.
    """
    if os.geteuid() != ROOT:
        return
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o640)
    except OSError:
        return  # LMDB will say what is wrong with it.
    try:
        give(descriptor, os.path.dirname(path))
    finally:
        os.close(descriptor)
