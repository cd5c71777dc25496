"""The catalog: small tables that change atomically.

It holds durable data other than messages: definitions (vhosts, users, exchanges, bindings), the
queues with the ids in the log, where each segment ends, and counters. A commit is the atomic pivot
of every change that spans more than one file: after a crash either its old or its new state holds.

LMDB writes its own file and so bypasses `files`; a simulator can implement the `Catalog` protocol
with a model that keeps exactly the committed transactions.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol

import lmdb

from amqpstore.catalog.lmdb_pages import check_pages
from amqpstore.catalog.rows import check_row, decode_row, encode_row
from amqpstore.catalog.shapes import MAX_KEY_BYTES
from amqpstore.errors import CatalogDamageError, DamageError, DurabilityError
from amqpstore.system import ownership
from amqpstore.system.descriptors import SHORTAGES
from amqpstore.system.filenames import CATALOG_FILE, CATALOG_LOCK

Value = Any
"""The values of msgpack: None, bool, int, float, str, bytes, and lists and dicts of them."""

TABLES = (
    "store",
    "queues",
    "prepared",
    "heads",
    "index",
    "segments",
    "marks",
    "ends",
    "dictionaries",
    "quarantine",
    "passed_over",
    "given_up",
    "vhosts",
    "users",
    "exchanges",
    "bindings",
    "permissions",
    "policies",
)

_ROWS_AT_ONCE = 1024
"""Rows that are read before other threads may run."""
_FULL_BYTES = 64 << 10


class Change(NamedTuple):
    """A row to put, or to remove if `value` is None."""

    table: str
    key: str
    value: Value


class Catalog(Protocol):
    """Tables of rows: a string key, and a msgpack value that is never None."""

    def rows(self, table: str) -> dict[str, Value]:
        """Return all rows of a table, by key, in the order of the keys' bytes.

        Raises: DamageError, when one is damaged; OSError, when memory or descriptors have run out.
        """

    def commit(self, changes: Sequence[Change]) -> None:
        """Make all changes durable, atomically.

        Raises: DurabilityError; then none of the changes holds, as far as this process can tell.
        OSError, the disk is full (ENOSPC) or there is no memory for the map to grow (ENOMEM): none
        of them holds, and the commit may be tried again.
        """

    def close(self) -> None: ...


class OpenCatalog(Protocol):
    def __call__(self, path: str, create: bool, *, plain: bool = False) -> Catalog:
        """Open the catalog in a directory, or create it, replacing an existing one.

        Args: plain, whether rows may be of format version 1: see `rows`.
        Raises: DamageError, when it is missing or cannot be read; OSError, when that is because
        memory, descriptors or space have run out.
        """


class LmdbCatalog:
    """The catalog in an LMDB environment: one named database per table, in the directory `path`.

    Every page and every row is checked when it is opened, so that damage is found at the start, and
    not when a row is needed.
    Args: create, create it in the directory, which exists; plain, as in `OpenCatalog`;
    first_map_bytes, the size of its map before it grows.
    Raises: as `OpenCatalog`.
    """

    def __init__(
        self, path: str, create: bool, *, plain: bool = False, first_map_bytes: int = 64 << 20
    ) -> None:
        self._file_path = os.path.join(path, CATALOG_FILE)
        self._plain = plain
        # LMDB's map can only grow while no transaction of this process is open.
        self._lock = threading.Lock()
        if create:
            for name in (CATALOG_FILE, CATALOG_LOCK):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(path, name))
        else:
            check_pages(self._file_path, self._check_row)
        for name in (CATALOG_FILE, CATALOG_LOCK):
            ownership.prepare_file(os.path.join(path, name))
        try:
            self._open(first_map_bytes, create=create)
        except (lmdb.Error, MemoryError) as error:
            raise _unread(self._file_path, error) from error

    def _open(self, map_bytes: int, *, create: bool) -> None:
        """Raises: lmdb.Error, MemoryError."""
        # As bytes: a name that is not UTF-8 cannot be encoded again.
        path = os.fsencode(os.path.dirname(self._file_path))
        # By default each commit is synced, and written by pwrite(2): the map is for reading only,
        # so no stray write of this process reaches the file.
        self._environment = lmdb.open(
            path, map_size=map_bytes, max_dbs=len(TABLES), mode=0o640, create=create
        )
        self._tables = {table: self._environment.open_db(table.encode()) for table in TABLES}

    def rows(self, table: str) -> dict[str, Value]:
        rows: dict[str, Value] = {}
        found: list[tuple[bytes, bytes]] = []
        try:
            # Another thread may wait for the lock with a commit: nothing is decoded under it.
            with self._lock, self._environment.begin(self._tables[table]) as transaction:
                cursor = iter(transaction.cursor())
                while part := list(islice(cursor, _ROWS_AT_ONCE)):
                    found += part
            for stored_key, stored in found:
                try:
                    key, value = decode_row(table, stored_key, stored, plain=self._plain)
                except ValueError as error:
                    name = _shown(stored_key)
                    raise CatalogDamageError(self._file_path, 0, table, name, str(error)) from None
                rows[key] = value
        except (lmdb.Error, MemoryError) as error:
            raise _unread(self._file_path, error, f"table {table}: ") from error
        return rows

    def _check_row(self, table: bytes, key: bytes, stored: bytes, offset: int) -> None:
        """Raises: CatalogDamageError."""
        name = _shown(table)
        try:
            if self._plain and name not in TABLES:
                # Without row checksums nothing else would reveal a table whose name is damaged.
                raise ValueError("no such table is known")  # noqa: TRY301 - as what check_row raises
            check_row(name, key, stored, plain=self._plain)
        except ValueError as error:
            raise CatalogDamageError(
                self._file_path, offset, name, _shown(key), str(error)
            ) from None

    def commit(self, changes: Sequence[Change]) -> None:
        # Before the transaction begins: a row that cannot be stored must not end it half-way.
        encoded = [
            (self._tables[table], *_encoded(table, key, value)) for table, key, value in changes
        ]
        with self._lock:
            try:
                # A reader that was killed would keep pages from being reused.
                self._environment.reader_check()
                # A commit that does not fit leaves nothing behind, and is made again in a larger
                # map.
                while not self._fits(encoded):
                    self._grow()
            except (lmdb.Error, MemoryError) as error:
                if found_no_room(self._file_path, error):
                    # All of its pages are written again, whatever happened to them: that is safe.
                    raise OSError(errno.ENOSPC, str(error), self._file_path) from error
                # After any other error neither LMDB's state nor what has reached the disk is
                # known, so nothing is tried again.
                raise DurabilityError(self._file_path, error) from error

    def _grow(self) -> None:
        """Double the size of the map. Raises: OSError (it is unchanged), lmdb.Error,
        MemoryError.
        """
        map_bytes = self._environment.info()["map_size"]
        try:
            self._environment.set_mapsize(2 * map_bytes)
        except (lmdb.Error, MemoryError) as error:
            # LMDB has unmapped its map by now, and is unusable. Nothing of the commit is written
            # yet: it is opened again with the old size.
            self._environment.close()
            self._open(map_bytes, create=False)
            raise OSError(errno.ENOMEM, str(error), self._file_path) from error

    def _fits(self, encoded: Iterable[tuple[Any, bytes, bytes | None]]) -> bool:
        """Commit, if the map is large enough."""
        try:
            self._put(encoded)
        except lmdb.MapFullError:
            return False
        return True

    def _put(self, encoded: Iterable[tuple[Any, bytes, bytes | None]]) -> None:
        with self._environment.begin(write=True) as transaction:
            for table, key, value in encoded:
                if value is None:
                    transaction.delete(key, db=table)
                else:
                    transaction.put(key, value, db=table)

    def close(self) -> None:
        with contextlib.suppress(lmdb.Error):
            self._environment.close()


def found_no_room(path: str, error: Exception) -> bool:
    """Tell whether a commit to the file `path` failed because the disk is full."""
    if isinstance(error, lmdb.DiskError):
        return True
    with contextlib.suppress(OSError):
        found = os.statvfs(path)
        # The same text is what a dying disk says, so it counts only where there really is no room.
        is_full = found.f_bavail * found.f_frsize < _FULL_BYTES
        # LMDB takes a write that the full disk has ended half-way for an input/output error.
        return is_full and os.strerror(errno.EIO) in str(error)
    return False


def _unread(path: str, error: Exception, where: str = "") -> OSError | DamageError:
    """Return the error for a catalog that cannot be read. That memory, descriptors or disk space
    have run out says nothing about what is on the disk.
    """
    if isinstance(error, MemoryError | lmdb.MemoryError):
        return OSError(errno.ENOMEM, str(error) or os.strerror(errno.ENOMEM), path)
    # LMDB has no exceptions of its own for most errors of the operating system, only their text.
    for number in (*SHORTAGES, errno.ENOSPC):
        if os.strerror(number) in str(error):
            return OSError(number, str(error), path)
    return DamageError(path, 0, f"{where}{error}")


def _encoded(table: str, key: str, value: Value) -> tuple[bytes, bytes | None]:
    """Return key and value as they are stored; None for a row to remove."""
    encoded = encode_key(key)
    return encoded, None if value is None else encode_row(table, encoded, value)


def check_change(change: Change) -> None:
    """Raises: TypeError, ValueError, OverflowError, if `commit` could not store it."""
    _encoded(*change)


def encode_key(key: str) -> bytes:
    """Return a key as it is stored. Raises: ValueError."""
    encoded = key.encode()
    # LMDB would refuse it within the transaction, after other rows were put.
    if not 0 < len(encoded) <= MAX_KEY_BYTES:
        raise ValueError(f"a catalog key has 1 to {MAX_KEY_BYTES} bytes, this has {len(encoded)}")
    return encoded


def _shown(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
