"""A copy of what only the catalog says: which queues there are, and everything that was defined.

Messages can be found again in segments and index files when the catalog is lost; what their queues
are called cannot. So a checkpoint behind which something was defined writes a copy beside the
catalog, under another name, syncs and renames it. The store itself never reads it.
"""

from __future__ import annotations

import os
import struct
from typing import Any, NamedTuple

import msgpack
from crc32c import crc32c

from amqpstore.catalog import Catalog, Value
from amqpstore.errors import DamageError
from amqpstore.filenames import CATALOG, DEFINITIONS
from amqpstore.files import Files

COPIED = (
    *("queues", "prepared", "dictionaries"),
    *("vhosts", "users", "exchanges", "bindings", "permissions", "policies"),
)
"""The tables that are copied."""

HEADER = struct.Struct(">4sI16sQI")
"""magic, version, store id, payload length, checksum of all of it but itself."""

MAGIC = b"\xc7DEF"
_VERSION = 1


class DefinitionsCopy(NamedTuple):
    """What was defined when the copy was made: rows by key, by table. No queue had an id from
    `next_queue_id` on."""

    store_id: bytes
    next_queue_id: int
    tables: dict[str, dict[str, Value]]

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return sum(map(len, self.tables.values()))


def copy_of(store_id: bytes, catalog: Catalog) -> DefinitionsCopy:
    """What is defined now."""
    next_queue_id = int(catalog.rows("store").get("next_queue_id", 1))
    return DefinitionsCopy(
        store_id, next_queue_id, {table: catalog.rows(table) for table in COPIED}
    )


def write_copy(files: Files, directory: str, copy: DefinitionsCopy) -> None:
    """Put a copy in the place of the one before. Durable on return. Raises: OSError."""
    path = os.path.join(directory, CATALOG, DEFINITIONS)
    new_path = f"{path}.new"
    payload: bytes = msgpack.packb({"next_queue_id": copy.next_queue_id, "tables": copy.tables})
    if files.exists(new_path):
        files.remove(new_path)
    file = files.create(new_path)
    try:
        file.append([_header(copy.store_id, payload), payload])
        file.datasync()
    finally:
        file.close()
    files.rename(new_path, path)
    files.sync_directory(os.path.join(directory, CATALOG))


def read_copy(files: Files, directory: str) -> DefinitionsCopy | None:
    """The copy; None where there is none. Raises: DamageError, OSError."""
    path = os.path.join(directory, CATALOG, DEFINITIONS)
    if not files.exists(path):
        return None
    file = files.open(path)
    try:
        content = file.read(0, file.size())
    finally:
        file.close()
    payload = content[HEADER.size :]
    if len(content) < HEADER.size:
        raise DamageError(path, 0, "it is shorter than its header")
    magic, version, store_id, length, _ = HEADER.unpack_from(content)
    if magic != MAGIC or version != _VERSION:
        raise DamageError(path, 0, "it is no copy of definitions of this version")
    if length != len(payload) or content[: HEADER.size] != _header(store_id, payload):
        raise DamageError(path, 0, "its checksum does not match")
    found: dict[str, Any] = msgpack.unpackb(payload, strict_map_key=False)
    return DefinitionsCopy(store_id, found["next_queue_id"], found["tables"])


def _header(store_id: bytes, payload: bytes) -> bytes:
    checksum = crc32c(payload, crc32c(HEADER.pack(MAGIC, _VERSION, store_id, len(payload), 0)))
    return HEADER.pack(MAGIC, _VERSION, store_id, len(payload), checksum)
