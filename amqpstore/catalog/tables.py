"""The engine's tables in the catalog: their keys, and their rows as NamedTuples.

FORMAT.md, "Catalog tables" and "Catalog maps", describes the same, and a test compares it with this
module. All code that reads or writes such rows uses their table here. Rows that are read were
checked before (`shapes`): their keys and fields are valid. Keys of a map that a newer version has
added are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from amqpstore.catalog.catalog import Change, Value
from amqpstore.catalog.keys import (
    DICTIONARY_KEYS,
    INDEX_KEYS,
    LSN_KEYS,
    QUEUE_KEYS,
    SEGMENT_KEYS,
    IndexKey,
    Keys,
)
from amqpstore.format.index import IndexState

K = TypeVar("K")
R = TypeVar("R")

RowsOf = Callable[[str], Mapping[str, Value]]
"""Returns rows by the name of their table: `Catalog.rows`, or a replacement for it."""


class Table(Generic[K, R]):
    """A table of the catalog, with keys of type `K` and rows of type `R`."""

    def __init__(
        self,
        name: str,
        keys: Keys[K],
        of_row: Callable[[Value], R],
        row: Callable[[R], Value],
    ) -> None:
        self.name = name
        self.keys = keys
        self.of_row = of_row
        self.row = row

    def key(self, key: K) -> str:
        """Return the key as it is stored."""
        return self.keys.text(key)

    def parse_key(self, text: str) -> K:
        """Parse a stored key. Raises: ValueError."""
        return self.keys.parse(text)

    def read(self, rows_of: RowsOf) -> dict[K, R]:
        """Return all rows, in the order of their keys."""
        return {
            self.keys.parse(text): self.of_row(value) for text, value in rows_of(self.name).items()
        }

    def read_keys(self, rows_of: RowsOf) -> set[K]:
        """Return the keys of all rows."""
        return set(map(self.keys.parse, rows_of(self.name)))

    def get(self, rows_of: RowsOf, key: K) -> R | None:
        """Return one row; None if it does not exist."""
        value = rows_of(self.name).get(self.keys.text(key))
        return None if value is None else self.of_row(value)

    def put(self, key: K, row: R) -> Change:
        """Return the change that writes a row."""
        return Change(self.name, self.keys.text(key), self.row(row))

    def remove(self, key: K) -> Change:
        """Return the change that removes a row."""
        return Change(self.name, self.keys.text(key), None)


class Position(NamedTuple):
    """A place in the log between two batches: the first numbers that are not before it."""

    segment: int
    offset: int
    lsn: int
    message_id: int

    @classmethod
    def of_row(cls, row: Mapping[str, int]) -> Position:
        """Parse a row of the catalog."""
        return cls(**_fields(cls._fields, row))


START = Position(0, 0, 1, 1)
"""The position at which the log of a new store begins."""


class StoreRows(NamedTuple):
    """The table `store`: a row for each of these that is not None, under its name.

    `next_queue_id` is None until a durable queue is created, `position` until the first checkpoint,
    and `next_compacted` until the first compaction. `term` and `definitions` are for members of
    groups only.
    """

    store_id: bytes | None = None
    next_queue_id: int | None = None
    position: Position | None = None
    next_compacted: int | None = None
    term: int | None = None
    definitions: int | None = None

    @classmethod
    def read(cls, rows_of: RowsOf) -> StoreRows:
        """Read all of them."""
        rows = rows_of("store")
        position = rows.get("position")
        return cls(
            rows.get("store_id"),
            rows.get("next_queue_id"),
            None if position is None else Position.of_row(position),
            rows.get("next_compacted"),
            rows.get("term"),
            rows.get("definitions"),
        )

    def changes(self) -> list[Change]:
        """Return the changes that write those that are not None."""
        rows = self._asdict()
        if self.position is not None:
            rows["position"] = self.position._asdict()
        return [Change("store", name, row) for name, row in rows.items() if row is not None]


class PreparedRow(NamedTuple):
    """A prepared transaction; with `purged`, a purge that can be undone (see `purges`). `locked` is
    what it will ack: queue id, first sequence, count.

    `publishes` is where messages of its queue go: first sequence, count, priority, and a list of
    queue id, expiry in ms since 1970 (0: never), and how many at most (None: all).
    """

    label: Value
    locked: Sequence[Sequence[int]]
    publishes: Sequence[Sequence[Any]]
    purged: bool = False

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> PreparedRow:
        """Parse a row of the catalog."""
        return cls(**_fields(cls._fields[:-1], row), purged=row.get("purged", False))

    def row(self) -> dict[str, Any]:
        """Return the row for the catalog."""
        row = self._asdict()
        # Transactions have no such key: their rows are as all versions have written them.
        return row if self.purged else {key: row[key] for key in self._fields[:-1]}


class NextSequenceRow(NamedTuple):
    """The checkpoint's row of a queue: no sequence from `next_sequence` on was ever used in it."""

    next_sequence: int

    @classmethod
    def of_row(cls, row: Mapping[str, int]) -> NextSequenceRow:
        """Parse a row of the catalog."""
        return cls(row["next_sequence"])


class SegmentRow(NamedTuple):
    """The account of a segment: see `segment_accounts.SegmentAccount`. `ids` and `references` are
    packed.
    """

    message_count: int
    end_bytes: int
    end_id: int
    first_id: int
    live_bytes: int
    live_count: int
    number: int
    total_bytes: int
    ids: bytes
    references: bytes

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> SegmentRow:
        """Parse a row of the catalog."""
        return cls(row["count"], **_fields(cls._fields[1:], row))

    def row(self) -> dict[str, Value]:
        """Return the row for the catalog."""
        return {"count": self.message_count, **dict(zip(self._fields[1:], self[1:], strict=True))}


class OffsetTableRow(NamedTuple):
    """The offset table of a segment: where the records of some messages start."""

    first_id: int
    end_id: int
    ids: list[int]
    offsets: list[int]

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> OffsetTableRow:
        """Parse a row of the catalog."""
        return cls(**_fields(cls._fields, row))


class SegmentEndRow(NamedTuple):
    """The end of a segment: bytes after `end` are not part of the store."""

    end: int

    @classmethod
    def of_row(cls, row: Mapping[str, int]) -> SegmentEndRow:
        """Parse a row of the catalog."""
        return cls(row["end"])


class DamageRow(NamedTuple):
    """A damaged place in a segment."""

    offset: int
    size: int
    reason: str


class PassedOverRow(NamedTuple):
    """Numbers that a start has passed over: see `evidence.passed_over`. They are ranges, each a
    first number and the one after the last: LSNs, ids of messages, and ids of queues.
    """

    lsns: list[list[int]]
    message_ids: list[list[int]]
    queue_ids: list[list[int]]

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> PassedOverRow:
        """Parse a row of the catalog."""
        return cls(**_fields(cls._fields, row))


class GivenUpRow(NamedTuple):
    """Records that a repair has given up: LSNs and ids of messages as in `PassedOverRow`; and where
    some of these messages were: queue id, first sequence, first id and count of each run.
    """

    lsns: list[list[int]]
    message_ids: list[list[int]]
    places: list[list[int]]

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> GivenUpRow:
        """Parse a row of the catalog."""
        return cls(**_fields(cls._fields, row))


def _fields(names: Sequence[str], row: Mapping[str, Any]) -> dict[str, Any]:
    # Unknown keys of a newer version are dropped here, and so are lost when this version writes
    # the row again.
    return {name: row[name] for name in names}


def _as_map(row: Any) -> Value:
    return row._asdict()


def _as_it_is(value: Value) -> Value:
    return value


def _damage_of(row: Value) -> list[DamageRow]:
    return [DamageRow(*entry) for entry in row]


def _damage_row(damage: Sequence[DamageRow]) -> Value:
    return [list(entry) for entry in damage]


QUEUES: Table[int, Value] = Table("queues", QUEUE_KEYS, _as_it_is, _as_it_is)
"""The definitions of durable queues, their owner's."""

PREPARED = Table("prepared", QUEUE_KEYS, PreparedRow.of_row, PreparedRow.row)
NEXT_SEQUENCES = Table("heads", QUEUE_KEYS, NextSequenceRow.of_row, _as_map)
INDEX: Table[IndexKey, IndexState] = Table("index", INDEX_KEYS, IndexState.of_row, IndexState.row)
SEGMENTS = Table("segments", SEGMENT_KEYS, SegmentRow.of_row, SegmentRow.row)
OFFSET_TABLES = Table("marks", SEGMENT_KEYS, OffsetTableRow.of_row, _as_map)
SEGMENT_ENDS = Table("ends", SEGMENT_KEYS, SegmentEndRow.of_row, _as_map)
DICTIONARIES: Table[int, bytes] = Table("dictionaries", DICTIONARY_KEYS, _as_it_is, _as_it_is)
QUARANTINE = Table("quarantine", SEGMENT_KEYS, _damage_of, _damage_row)
PASSED_OVER = Table("passed_over", LSN_KEYS, PassedOverRow.of_row, _as_map)
GIVEN_UP = Table("given_up", LSN_KEYS, GivenUpRow.of_row, _as_map)

TABLES: tuple[Table[Any, Any], ...] = (
    *(QUEUES, PREPARED, NEXT_SEQUENCES, INDEX),
    *(SEGMENTS, OFFSET_TABLES, SEGMENT_ENDS, DICTIONARIES, QUARANTINE, PASSED_OVER, GIVEN_UP),
)
"""All of these tables; besides them there are `store` (see `StoreRows`), and those of the
broker.
"""

OF_SEGMENTS = (SEGMENTS, OFFSET_TABLES, SEGMENT_ENDS)
"""Tables whose rows go with a segment's file."""
