"""What a store is made of at one instant, while a broker may be writing it.

A store is a catalog, files that the catalog names, and the log behind the catalog's position. An
instant (see `offline.instant`) is a catalog and an end of the log that were there together.

What is seen then of the last batch may not be durable yet, or be a part of it: the copy ends where
the last whole batch ends, which is what recovery would do. Nothing that was confirmed before is
behind that. The segments before the last are whole: a new one is begun when the last batch of the
one before is durable.

The files may be removed as soon as a later commit no longer names them. So they are pinned (see
`pinning`), and where one was gone already, everything begins anew with a later instant. A file
that is missing while the catalog is still the one that names it was lost, and is damage. Nothing
else can happen to them: segments of the log before the last, and compacted ones, are never written
again, and index files only behind the end that the catalog gives.

Where no broker has the store open, brokers are kept out until the files are pinned.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from amqpstore import marker
from amqpstore.checkpoint import POSITION
from amqpstore.errors import CatalogDamageError, DamageError, NotAStoreError
from amqpstore.filenames import (
    CATALOG,
    FIRST_COMPACTED,
    INDEX,
    MARKER,
    QUARANTINE,
    SEGMENTS,
    index_path,
    repair_number,
    segment_number,
    segment_path,
)
from amqpstore.files import OsFiles
from amqpstore.lmdb_pages import last_transaction
from amqpstore.log import START, Position
from amqpstore.marker import Marker
from amqpstore.rows import decode_row
from amqpstore_tools.copying.locks import shared
from amqpstore_tools.offline.instant import FILE_NAME, Tables, at_one_instant, read_tables
from amqpstore_tools.offline.reading import ReadOnlyFiles


class Part(NamedTuple):
    """A file of a store, or the beginning of one.

    `path` from the store's directory on; `number` of a segment or an index file. A sealed one is
    never written again; of another the first `size` bytes are part of the store. `end` is where
    what is sound in it ends, None is all. `is_tail`: the log may go on in it. `is_optional`: it
    may be gone. `queue_id` of an index file.
    """

    path: str
    number: int = 0
    is_sealed: bool = True
    size: int = 0
    end: int | None = None
    is_tail: bool = False
    is_optional: bool = False
    queue_id: int = 0


@dataclass
class Snapshot:
    """A store at one instant. `transaction_id` is LMDB's, of the catalog.

    `missing` are paths of files that it should have; `is_plain`, whether rows may be without a
    checksum.
    """

    transaction_id: int
    tables: Tables
    position: Position
    is_plain: bool = False
    parts: list[Part] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def rows(self, table: str) -> dict[str, Any]:
        """The rows of a table, decoded. Raises: ValueError."""
        return dict(
            decode_row(table, key, stored, plain=self.is_plain)
            for key, stored in self.tables.get(table.encode(), [])
        )

    def check_rows(self) -> None:
        """Look at every row of every table: a copy of a damaged one would be none.

        Raises: CatalogDamageError, of the copy's catalog.
        """
        for table, rows in self.tables.items():
            for key, stored in rows:
                try:
                    decode_row(table.decode(), key, stored, plain=self.is_plain)
                except ValueError as error:
                    shown = [name.decode("utf-8", "backslashreplace") for name in (table, key)]
                    raise CatalogDamageError(FILE_NAME, 0, shown[0], shown[1], str(error)) from None


class _Log(NamedTuple):
    """The `numbers` of all segments that are there, ascending, and how large the log's last is."""

    numbers: list[int]
    last_size: int

    @property
    def of_log(self) -> list[int]:
        return [number for number in self.numbers if number < FIRST_COMPACTED]


class Source:
    """A store that is read, and that a broker may have open. Made by `open_source`."""

    def __init__(self, directory: str, found: Marker, *, is_running: bool) -> None:
        self.directory = directory
        self.marker = found
        self.is_running = is_running
        self._catalog = os.path.join(directory, CATALOG, FILE_NAME)

    def snapshot(self) -> Snapshot:
        """The store as it is now. Raises: SnapshotError, DamageError, OSError."""
        try:
            with tempfile.TemporaryDirectory(prefix="amqpstore-copy-") as folder:
                log = at_one_instant(self.directory, folder, self._look)
                transaction_id = last_transaction(os.path.join(folder, FILE_NAME))
                return self._snapshot(transaction_id, read_tables(folder), log)
        except FileNotFoundError as error:
            raise DamageError(self._catalog, 0, "the file is missing") from error
        except DamageError as error:
            raise DamageError(self._catalog, error.offset, error.reason) from error
        except (ValueError, LookupError, TypeError) as error:
            raise DamageError(self._catalog, 0, str(error)) from error

    def is_still(self, snapshot: Snapshot) -> bool:
        """Whether the catalog is still the one of the snapshot."""
        return last_transaction(self._catalog) == snapshot.transaction_id

    def _look(self) -> _Log:
        names = ReadOnlyFiles().list_directory(f"{self.directory}/{SEGMENTS}")
        log = _Log(sorted(number for name in names if (number := segment_number(name))), 0)
        try:
            return log._replace(
                last_size=os.stat(segment_path(self.directory, log.of_log[-1])).st_size
            )
        except (FileNotFoundError, IndexError):
            # There is none; or it was removed, and then the catalog is another one now.
            return log

    def _snapshot(self, transaction_id: int, tables: Tables, log: _Log) -> Snapshot:
        snapshot = Snapshot(transaction_id, tables, START, self.marker.is_plain)
        snapshot.check_rows()
        if row := snapshot.rows("store").get(POSITION):
            snapshot.position = Position.of_row(row)
        self._add_segments(snapshot, log.numbers, log.of_log, log.last_size)
        for index_key, row in snapshot.rows(INDEX).items():
            queue_id, number = int(index_key.partition("-")[0]), row["number"]
            path = index_path("", queue_id, number)
            end = row["end_bytes"]
            snapshot.parts.append(
                Part(path, number, is_sealed=False, size=end, end=end, queue_id=queue_id)
            )
        for file_name in ReadOnlyFiles().list_directory(f"{self.directory}/{QUARANTINE}"):
            if repair_number(file_name):
                continue  # What a repair replaced is no part of the store.
            snapshot.parts.append(Part(f"{QUARANTINE}/{file_name}", is_optional=True))
        return snapshot

    def _add_segments(
        self, snapshot: Snapshot, known: list[int], of_log: list[int], size: int
    ) -> None:
        """The segments with a row, those of the log behind the position, and the last one's end."""
        ends = {int(key): row["end"] for key, row in snapshot.rows("ends").items()}
        rows = {int(key) for key in snapshot.rows("segments")}
        first = max(snapshot.position.segment, 1)
        behind = [number for number in of_log if number >= first]
        last = max([snapshot.position.segment, *behind])
        expected = {*range(first, last + 1), *rows} if last else rows
        for number in sorted({*expected, *behind}):
            path = segment_path("", number)
            end = ends.get(number)
            if number not in known and number not in rows:
                snapshot.missing.append(path)
            elif number == last and end is None:
                snapshot.parts.append(Part(path, number, is_sealed=False, size=size, is_tail=True))
            else:
                snapshot.parts.append(Part(path, number, end=end))
        # Those that the next start would move there.
        for number in sorted({int(key) for key in snapshot.rows(QUARANTINE)} & set(known)):
            if number not in expected and number not in behind:
                snapshot.parts.append(Part(segment_path("", number), is_optional=True))


@contextlib.contextmanager
def open_source(directory: str, *, held: bool = False) -> Iterator[Source]:
    """A store that is there. Brokers are kept out, where none has it open, until the end.

    Args: held, whether the caller has its lock.
    Raises: NotAStoreError, FormatVersionError, DamageError (its marker or its catalog), OSError.
    """
    if not os.path.isdir(directory):
        raise NotAStoreError(directory, "it is no directory")
    found = marker.read(OsFiles(), directory)
    if found is None:
        raise NotAStoreError(directory, f"it has no file {MARKER}")
    with contextlib.nullcontext(False) if held else shared(directory) as is_running:
        yield Source(directory, found, is_running=is_running)
