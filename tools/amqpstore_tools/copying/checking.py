"""Checks files against the catalog, and which of their checksums are right."""

from __future__ import annotations

import os
from collections.abc import Iterator

from amqpstore.catalog import tables
from amqpstore.catalog.keys import IndexKey
from amqpstore.format.index import decode_block
from amqpstore.format.records import Gap, Kind, checksum_seed, scan
from amqpstore.system.filenames import INDEX, SEGMENTS
from amqpstore_tools.copying.inventory import Inventory, Part
from amqpstore_tools.copying.manifest import DamagedBytes


class Checker:
    """Checks the files of one snapshot."""

    def __init__(self, store_id: bytes, inventory: Inventory) -> None:
        self._seed = checksum_seed(store_id)
        self._segments = tables.SEGMENTS.read(inventory.rows)
        self._index = tables.INDEX.read(inventory.rows)

    def check(self, part: Part, content: bytes) -> Iterator[DamagedBytes]:
        """Yield the damage in a part. Files in quarantine are not checked."""
        folder = os.path.dirname(part.path)
        sound = content if part.end is None else content[: part.end]
        if part.end is not None and len(content) < part.end:
            reason = "the file is shorter than the catalog says"
            yield DamagedBytes(part.path, len(content), part.end - len(content), reason)
        if folder == SEGMENTS and not part.is_optional:
            row = self._segments.get(part.number)
            if row and len(content) < row.end_bytes and part.end is None:
                missing = row.end_bytes - len(content)
                yield DamagedBytes(
                    part.path, len(content), missing, "the end of the file is missing"
                )
            yield from self._gaps(part, sound)
        elif folder == INDEX:
            yield from self._index_file(part, sound)

    def _gaps(self, part: Part, content: bytes) -> Iterator[DamagedBytes]:
        for found in scan(content, part.number, self._seed):
            if isinstance(found, Gap):
                yield DamagedBytes(part.path, found.offset, found.end - found.offset, found.reason)

    def _index_file(self, part: Part, content: bytes) -> Iterator[DamagedBytes]:
        entries = 0
        gaps = list(self._gaps(part, content))
        for record in scan(content, part.number, self._seed):
            if isinstance(record, Gap):
                continue
            size = record.end - record.offset
            try:
                queue_id, block = decode_block(content[record.payload_offset : record.end])
            except ValueError as error:
                gaps.append(DamagedBytes(part.path, record.offset, size, str(error)))
                continue
            if record.kind != Kind.INDEX or queue_id != part.queue_id:
                reason = f"it is not an index file of queue {part.queue_id}"
                gaps.append(DamagedBytes(part.path, record.offset, size, reason))
            entries += len(block.ids)
        expected = self._index[IndexKey(part.queue_id, part.number)].entries
        if not gaps and entries != expected:
            reason = f"it has {entries} entries, and {expected} were written"
            gaps.append(DamagedBytes(part.path, 0, len(content), reason))
        yield from gaps
