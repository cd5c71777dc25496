"""A check of whole stores, from the marker to the last reference, as a list of steps over parts.

There are three steps, each for all stores at once: every segment is read, and the result stays with
the executor; every index file is read; and each segment is compared with the log before it and with
what queues hold of it. `steps` has the work of each; an `executor` decides where it runs, in this
process or on a cluster. The findings are put together here, in order.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from operator import attrgetter

from amqpstore.catalog import tables
from amqpstore.catalog.keys import IndexKey
from amqpstore.catalog.shapes import Rows
from amqpstore.catalog.tables import OffsetTableRow, SegmentRow
from amqpstore.errors import StoreError
from amqpstore.evidence.passed_over import known_messages
from amqpstore.evidence.present_numbers import PresentNumbers
from amqpstore.format.records import Operation
from amqpstore.system.filenames import INDEX, SEGMENTS, index_key
from amqpstore_tools.check.catalog import FILE
from amqpstore_tools.check.executor import Executor, ProcessExecutor
from amqpstore_tools.check.findings import Findings
from amqpstore_tools.check.history import Fresh, LogChecker, LogHistory, LogState, check_position
from amqpstore_tools.check.index import IndexChecker, in_order
from amqpstore_tools.check.jobs import (
    Compared,
    CompareJob,
    IndexJob,
    IndexResult,
    Known,
    Range,
    ReadJob,
    StoreContext,
    Summary,
)
from amqpstore_tools.check.offset_tables import OffsetTableChecker
from amqpstore_tools.check.prepared import Holdings, check_prepared
from amqpstore_tools.check.references import ReferenceChecker
from amqpstore_tools.check.segments import CheckedSegment, segment_name
from amqpstore_tools.check.shortfall import check_shortfall, read_log
from amqpstore_tools.check.steps import NOTHING_BEFORE, in_ids
from amqpstore_tools.check.store import (
    Checked,
    PreparedStore,
    ReadableStore,
    SegmentJob,
    named,
    opened,
)
from amqpstore_tools.offline.progress import Progress

_INDEX_FILES = 64
"""Index files in one item of work."""

Outcome = Checked | Exception


def check(
    directory: str,
    *,
    live: bool = False,
    is_locked: bool = False,
    executor: Executor | None = None,
    tell: Progress = lambda *_: None,
) -> Checked:
    """Check everything in the store in `directory`, and change nothing.

    Args: live, a broker may run on it: then the durable state of one moment is checked; is_locked,
    the caller has its lock; executor, runs the steps, if not this process.
    Raises: NotAStoreError, FormatVersionError, StoreLockedError, SnapshotError, OSError, and what
    the executor raises: nothing could be checked.
    """
    executor = executor or ProcessExecutor()
    started, used = time.monotonic(), executor.processor_s()
    (outcome,) = check_all(
        [directory], live=live, is_locked=is_locked, executor=executor, tell=tell
    )
    if isinstance(outcome, Exception):
        raise outcome
    outcome.seconds = time.monotonic() - started
    outcome.cpu_seconds = executor.processor_s() - used
    return outcome


def check_all(
    directories: Sequence[str],
    *,
    live: bool = False,
    is_locked: bool = False,
    executor: Executor | None = None,
    tell: Progress = lambda *_: None,
) -> list[Outcome]:
    """Check several stores at once. Returns for each what `check` returns or raises."""
    outcomes: list[Outcome] = []
    checks: dict[int, StoreCheck] = {}
    with ExitStack() as stack:
        for number, directory in enumerate(directories):
            try:
                store = stack.enter_context(opened(directory, live=live, is_locked=is_locked))
                check = StoreCheck(store, tell)
                check.begin()
            except (StoreError, OSError) as error:
                outcomes.append(error)
            else:
                checks[number] = check
                outcomes.append(check.out)
        _run(executor or ProcessExecutor(), checks, tell)
    return outcomes


def check_opened(store: ReadableStore, tell: Progress) -> Checked:
    """Check a store that is open, in this process.

    Raises: NotAStoreError, FormatVersionError, UnfinishedRepairError, OSError.
    """
    check = StoreCheck(store, tell)
    check.begin()
    _run(ProcessExecutor(), {0: check}, tell)
    return check.out


def _run(executor: Executor, checks: dict[int, StoreCheck], tell: Progress) -> None:
    shared = {number: check.shared() for number, check in checks.items()}
    with executor.steps(shared, tell) as steps:
        reads = [ReadJob(number, job) for number, check in checks.items() for job in check.jobs]
        for store, summary in steps.read(reads):
            checks[store].summaries.append(summary)
        for check in checks.values():
            check.take_summaries()
        indexes = [job for number, check in checks.items() for job in check.index_jobs(number)]
        removed = {number: check.history.removed for number, check in checks.items()}
        for result in steps.read_index(indexes, removed):
            checks[result.store].index_results.append(result)
        for check in checks.values():
            check.take_index()
        jobs = {number: check.compare_jobs() for number, check in checks.items()}
        known = {number: check.known for number, check in checks.items()}
        for (store, number), found in steps.compare(jobs, known):
            checks[store].compared[number] = found
    for check in checks.values():
        check.end()


class StoreCheck(PreparedStore):
    """The check of one store. Call `begin`, the `take` methods and `end` in turn, each when the
    step before it is done.
    """

    def __init__(self, store: ReadableStore, tell: Progress) -> None:
        super().__init__(store, tell)
        self.jobs: list[SegmentJob] = []
        self.summaries: list[Summary] = []
        self.index_results: list[IndexResult] = []
        self.compared: dict[int, Compared] = {}
        self.history = LogHistory()
        self._segments: dict[int, CheckedSegment] = {}
        self._log_states: dict[int, LogState] = {}
        self._fresh: dict[int, list[Operation]] = {}
        self._ranges: dict[int, Range] = {}
        self._is_whole = True

    @property
    def out(self) -> Checked:
        """The result of the check."""
        return self._out

    def begin(self) -> None:
        """Do everything that comes before the segments. Raises: as `check`."""
        self.prepare()
        self.jobs = self._segment_jobs()
        if self._rows is not None:
            references = ReferenceChecker(self._rows, {}, LogHistory(), Findings())
            self._ranges = {
                account.number: (account.first_id, account.end_id)
                for account in references.accounts()
            }

    def shared(self) -> StoreContext:
        """Return what all steps need to know of the store."""
        rows = self._rows
        return StoreContext(
            self._directory,
            self._files,
            self._store_id,
            self._seed,
            rows,
            self._findings.names,
            self._position(rows)[0] if rows else 0,
            self._ranges,
        )

    def take_summaries(self) -> None:
        """Process the results of reading all segments."""
        log = LogChecker(self._rows, Findings())
        state = NOTHING_BEFORE
        for summary in sorted(self.summaries, key=attrgetter("number")):
            if summary.segment is None or summary.segment.is_compacted:
                continue
            if summary.after is not None:
                # The state of the log before it was not known until now.
                before = {
                    queue_id: state.next_sequences[queue_id]
                    for queue_id in summary.queues
                    if queue_id in state.next_sequences
                }
                self._log_states[summary.number] = state._replace(next_sequences=before)
                state = log.joined(state, summary.after)
            self._fresh[summary.number] = summary.fresh
            history = self.history
            history.highest_queue_id = max(
                history.highest_queue_id, summary.history.highest_queue_id
            )
            history.fresh += [Fresh(summary.segment, operation) for operation in summary.fresh]
            for queue_id, ranges in summary.history.removed.items():
                for first, end in ranges:
                    history.remove(queue_id, first, end)

    def index_jobs(self, store: int) -> Iterator[IndexJob]:
        """Yield the index files to read."""
        if self._rows is None:
            return
        files = in_order(self._rows)
        for start in range(0, len(files), _INDEX_FILES):
            part = files[start : start + _INDEX_FILES]
            before = files[start - 1] if start else None
            is_same = before is not None and before[0].queue_id == part[0][0].queue_id
            yield IndexJob(store, start, part, before[1].end if before and is_same else 0)

    def take_index(self) -> None:
        """Process the results of reading all index files."""
        self.index_results.sort(key=lambda one: one.start)
        self._is_whole = all(one.is_whole for one in self.index_results)

    @property
    def _has_damaged_index(self) -> bool:
        """Whether rows of index files are damaged: then it is not known what those files held."""
        return any(table == "index" for table, _ in self._damaged_rows)

    @property
    def known(self) -> Known:
        """The facts about the store that are known when all files have been read."""
        return Known(self._is_whole and not self._has_damaged_index, self.history.removed)

    def compare_jobs(self) -> dict[int, CompareJob]:
        """Return what each segment is compared with."""
        accounts: dict[int, SegmentRow] = {}
        offsets: dict[int, OffsetTableRow] = {}
        if self._rows is not None:
            accounts = tables.SEGMENTS.read(self._rows.__getitem__)
            offsets = tables.OFFSET_TABLES.read(self._rows.__getitem__)
        jobs = {}
        for job in self.jobs:
            account = accounts.get(job.number) if job.number in self._ranges else None
            offset_table = offsets.get(job.number)
            fresh = self._fresh.get(job.number, ())
            jobs[job.number] = CompareJob(
                self._log_states.get(job.number), account, offset_table, fresh
            )
        return jobs

    def end(self) -> None:
        """Finish: put the findings together, in order."""
        self._add_segments()
        rows = self._rows
        self._check_end()
        if rows is None:
            index = IndexChecker(self._files, self._directory, self._seed, self._findings)
            self._out.index_files = index.check_unrowed()
            text = "without the catalog, queues, references and counters cannot be compared"
            self._findings.add("not-compared", FILE, text)
            return
        self._compare(rows)

    def _add_segments(self) -> None:
        found = {summary.number: summary for summary in self.summaries}
        for job in self.jobs:
            summary = found[job.number]
            self._findings.extend(summary.findings)
            if segment := summary.segment:
                self._segments[segment.number] = segment
                self._out.segments += 1
                self._out.segment_bytes += job.size
            log = summary.log
            self._findings.extend(self._compared_of(job.number).log if log is None else log)

    def _check_end(self) -> None:
        """Check that the log ends where it was durable, unless a broker may be writing it, and
        that no index file is newer.
        """
        in_order = sorted(self.summaries, key=attrgetter("number"))
        log = read_log(self._rows, in_order, self.history.operations())
        known = PresentNumbers()
        if self._rows is not None:
            known = known_messages(self._rows.__getitem__, log.ids.ranges)
            self._check_other_index(self._rows, known)
        if self._is_live:
            return
        for result in self.index_results:
            for finding in result.findings:
                key = index_key(os.path.basename(finding.file))
                if key and finding.code == "index-behind-end":
                    self._check_newer(finding.file, IndexKey(*key), finding.offset, known)
        last = max([0, *self._expected.log])
        file = segment_name(last) if last else SEGMENTS
        self._out.shortfall = check_shortfall(
            self._files, self._directory, self._seed, log, file, self._findings
        )

    def _compare(self, rows: Rows) -> None:
        for result in self.index_results:
            self._findings.extend(result.findings)
        self._out.index_files = len(rows["index"])
        check_position(rows, self._segments, self._findings)
        is_whole = self.known.is_whole
        if not is_whole:
            text = "the index files cannot all be read, so references cannot be recounted"
            self._findings.add("not-compared", INDEX, text)
        self._add_references(rows, is_whole=is_whole)
        self._check_queues(rows, self.history)
        checker = OffsetTableChecker(
            self._files, self._directory, self._damaged_accounts, self._findings
        )
        checker.check(rows, {number: one.offset_table for number, one in self.compared.items()})
        holdings = self._holdings()
        check_prepared(rows, holdings, self.history, self._findings)
        definitions = tables.QUEUES.read(rows.__getitem__)
        prepared = tables.PREPARED.read(rows.__getitem__)
        owned = definitions.keys() - prepared.keys()
        self._out.prepared = sum(not row.purged for row in prepared.values())
        self._out.queues = len({named(definitions[queue_id]) or queue_id for queue_id in owned})
        self._out.messages = sum(map(holdings.count, owned))
        self._out.is_compared = True

    def _compared_of(self, number: int) -> Compared:
        return self.compared.get(number) or Compared()

    def _add_references(self, rows: Rows, *, is_whole: bool) -> None:
        references = ReferenceChecker(rows, {}, self.history, self._findings)
        references.is_whole = is_whole
        accounts = list(references.accounts())
        last_end = 0
        for account in accounts:
            last_end = references.check_overlap(account, last_end)
            self._findings.extend(self._compared_of(account.number).account)
        homeless = sorted(run for summary in self.summaries for run in summary.homeless)
        live = [one for result in self.index_results for one in result.homeless]
        references.check_homes(accounts, homeless, sorted(live, key=in_ids))
        for job in self.jobs:
            self._findings.extend(self._compared_of(job.number).fresh)

    def _holdings(self) -> Holdings:
        """Return how many messages queues hold, counted by `steps` for those in index files."""
        hidden = [live for result in self.index_results for live in result.hidden]
        of_hidden = {live.queue_id for live in hidden}
        counted: Counter[int] = Counter()
        for result in self.index_results:
            counted.update({one: n for one, n in result.held.items() if one not in of_hidden})
        return Holdings(hidden, self.history, counted)
