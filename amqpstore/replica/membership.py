"""The file MEMBER, which makes a data directory that of one member of a group.

It is written when the directory is filled, beside the marker, and never copied: a member whose disk
was replaced is another one, and in no list of replicas until it has caught up.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from amqpstore.errors import DamageError
from amqpstore.filenames import MEMBER, NEW_MEMBER
from amqpstore.files import Files
from amqpstore.replacing import replace_file

_TEXT = "amqpstore member\nmember: {member}\netcd-cluster: {cluster}\n"
_PATTERN = re.compile(
    r"amqpstore member\nmember: ([0-9a-f]{16})\netcd-cluster: (0|[1-9][0-9]{0,19})\n"
)


class Membership(NamedTuple):
    """Which member a directory is of: 16 hexadecimal digits, and the id of the etcd cluster that
    its group is kept in; 0 if it has not heard of one yet.
    """

    member: str
    cluster: int = 0


def read_membership(files: Files, directory: str) -> Membership | None:
    """Read the file; None if there is none. Raises: DamageError, OSError."""
    path = os.path.join(directory, MEMBER)
    if not files.exists(path):
        return None
    file = files.open(path)
    try:
        text = file.read(0, 4096).decode("utf-8", "replace")
    finally:
        file.close()
    found = _PATTERN.fullmatch(text)
    if found is None:
        raise DamageError(path, 0, "it does not name a member")
    return Membership(found[1], int(found[2]))


def write_membership(files: Files, directory: str, membership: Membership) -> None:
    """Write the file, or replace it. Durable on return. Raises: ValueError, OSError."""
    text = _TEXT.format(member=membership.member, cluster=membership.cluster)
    if not _PATTERN.fullmatch(text):
        raise ValueError(f"{membership} is not a member of a group")
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
