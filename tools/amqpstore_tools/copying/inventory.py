"""The files of a store and how much of each belongs to it, by the catalog of a snapshot.

A store is a catalog, files that the catalog names, and the log behind the catalog's position. The
last batch in the log may not be durable yet, or be incomplete: a copy ends where the last whole
batch ends, as recovery would. Nothing that was confirmed before follows that. The segments before
the last are whole: a new one is created when the last batch of the one before is durable. Segments
of the log before the last, and compacted ones, are never written again, and index files only after
the end that the catalog gives.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from amqpstore.catalog import tables
from amqpstore.catalog.rows import decode_row
from amqpstore.catalog.tables import START, StoreRows
from amqpstore.errors import CatalogDamageError, DamageError
from amqpstore.evidence import find_misplaced
from amqpstore.identity.expected_segments import ExpectedSegments, is_of_log
from amqpstore.identity.identity import check_catalog
from amqpstore.identity.marker import Marker
from amqpstore.system.filenames import (
    CATALOG,
    CATALOG_FILE,
    QUARANTINE,
    SEGMENTS,
    TRAILS,
    index_path,
    position_number,
    repair_number,
    segment_numbers,
    segment_path,
    trail_number,
)
from amqpstore_tools.offline.instant import read_tables
from amqpstore_tools.offline.read_only_files import ReadOnlyFiles
from amqpstore_tools.offline.snapshot import Snapshot


class InventoryFile(NamedTuple):
    """A file of a store, or the beginning of one.

    `path` relative to the store's directory; `number` of a segment or an index file. A sealed file
    is never written again; of another file the first `size` bytes are part of the store. `end` is
    where its sound part ends, None means all of it. `is_tail`: the log may continue in it.
    `is_optional`: it may be missing. `queue_id` of an index file. `found_as` is where it lies in
    the store, if that is not where it belongs.
    """

    path: str
    number: int = 0
    is_sealed: bool = True
    size: int = 0
    end: int | None = None
    is_tail: bool = False
    is_optional: bool = False
    queue_id: int = 0
    found_as: str = ""

    def is_of_log_from(self, position: int) -> bool:
        """Tell whether it is a segment of the log, with this number or a higher one."""
        is_segment = os.path.dirname(self.path) == SEGMENTS
        return is_segment and is_of_log(self.number, position)


class Inventory:
    """The files that a snapshot's catalog names, as `entries`, and its rows, as `tables`.

    `position`, where the log continues after the last checkpoint; `missing`, the paths of files
    that should exist.
    Args: marked, the store's marker.
    Raises: DamageError (the catalog), OSError.
    """

    def __init__(self, snapshot: Snapshot, marked: Marker) -> None:
        self._directory = snapshot.directory
        self._files = snapshot.files
        self._is_plain = marked.is_plain
        self.position = START
        self.entries: list[InventoryFile] = []
        self.missing: list[str] = []
        catalog = os.path.join(self._directory, CATALOG, CATALOG_FILE)
        try:
            self.tables = read_tables(snapshot.catalog_path)
            self._check_rows()
            check_catalog(self._directory, marked, self.rows)
            self.position = StoreRows.read(self.rows).position or START
            self._add_segments()
            self._add_index()
        except DamageError as error:
            raise DamageError(catalog, error.offset, error.reason) from error
        except (ValueError, LookupError, TypeError) as error:
            raise DamageError(catalog, 0, str(error)) from error
        self._add_quarantine()
        self._add_trails()
        self._add_misplaced(marked.store_id.bytes)

    def rows(self, table: str) -> dict[str, Any]:
        """Decode the rows of a table. Raises: ValueError."""
        return dict(
            decode_row(table, key, stored, plain=self._is_plain)
            for key, stored in self.tables.get(table.encode(), [])
        )

    def _check_rows(self) -> None:
        """Check every row of every table: a copy with a damaged row would be worthless.

        Raises: CatalogDamageError, of the copy's catalog.
        """
        for table, rows in self.tables.items():
            for key, stored in rows:
                try:
                    decode_row(table.decode(), key, stored, plain=self._is_plain)
                except ValueError as error:
                    shown = [name.decode("utf-8", "backslashreplace") for name in (table, key)]
                    raise CatalogDamageError(
                        CATALOG_FILE, 0, shown[0], shown[1], str(error)
                    ) from None

    def _add_segments(self) -> None:
        """Add the segments with a row, those of the log behind the position, and the last one's
        end.
        """
        names = self._files.list_directory(f"{self._directory}/{SEGMENTS}")
        known = segment_numbers(names)
        ends = {number: row.end for number, row in tables.SEGMENT_ENDS.read(self.rows).items()}
        rows = tables.SEGMENTS.read_keys(self.rows)
        expected = ExpectedSegments.of(known, self.position.segment, rows, ends)
        self.missing += [
            segment_path("", found.number)
            for found in expected.missing()
            if found.number not in rows
        ]
        for number in sorted({*expected.log, *expected.rowed}):
            path = segment_path("", number)
            if number == expected.open:
                size = self._size(path)
                self.entries.append(
                    InventoryFile(path, number, is_sealed=False, size=size, is_tail=True)
                )
            else:
                self.entries.append(InventoryFile(path, number, end=ends.get(number)))
        # Those that the next start would move there.
        quarantined = tables.QUARANTINE.read_keys(self.rows)
        for number in expected.left_over:
            if number in quarantined:
                self.entries.append(InventoryFile(segment_path("", number), is_optional=True))

    def _size(self, path: str) -> int:
        file = self._files.find(f"{self._directory}/{path}")
        return file.size() if file else 0

    def _add_index(self) -> None:
        for (queue_id, number), state in tables.INDEX.read(self.rows).items():
            path = index_path("", queue_id, number)
            end = state.end_bytes
            self.entries.append(
                InventoryFile(path, number, is_sealed=False, size=end, end=end, queue_id=queue_id)
            )

    def _add_quarantine(self) -> None:
        for name in self._files.list_directory(f"{self._directory}/{QUARANTINE}"):
            if not repair_number(name):  # A file that a repair replaced is not part of the store.
                self.entries.append(InventoryFile(f"{QUARANTINE}/{name}", is_optional=True))

    def _add_trails(self) -> None:
        """Add the notes of clients and of durable positions: without them, a log that has lost its
        end would pass for whole. Of each kind of file, only the last one may still be written.
        """
        names = self._files.list_directory(f"{self._directory}/{TRAILS}")
        for number_in in (trail_number, position_number):
            numbers = {name: number for name in names if (number := number_in(name))}
            last = max(numbers.values(), default=0)
            for name, number in numbers.items():
                path = f"{TRAILS}/{name}"
                is_sealed = number < last
                self.entries.append(InventoryFile(path, is_sealed=is_sealed, size=self._size(path)))

    def _add_misplaced(self, store_id: bytes) -> None:
        """Add files that the store needs and that lie under other names: to the copy's quarantine,
        where a repair finds them.
        """
        rows = {table: self.rows(table) for table in ("store", "segments", "index")}
        taken = {part.path for part in self.entries}
        for found in find_misplaced(ReadOnlyFiles(), self._directory, store_id, rows):
            path = f"{QUARANTINE}/{os.path.basename(found.home)}"
            if not taken.isdisjoint((found.name, path)):
                continue
            taken.add(path)
            self.entries.append(InventoryFile(path, is_optional=True, found_as=found.name))
