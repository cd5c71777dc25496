"""Compares what queues hold with what segments contain and what accounts say.

All counts are made again from the live entries of all index files: how many queues hold each
message, how many messages of a segment are live, and how large they are.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from amqpstore.catalog import tables
from amqpstore.catalog.shapes import Rows
from amqpstore.catalog.tables import START, StoreRows
from amqpstore.log.segment_accounts import SegmentAccount
from amqpstore_tools.check.catalog import FILE
from amqpstore_tools.check.findings import Findings
from amqpstore_tools.check.history import Fresh, LogHistory
from amqpstore_tools.check.index import Live
from amqpstore_tools.check.scanning import Ids
from amqpstore_tools.check.segments import CheckedSegment, segment_name

_LEAST_RECORD_BYTES = 38
_MAX_IDS = 1 << 28
"""The most ids of one segment: its counts have to fit in memory."""


class ReferenceChecker:
    """Compares. Args: segments, those that were read, by number; history, of the log."""

    def __init__(
        self,
        rows: Rows,
        segments: dict[int, CheckedSegment],
        history: LogHistory,
        findings: Findings,
    ) -> None:
        self._rows = rows
        self._segments = segments
        self._history = history
        self._findings = findings
        position = StoreRows.read(rows.__getitem__).position or START
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        self.is_whole = True
        self._position_id = position.message_id
        self._position_segment = position.segment
        self._position_offset = position.offset

    def check_overlap(self, account: SegmentAccount, last_end: int) -> int:
        """Check that ids are in one account only. Returns where the ids of all accounts so far
        end.
        """
        if account.first_id < last_end:
            text = f"its ids from {account.first_id} on belong to another segment too"
            self._findings.add("account-differs", segment_name(account.number), text)
        return max(last_end, account.end_id)

    def check_account(self, account: SegmentAccount, live: Sequence[Live]) -> None:
        """Compare one segment with its live messages, in the order of ids."""
        _AccountCheck(self, account, live).run()

    def lost(self, live: Live, first_id: int, end_id: int, file: str, reason: str) -> None:
        """Note that messages of a queue are missing, except those that were acked since."""
        history = self._history
        ids = range(first_id, end_id)
        sequence = live.first_sequence - live.first_id
        for is_removed, group in groupby(
            ids, lambda one: history.removed_of(live.queue_id, sequence + one, sequence + one + 1)
        ):
            missing = list(group)
            if not is_removed:
                self._lost(live.queue_id, missing[0], sequence + missing[0], missing, file, reason)

    def _lost(
        self, queue_id: int, first: int, sequence: int, ids: Sequence[int], file: str, reason: str
    ) -> None:
        what = f"message {first}" if len(ids) == 1 else f"messages {first} to {ids[-1]}"
        self._findings.add(
            "message-lost",
            file,
            f"{what}: {reason}",
            queue_id=queue_id,
            message_id=first,
            sequence=sequence,
            messages=len(ids),
        )

    def accounts(self) -> Iterator[SegmentAccount]:
        """Yield the accounts in the order of their ids. An account that is impossible for the size
        of its file is left out.
        """
        rows = tables.SEGMENTS.read(self._rows.__getitem__)
        accounts = map(SegmentAccount.of_row, rows.values())
        for account in sorted(accounts, key=lambda one: (one.first_id, one.number)):
            name = segment_name(account.number)
            ids = account.end_id - account.first_id
            most = max(account.count, len(account.references or ()))
            if account.ids is None and account.references is None and ids > most:
                continue  # Its row was refused.
            # Ids that are listed may be far apart: those of another term are 2^32 higher.
            is_large = account.ids is None and ids > _MAX_IDS
            if account.count * _LEAST_RECORD_BYTES > account.end_bytes or is_large:
                text = (
                    f"{account.count} messages, of {ids} ids, do not fit into {account.end_bytes}"
                )
                self._findings.add("account-differs", name, f"{text} bytes")
                continue
            yield account

    def check_homes(
        self,
        accounts: Sequence[SegmentAccount],
        homeless: Sequence[tuple[int, int]],
        by_id: Sequence[Live],
    ) -> None:
        """Check that every live message has a segment with an account.

        Args: homeless, ids of sound messages that no account has, the first and the one after the
        last of each run, ascending.
        """
        starts = [account.first_id for account in accounts]
        for live in by_id:
            wanted = live.first_id
            while wanted < live.end_id:
                index = bisect_right(starts, wanted) - 1
                if index >= 0 and wanted < accounts[index].end_id:
                    wanted = accounts[index].end_id
                    continue
                following = starts[index + 1] if index + 1 < len(starts) else live.end_id
                end = min(max(following, wanted + 1), live.end_id)
                for first, stop in _missing(homeless, wanted, end):
                    self.lost(live, first, stop, FILE, "no segment contains it")
                wanted = end

    def check_fresh(self, fresh: Fresh) -> None:
        """Check that a run that was enqueued after the checkpoint position has its records."""
        operation = fresh.operation
        if tables.QUEUES.key(operation.queue_id) not in self._rows["queues"]:
            return  # It was deleted.
        first, end = operation.first_id, operation.first_id + operation.message_count
        live = Live(operation.queue_id, operation.first_sequence, first, array("I"))
        segment = fresh.segment
        if segment.number not in self._ranges:
            runs = [(run.first_id, run.end_id) for run in segment.scanned.runs]
            self._ranges[segment.number] = runs
        for start, stop in _missing(self._ranges[segment.number], first, end):
            self.lost(live, start, stop, fresh.segment.name, "no sound record of it exists")

    def known_runs(self, segment: CheckedSegment) -> list[Ids]:
        """Return the records in a segment that the last checkpoint knew."""
        runs = segment.scanned.runs
        if segment.is_compacted:
            return runs
        end = self._position_id
        return [
            run._replace(sizes=run.sizes[: end - run.first_id])
            for run in runs
            if run.first_id < end
        ]

    def segment(self, number: int) -> CheckedSegment | None:
        return self._segments.get(number)

    @property
    def findings(self) -> Findings:
        return self._findings

    def known_end(self, segment: CheckedSegment) -> int:
        """Return up to where the last checkpoint knew a segment."""
        is_position = segment.number == self._position_segment
        return self._position_offset if is_position else segment.end


class _AccountCheck:
    """Compares one segment's account with the live entries of its messages."""

    def __init__(
        self, checker: ReferenceChecker, account: SegmentAccount, live: Sequence[Live]
    ) -> None:
        self._checker = checker
        self._account = account
        self._live = live
        self._segment = checker.segment(account.number)
        self._name = segment_name(account.number)
        # A plain column, for the time of the check: there are many look-ups.
        self._ids = None if account.ids is None else array("Q", account.ids)
        count = account.end_id - account.first_id if self._ids is None else len(self._ids)
        self._references = array("I", bytes(4 * count))
        self._index_sizes = array("I", bytes(4 * count))
        self._sizes = array("I", bytes(4 * count))

    def run(self) -> None:
        for first_id, sizes in _joined(self._live):
            self._count(first_id, sizes)
        if self._segment is not None:
            for run in self._checker.known_runs(self._segment):
                self._refer(run)
        is_whole = self._check_present()
        # Otherwise each message in a file that cannot be read would be a finding as well.
        if self._checker.is_whole:
            self._check_references()
        self._check_counts(is_whole=is_whole)

    def _index_ranges(self, first_id: int, end_id: int) -> Iterator[tuple[int, int, int]]:
        """Yield for a range of ids the first and the one after the last place of those in the
        account, and the first of these ids.
        """
        ids = self._ids
        if ids is None:
            base = self._account.first_id
            first = max(first_id, base)
            end = min(end_id, self._account.end_id)
            if first < end:
                yield first - base, end - base, first
            return
        index = bisect_left(ids, first_id)
        stop = bisect_left(ids, end_id)
        while index < stop:
            after = index + 1
            if ids[stop - 1] - ids[index] == stop - 1 - index:
                after = stop
            while after < stop and ids[after] == ids[after - 1] + 1:
                after += 1
            yield index, after, ids[index]
            index = after

    def _count(self, first_id: int, sizes: array[int]) -> None:
        references = self._references
        for start, stop, first in self._index_ranges(first_id, first_id + len(sizes)):
            skipped = first - first_id
            self._index_sizes[start:stop] = sizes[skipped : skipped + stop - start]
            if references[start:stop].count(0) == stop - start:
                references[start:stop] = array("I", [1]) * (stop - start)
            else:
                for index in range(start, stop):
                    references[index] += 1

    def _refer(self, run: Ids) -> None:
        for start, stop, first in self._index_ranges(run.first_id, run.end_id):
            skipped = first - run.first_id
            self._sizes[start:stop] = run.sizes[skipped : skipped + stop - start]

    def _check_present(self) -> bool:
        """Check that every live message has its record. Returns whether this is so, sizes
        included.
        """
        if self._index_sizes == self._sizes:
            return True
        is_whole = True
        differs: list[int] = []
        absent = array("B", bytes(len(self._sizes)))
        for index, (count, index_size, size) in enumerate(
            zip(self._references, self._index_sizes, self._sizes, strict=True)
        ):
            if not count or index_size == size:
                continue
            is_whole = False
            if size:
                differs.append(index)
            else:
                absent[index] = 1
        if absent.count(1):
            self._name_absent(absent)
        for index in differs:
            text = f"its record has {self._sizes[index]} bytes, but its index entry says"
            text = f"{text} {self._index_sizes[index]}"
            message_id = self._id(index)
            self._checker.findings.add(
                "message-size-differs", self._name, text, message_id=message_id, messages=1
            )
        return is_whole

    def _name_absent(self, absent: array[int]) -> None:
        """Note each queue's missing messages, in runs."""
        reason = "no sound record of it exists"
        for live in self._live:
            for start, stop, first in self._index_ranges(live.first_id, live.end_id):
                index = start
                for is_absent, group in groupby(absent[start:stop]):
                    count = len(list(group))
                    if is_absent:
                        lost = first + index - start
                        self._checker.lost(live, lost, lost + count, self._name, reason)
                    index += count

    def _check_references(self) -> None:
        expected = self._account.references
        if expected is None:
            expected = array("I", [1]) * len(self._references)
        if expected == self._references:
            return
        pairs = zip(self._references, expected, strict=True)
        index = 0
        for (found, said), group in groupby(pairs):
            count = len(list(group))
            if found != said:
                first, last = self._id(index), self._id(index + count - 1)
                what = f"messages {first} to {last}" if count > 1 else f"message {first}"
                text = f"{found} queues hold {what}, but the account says {said}"
                self._checker.findings.add(
                    "references-differ", self._name, text, message_id=first, messages=count
                )
            index += count

    def _check_counts(self, *, is_whole: bool) -> None:
        """Compare counts. Args: is_whole, all live messages exist in their right size, so sums can
        be compared.
        """
        account, segment = self._account, self._segment
        counted: dict[str, Any] = {}
        live_sizes = self._live_sizes()
        if self._checker.is_whole:
            counted["live_count"] = len(live_sizes)
        if self._checker.is_whole and is_whole and 0 not in live_sizes:
            counted["live_bytes"] = sum(live_sizes)
        if segment is not None and not segment.scanned.gaps:
            if is_whole or account.ids is None:
                counted["count"] = len(self._sizes) - self._sizes.count(0)
            if is_whole:
                counted["total_bytes"] = sum(self._sizes)
            counted["end_bytes"] = self._checker.known_end(segment)
        for field, value in counted.items():
            if (noted := getattr(account, field)) != value:
                text = f"the account's {field} is {noted}, but {value} was counted"
                self._checker.findings.add("account-differs", self._name, text)

    def _live_sizes(self) -> Sequence[int]:
        """Return the sizes of live messages, as index entries say."""
        if 0 not in self._references:
            return self._index_sizes
        pairs = zip(self._references, self._index_sizes, strict=True)
        return [size for count, size in pairs if count]

    def _id(self, index: int) -> int:
        ids = self._ids
        return self._account.first_id + index if ids is None else ids[index]


def _joined(live: Iterable[Live]) -> Iterator[tuple[int, array[int]]]:
    """Join live entries, in the order of ids, that follow each other, of whatever queues: yields
    the first id and the sizes.
    """
    first = end = 0
    sizes = array("I")
    for one in live:
        if one.first_id != end:
            if sizes:
                yield first, sizes
            first = end = one.first_id
            sizes = array("I")
        sizes.extend(one.sizes)
        end += len(one.sizes)
    if sizes:
        yield first, sizes


def _missing(
    runs: Sequence[tuple[int, int]], first_id: int, end_id: int
) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range of ids that are in none of these runs, which ascend."""
    wanted = first_id
    index = max(bisect_right(runs, first_id, key=itemgetter(0)) - 1, 0)
    for first, end in runs[index:]:
        if first >= end_id:
            break
        if first > wanted:
            yield wanted, first
        wanted = max(wanted, end)
    if wanted < end_id:
        yield wanted, end_id
