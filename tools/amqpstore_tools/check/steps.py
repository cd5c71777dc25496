"""The steps of a check, each over one part of a store: a segment, some index files, an account.

They are pure functions: everything they know comes with their arguments, and findings are returned.
So they run anywhere, in any order within a step. A new check is written here, or in the functions
called here.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from amqpstore.catalog import tables
from amqpstore.evidence.present_numbers import PresentNumbers
from amqpstore.log.segment_accounts import SegmentAccount
from amqpstore_tools.check.findings import Finding, Findings
from amqpstore_tools.check.history import Fresh, LogChecker, LogHistory, LogState
from amqpstore_tools.check.index import IndexChecker, Live
from amqpstore_tools.check.jobs import (
    Compared,
    CompareJob,
    IndexJob,
    IndexResult,
    Known,
    LiveSlice,
    Range,
    Read,
    ReadJob,
    StoreContext,
    Summary,
)
from amqpstore_tools.check.offset_tables import OffsetTableChecker
from amqpstore_tools.check.prepared import Holdings
from amqpstore_tools.check.references import ReferenceChecker
from amqpstore_tools.check.scanning import Scanned, ScannedBatch
from amqpstore_tools.check.segments import CheckedSegment, SegmentReader
from amqpstore_tools.check.store import measure_of

NOTHING_BEFORE = LogState(0, 0, False, {})


def read(shared: StoreContext, job: ReadJob) -> Read:
    """Read every record of a segment."""
    findings = _findings(shared)
    reader = SegmentReader(
        shared.files,
        shared.directory,
        findings,
        store_id=shared.store_id,
        seed=shared.seed,
        measure=measure_of(shared.rows),
    )
    number, _, end, least, is_open = job.segment
    segment = reader.read(number, end=end, least=least, is_open=is_open)
    return Read(segment, list(findings))


def summary(
    shared: StoreContext, number: int, read: Read, log: LogChecker | None = None
) -> Summary:
    """Return what the other steps need to know of a segment that was read.

    Args: log, has read everything before the segment in the log, None if that is unknown: then
    `compare` checks the log.
    """
    segment = read.segment
    if segment is None:
        return Summary(number, None, read.findings)
    scanned = segment.scanned
    batches = scanned.batches if number == shared.position_segment else []
    bare = dataclasses.replace(segment, scanned=Scanned(batches=batches, gaps=scanned.gaps))
    out = Summary(number, bare, read.findings)
    if not segment.is_compacted:
        findings = _findings(shared)
        if log is None:
            # Its findings are made again when the log before it is known.
            log = LogChecker(shared.rows, findings)
            log.resume(NOTHING_BEFORE)
            log.check(segment)
            out.after = log.state()
            out.queues = {one.queue_id for batch in scanned.batches for one in batch.operations}
        else:
            log.begin(findings)
            log.check(segment)
            out.log = list(findings)
        out.fresh = [fresh.operation for fresh in log.history.fresh]
        out.history = log.history
        out.history.fresh = []
        if number >= shared.position_segment:
            out.lsns, out.ids = _numbers(scanned.batches)
    if number not in shared.ranges:
        out.homeless = [(run.first_id, run.end_id) for run in scanned.runs]
    return out


def _numbers(batches: Iterable[ScannedBatch]) -> tuple[list[Range], list[Range]]:
    """Return the LSNs of batches, and the ids that they have or put in queues, as ranges."""
    lsns, ids = PresentNumbers(), PresentNumbers()
    for batch in batches:
        if batch.lsn:
            lsns.add(batch.lsn)
        for first, end in sorted([*batch.messages, *batch.enqueued]):
            ids.add_range(first, end)
    return lsns.ranges, ids.ranges


def read_index(
    shared: StoreContext, job: IndexJob, removed: dict[int, list[Range]]
) -> tuple[IndexResult, list[Live]]:
    """Read some index files. Also returns all live messages in them."""
    findings = _findings(shared)
    checker = IndexChecker(shared.files, shared.directory, shared.seed, findings)
    accounts = _Ranges(shared.ranges)
    out = IndexResult(job.store, job.start, [], True, {}, [], [])
    live_messages: list[Live] = []
    rows = shared.rows
    prepared = tables.PREPARED.read_keys(rows.__getitem__) if rows else set()
    history = LogHistory(removed=removed)
    for of_file in checker.check_files(job.files, job.last_end):
        if of_file:
            queue_id = of_file[0].queue_id
            count = Holdings(of_file, history).count(queue_id)
            out.held[queue_id] = out.held.get(queue_id, 0) + count
            if queue_id in prepared:
                out.hidden += of_file
        out.homeless += [live for live in of_file if not accounts.cover(live.first_id, live.end_id)]
        live_messages += of_file
    out.findings = list(findings)
    out.is_whole = checker.is_whole
    return out, live_messages


def by_account(shared: StoreContext, found: Sequence[Live]) -> list[tuple[int, LiveSlice]]:
    """Split live messages by the segments whose accounts have them."""
    accounts = _Ranges(shared.ranges)
    return [
        (number, LiveSlice(in_ids(live), _slice(live, first, end)))
        for live in found
        for number, first, end in accounts.of(live.first_id, live.end_id)
    ]


def in_ids(live: Live) -> tuple[int, int, int]:
    """Return a sort key: by ids, and by queues that hold the same ids."""
    return live.first_id, live.queue_id, live.first_sequence


def in_order(parts: Iterable[LiveSlice]) -> list[Live]:
    """Return the live messages of parts that come in any order."""
    return [one.live for one in sorted(parts, key=attrgetter("order"))]


def compare(
    shared: StoreContext, known: Known, job: CompareJob, read: Read, live: Sequence[Live]
) -> Compared:
    """Compare a segment with the log before it, its account, and what queues hold.

    Args: live, in the order of `in_ids`, at least the messages of the segment's account.
    """
    out = Compared()
    segment = read.segment
    if segment is not None and job.before is not None:
        findings = _findings(shared)
        log = LogChecker(shared.rows, findings)
        log.resume(job.before)
        log.check(segment)
        out.log = list(findings)
    if shared.rows is None:
        return out
    history = LogHistory(removed=known.removed)
    segments = {} if segment is None else {segment.number: segment}
    findings = _findings(shared)
    references = ReferenceChecker(shared.rows, segments, history, findings)
    references.is_whole = known.is_whole
    if job.account is not None:
        references.check_account(SegmentAccount.of_row(job.account), live)
        out.account = list(findings)
    if segment is None:
        return out
    out.fresh = _fresh_findings(shared, segments, history, segment, job)
    if job.offset_table is not None:
        findings = _findings(shared)
        checker = OffsetTableChecker(shared.files, shared.directory, (), findings)
        checker.check_offsets(segment, job.offset_table)
        out.offset_table = list(findings)
    return out


def _fresh_findings(
    shared: StoreContext,
    segments: dict[int, CheckedSegment],
    history: LogHistory,
    segment: CheckedSegment,
    job: CompareJob,
) -> list[Finding]:
    findings = _findings(shared)
    references = ReferenceChecker(shared.rows or {}, segments, history, findings)
    for operation in job.fresh:
        references.check_fresh(Fresh(segment, operation))
    return list(findings)


def _findings(shared: StoreContext) -> Findings:
    findings = Findings()
    findings.names = shared.names
    return findings


def _slice(live: Live, first_id: int, end_id: int) -> Live:
    """Return the part with ids from `first_id` to before `end_id`."""
    start = first_id - live.first_id
    if not start and end_id == live.end_id:
        return live
    sizes = live.sizes[start : end_id - live.first_id]
    return live._replace(first_sequence=live.first_sequence + start, first_id=first_id, sizes=sizes)


class _Ranges:
    """Ids of accounts, which may overlap if they are wrong."""

    def __init__(self, ranges: Mapping[int, Range]) -> None:
        self._ranges = sorted((first, end, number) for number, (first, end) in ranges.items())
        self._firsts = [first for first, _, _ in self._ranges]
        # The highest end of the accounts up to each, which tells where to stop looking back.
        self._ends: list[int] = []
        for _, end, _ in self._ranges:
            self._ends.append(max(end, self._ends[-1] if self._ends else 0))

    def of(self, first_id: int, end_id: int) -> Iterator[tuple[int, int, int]]:
        """Yield the segments whose accounts have some of these ids, and which."""
        index = bisect_left(self._firsts, end_id) - 1
        while index >= 0 and self._ends[index] > first_id:
            first, end, number = self._ranges[index]
            if end > first_id:
                yield number, max(first, first_id), min(end, end_id)
            index -= 1

    def cover(self, first_id: int, end_id: int) -> bool:
        """Tell whether the accounts have all of these ids."""
        index = bisect_right(self._firsts, first_id) - 1
        if index >= 0 and end_id <= self._ranges[index][1]:
            return True  # Usually one account has all of them.
        wanted = end_id
        for _, first, end in self.of(first_id, end_id):
            # From the highest down: what is left is below `wanted`.
            if end < wanted:
                return False
            wanted = min(wanted, first)
        return wanted <= first_id
