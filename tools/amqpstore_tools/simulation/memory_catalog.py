"""The model of a catalog: it keeps exactly the transactions that were committed.

All tables are the content of one file on a simulated disk, `data.mdb`, replaced as a whole by each
commit. So commits and file operations form one history, a crash may come between any two of them,
and a catalog whose directory entry was never synced is lost like any other file.
"""

from __future__ import annotations

import errno
import functools
from collections.abc import Sequence

import msgpack

from amqpstore.catalog.catalog import TABLES, Change, Value, encode_key
from amqpstore.catalog.rows import check_row, decode_row, encode_row
from amqpstore.errors import CatalogDamageError, DamageError, DurabilityError
from amqpstore.system.filenames import CATALOG_FILE
from amqpstore_tools.simulation.memory_files import MemoryFiles

_Tables = dict[str, dict[bytes, bytes]]

_CLOSED = "the catalog is closed"


class MemoryCatalog:
    """The catalog in the directory `path` of a simulated disk. Args: as `OpenCatalog`."""

    def __init__(self, files: MemoryFiles, path: str, create: bool, *, plain: bool = False) -> None:
        self._files = files
        self._plain = plain
        self._is_open = True
        self._path = f"{path}/{CATALOG_FILE}"
        # Like LMDB: it syncs its file, but not the directory entry.
        if create:
            if files.exists(self._path):
                files.remove(self._path)
            files.create(self._path).close()
        elif not files.exists(self._path):
            raise DamageError(self._path, 0, "the file is missing")
        self._tables = _tables_of(files.content(self._path))
        for table, rows in self._tables.items():
            for key, stored in rows.items():
                try:
                    check_row(table, key, stored, plain=plain)
                except ValueError as error:
                    raise self._damage(table, key, error) from None

    def rows(self, table: str) -> dict[str, Value]:
        if not self._is_open:
            raise DamageError(self._path, 0, _CLOSED)
        rows: dict[str, Value] = {}
        for key, stored in sorted(self._tables[table].items()):
            try:
                name, value = decode_row(table, key, stored, plain=self._plain)
            except ValueError as error:
                raise self._damage(table, key, error) from None
            rows[name] = value
        return rows

    def _damage(self, table: str, key: bytes, error: ValueError) -> CatalogDamageError:
        shown = key.decode("utf-8", "backslashreplace")
        return CatalogDamageError(self._path, 0, table, shown, str(error))

    def commit(self, changes: Sequence[Change]) -> None:
        changed = self._changed(changes)
        if not self._is_open:
            raise DurabilityError(self._path, ValueError(_CLOSED))
        content = msgpack.packb(changed)
        if self._files.capacity_bytes is not None:
            growth = len(content) - len(self._files.content(self._path))
            if growth > self._files.free_bytes("/"):
                raise OSError(errno.ENOSPC, "no space left for the catalog", self._path)
        self._files.replace(self._path, content)
        self._tables = changed

    def fail_commit(self, changes: Sequence[Change]) -> None:
        """Simulate a failed commit: whoever opens the catalog next reads changes that the disk
        never got.
        """
        self._files.replace_in_cache(self._path, msgpack.packb(self._changed(changes)))

    def _changed(self, changes: Sequence[Change]) -> _Tables:
        """Return the tables with these changes."""
        changed = dict(self._tables)
        for table in {change.table for change in changes}:
            changed[table] = dict(changed[table])
        for table, key, value in changes:
            encoded = encode_key(key)
            if value is None:
                changed[table].pop(encoded, None)
            else:
                changed[table][encoded] = encode_row(table, encoded, value)
        return changed

    def close(self) -> None:
        self._is_open = False


def stored_rows(files: MemoryFiles, path: str) -> _Tables:
    """Return the rows of the catalog in the directory `path`, by table, as they are stored."""
    return _tables_of(files.content(f"{path}/{CATALOG_FILE}"))


def put_rows(files: MemoryFiles, path: str, tables: _Tables) -> None:
    """Replace a catalog's rows by others, as they are stored: an earlier version's, or damaged
    ones.
    """
    files.replace(f"{path}/{CATALOG_FILE}", msgpack.packb(tables))


@functools.lru_cache(maxsize=200)
def _tables_of(content: bytes) -> _Tables:
    """Decode the tables. They are never changed: a commit makes new ones."""
    tables: _Tables = {table: {} for table in TABLES}
    if content:
        tables.update(msgpack.unpackb(content))
    return tables
