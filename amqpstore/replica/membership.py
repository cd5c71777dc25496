"""The file MEMBER, which makes a data directory that of one member of a group.

It is written when the directory is filled, beside the marker, and never copied: a member whose disk
was replaced is another one, and in no list of replicas until it has caught up.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from amqpstore.errors import DamageError
from amqpstore.system.filenames import MEMBER, NEW_MEMBER
from amqpstore.system.files import Files
from amqpstore.system.replacing import replace_file

_HEAD = "amqpstore member\nmember: {member}\netcd-cluster: {cluster}\n"
_PATTERN = re.compile(
    r"amqpstore member\nmember: ([0-9a-f]{16})\netcd-cluster: (0|[1-9][0-9]{0,19})\n"
    # What a later version adds is not read here, and is no damage.
    r"((?:[a-z][a-z-]{0,39}: [ -~]{0,200}\n)*)"
)
_NUMBER = re.compile(r"0|[1-9][0-9]{0,19}")
_GROUP = re.compile(r"[0-9a-f]{32}")
_MAX_BYTES = 4096


class Membership(NamedTuple):
    """The member that a directory belongs to: 16 hexadecimal digits, and the id of the etcd cluster
    that its group is kept in; 0 if it has not heard of one yet.

    The others tell how far the group had come when the file was written: see FORMAT.md.
    """

    member: str
    cluster: int = 0
    group: str = ""
    revision: int = 0
    term: int = 0
    floor: int = 0
    generation: int = 0
    confirmed: int = 0


_LINES = ("etcd-revision", "term", "floor", "generation", "confirmed")


def read_membership(files: Files, directory: str) -> Membership | None:
    """Read the file; None if there is none. Raises: DamageError, OSError."""
    path = os.path.join(directory, MEMBER)
    if not files.exists(path):
        return None
    file = files.open(path)
    # One byte more than is allowed is read, so a longer file does not match.
    try:
        text = file.read(0, _MAX_BYTES + 1).decode("utf-8", "replace")
    finally:
        file.close()
    found = _PATTERN.fullmatch(text)
    if found is None:
        raise DamageError(path, 0, "it does not name a member")
    lines = dict(line.split(": ", 1) for line in found[3].splitlines())
    group = lines.get("group", "")
    numbers = [lines.get(name, "0") for name in _LINES]
    if (group and not _GROUP.fullmatch(group)) or not all(map(_NUMBER.fullmatch, numbers)):
        raise DamageError(path, 0, "it does not say how far its group had come")
    return Membership(found[1], int(found[2]), group, *map(int, numbers))


def write_membership(files: Files, directory: str, membership: Membership) -> None:
    """Write the file, or replace it. Durable on return. Raises: ValueError, OSError."""
    member, cluster, group, *numbers = membership
    text = _HEAD.format(member=member, cluster=cluster)
    if not _PATTERN.fullmatch(text) or (group and not _GROUP.fullmatch(group)):
        raise ValueError(f"{membership} is not a member of a group")
    if group:
        text += f"group: {group}\n"
    text += "".join(f"{name}: {one}\n" for name, one in zip(_LINES, numbers, strict=True) if one)
    # Written beside it and renamed: a torn MEMBER would be a member without a name.
    replace_file(files, directory, MEMBER, text.encode())


def remove_membership(files: Files, directory: str) -> None:
    """Remove the file: the directory is that of a single node from now on. Durable on return.

    Raises: OSError.
    """
    for name in (NEW_MEMBER, MEMBER):
        path = os.path.join(directory, name)
        if files.exists(path):
            files.remove(path)
    files.sync_directory(directory)
