"""The catalog: small tables that change all at once or not at all.

It holds what is durable and not a message: definitions (vhosts, users, exchanges, bindings), the
queues with the ids the log speaks of, where each segment ends, and the counters. A commit is the
atomic pivot of whatever spans more than one file: after a crash either its old or its new state
holds.

LMDB writes its own file and so stays outside `files`; behind the `Catalog` protocol a simulator
can put a model that keeps exactly the committed transactions.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import lmdb

from amqpstore.errors import CatalogDamageError, DamageError, DurabilityError
from amqpstore.filenames import CATALOG_FILE
from amqpstore.lmdb_pages import check_pages
from amqpstore.rows import check_row, decode_row, encode_row
from amqpstore.shapes import MAX_KEY_BYTES

Value = Any
"""What msgpack takes: None, bool, int, float, str, bytes, and lists and dicts of them."""

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
    "vhosts",
    "users",
    "exchanges",
    "bindings",
    "permissions",
    "policies",
)

_FULL_BYTES = 64 << 10


class Change(NamedTuple):
    """A row to be put, or to be removed where `value` is None."""

    table: str
    key: str
    value: Value


class Catalog(Protocol):
    """Tables of rows: a string key, and a msgpack value that is never None."""

    def rows(self, table: str) -> dict[str, Value]:
        """All rows of a table, by key, in the order of the keys' bytes.

        Raises: DamageError, when one is not what was written.
        """

    def commit(self, changes: Sequence[Change]) -> None:
        """Make all changes durable, atomically.

        Raises: DurabilityError; none of the changes then holds, as far as this process can tell.
        OSError, the disk is full (ENOSPC) or there is no memory for it to grow (ENOMEM): none of
        them holds, and it may be tried again.
        """

    def close(self) -> None: ...


class OpenCatalog(Protocol):
    def __call__(self, path: str, create: bool, *, plain: bool = False) -> Catalog:
        """Open the catalog in a directory, or make it, in place of what is there.

        Args: plain, whether rows may be of format version 1: see `rows`.
        Raises: DamageError, when it is missing or cannot be read.
        """


class LmdbCatalog:
    """The catalog in an LMDB environment: one named database a table, in the directory `path`.

    Every page and every row is looked at before it is there: what was damaged is found at the
    start, and not when it is needed.
    Args: create, make it in the directory, which exists; plain, as in `OpenCatalog`;
    first_map_bytes, of its file in memory before it grows.
    Raises: DamageError, when it is missing, or is not what was written.
    """

    def __init__(
        self, path: str, create: bool, *, plain: bool = False, first_map_bytes: int = 64 << 20
    ) -> None:
        self._file_path = os.path.join(path, CATALOG_FILE)
        self._plain = plain
        # LMDB's map grows only while no transaction of this process is open.
        self._lock = threading.Lock()
        if create:
            for name in (CATALOG_FILE, "lock.mdb"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(path, name))
        else:
            check_pages(self._file_path, self._check_row)
        try:
            self._open(first_map_bytes, create=create)
        except (lmdb.Error, MemoryError) as error:
            raise DamageError(self._file_path, 0, str(error)) from error

    def _open(self, map_bytes: int, *, create: bool) -> None:
        """Raises: lmdb.Error, MemoryError."""
        path = os.path.dirname(self._file_path)
        self._environment = lmdb.open(
            path, map_size=map_bytes, max_dbs=len(TABLES), mode=0o640, create=create
        )
        self._tables = {table: self._environment.open_db(table.encode()) for table in TABLES}

    def rows(self, table: str) -> dict[str, Value]:
        rows: dict[str, Value] = {}
        try:
            with self._lock, self._environment.begin(self._tables[table]) as transaction:
                for stored_key, stored in transaction.cursor():
                    try:
                        key, value = decode_row(table, stored_key, stored, plain=self._plain)
                    except ValueError as error:
                        name = _shown(stored_key)
                        raise CatalogDamageError(
                            self._file_path, 0, table, name, str(error)
                        ) from None
                    rows[key] = value
        except lmdb.Error as error:
            raise DamageError(self._file_path, 0, f"table {table}: {error}") from error
        return rows

    def _check_row(self, table: bytes, key: bytes, stored: bytes, offset: int) -> None:
        """Raises: CatalogDamageError."""
        name = _shown(table)
        try:
            if self._plain and name not in TABLES:
                # Without checksums nothing else tells a table whose name was damaged.
                raise ValueError("no such table is known")  # noqa: TRY301 - as what check_row raises
            check_row(name, key, stored, plain=self._plain)
        except ValueError as error:
            raise CatalogDamageError(
                self._file_path, offset, name, _shown(key), str(error)
            ) from None

    def commit(self, changes: Sequence[Change]) -> None:
        encoded = [
            (self._tables[table], *_encoded(table, key, value)) for table, key, value in changes
        ]
        with self._lock:
            try:
                # One that was killed while it read would keep pages from being used again.
                self._environment.reader_check()
                while not self._fits(encoded):
                    self._grow()
            except (lmdb.Error, MemoryError) as error:
                if self._found_no_room(error):
                    # All pages of it are written anew, whatever became of them: that is safe.
                    raise OSError(errno.ENOSPC, str(error), self._file_path) from error
                raise DurabilityError(self._file_path, error) from error

    def _found_no_room(self, error: Exception) -> bool:
        """Whether a commit failed as the disk is full. A write that stops half-way there is an
        input/output error to LMDB."""
        if isinstance(error, lmdb.DiskError):
            return True
        with contextlib.suppress(OSError):
            found = os.statvfs(self._file_path)
            is_full = found.f_bavail * found.f_frsize < _FULL_BYTES
            return is_full and os.strerror(errno.EIO) in str(error)
        return False

    def _grow(self) -> None:
        """Make the map twice as large. Raises: OSError (it is as it was), lmdb.Error, MemoryError.

        LMDB gives its map up before it asks for the larger one, and cannot be used where it does
        not get that. Nothing of the commit is written yet, so it is opened again as it was.
        """
        map_bytes = self._environment.info()["map_size"]
        try:
            self._environment.set_mapsize(2 * map_bytes)
        except (lmdb.Error, MemoryError) as error:
            self._environment.close()
            self._open(map_bytes, create=False)
            raise OSError(errno.ENOMEM, str(error), self._file_path) from error

    def _fits(self, encoded: Iterable[tuple[Any, bytes, bytes | None]]) -> bool:
        """Commit, where the map has room for it."""
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


def _encoded(table: str, key: str, value: Value) -> tuple[bytes, bytes | None]:
    """Key and value as they are stored; None where the row is to be removed."""
    encoded = encode_key(key)
    return encoded, None if value is None else encode_row(table, encoded, value)


def encode_key(key: str) -> bytes:
    """A key as it is stored. Raises: ValueError."""
    encoded = key.encode()
    if not 0 < len(encoded) <= MAX_KEY_BYTES:
        raise ValueError(f"a catalog key has 1 to {MAX_KEY_BYTES} bytes, this has {len(encoded)}")
    return encoded


def _shown(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
