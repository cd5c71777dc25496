"""The data directory of a member, which the file MEMBER beside the store makes one."""

from __future__ import annotations

import os
import secrets
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from amqpstore import NotAStoreError
from amqpstore.errors import MembershipError
from amqpstore.identity import marker
from amqpstore.recovery.opening import lock_directory
from amqpstore.replica import (
    FollowerStore,
    Membership,
    create_follower,
    read_membership,
    remove_membership,
    write_membership,
)
from amqpstore.system.files import OsFiles
from amqpstore_tools.offline.exits import ToolError

_FILES = OsFiles()


class MemberStore(NamedTuple):
    """The contents of a member's store: its id, the highest term it knows, and the LSN of the last
    batch of its log.
    """

    store_id: str
    term: int
    last_lsn: int


def membership_of(directory: str) -> Membership | None:
    """Return whose directory it is; None for a single node's, or none at all."""
    return read_membership(_FILES, directory) if os.path.isdir(directory) else None


def store_id_of(directory: str) -> str:
    """Return the id of a directory's store; empty if there is none yet. Raises: StoreError."""
    marker.check_directory(_FILES, directory)
    found = marker.read(_FILES, directory) if os.path.isdir(directory) else None
    return found.store_id.hex if found else ""


def make_member(directory: str, cluster: int, group_id: str) -> Membership:
    """Make a directory that of a new member, with the store it has, or a new one.

    Raises: StoreError, OSError.
    """
    made = Membership(secrets.token_hex(8), cluster, group_id)
    if store_id_of(directory):
        with _locked(directory):
            write_membership(_FILES, directory, made)
    else:
        create_follower(directory, uuid.uuid4(), made)
    return made


def make_follower(directory: str, store_id: str, cluster: int, group_id: str) -> Membership:
    """Make an empty directory that of a new member of a group. Raises: ToolError, OSError."""
    made = Membership(secrets.token_hex(8), cluster, group_id)
    try:
        create_follower(directory, uuid.UUID(store_id), made)
    except (MembershipError, NotAStoreError) as error:
        is_foreign = isinstance(error, NotAStoreError)
        what = f"is not empty: {error.reason}" if is_foreign else error.reason
        raise ToolError(
            f"{directory} {what}. A new member begins empty, and fetches what the leader "
            "has: name another directory with --data"
        ) from None
    return made


def set_group(directory: str, membership: Membership, cluster: int, group_id: str) -> Membership:
    """Have a member belong to a group that was founded anew from it: what it saw of the one before
    counts no more. Raises: StoreLockedError, OSError.
    """
    made = membership._replace(cluster=cluster, group=group_id, revision=0, term=0, floor=0)
    with _locked(directory):
        write_membership(_FILES, directory, made)
    return made


def forget_membership(directory: str) -> None:
    """Make a member's directory that of a single node. Raises: StoreLockedError, OSError."""
    with _locked(directory):
        remove_membership(_FILES, directory)


def check_stopped(directory: str) -> None:
    """Raises: StoreLockedError, if a broker runs on the directory."""
    with _locked(directory):
        pass


def member_store(directory: str) -> MemberStore:
    """Recover a member's store, as its broker would, and say what it has. Raises: StoreError."""
    store = FollowerStore.open(directory)
    try:
        return MemberStore(store.store_id.hex(), store.term, store.last.lsn)
    finally:
        store.close()


@contextmanager
def _locked(directory: str) -> Iterator[None]:
    lock = lock_directory(_FILES, directory)
    try:
        yield
    finally:
        lock.release()
