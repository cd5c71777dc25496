"""One instant of a store that a broker may be writing: its catalog, and the files that belong to
it.

Only the catalog changes atomically. So an instant is a catalog, and everything else that is read
between two reads of the number of the last commit, if these are equal. If they differ, everything
is read again. A queue's row is committed before the log mentions the queue, and messages that moved
out of a queue are durable before its row is removed: so at such an instant the log has no operation
on a queue that the catalog does not know.

The catalog's file is copied to a directory of the reader's. A reader that LMDB knows of would have
to write to `catalog/lock.mdb`, and a killed one would keep the broker from reusing pages; one that
it does not know of may see its pages reused by a later commit. And the copy's pages can be checked
before LMDB follows them: a damaged file would crash the process.
"""

from __future__ import annotations

import errno
import os
import resource
import time
from collections.abc import Callable
from typing import TypeVar

import lmdb

from amqpstore.catalog.catalog import found_no_room
from amqpstore.catalog.lmdb_pages import check_pages, last_transaction
from amqpstore.errors import DamageError, StoreError
from amqpstore.system import ownership
from amqpstore.system.filenames import CATALOG, CATALOG_FILE
from amqpstore.system.files import OsFiles, naming

MAX_TABLES = 256

_PATIENCE_S = 30.0
_PAUSE_S = 0.005
_COPY_BYTES = 1 << 20
_FIRST_MAP_BYTES = 64 << 20
_OTHER_DESCRIPTORS = 64
"""Descriptors that are needed for everything else."""

Tables = dict[bytes, list[tuple[bytes, bytes]]]
"""The raw catalog: rows by the name of their table."""

T = TypeVar("T")


class SnapshotError(StoreError):
    """No snapshot of a running store can be taken."""

    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(f"no snapshot of {directory} could be taken: {reason}")
        self.directory = directory
        self.reason = reason


def at_one_instant(directory: str, folder: str, look: Callable[[], T]) -> T:
    """Copy the catalog of a store, as one of its commits left it, to `folder`.

    Returns what `look` returned while that was the last commit; it may be called repeatedly.
    Raises: SnapshotError, DamageError (the catalog's first pages), OSError, what `look` raises.
    """
    catalog = os.path.join(directory, CATALOG, CATALOG_FILE)
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        before = last_transaction(catalog)
        copy_catalog(directory, folder)
        seen = look()
        if last_transaction(catalog) == before:
            return seen
        if time.monotonic() > deadline:
            raise SnapshotError(
                directory,
                f"its catalog has kept changing for {_PATIENCE_S:.0f} s. Try again when fewer "
                f"queues and bindings are created and deleted, or stop the broker.",
            )
        time.sleep(_PAUSE_S)


def read_tables(folder: str) -> Tables:
    """Read all rows of the catalog in `folder`, which must have no writer. Raises: DamageError,
    OSError.
    """
    path = os.path.join(folder, CATALOG_FILE)
    # LMDB crashes on a page number that leads nowhere.
    check_pages(path)
    try:
        with (
            lmdb.open(
                os.fsencode(folder), readonly=True, lock=False, create=False, max_dbs=MAX_TABLES
            ) as environment,
            environment.begin() as transaction,
        ):
            names = [bytes(name) for name in transaction.cursor().iternext(values=False)]
            return {
                name: list(
                    transaction.cursor(environment.open_db(name, txn=transaction, create=False))
                )
                for name in names
            }
    except (lmdb.Error, ValueError, MemoryError) as error:
        raise DamageError(path, 0, str(error)) from error


def write_tables(folder: str, tables: Tables) -> None:
    """Write a new catalog with these rows, durably: `data.mdb` in `folder`. Raises: OSError.

    It has no readers yet, so it needs no lock.
    """
    path = os.path.join(folder, CATALOG_FILE)
    ownership.prepare_file(path)
    size = _FIRST_MAP_BYTES
    while True:
        try:
            with lmdb.open(
                os.fsencode(folder), map_size=size, max_dbs=MAX_TABLES, mode=0o640, lock=False
            ) as environment:
                with environment.begin(write=True) as transaction:
                    for name, rows in tables.items():
                        table = environment.open_db(name, txn=transaction)
                        for key, value in rows:
                            transaction.put(key, value, db=table)
                environment.sync(True)
        except lmdb.MapFullError:
            # Nothing was committed: all rows are written again.
            size *= 2
        except lmdb.Error as error:
            number = errno.ENOSPC if found_no_room(path, error) else errno.EIO
            raise OSError(number, str(error), path) from error
        else:
            break
    OsFiles().sync_directory(folder)


def allow_descriptors(directory: str, files: int) -> None:
    """Raise the limit of open files so that a store's files fit. Raises: SnapshotError."""
    needed = files + _OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        reason = f"it has {files} files, but this process may open only {hard}. Raise that limit"
        raise SnapshotError(directory, f"{reason} (ulimit -n {needed}).")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def copy_catalog(directory: str, folder: str) -> None:
    """Copy the catalog of a store to `folder`, the first bytes first: LMDB's choice of a state is
    in them. Raises: OSError.
    """
    target = os.path.join(folder, CATALOG_FILE)
    file = OsFiles().open(os.path.join(directory, CATALOG, CATALOG_FILE))
    try:
        with naming(target), open(target, "wb") as copy:
            offset = 0
            while content := file.read(offset, _COPY_BYTES):
                copy.write(content)
                offset += len(content)
    finally:
        file.close()
