"""The catalog of a store, read-only, as far as it can be read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import lmdb

from amqpstore.catalog.catalog import Change, Value
from amqpstore.catalog.lmdb_pages import check_pages
from amqpstore.catalog.rows import CHECKSUMMED, corrected_row, decode_row
from amqpstore.errors import DamageError
from amqpstore.identity import marker
from amqpstore.system.filenames import CATALOG_FILE
from amqpstore_tools.offline.instant import MAX_TABLES, at_one_instant
from amqpstore_tools.offline.locations import temporary_directory
from amqpstore_tools.offline.read_only_files import ReadOnlyFiles


class BadRow(NamedTuple):
    """A row that is not as it was written, and the reason.

    `is_corrected`: only one bit of it is wrong, and it was corrected.
    """

    table: str
    key: bytes
    reason: str
    is_corrected: bool


def may_be_plain(directory: str) -> bool:
    """Tell whether rows of a catalog may be without a checksum: see `amqpstore.catalog.rows`.

    They may, unless the marker says that they have one.
    Raises: FormatVersionError, OSError.
    """
    try:
        found = marker.read(ReadOnlyFiles(), directory)
    except DamageError:
        return True
    return found is None or found.is_plain


@contextlib.contextmanager
def current_catalog(directory: str) -> Iterator[CatalogImage]:
    """Read a copy of the catalog of a store that a broker may be writing.

    Raises: FormatVersionError, SnapshotError, DamageError, ToolError, OSError.
    """
    with temporary_directory("amqpstore-catalog-") as copy:
        at_one_instant(directory, copy, lambda: None)
        catalog = CatalogImage(copy, plain=may_be_plain(directory))
        try:
            yield catalog
        finally:
            catalog.close()


class CatalogImage:
    """The LMDB environment in the directory `path`: nothing in it is created, changed or locked.

    `reason` says why nothing can be read, None if it can; `tables` are the names of existing
    tables, `bad_rows` those that `rows` found; `is_plain`, whether one was found without a
    checksum. It must not have a writer meanwhile: for a running store, a copy is read (see
    `snapshot`).
    Args: plain, as `may_be_plain` returns it for the store.
    """

    def __init__(self, path: str, *, plain: bool) -> None:
        self.path = os.path.join(path, CATALOG_FILE)
        self.is_plain = False
        self._plain = plain
        self.reason: str | None = None
        self.tables: list[str] = []
        self.bad_rows: list[BadRow] = []
        self._environment: Any = None
        try:
            # LMDB crashes on a page number that leads nowhere.
            check_pages(self.path)
            self._environment = lmdb.open(
                os.fsencode(path), readonly=True, lock=False, create=False, max_dbs=MAX_TABLES
            )
            with self._environment.begin() as transaction:
                names = [bytes(key) for key, _ in transaction.cursor()]
            self._databases = {
                name.decode(): self._environment.open_db(name, create=False) for name in names
            }
        except (DamageError, lmdb.Error, OSError, ValueError, MemoryError) as error:
            self._fail(error)
        else:
            self.tables = sorted(self._databases)

    def rows(self, table: str) -> dict[str, Value]:
        """Return all readable rows of a table; none if it does not exist.

        Raises: DamageError, if it cannot be read at all.
        """
        if self.reason is not None:
            raise DamageError(self.path, 0, self.reason)
        if table not in self._databases:
            return {}
        rows: dict[str, Value] = {}
        self.bad_rows = [row for row in self.bad_rows if row.table != table]
        try:
            with self._environment.begin(self._databases[table]) as transaction:
                for key, value in transaction.cursor():
                    try:
                        name, decoded = decode_row(table, key, value, plain=self._plain)
                    except ValueError as error:
                        corrected = corrected_row(table, key, value)
                        is_corrected = corrected is not None
                        self.bad_rows.append(BadRow(table, key, str(error), is_corrected))
                        rows.update([corrected] if corrected else [])
                    else:
                        rows[name] = decoded
                        self.is_plain |= value[0] != CHECKSUMMED
        except lmdb.Error as error:
            raise DamageError(self.path, 0, f"table {table}: {error}") from error
        return rows

    @property
    def uncorrected(self) -> list[BadRow]:
        """The bad rows that were left out."""
        return [row for row in self.bad_rows if not row.is_corrected]

    def commit(self, _changes: Sequence[Change]) -> NoReturn:
        """Raise OSError: the catalog is read-only."""
        raise OSError(f"{self.path} is open for reading only")

    def refuse(self, reason: str) -> None:
        """Treat all of it as unreadable, because it belongs to another store."""
        self.reason = reason
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self._environment is not None:
            self._environment.close()
            self._environment = None

    def _fail(self, error: Exception) -> None:
        self.reason = error.reason if isinstance(error, DamageError) else str(error)
        self.close()
