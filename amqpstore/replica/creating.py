"""Makes an empty directory that of a new member of a group."""

from __future__ import annotations

import os
import uuid

from amqpstore import marker
from amqpstore.catalog import LmdbCatalog, OpenCatalog
from amqpstore.errors import MembershipError, StoreLockedError
from amqpstore.filenames import LOCK, SEGMENTS
from amqpstore.files import Files, OsFiles
from amqpstore.opening import make_store
from amqpstore.replica.membership import Membership, read_membership, write_membership


def create_follower(
    directory: str,
    store_id: uuid.UUID,
    member: Membership,
    *,
    files: Files | None = None,
    open_catalog: OpenCatalog = LmdbCatalog,
) -> None:
    """Make an empty directory that of a new member of a group; one that was interrupted is
    finished.

    Args: store_id, of the group's store.
    Raises: MembershipError, NotAStoreError, StoreLockedError, DamageError, OSError.
    """
    files = files or OsFiles()
    marker.check_directory(files, directory)
    files.make_directory(directory)
    try:
        lock = files.lock(os.path.join(directory, LOCK), f"process {os.getpid()}")
    except BlockingIOError as error:
        raise StoreLockedError(directory, str(error.strerror)) from None
    try:
        found = marker.read(files, directory)
        if found is None:
            make_store(files, directory, open_catalog, store_id)
        elif found.store_id != store_id or files.list_directory(f"{directory}/{SEGMENTS}"):
            raise MembershipError(directory, "is a store already, not a new member's")
        elif read_membership(files, directory):
            raise MembershipError(directory, "is a member's already")
        # Last: a directory with this file has everything that a follower's needs.
        write_membership(files, directory, member)
    finally:
        lock.release()
