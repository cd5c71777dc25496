"""A copy of a whole store, for a follower that lacks what the leader's log no longer has.

It is the store as its last checkpoint has it, and its log ends there: so all of it is committed.
What comes behind is sent as to any other follower that joins. A copy is the rows of the catalog at
one instant, and the files that these name; the end of the log's last segment is left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgpack
from crc32c import crc32c

from amqpstore.catalog import tables
from amqpstore.catalog.catalog import TABLES, Value
from amqpstore.catalog.shapes import misshapen
from amqpstore.catalog.tables import Position, RowsOf, StoreRows
from amqpstore.identity.expected_segments import is_of_log
from amqpstore.replica.log_reading import LOG_START, BatchEnd
from amqpstore.system.filenames import (
    INDEX,
    SEGMENTS,
    index_key,
    index_path,
    segment_number,
    segment_path,
)
from amqpstore.terms import number_of

_CHECKSUM = struct.Struct(">I")


class WholeCopy(NamedTuple):
    """The content of a copy: `files`, the size in bytes of each by its name relative to the
    directory, and the rows of all `tables`.
    """

    files: dict[str, int]
    tables: dict[str, dict[str, Value]]

    def encode(self) -> bytes:
        """Encode the content as it is sent, and stored by the follower: a CRC-32C, and msgpack."""
        packed: bytes = msgpack.packb([self.files, self.tables])
        return _CHECKSUM.pack(crc32c(packed)) + packed

    @classmethod
    def decode(cls, content: bytes) -> WholeCopy:
        """Decode the content. Raises: ValueError, which says what is wrong."""
        packed = content[_CHECKSUM.size :]
        # This becomes REPLACEMENT, after which the member's own store is given up.
        if len(content) < _CHECKSUM.size or _CHECKSUM.unpack_from(content)[0] != crc32c(packed):
            raise ValueError("its checksum does not match")
        try:
            files, rows = msgpack.unpackb(packed, strict_map_key=False)
            found = cls(dict(files), {table: dict(rows[table]) for table in TABLES})
        except (ValueError, TypeError, LookupError, msgpack.UnpackException) as error:
            raise ValueError(f"it cannot be read: {error}") from None
        for name in found.files:
            if not is_copied_name(name):
                # Names come from the network, and become paths in this directory.
                raise ValueError(f"{name!r} is not a file of a store")
        for table, of_table in found.tables.items():
            for key, row in of_table.items():
                if reason := misshapen(table, key, row):
                    raise ValueError(f"table {table}, row {key!r}: {reason}")
        return found


class CopySource(NamedTuple):
    """The source of a copy of a store: its rows, and the files that these name.

    `sizes` says how much of a file is copied, None all of it. `segment` is the one that the copy's
    log ends in, 0 if it has no log.
    """

    tables: dict[str, dict[str, Value]]
    sizes: dict[str, int | None]
    segment: int

    @classmethod
    def of(cls, rows_of: RowsOf, definitions: int, ends: Iterable[BatchEnd] = ()) -> CopySource:
        """Return the source for a store's catalog, which must not change meanwhile.

        Args: definitions, the number of the last commit of them; ends, of the last batches.
        Raises: ValueError: the last checkpoint is between two segments of the log, and the store no
        longer has the one before it; a later checkpoint will do.
        """
        rows: dict[str, dict[str, Any]] = {table: dict(rows_of(table)) for table in TABLES}
        position = StoreRows.read(rows.__getitem__).position
        if position and position.segment and not position.offset:
            position = _behind_a_batch(position, rows, ends)
        segment = position.segment if position else 0
        # The term is a member's own: with the leader's a follower would forget which elections it
        # has taken part in.
        rows["store"].pop("term", None)
        rows["store"]["definitions"] = definitions
        # Where these end says nothing about a log that ends before.
        for table in (tables.SEGMENT_ENDS, tables.OFFSET_TABLES):
            for number in table.read_keys(rows.__getitem__):
                if is_of_log(number, segment + (table is tables.OFFSET_TABLES)):
                    del rows[table.name][table.key(number)]
        numbers = tables.SEGMENTS.read_keys(rows.__getitem__)
        for number in tables.QUARANTINE.read_keys(rows.__getitem__) - numbers:
            # Its file is in the leader's quarantine, and not copied.
            del rows[tables.QUARANTINE.name][tables.QUARANTINE.key(number)]
        sizes: dict[str, int | None] = {segment_path("", number): None for number in numbers}
        if position and segment:
            sizes[segment_path("", segment)] = position.offset
        for key, state in tables.INDEX.read(rows.__getitem__).items():
            sizes[index_path("", *key)] = state.end_bytes
        return cls(rows, sizes, segment)

    def copy(self, sizes: Mapping[str, int]) -> WholeCopy:
        """Return the copy that is made from this source. Args: sizes, of the files that exist."""
        return WholeCopy({name: sizes[name] for name in self.sizes if name in sizes}, self.tables)


def _behind_a_batch(
    position: Position, rows: dict[str, dict[str, Any]], ends: Iterable[BatchEnd]
) -> Position:
    """Return where the batch before a position at the beginning of a segment ends: by that batch
    the follower names its log to its leader. What is behind it is not copied.
    """
    number = number_of(position.lsn) - 1
    end = next((one for one in ends if number_of(one.lsn) == number), LOG_START)
    numbers = tables.SEGMENTS.read_keys(rows.__getitem__)
    if end.segment not in numbers:
        raise ValueError(
            "the log begins with a segment that has no batch yet: the copy is sent after the next "
            "message, and the checkpoint that follows it"
        )
    for empty in numbers:
        if is_of_log(empty, end.segment + 1):
            del rows[tables.SEGMENTS.name][tables.SEGMENTS.key(empty)]
    position = position._replace(segment=end.segment, offset=end.offset)
    rows["store"] |= {one.key: one.value for one in StoreRows(position=position).changes()}
    return position


def is_copied_name(name: str) -> bool:
    """Tell whether a copy may have a file of this name."""
    folder, _, file_name = name.partition("/")
    if folder == SEGMENTS:
        return segment_number(file_name) is not None
    return folder == INDEX and index_key(file_name) is not None
