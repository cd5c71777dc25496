"""Files in a store that the owner of the store may not use, because they belong to another user.

A broker runs as the user to whom its store belongs. Root reads everything, so to root a file that
`cp` or an editor has left as root's looks as sound as any other, and the broker does not start.

The owner of a store is that of its directory, or, if that is root's (a volume that is mounted),
that of its marker. A store in which nothing but the directory belongs to that user is used by
another one: by root in a container, say, that may not give files away.
"""

from __future__ import annotations

import os
import pwd
import shlex
import stat
from collections.abc import Iterator
from typing import NamedTuple

from amqpstore.evidence import names_in_store
from amqpstore.system.filenames import CATALOG, CATALOG_FILE, CATALOG_LOCK, LOCK, MARKER
from amqpstore.system.files import Files, FileType
from amqpstore.system.ownership import ROOT, Owner

_WRITTEN = (LOCK, f"{CATALOG}/{CATALOG_FILE}", f"{CATALOG}/{CATALOG_LOCK}")
"""The files that a start opens for writing; it opens all others that exist for reading only."""

_ACL = "system.posix_acl_access"


class ForeignFile(NamedTuple):
    """A file or directory `name`, relative to that of a store, which belongs to the user `uid`, so
    that the `owner` of the store may not open it.
    """

    path: str
    name: str
    uid: int
    mode: int
    owner: Owner

    @property
    def reason(self) -> str:
        """The fault, and what to do, as text for people."""
        return (
            f"it belongs to user {self.uid}, with mode {self.mode:04o}: user {self.owner.uid}, who "
            f"owns the store, may not open it as a broker has to. Give it to that user: {self.cure}"
        )

    @property
    def cure(self) -> str:
        """The command that cures it."""
        return f"chown {self.owner.uid}:{self.owner.gid} {shlex.quote(self.path)}"


def find_foreign(files: Files, directory: str) -> Iterator[ForeignFile]:
    """Yield what the owner of the store in a directory may not open, although this process may.

    Args: files, which say what there is; whose it is, the operating system says. Raises: OSError.
    """
    owner = _owner_of_store(directory)
    if owner is None or owner.uid == ROOT:
        return
    groups = _groups(owner)
    is_used_by_owner = False
    foreign = []
    for name, expected in names_in_store(files, directory):
        path = f"{directory}/{name}"
        if files.type_of(path) is not expected:
            continue
        try:
            status = os.stat(path)
        except FileNotFoundError:
            continue  # A broker that runs has removed it, or it is in a snapshot only.
        if status.st_uid == owner.uid:
            is_used_by_owner = True
        elif not _may_open(status, groups, _needed(name, expected)) and not _has_acl(path):
            mode = stat.S_IMODE(status.st_mode)
            foreign.append(ForeignFile(path, name, status.st_uid, mode, owner))
    if is_used_by_owner:
        yield from foreign


def _owner_of_store(directory: str) -> Owner | None:
    """Return whose store it is; None if nothing says that."""
    for path in (directory, f"{directory}/{MARKER}"):
        try:
            status = os.stat(path)
        except OSError:
            return None
        if status.st_uid != ROOT:
            return Owner(status.st_uid, status.st_gid)
    return Owner(ROOT, ROOT)


def _groups(owner: Owner) -> frozenset[int]:
    """Return the groups of a user, as far as they are known here: in a container, or for the user
    of one, there may be only numbers.
    """
    try:
        name = pwd.getpwuid(owner.uid).pw_name
    except KeyError:
        return frozenset({owner.gid})
    return frozenset({owner.gid, *os.getgrouplist(name, owner.gid)})


def _needed(name: str, expected: FileType) -> int:
    """Return the rights that a broker needs, as bits of a mode: in each directory it creates and
    removes files.
    """
    if expected is FileType.DIRECTORY:
        return 0o7
    return 0o6 if name in _WRITTEN else 0o4


def _may_open(status: os.stat_result, groups: frozenset[int], needed: int) -> bool:
    """Tell whether somebody in these groups, who does not own a file, has all rights needed."""
    given = status.st_mode >> 3 if status.st_gid in groups else status.st_mode
    return given & needed == needed


def _has_acl(path: str) -> bool:
    """Tell whether more than its mode says who may open a file."""
    try:
        return bool(os.getxattr(path, _ACL))
    except OSError:
        return False
