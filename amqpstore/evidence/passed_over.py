"""Numbers that starts have passed over: they were given to something that no start has read.

If a part of the log is missing or damaged, or the catalog is an older one, a start serves what is
left and goes on behind all numbers that the rest may have. Its next checkpoint then covers those
numbers although it has never seen what they are of. So that checkpoint notes them, in a row that
stays until a repair: whatever of them is found later was neither acked nor deleted, whatever the
position of the checkpoint says. Before the checkpoint there is nothing to note: the next start
reads the log from the same place, and finds out anew what is missing.

A repair gives up what it does not find, and notes the same numbers in a row of its own. The store
is whole then, as long as no file with any of them comes back: see `put_back`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from amqpstore.catalog import tables
from amqpstore.catalog.definitions import read_copy
from amqpstore.catalog.tables import START, DamageRow, PassedOverRow, Position, RowsOf, StoreRows
from amqpstore.errors import DamageError
from amqpstore.evidence.present_numbers import PresentNumbers
from amqpstore.format.records import Kind, Record, checksum_seed, decode_transaction, scan
from amqpstore.format.windows import read_around
from amqpstore.system.files import Files

KEPT_FOR_ACKS = DamageRow(0, 0, "it may have acks of messages that a start passed over")
"""The row in `quarantine` of a segment that was read when something was passed over."""


class PassedOver(NamedTuple):
    """The numbers that all starts since the last repair have passed over, or that it gave up."""

    lsns: PresentNumbers
    message_ids: PresentNumbers
    queue_ids: PresentNumbers

    @classmethod
    def read(cls, rows_of: RowsOf) -> PassedOver:
        """Return what the rows of a catalog say that starts have passed over."""
        return cls._of(tables.PASSED_OVER.read(rows_of).values())

    @classmethod
    def given_up(cls, rows_of: RowsOf) -> PassedOver:
        """Return what the rows of a catalog say that the last repair has given up."""
        rows = tables.GIVEN_UP.read(rows_of).values()
        return cls._of([PassedOverRow(row.lsns, row.message_ids, []) for row in rows])

    @classmethod
    def _of(cls, rows: Collection[PassedOverRow]) -> PassedOver:
        return cls(
            *(
                PresentNumbers(map(_range, chain.from_iterable(getattr(row, name) for row in rows)))
                for name in PassedOverRow._fields
            )
        )

    def __bool__(self) -> bool:
        return any(numbers.ranges for numbers in self)

    @property
    def text(self) -> str:
        """The numbers that were passed over, as text for people."""
        shown = ", ".join(f"{first} to {end - 1}" for first, end in self.message_ids.ranges[:3])
        more = ", ..." if len(self.message_ids.ranges) > 3 else ""
        of = f": messages with ids from {shown}{more} may be among it" if shown else ""
        return (
            f"an earlier start passed over what was missing or could not be read then{of}. Until "
            "`amqpstore repair` no file that may be needed is removed"
        )

    def has(self, record: Record) -> bool:
        """Tell whether a record is a message, or the end of a batch, with one of these numbers."""
        if record.kind == Kind.MESSAGE:
            return record.number in self.message_ids
        return record.kind == Kind.TRANSACTION and record.number in self.lsns

    def has_all(self, row: PassedOverRow) -> bool:
        """Tell whether all numbers of a row are noted."""
        return not any(
            any(known.missing(first, end))
            for known, ranges in zip(self, row, strict=True)
            for first, end in ranges
        )

    def with_row(self, row: PassedOverRow) -> PassedOverRow:
        """Return these numbers, and those of a row."""
        return PassedOverRow(
            *(
                [
                    list(one)
                    for one in PresentNumbers(chain(known.ranges, map(_range, ranges))).ranges
                ]
                for known, ranges in zip(self, row, strict=True)
            )
        )


def _range(row: list[int]) -> tuple[int, int]:
    first, end = row
    return first, end


def passed_over(
    start: Position,
    end: Position,
    lsns: PresentNumbers,
    placed: PresentNumbers,
    queue_ids: range,
) -> PassedOverRow:
    """Return what a start passes over.

    Args: start, the position of the last checkpoint; end, with which the log goes on; lsns, of the
    batches that the start has read; placed, the ids that those have put in queues; queue_ids, ids
    that others than the queues in the catalog may have.
    """
    return PassedOverRow(
        # Only what lies between the checkpoint and the new end: everything before it is known, and
        # nothing behind it exists.
        [list(one) for one in lsns.missing(start.lsn, end.lsn)],
        [list(one) for one in placed.missing(start.message_id, end.message_id)],
        [[queue_ids.start, queue_ids.stop]] if queue_ids else [],
    )


def known_messages(rows_of: RowsOf, in_log: Iterable[tuple[int, int]]) -> PresentNumbers:
    """Return the ids that the last checkpoint has seen, or the log behind it has.

    Args: in_log, ranges of ids.
    """
    position = StoreRows.read(rows_of).position or START
    # Below the position a checkpoint has seen every id, except those that it has passed over
    # itself.
    seen = PassedOver.read(rows_of).message_ids.missing(1, position.message_id)
    return PresentNumbers([*seen, *in_log])


def evident_queues(
    files: Files, directory: str, store_id: bytes, segments: Iterable[tuple[str, int]]
) -> int:
    """Return the first queue id that neither the copy of the definitions nor some files of the log
    know; 1 if they cannot be read.

    Args: segments, paths of those files, with the number of each.
    """
    found = 1
    with contextlib.suppress(DamageError, OSError):
        copy = read_copy(files, directory)
        if copy and copy.store_id == store_id:
            found = copy.next_queue_id
    seed = checksum_seed(store_id)
    # Files that can be read in part count as well: an id that is too high costs nothing, and one
    # that is given twice mixes two queues.
    for path, number in segments:
        with contextlib.suppress(OSError):
            found = max([found, *(one + 1 for one in _queues_in(files, path, number, seed))])
    return found


def _queues_in(files: Files, path: str, number: int, seed: int) -> Iterator[int]:
    file = files.open(path)
    try:
        content = read_around(file, 0, file.size())
    finally:
        file.close()
    for one in scan(content, number, seed):
        if isinstance(one, Record) and one.kind == Kind.TRANSACTION:
            payload = content[one.payload_offset : one.end]
            with contextlib.suppress(ValueError):
                yield from (each.queue_id for each in decode_transaction(payload, one.end)[1])
