"""Makes an empty directory that of a new member of a group."""

from __future__ import annotations

import os
import uuid

from amqpstore.catalog.catalog import LmdbCatalog, OpenCatalog
from amqpstore.errors import MembershipError
from amqpstore.identity import marker
from amqpstore.recovery.opening import lock_directory, make_store
from amqpstore.replica.membership import Membership, read_membership, write_membership
from amqpstore.system.filenames import SEGMENTS, absolute_path
from amqpstore.system.files import Files, OsFiles


def create_follower(
    directory: str | os.PathLike[str],
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
    directory = absolute_path(directory)
    files = files or OsFiles()
    marker.check_directory(files, directory)
    marker.create_directory(files, directory)
    lock = lock_directory(files, directory)
    try:
        existing = marker.read(files, directory)
        if existing is None:
            make_store(files, directory, open_catalog, store_id)
        # A directory that an earlier attempt has prepared has no segment yet. Anything else may
        # hold the only copy of somebody's messages.
        elif existing.store_id != store_id or files.list_directory(f"{directory}/{SEGMENTS}"):
            raise MembershipError(directory, "is a store already, not a new member's")
        elif read_membership(files, directory):
            raise MembershipError(directory, "is a member's already")
        # Last: a directory with this file has everything that a follower's needs.
        write_membership(files, directory, member)
    finally:
        lock.release()
