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
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import lmdb
import msgpack

from amqpstore.errors import DamageError, DurabilityError
from amqpstore.lmdb_pages import check_pages

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

_MAX_KEY_BYTES = 511
_FIRST_MAP_BYTES = 64 << 20


class Change(NamedTuple):
    """A row to be put, or to be removed where `value` is None."""

    table: str
    key: str
    value: Value


class Catalog(Protocol):
    """Tables of rows: a string key, and a msgpack value that is never None."""

    def rows(self, table: str) -> dict[str, Value]:
        """All rows of a table, by key, in the order of the keys' bytes."""

    def commit(self, changes: Sequence[Change]) -> None:
        """Make all changes durable, atomically.

        Raises: DurabilityError; none of the changes then holds, as far as this process can tell.
        """

    def close(self) -> None: ...


OpenCatalog = Callable[[str, bool], Catalog]
"""Open the catalog in a directory, or with True make it, in place of what is there.

Raises: DamageError, when it is missing or cannot be read."""


class LmdbCatalog:
    """The catalog in an LMDB environment: one named database a table, in the directory `path`.

    Args: create, make it in the directory, which exists.
    Raises: DamageError, when it is missing, or LMDB cannot open what is there.
    """

    def __init__(self, path: str, create: bool) -> None:
        self._path = path
        # LMDB's map grows only while no transaction of this process is open.
        self._lock = threading.Lock()
        file_path = os.path.join(path, "data.mdb")
        if create:
            for name in ("data.mdb", "lock.mdb"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(path, name))
        else:
            check_pages(file_path)
        try:
            self._environment = lmdb.open(
                path, map_size=_FIRST_MAP_BYTES, max_dbs=len(TABLES), mode=0o640, create=create
            )
            self._tables = {table: self._environment.open_db(table.encode()) for table in TABLES}
        except lmdb.Error as error:
            raise DamageError(file_path, 0, str(error)) from error

    def rows(self, table: str) -> dict[str, Value]:
        try:
            with self._lock, self._environment.begin(self._tables[table]) as transaction:
                return {
                    bytes(key).decode(): msgpack.unpackb(value, strict_map_key=False)
                    for key, value in transaction.cursor()
                }
        except (lmdb.Error, ValueError, TypeError, msgpack.UnpackException) as error:
            reason = f"table {table}: {error}"
            raise DamageError(os.path.join(self._path, "data.mdb"), 0, reason) from error

    def commit(self, changes: Sequence[Change]) -> None:
        encoded = [
            (self._tables[table], _key(key), None if value is None else msgpack.packb(value))
            for table, key, value in changes
        ]
        with self._lock:
            # One that was killed while it read would keep pages from being used again.
            self._environment.reader_check()
            while True:
                try:
                    self._put(encoded)
                except lmdb.MapFullError:
                    self._environment.set_mapsize(2 * self._environment.info()["map_size"])
                except lmdb.Error as error:
                    raise DurabilityError(os.path.join(self._path, "data.mdb"), error) from error
                else:
                    return

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


def _key(key: str) -> bytes:
    encoded = key.encode()
    if not 0 < len(encoded) <= _MAX_KEY_BYTES:
        raise ValueError(f"a catalog key has 1 to {_MAX_KEY_BYTES} bytes, this has {len(encoded)}")
    return encoded
