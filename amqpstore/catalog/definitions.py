"""A copy of the tables that only the catalog has: queues, and everything that was defined.

If the catalog is lost, messages can be found again in segments and index files; the names of their
queues cannot. So some time after a definition, and at a close, a copy is written beside the
catalog. Only a repair depends on it: the store itself only checks whether it is up to date.
"""

from __future__ import annotations

import os
import struct
from typing import Any, NamedTuple

import msgpack
from crc32c import crc32c

from amqpstore.catalog.catalog import Catalog, Value
from amqpstore.catalog.rows import check_depth
from amqpstore.catalog.shapes import misshapen
from amqpstore.catalog.tables import StoreRows
from amqpstore.errors import DamageError
from amqpstore.system.durability import sync_directory, sync_file
from amqpstore.system.filenames import CATALOG, DEFINITIONS
from amqpstore.system.files import Files

COPIED = (
    *("queues", "prepared", "dictionaries"),
    *("vhosts", "users", "exchanges", "bindings", "permissions", "policies"),
)
"""The tables that are copied."""

HEADER = struct.Struct(">4sI16sQI")
"""magic, version, store id, payload length, checksum of everything but itself."""

MAGIC = b"\xc7DEF"
_VERSION = 1


class DefinitionsCopy(NamedTuple):
    """The definitions when the copy was made: rows by key, by table. No queue had an id from
    `next_queue_id` on.
    """

    store_id: bytes
    next_queue_id: int
    tables: dict[str, dict[str, Value]]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(map(len, self.tables.values()))


def copy_of(store_id: bytes, catalog: Catalog) -> DefinitionsCopy:
    """Return a copy of the current definitions."""
    next_queue_id = StoreRows.read(catalog.rows).next_queue_id or 1
    return DefinitionsCopy(
        store_id, next_queue_id, {table: catalog.rows(table) for table in COPIED}
    )


def renew_copy(files: Files, directory: str, copy: DefinitionsCopy) -> None:
    """Write a copy, unless the existing one is equal.

    Raises: OSError; DurabilityError, if it cannot be made durable.
    """
    path = os.path.join(directory, CATALOG, DEFINITIONS)
    content = _content(copy)
    # Its bytes are compared: to read the rows of a large copy is one call, during which no other
    # thread runs.
    if _read(files, path) != content:
        _write(files, directory, content)


def write_copy(files: Files, directory: str, copy: DefinitionsCopy) -> None:
    """Replace the copy. Durable on return.

    Raises: OSError; DurabilityError, if it cannot be made durable.
    """
    _write(files, directory, _content(copy))


def _content(copy: DefinitionsCopy) -> bytes:
    """Return a copy as it is stored. Row by row: to pack all of them in one call would stop all
    other threads for as long.
    """
    packer = msgpack.Packer(autoreset=False)
    packer.pack_map_header(2)
    packer.pack("next_queue_id")
    packer.pack(copy.next_queue_id)
    packer.pack("tables")
    packer.pack_map_header(len(copy.tables))
    for table, rows in copy.tables.items():
        packer.pack(table)
        packer.pack_map_header(len(rows))
        for key, row in rows.items():
            packer.pack(key)
            packer.pack(row)
    payload: bytes = packer.bytes()
    return _header(copy.store_id, payload) + payload


def _write(files: Files, directory: str, content: bytes) -> None:
    path = os.path.join(directory, CATALOG, DEFINITIONS)
    # The new copy is written beside the old one, which stays until the new one is durable.
    new_path = f"{path}.new"
    # A crash has left this file: it may not be whole.
    if files.exists(new_path):
        files.remove(new_path)
    file = files.create(new_path)
    try:
        file.append([content])
        sync_file(file)
    finally:
        file.close()
    # Synced before: a rename may reach the disk before the bytes do, and a crash would leave an
    # empty copy in the place of a good one.
    files.rename(new_path, path)
    sync_directory(files, os.path.join(directory, CATALOG))


def _read(files: Files, path: str) -> bytes | None:
    """Return the content of a copy; None if there is none."""
    try:
        file = files.open(path)
    except FileNotFoundError:
        return None
    try:
        return file.read(0, file.size())
    finally:
        file.close()


def read_copy(files: Files, directory: str) -> DefinitionsCopy | None:
    """Return the copy; None if there is none. Raises: DamageError, OSError."""
    path = os.path.join(directory, CATALOG, DEFINITIONS)
    content = _read(files, path)
    if content is None:
        return None
    payload = content[HEADER.size :]
    if len(content) < HEADER.size:
        raise DamageError(path, 0, "it is shorter than its header")
    magic, version, store_id, length, _ = HEADER.unpack_from(content)
    if magic != MAGIC or version != _VERSION:
        raise DamageError(path, 0, "it is not a copy of the definitions in this version's format")
    if length != len(payload) or content[: HEADER.size] != _header(store_id, payload):
        raise DamageError(path, 0, "its checksum does not match")
    try:
        copy: dict[str, Any] = msgpack.unpackb(payload, strict_map_key=False)
        # A repair builds a catalog from this: what it would refuse to open must not be written by
        # it.
        _check_shape(copy)
        check_depth(payload, copy)
        return DefinitionsCopy(store_id, copy["next_queue_id"], copy["tables"])
    except (ValueError, LookupError, TypeError, msgpack.UnpackException) as error:
        raise DamageError(
            path, HEADER.size, f"it cannot be parsed as a copy of the definitions: {error}"
        ) from error


def _check_shape(found: Any) -> None:
    """Make sure that a repair can use a copy. Raises: ValueError, LookupError, TypeError.

    A right checksum only says that nothing was changed by accident.
    """
    if reason := misshapen("store", "next_queue_id", found["next_queue_id"]):
        raise ValueError(reason)
    for table, rows in found["tables"].items() if isinstance(found["tables"], dict) else [("", 0)]:
        if not isinstance(rows, dict) or not all(isinstance(key, str) and key for key in rows):
            raise ValueError(f"table {table!r} is not a map of rows")
        for key, row in rows.items():
            if reason := misshapen(str(table), key, row):
                raise ValueError(f"table {table}, row {key!r}: {reason}")


def _header(store_id: bytes, payload: bytes) -> bytes:
    checksum = crc32c(payload, crc32c(HEADER.pack(MAGIC, _VERSION, store_id, len(payload), 0)))
    return HEADER.pack(MAGIC, _VERSION, store_id, len(payload), checksum)
