"""The account of each segment: what is live in it and what is garbage.

A message is live as long as a queue holds it. Most messages are in one queue, and most segments are
either completely live or soon completely garbage; so a table of references, one number per message,
is only created for a segment whose messages are not all in one queue each. All accounts are in
memory, as long as their segments exist: their tables have as few bytes a number as they can.

Sizes are those of MESSAGE records without compression: compression does not change which part of a
segment is garbage.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import overload

from amqpstore.catalog.tables import SegmentRow
from amqpstore.format.records import Operation, SpreadEnqueue

_FIRST_ID = attrgetter("first_id")


class AscendingIds(Sequence[int]):
    """Ids with gaps between them: as distances from the first one."""

    __slots__ = ("_distances", "_first")

    def __init__(self, ids: array[int]) -> None:
        self._first = ids[0]
        self._distances = _column([one - ids[0] for one in ids], ids[-1] - ids[0])

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [self._first + one for one in self._distances[index]]
        return self._first + self._distances[index]

    def __iter__(self) -> Iterator[int]:
        return map(self._first.__add__, self._distances)

    def __len__(self) -> int:
        return len(self._distances)

    def index_of(self, message_id: int) -> int:
        """Return the index of the first id that is not lower."""
        return bisect_left(self._distances, message_id - self._first)

    def find(self, message_id: int) -> int:
        """Return the index of an id; -1 if it is not among these."""
        distances, distance = self._distances, message_id - self._first
        index = bisect_left(distances, distance)
        return index if index < len(distances) and distances[index] == distance else -1


class SegmentAccount:
    """The account of segment `number`: messages and bytes in all, and those that are live.

    `references` has how many queues hold each message; None means one each, or, if `live_count` is
    0, none each. They are for the ids from `first_id` on, or, if compaction has left gaps between
    them, for those in `ids`, ascending. `end_bytes` is the size of the part of the file that the
    checkpoint has seen.
    """

    __slots__ = (
        "count",
        "end_bytes",
        "end_id",
        "first_id",
        "ids",
        "live_bytes",
        "live_count",
        "number",
        "references",
        "total_bytes",
    )

    def __init__(self, number: int, first_id: int) -> None:
        self.number = number
        self.first_id = first_id
        self.end_id = first_id
        self.end_bytes = 0
        self.count = 0
        self.total_bytes = 0
        self.live_count = 0
        self.live_bytes = 0
        self.ids: AscendingIds | None = None
        self.references: array[int] | None = None

    @property
    def garbage_bytes(self) -> int:
        """The bytes of the file that are not needed, without the framing around them."""
        if not self.count:
            return self.end_bytes
        if self.live_count == self.count:
            # Also if no live message could be read: compacting it again would free nothing.
            return 0
        return self.end_bytes - self.end_bytes * self.live_bytes // max(self.total_bytes, 1)

    def add(self, first_id: int, sizes: array[int], references: array[int] | None) -> None:
        """Add messages of contiguous ids, not before `end_id`, with how many queues hold each."""
        count = len(sizes)
        if self.end_id == self.first_id:
            self.first_id = self.end_id = first_id
        # Without a table it would say that all are live again, once a live one is added.
        is_dead = self.count and not self.live_count
        if (references is not None or first_id != self.end_id or is_dead) and (
            self.references is None
        ):
            self.references = self._alike()
        if self.references is not None:
            more = references or array("B", [1]) * count
            self._widen(max(more, default=0))
            code = self.references.typecode
            self.references.extend(array(code, [0]) * (first_id - self.end_id))
            self.references.extend(array(code, more))
        self.end_id = first_id + count
        self.count += count
        added = sum(sizes)
        self.total_bytes += added
        if references is None:
            self.live_count += count
            self.live_bytes += added
        else:
            self.live_count += count - references.count(0)
            self.live_bytes += sum(
                size for size, number in zip(sizes, references, strict=True) if number
            )

    def restrict(self, ids: array[int], references: array[int], live_bytes: int) -> None:
        """Make it the account of these messages, all live, which compaction kept."""
        self.first_id, self.end_id = ids[0], ids[-1] + 1
        self.count = self.live_count = count = len(ids)
        self.ids = None if self.end_id - self.first_id == count else AscendingIds(ids)
        is_alike = references.count(1) == count
        self.references = None if is_alike else _column(references, max(references))
        self.total_bytes = self.live_bytes = live_bytes

    def release(self, ids: Sequence[int], sizes: Sequence[int]) -> None:
        """Count that a queue holds these messages no more. Ids ascend."""
        if not self.live_count:
            return
        references = self.references
        count = len(ids)
        if references is None:
            references = self.references = self._alike()
        start = self._index_of(ids[0])
        stop = self._index_of(ids[-1]) + 1
        if stop - start == count and references[start:stop].count(1) == count:
            references[start:stop] = array(references.typecode, [0]) * count
            self.live_count -= count
            self._release_bytes(sum(sizes))
            return
        own_ids, first_id = self.ids, self.first_id
        released_bytes = 0
        for message_id, size in zip(ids, sizes, strict=True):
            if own_ids is None:
                index = message_id - first_id
            else:
                index = own_ids.find(message_id)
                if index < 0:
                    continue  # It is not here, whatever a damaged index says.
            if not references[index]:
                continue  # No queue has held it since, whatever a damaged index says.
            references[index] -= 1
            if not references[index]:
                self.live_count -= 1
                released_bytes += size
        self._release_bytes(released_bytes)

    def _release_bytes(self, released_bytes: int) -> None:
        """Count bytes as garbage, of which a damaged index may name more than there are. Without
        live messages the tables are dropped: a queue that is purged leaves many such segments.
        """
        self.live_bytes -= released_bytes
        if self.live_bytes < 0:
            self.live_bytes = 0
        if not self.live_count:
            self.references = None

    def _alike(self) -> array[int]:
        """Return a table that says the same as `None`."""
        count = self.end_id - self.first_id if self.ids is None else len(self.ids)
        return array("B", [1 if self.live_count else 0]) * count

    def _widen(self, number: int) -> None:
        """Make room for a number in the table of references."""
        if self.references is not None and number >= 1 << 8 * self.references.itemsize:
            self.references = _column(self.references, number)

    def live(self) -> Iterator[tuple[int, int]]:
        """Yield id and references of each live message, ascending."""
        ids = range(self.first_id, self.end_id) if self.ids is None else self.ids
        if not self.live_count:
            return iter(())
        if self.references is None:
            return ((message_id, 1) for message_id in ids)
        pairs = zip(ids, self.references, strict=True)
        return ((message_id, number) for message_id, number in pairs if number)

    def _index_of(self, message_id: int) -> int:
        if self.ids is None:
            return message_id - self.first_id
        return self.ids.index_of(message_id)

    def row(self) -> SegmentRow:
        """Return the row for the catalog."""
        references = self.references
        if references is None and self.count and not self.live_count:
            references = self._alike()
        most = max(references or (), default=0)
        return SegmentRow(
            number=self.number,
            first_id=self.first_id,
            end_id=self.end_id,
            end_bytes=self.end_bytes,
            message_count=self.count,
            total_bytes=self.total_bytes,
            live_count=self.live_count,
            live_bytes=self.live_bytes,
            ids=b"" if self.ids is None else _packed(self.ids, self.ids[-1]),
            references=b"" if references is None else _packed(references, most),
        )

    @classmethod
    def of_row(cls, row: SegmentRow) -> SegmentAccount:
        """Restore an account from its row."""
        account = cls(row.number, row.first_id)
        account.end_id = row.end_id
        account.end_bytes = row.end_bytes
        account.count = row.message_count
        account.total_bytes = row.total_bytes
        account.live_count = row.live_count
        account.live_bytes = row.live_bytes
        if row.ids:
            account.ids = AscendingIds(_unpacked(row.ids))
        if row.references:
            account.references = _unpacked(row.references)
        return account


class SegmentAccounts:
    """The accounts of all segments, ascending in id."""

    def __init__(self, accounts: Sequence[SegmentAccount]) -> None:
        self._accounts = sorted(accounts, key=lambda account: (account.first_id, account.number))
        self.changed: set[SegmentAccount] = set()

    def __iter__(self) -> Iterator[SegmentAccount]:
        return iter(self._accounts)

    def open(self, number: int, next_id: int) -> SegmentAccount:
        """Return the account of the log's last segment; a new one if there is none yet."""
        for account in reversed(self._accounts):
            if account.number == number:
                self.changed.add(account)
                return account
        account = SegmentAccount(number, next_id)
        self._accounts.append(account)
        self.changed.add(account)
        return account

    def release(self, ids: Sequence[int], sizes: Sequence[int]) -> None:
        """Count that a queue holds these messages no more. Ids ascend; those of no segment are
        ignored.
        """
        start = 0
        accounts = self._accounts
        while start < len(ids):
            index = bisect_right(accounts, ids[start], key=_FIRST_ID) - 1
            account = accounts[index] if index >= 0 else None
            if account is None or ids[start] >= account.end_id:
                start += 1
                continue
            stop = start + 1
            if ids[-1] < account.end_id:
                stop = len(ids)
            else:
                stop = bisect_right(ids, account.end_id - 1, start)
            account.release(ids[start:stop], sizes[start:stop])
            self.changed.add(account)
            start = stop

    def replace(self, old: Sequence[SegmentAccount], new: SegmentAccount | None) -> None:
        """Replace neighbours by one, or by nothing."""
        index = self._accounts.index(old[0])
        self._accounts[index : index + len(old)] = [new] if new else []
        # A checkpoint would write their rows again, behind the changes that remove them: rows
        # without files are damage.
        self.changed.difference_update(old)
        if new:
            self.changed.add(new)


def references_of(
    enqueues: Sequence[Operation | SpreadEnqueue], first_id: int, count: int
) -> array[int] | None:
    """Return how many queues hold each of a batch's messages; None when it is one each.

    Args: enqueues, the batch's ENQUEUE operations; its messages are `count` from `first_id` on.
    """
    runs = [one for one in enqueues if isinstance(one, Operation)]
    changes = [0] * (count + 1)
    if len(runs) == len(enqueues) and sum(one.message_count for one in runs) == count:
        following = first_id
        for start, length in sorted((one.first_id, one.message_count) for one in runs):
            if start != following:
                break
            following += length
        else:
            return None
    for run in runs:
        start = max(run.first_id - first_id, 0)
        stop = min(run.first_id + run.message_count - first_id, count)
        if start < stop:
            changes[start] += 1
            changes[stop] -= 1
    references = array("I", list(accumulate(changes))[:count])
    for enqueue in enqueues:
        if isinstance(enqueue, SpreadEnqueue):
            for message_id in enqueue.ids:
                references[message_id - first_id] += 1
    return references if references.count(1) != count else None


def _column(numbers: Iterable[int], largest: int) -> array[int]:
    """Return numbers with as few bytes each as the largest needs."""
    code = next(code for code in "BHIQ" if largest < 1 << 8 * array(code).itemsize)
    return array(code, numbers)


def _packed(numbers: Iterable[int], largest: int) -> bytes:
    """Return a letter for the bytes per number, and the numbers, big-endian."""
    column = _column(numbers, largest)
    if sys.byteorder == "little":
        column.byteswap()
    return column.typecode.encode() + column.tobytes()


def _unpacked(packed: bytes) -> array[int]:
    column = array(packed[:1].decode())
    column.frombytes(packed[1:])
    if sys.byteorder == "little":
        column.byteswap()
    return column
