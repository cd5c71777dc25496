"""Reads the catalog for a check row by row, so that an unreadable row does not affect the
others.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import zstandard

from amqpstore.catalog import tables
from amqpstore.catalog.catalog import TABLES
from amqpstore.catalog.lmdb_pages import check_pages
from amqpstore.catalog.shapes import Rows
from amqpstore.errors import DamageError
from amqpstore.system.filenames import CATALOG
from amqpstore_tools.check.findings import Findings
from amqpstore_tools.offline.catalog import CatalogImage

FILE = f"{CATALOG}/data.mdb"


class CatalogRows(NamedTuple):
    """The valid rows, and table and key of the invalid ones.

    `is_plain`: one of them has no checksum.
    """

    rows: Rows
    damaged: set[tuple[str, str]]
    is_plain: bool


def read_catalog(path: str, findings: Findings, *, plain: bool) -> CatalogRows | None:
    """Read the rows of every table; None if nothing can be read.

    Damaged rows are left out of `rows`, unless they can be corrected.
    Args: path, the directory of the catalog; plain, whether rows may have no checksum.
    """
    if not os.path.exists(os.path.join(path, os.path.basename(FILE))):
        findings.add("catalog-missing", FILE, "the file is missing")
        return None
    # The pages are checked before LMDB opens the file: it takes them on trust.
    try:
        check_pages(os.path.join(path, os.path.basename(FILE)))
    except DamageError as error:
        findings.add("catalog-damaged", FILE, error.reason, error.offset)
        return None
    except OSError as error:
        findings.add("file-unreadable", FILE, str(error))
        return None
    image = CatalogImage(path, plain=plain)
    try:
        return _rows(image, findings)
    except DamageError as error:
        findings.add("catalog-damaged", FILE, error.reason)
        return None
    finally:
        image.close()


def _rows(image: CatalogImage, findings: Findings) -> CatalogRows:
    """Raises: DamageError."""
    rows: Rows = {table: image.rows(table) for table in TABLES}
    damaged: set[tuple[str, str]] = set()
    for table in sorted({*image.tables} - {*TABLES}):
        findings.add("table-unknown", FILE, f"unknown table {table!r}")
    for bad in image.bad_rows:
        name = bad.key.decode("utf-8", "backslashreplace")
        text = f"table {bad.table}, row {name!r}: {bad.reason}"
        if bad.is_corrected:
            text = f"{text}; exactly one bit of it is wrong, and can be corrected"
        else:
            damaged.add((bad.table, name))
        findings.add("row-damaged", FILE, text)
    _check_dictionaries(rows, findings)
    return CatalogRows(rows, damaged, image.is_plain)


def _check_dictionaries(rows: Rows, findings: Findings) -> None:
    for of, row in tables.DICTIONARIES.read(rows.__getitem__).items():
        try:
            number = zstandard.ZstdCompressionDict(row).dict_id()
        except zstandard.ZstdError as error:
            number = 0
            reason = str(error)
        else:
            reason = f"it says that it is number {number}"
        if number != of:
            findings.add("dictionary-damaged", FILE, f"dictionary {of}: {reason}")
            del rows["dictionaries"][tables.DICTIONARIES.key(of)]
