"""The remains of a damaged catalog: the rows of its sound pages.

LMDB never writes over a page of the last commit, so its file has the last two of them. If the pages
of the last one are damaged, the one before may be whole: that is a catalog a little older, and the
log has what came after. Only if neither is whole, rows are gathered from wherever there is one. A
row's checksum covers its table, so one on a page to which nothing leads is of use as well.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, NamedTuple

from amqpstore.catalog import tables
from amqpstore.catalog.catalog import TABLES
from amqpstore.catalog.lmdb_pages import ReadableState, readable_states, rows_on_pages
from amqpstore.catalog.rows import corrected_row, decode_row
from amqpstore.catalog.shapes import Rows
from amqpstore.catalog.tables import StoreRows
from amqpstore.errors import DamageError
from amqpstore.system.filenames import CATALOG_FILE

_OF_ONE_COMMIT = ("store", "heads", "index", "queues", "prepared")
"""Tables that only together tell the truth about messages."""


class Salvaged(NamedTuple):
    """Readable rows. `damaged` has each table that may lack some, with an empty key."""

    rows: Rows
    damaged: set[tuple[str, str]]


class _State(NamedTuple):
    """The decoded rows of one commit by table, and the tables that lack none."""

    rows: Rows
    whole: set[str]

    @property
    def trusted(self) -> int:
        """The number of tables that are whole, of those that belong together."""
        return len(self.whole.intersection(_OF_ONE_COMMIT))


def salvage(catalog: str, store_id: bytes, *, plain: bool) -> Salvaged | None:
    """Read what is left of a store's catalog; None if that is nothing, or another store's.

    Args: catalog, its directory; plain, whether rows may be without a checksum.
    """
    path = os.path.join(catalog, CATALOG_FILE)
    states: list[_State] = []
    strays: Rows = {table: {} for table in TABLES}
    with contextlib.suppress(OSError, DamageError):
        states = [_decoded(found, plain=plain) for found in readable_states(path)]
        strays = _strays(path)
    best = max(states, key=lambda one: one.trusted, default=_State({}, set()))
    out = Salvaged({}, set())
    for table in TABLES:
        known = best.rows.get(table, {})
        if table not in best.whole:
            out.damaged.add((table, ""))
            known = _gathered(table, best, states, strays)
        out.rows[table] = known
    for rows in (*(one.rows for one in states), strays):
        _add_later(out.rows, rows)
    in_catalog = StoreRows.read(out.rows.__getitem__).store_id
    is_foreign = in_catalog not in (None, store_id)
    return None if is_foreign or not any(out.rows.values()) else out


def _gathered(table: str, best: _State, states: list[_State], strays: Rows) -> dict[str, Any]:
    """Return the rows of a table that lacks some.

    A position, or a sequence that was next, says that all before it was acked unless an index file
    has it: so those of another commit than the index files' rows would lose messages.
    """
    found = dict(best.rows.get(table, {}))
    if table == "heads":
        return found
    for rows in (*(one.rows for one in states), strays):
        for key, row in rows.get(table, {}).items():
            if (table, key) != ("store", "position"):
                found.setdefault(key, row)
    return found


def _add_later(known: Rows, others: Rows) -> None:
    """Add the rows that are certainly later than the known ones: of queues with higher ids, and of
    index files with more acks by then.
    """
    counted = StoreRows.read(known.__getitem__).next_queue_id or 1
    for table in ("queues", "prepared"):
        for key, row in others.get(table, {}).items():
            if tables.QUEUES.parse_key(key) >= counted:
                known[table].setdefault(key, row)
    for key, row in others.get("index", {}).items():
        there = known["index"].get(key)
        # With another first sequence the row is of another file, which had the same number.
        if there and _progress(row) > _progress(there) and row["first"] == there["first"]:
            known["index"][key] = row


def _progress(row: dict[str, Any]) -> tuple[int, int]:
    """Return how much had happened to an index file when its row was written."""
    return row["entries"], row["acked_count"]


def _decoded(read: ReadableState, *, plain: bool) -> _State:
    state = _State({}, set())
    for name, stored in read.tables.items():
        table = name.decode("utf-8", "replace")
        rows = state.rows.setdefault(table, {})
        is_whole = name in read.whole
        for key, value in stored.items():
            try:
                of, row = decode_row(table, key, value, plain=plain)
            except ValueError:
                corrected = corrected_row(table, key, value)
                rows.update([corrected] if corrected else [])
                is_whole &= corrected is not None
            else:
                rows[of] = row
        if is_whole:
            state.whole.add(table)
    return state


def _strays(path: str) -> Rows:
    """Return the rows of all pages, by the table that their checksums are of."""
    found: Rows = {table: {} for table in TABLES}
    for key, value in rows_on_pages(path):
        for table in TABLES:
            with contextlib.suppress(ValueError):
                name, row = decode_row(table, key, value, plain=False)
                found[table][name] = row
    return found
