"""The model of a catalog: it keeps exactly the transactions that were committed.

All tables are the content of one file on a simulated disk, `data.mdb`, replaced as a whole by
each commit. So commits and file operations are one history, a crash may come between any two of
them, and a catalog whose directory entry was never synced is lost like any other file.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import msgpack

from amqpstore.catalog import TABLES, Change, Value
from amqpstore.errors import DamageError
from tools.drill.memory_files import MemoryFiles

FILE_NAME = "data.mdb"

_MAX_KEY_BYTES = 511


class MemoryCatalog:
    """The catalog in the directory `path` of a simulated disk."""

    def __init__(self, files: MemoryFiles, path: str, create: bool) -> None:
        self._files = files
        self._path = f"{path}/{FILE_NAME}"
        # As LMDB does it: it syncs its file, but not the entry that leads there.
        if create:
            if files.exists(self._path):
                files.remove(self._path)
            files.create(self._path).close()
        elif not files.exists(self._path):
            raise DamageError(self._path, 0, "the file is missing")
        content = files.content(self._path)
        self._tables = _tables_of(content)

    def rows(self, table: str) -> dict[str, Value]:
        rows = self._tables[table]
        return {
            key.decode(): msgpack.unpackb(rows[key], strict_map_key=False) for key in sorted(rows)
        }

    def commit(self, changes: Sequence[Change]) -> None:
        changed = dict(self._tables)
        for table in {change.table for change in changes}:
            changed[table] = dict(changed[table])
        for table, key, value in changes:
            encoded = key.encode()
            if not 0 < len(encoded) <= _MAX_KEY_BYTES:
                raise ValueError(f"a key has 1 to {_MAX_KEY_BYTES} bytes, this has {len(encoded)}")
            if value is None:
                changed[table].pop(encoded, None)
            else:
                changed[table][encoded] = msgpack.packb(value)
        self._files.replace(self._path, msgpack.packb(changed))
        self._tables = changed

    def close(self) -> None:
        """Nothing is held open."""


@functools.lru_cache(maxsize=200)
def _tables_of(content: bytes) -> dict[str, dict[bytes, bytes]]:
    """Nobody changes them: a commit makes others."""
    tables: dict[str, dict[bytes, bytes]] = {table: {} for table in TABLES}
    if content:
        tables.update(msgpack.unpackb(content))
    return tables
