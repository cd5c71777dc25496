"""Definitions on their way to followers: the tables of the catalog that are a group's, not a
member's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from amqpstore.catalog.catalog import Catalog, Change, Value
from amqpstore.catalog.tables import StoreRows
from amqpstore.replica import BatchEnd, CopySource
from amqpstore.replica.follower_store import SHIPPED

_NEXT_QUEUE_ID = "next_queue_id"


class DefinitionTables(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """All definitions of a leader, as they are sent to a follower that joins.

    `sealed` is the number of the last batch that was sealed before: once a later one is committed,
    so are all of these.
    """

    sealed: int
    next_queue_id: int
    tables: Mapping[str, Mapping[str, Value]]


class _Row(NamedTuple):
    table: str
    key: str
    value: Value


_tables = msgspec.msgpack.Decoder(DefinitionTables)
_rows = msgspec.msgpack.Decoder(list[_Row])


def decode_tables(content: bytes) -> DefinitionTables:
    """Read what a snapshot holds. Raises: msgspec.DecodeError."""
    return _tables.decode(content)


def decode_changes(content: bytes) -> list[Change]:
    """Read what a change of definitions holds. Raises: msgspec.DecodeError."""
    return [Change(*row) for row in _rows.decode(content)]


class ReplicatedCatalog:
    """The catalog of a leader: what followers have to have as well is sent to them.

    Args: define, sends the changes of one commit, under the next number.
    """

    def __init__(self, catalog: Catalog, define: Callable[[int, bytes], None]) -> None:
        self._catalog = catalog
        self._define = define
        self._lock = threading.Lock()
        # From 1 on, also where nothing was ever defined: a follower stores it.
        self._number = (StoreRows.read(catalog.rows).definitions or 0) + 1

    def rows(self, table: str) -> dict[str, Value]:
        return self._catalog.rows(table)

    def commit(self, changes: Sequence[Change]) -> None:
        shipped = [one for one in changes if one.table in SHIPPED or one[:2] == _COUNTER]
        with self._lock:
            # Here first: if this commit fails, the client is told so, and followers must not have
            # it either. A crash behind it leaves a definition here that no client was told of.
            self._catalog.commit(changes)
            if not shipped:
                return
            self._number += 1
            # Under the lock: a snapshot has what has been sent under its number, and all before.
            self._define(self._number, msgspec.msgpack.encode(shipped))

    def close(self) -> None:
        self._catalog.close()

    def pinned(self, pin: Callable[[CopySource], None], ends: Iterable[BatchEnd]) -> CopySource:
        """Return what a copy of the store is made from, once its files are pinned: what a later
        commit releases may be removed behind that.

        Args: ends, of the last batches of the log.
        Raises: ValueError, DamageError, OSError.
        """
        with self._lock:
            source = CopySource.of(self._catalog.rows, self._number, ends)
            pin(source)
        return source

    def snapshot(self, sealed: Callable[[], int]) -> tuple[int, bytes]:
        """Return all definitions, and how many commits of them there have been.

        Args: sealed, returns the number of the last batch that was sealed.
        Raises: DamageError, OSError.
        """
        with self._lock:
            number = self._number
            next_queue_id = StoreRows.read(self._catalog.rows).next_queue_id or 1
            tables = {table: self._catalog.rows(table) for table in SHIPPED}
            found = DefinitionTables(sealed(), next_queue_id, tables)
        return number, msgspec.msgpack.encode(found)


_COUNTER = ("store", _NEXT_QUEUE_ID)
