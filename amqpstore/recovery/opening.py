"""Opens a directory: an existing store, or a new one; and recovers what it holds."""

from __future__ import annotations

import os
import uuid
from typing import NamedTuple

from amqpstore.catalog import tables
from amqpstore.catalog.backing import Backing
from amqpstore.catalog.catalog import TABLES, Catalog, Change, OpenCatalog
from amqpstore.catalog.tables import StoreRows
from amqpstore.errors import MembershipError, StoreLockedError, UnreadableFileError
from amqpstore.evidence import make_notes_durable, refuse_wrong_kinds
from amqpstore.format.records import FORMAT_VERSION
from amqpstore.identity import identity, marker
from amqpstore.log.measures import StoreMeasures
from amqpstore.log.space import ReservingCatalog, Space
from amqpstore.options import Options
from amqpstore.queues.queue import Queue
from amqpstore.recovery.next_term import begin_term
from amqpstore.recovery.recovered import Recovered
from amqpstore.recovery.recovery import recover
from amqpstore.system.filenames import (
    CATALOG,
    CATALOG_FILE,
    INDEX,
    LOCK,
    MEMBER,
    REPLACEMENT,
    SEGMENTS,
)
from amqpstore.system.files import Files, Lock, NotAFileError, OwnLockError
from amqpstore.system.removal import attempt, copy_to_quarantine, quarantine


class OpenedStore(NamedTuple):
    """A directory with its catalog, its queues by id, and the result of recovery; the room on its
    disk, and what its work takes.
    """

    backing: Backing
    queues: dict[int, Queue]
    recovered: Recovered
    space: Space
    measures: StoreMeasures


def lock_directory(files: Files, directory: str) -> Lock:
    """Lock a store's directory for this process.

    Raises: UnreadableFileError (something else is in the place of a file or a directory that a
    store needs), StoreLockedError, OSError.
    """
    refuse_wrong_kinds(files, directory)
    path = os.path.join(directory, LOCK)
    try:
        return files.lock(path, f"process {os.getpid()}")
    except NotAFileError as error:
        raise UnreadableFileError(path, f"{error.strerror}: remove it") from None
    except BlockingIOError as error:
        is_own = isinstance(error, OwnLockError)
        raise StoreLockedError(directory, str(error.strerror), is_own=is_own) from None


def open_directory(
    directory: str,
    files: Files,
    open_catalog: OpenCatalog,
    options: Options,
    *,
    term: int = 0,
    is_follower: bool = False,
) -> OpenedStore:
    """Open the store in a directory that is locked, or create one in an empty directory.

    A store of an earlier format version is upgraded, once it is known that it can be read.
    Args: term, that this member of a group leads; is_follower, of another member of a group: the
    last segment of the log goes on.
    Raises: MembershipError, FormatVersionError, DamageError (the marker or the catalog),
    UnreadableLogError, DurabilityError, OSError.
    """
    _check_member(files, directory, is_member=term > 0 or is_follower, is_follower=is_follower)
    measures = StoreMeasures()
    space = Space(
        *(files, directory),
        least_free_bytes=options.least_free_bytes,
        reserve_bytes=options.reserve_bytes,
    )

    def open_with_reserve(path: str, create: bool, *, plain: bool = False) -> Catalog:
        return ReservingCatalog(open_catalog(path, create, plain=plain), space, measures.commit_s)

    store_marker = marker.read(files, directory)
    if store_marker is None:
        store_marker = marker.Marker(uuid.uuid4(), FORMAT_VERSION)
        make_store(files, directory, open_with_reserve, store_marker.store_id)
    else:
        # The process that wrote the marker may have been killed before it was durable.
        files.sync_directory(directory)
        # A copy may lack the directories that were empty.
        for name in (SEGMENTS, INDEX):
            if not files.exists(os.path.join(directory, name)):
                files.make_directory(os.path.join(directory, name))
    _drop_lost_pages(files, os.path.join(directory, CATALOG, CATALOG_FILE))
    catalog = open_with_reserve(
        os.path.join(directory, CATALOG), False, plain=store_marker.is_plain
    )
    backing = Backing.of(files, directory, store_marker.store_id.bytes, catalog, options.limits)
    try:
        identity.check_catalog(directory, store_marker, catalog.rows)
        queues = {
            queue_id: Queue(queue_id, definition, durable=True)
            for queue_id, definition in tables.QUEUES.read(catalog.rows).items()
        }
        recovered = recover(backing, queues, is_follower=is_follower)
        if term:
            _begin_term(backing, recovered, term)
        if store_marker.version < FORMAT_VERSION:
            give_rows_checksums(files, directory, catalog, store_marker.store_id)
        _write_findings(backing, recovered)
    except BaseException:
        catalog.close()
        raise
    return OpenedStore(backing, queues, recovered, space, measures)


def _write_findings(backing: Backing, recovered: Recovered) -> None:
    """Write what recovery has found, before anything else is written. Raises: DurabilityError,
    OSError.
    """
    files, directory, _, catalog, *_ = backing
    if recovered.report.shortfall:
        make_notes_durable(files, directory)
    for path in recovered.copies:
        copy_to_quarantine(files, directory, path)
    # The rows before the files: a crash between them leaves files without a row, for the next
    # start. With them goes the end of the log, behind which nothing may be written before.
    if recovered.changes:
        catalog.commit(recovered.changes)
    for path in recovered.leftovers:
        attempt(files.remove, path)
    for number in recovered.quarantined:
        attempt(quarantine, files, directory, number)


def _check_member(files: Files, directory: str, *, is_member: bool, is_follower: bool) -> None:
    """Make sure that only a member of a group is opened as one. Raises: MembershipError."""
    if files.exists(os.path.join(directory, MEMBER)) and not is_member:
        raise MembershipError(directory, "belongs to a member of a group of replicas")
    if not is_follower and files.exists(os.path.join(directory, REPLACEMENT)):
        raise MembershipError(directory, "is to get its leader's store in the place of its own")
    if is_member and not files.exists(os.path.join(directory, MEMBER)):
        raise MembershipError(directory, f"has no file {MEMBER}, so it is not a member of a group")


def _begin_term(backing: Backing, recovered: Recovered, term: int) -> None:
    """Have the log go on in a term that this member leads. Raises: MembershipError."""
    rows = StoreRows.read(backing.catalog.rows)
    try:
        if rows.term != term:
            raise ValueError(f"its highest term is {rows.term or 0}")  # noqa: TRY301 - as the other
        next_queue_id = recovered.next_queue_id or rows.next_queue_id or 1
        recovered.position, next_queue_id = begin_term(recovered.position, next_queue_id, term)
    except ValueError as error:
        raise MembershipError(backing.directory, f"cannot lead term {term}: {error}") from None
    recovered.changes += StoreRows(next_queue_id=next_queue_id).changes()


def _drop_lost_pages(files: Files, path: str) -> None:
    """Make reads of the catalog come from the disk, and not from what a failed commit left in
    memory: files would be removed because such a commit says so, and the next power cut would bring
    back the catalog that needs them.
    """
    if not files.exists(path):
        return  # The catalog decides what that means.
    file = files.open(path)
    try:
        # LMDB writes the old state over a failed one. What is not synced is not dropped either.
        file.datasync()
        file.drop_cache()
    finally:
        file.close()


def make_store(
    files: Files, directory: str, open_catalog: OpenCatalog, store_id: uuid.UUID
) -> None:
    """Create an empty store in a directory without a marker."""
    files.make_directory(os.path.join(directory, SEGMENTS))
    files.make_directory(os.path.join(directory, INDEX))
    catalog_path = os.path.join(directory, CATALOG)
    files.make_directory(catalog_path)
    catalog = open_catalog(catalog_path, True)
    try:
        catalog.commit(StoreRows(store_id=store_id.bytes).changes())
    finally:
        catalog.close()
    # LMDB syncs its file, but not its directory entry.
    files.sync_directory(catalog_path)
    # Last: where there is a marker there was a catalog, and one that is missing was lost.
    marker.write(files, directory, store_id)


def give_rows_checksums(
    files: Files, directory: str, catalog: Catalog, store_id: uuid.UUID
) -> None:
    """Convert a store of format version 1 to version 2: every row of the catalog gets a checksum.
    Raises: DurabilityError, OSError.
    """
    rows = {table: catalog.rows(table) for table in TABLES}
    catalog.commit(
        [Change(table, key, row) for table in TABLES for key, row in rows[table].items()]
    )
    # The marker last. Under one of version 1 a row is read with a checksum and without, so a crash
    # before this leaves a store of version 1, whose upgrade starts again. A reader that only knows
    # version 1 refuses such a catalog, as no msgpack starts like one of its values.
    marker.write(files, directory, store_id)
