"""Checks files against the catalog, and which of their checksums are right."""

from __future__ import annotations

import os
from collections.abc import Iterator

from amqpstore.catalog import tables
from amqpstore.catalog.keys import IndexKey
from amqpstore.format.index import decode_block
from amqpstore.format.records import Gap, Kind, checksum_seed, scan
from amqpstore.system.filenames import INDEX, SEGMENTS
from amqpstore_tools.copying.inventory import Inventory, InventoryFile
from amqpstore_tools.copying.manifest import DamagedBytes


class Checker:
    """Checks the files of one snapshot."""

    def __init__(self, store_id: bytes, inventory: Inventory) -> None:
        self._seed = checksum_seed(store_id)
        self._segments = tables.SEGMENTS.read(inventory.rows)
        self._index = tables.INDEX.read(inventory.rows)

    def check(self, stored: InventoryFile, content: bytes) -> Iterator[DamagedBytes]:
        """Yield the damage in a stored file. Files in quarantine are not checked."""
        folder = os.path.dirname(stored.path)
        sound = content if stored.end is None else content[: stored.end]
        if stored.end is not None and len(content) < stored.end:
            reason = "the file is shorter than the catalog says"
            yield DamagedBytes(stored.path, len(content), stored.end - len(content), reason)
        if folder == SEGMENTS and not stored.is_optional:
            row = self._segments.get(stored.number)
            if row and len(content) < row.end_bytes and stored.end is None:
                missing = row.end_bytes - len(content)
                yield DamagedBytes(
                    stored.path, len(content), missing, "the end of the file is missing"
                )
            yield from self._gaps(stored, sound)
        elif folder == INDEX:
            yield from self._index_file(stored, sound)

    def _gaps(self, stored: InventoryFile, content: bytes) -> Iterator[DamagedBytes]:
        for found in scan(content, stored.number, self._seed):
            if isinstance(found, Gap):
                yield DamagedBytes(
                    stored.path, found.offset, found.end - found.offset, found.reason
                )

    def _index_file(self, stored: InventoryFile, content: bytes) -> Iterator[DamagedBytes]:
        entries = 0
        gaps = list(self._gaps(stored, content))
        for record in scan(content, stored.number, self._seed):
            if isinstance(record, Gap):
                continue
            size = record.end - record.offset
            try:
                queue_id, block = decode_block(content[record.payload_offset : record.end])
            except ValueError as error:
                gaps.append(DamagedBytes(stored.path, record.offset, size, str(error)))
                continue
            if record.kind != Kind.INDEX or queue_id != stored.queue_id:
                reason = f"it is not an index file of queue {stored.queue_id}"
                gaps.append(DamagedBytes(stored.path, record.offset, size, reason))
            entries += len(block.ids)
        expected = self._index[IndexKey(stored.queue_id, stored.number)].entries
        if not gaps and entries != expected:
            reason = f"it has {entries} entries, and {expected} were written"
            gaps.append(DamagedBytes(stored.path, 0, len(content), reason))
        yield from gaps
