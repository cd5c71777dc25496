"""Recovery: reconstructs the state of the store from the files in its directory.

Segments are read in the order of their numbers and whole transactions are applied in the order they
were written. Two kinds of unsound bytes are distinguished:

- a *torn tail*: the last batch, cut off by a crash before its fdatasync returned. Nothing was
  promised about it. It is rolled back as a whole and its bytes are counted;
- *damage*: unsound bytes of a batch that was durable. It is reported with file and offset, the lost
  messages are named, and everything sound around it is served.

Bytes that the disk cannot read (EIO) are neither: the next start may read them. If they could be
part of a torn tail the store is not opened; elsewhere they are reported as damage. Numbers in
damaged or missing bytes, which may come back, are not reused: see `_skip_numbers`.

`batches` has the rules for batches and torn tails: only the end of the last segment can be torn.
The end of a segment is noted in the catalog before anything is written after it
(`Recovered.changes`); from then on bytes before that end can only be damaged. Recovering twice
gives the same as once.

Past 600 lines because it is one pass over one log: what a part of it finds, the others need.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from operator import attrgetter

from amqpstore.catalog import tables
from amqpstore.catalog.backing import Backing
from amqpstore.catalog.catalog import Catalog, Change
from amqpstore.catalog.checks import check_apart, check_prepared
from amqpstore.catalog.keys import IndexKey
from amqpstore.catalog.tables import (
    START,
    DamageRow,
    NextSequenceRow,
    PassedOverRow,
    Position,
    SegmentEndRow,
    StoreRows,
)
from amqpstore.checkpoints.checkpoint_state import CheckpointState, IndexFile, QueueIndex, enqueued
from amqpstore.errors import DamageError, UnreadableLogError
from amqpstore.evidence.absence import find_absent, size_of
from amqpstore.evidence.identification import FileKind
from amqpstore.evidence.misplaced import find_strays
from amqpstore.evidence.newer_entries import NewerEntries, find_newer_entries
from amqpstore.evidence.newer_segments import find_newer, newer_in, noted_newer
from amqpstore.evidence.passed_over import (
    KEPT_FOR_ACKS,
    PassedOver,
    evident_queues,
    known_messages,
    passed_over,
)
from amqpstore.evidence.present_numbers import PresentNumbers
from amqpstore.evidence.put_back import find_put_back
from amqpstore.evidence.shortfall import ReadLog, find_shortfall
from amqpstore.evidence.wrong_kinds import only_files, replaced_segments
from amqpstore.format.batches import StoredBatch, in_segment, take_torn_tail, torn_bytes
from amqpstore.format.enqueue_order import EnqueueOrder, not_enqueued
from amqpstore.format.index import UNKNOWN_SIZE, IndexReader, IndexState, PagedFile, live_runs
from amqpstore.format.records import (
    Gap,
    Kind,
    Operation,
    OperationKind,
    enqueued_ids,
    logical_bytes,
    record_at,
    scan,
    size_of_body,
)
from amqpstore.identity.expected_segments import ExpectedSegments, is_of_log, next_numbers
from amqpstore.identity.identity import SegmentHeader
from amqpstore.log.batch import BatchSummary
from amqpstore.log.segment_accounts import SegmentAccount, SegmentAccounts
from amqpstore.log.segments import Segment, read_around
from amqpstore.queues.queue import Queue
from amqpstore.recovery.recovered import Recovered, RecoveryReport
from amqpstore.system.filenames import (
    CATALOG,
    INDEX,
    QUARANTINE,
    SEGMENTS,
    index_key,
    index_path,
    is_spare,
    is_unfinished,
    segment_name,
    segment_number,
    segment_numbers,
    segment_path,
)

_ASTRAY = "a start does not read it there. Put it back, or let `amqpstore repair` do it"

_UNINDEXED = (
    "the positions of its {} messages are not known, so they are unreadable until it is back; the "
    "others are served. `amqpstore repair` looks for them in the log"
)

_ALL_ACKED = "its messages were acked, but the space that they take cannot be freed until then"

_FEW_MESSAGES = 65_536
_MAX_SEGMENT_BYTES = 1 << 32
"""More than any segment whose size is not recorded has."""


def recover(backing: Backing, queues: dict[int, Queue], *, is_follower: bool = False) -> Recovered:
    """Put the messages that the store holds into `queues` (by id, still empty).

    Nothing is changed on disk except by the last segment's `datasync`: bytes that a crashed process
    had written may be in the page cache only, and must not be served before they are durable. Bytes
    that the disk failed to write may be there too and will never be durable, so the cache is
    dropped before that segment is read.
    Args: is_follower, of a leader that may go on in the last segment: its end is not noted.
    Raises: DamageError (the catalog, or an index file that the log refers to), UnreadableLogError,
    OSError.
    """
    return _Recovery(backing, queues, is_follower=is_follower).run()


class _Recovery:
    def __init__(self, backing: Backing, queues: dict[int, Queue], *, is_follower: bool) -> None:
        files, directory, store_id, catalog, self._descriptors, self._limits = backing
        self._files = files
        self._directory = directory
        self._store_id = store_id
        self._seed = backing.seed
        self._reader = IndexReader(files, directory, self._seed)
        self._queues = queues
        self._is_follower = is_follower
        self._report = RecoveryReport()
        self._rows = tables.SEGMENTS.read(catalog.rows)
        self._quarantine = {**tables.QUARANTINE.read(catalog.rows)}
        self._offset_tables = tables.OFFSET_TABLES.read(catalog.rows)
        self._noted_ends = {
            key: row.end for key, row in tables.SEGMENT_ENDS.read(catalog.rows).items()
        }
        self._prepared = tables.PREPARED.read(catalog.rows)
        of_store = StoreRows.read(catalog.rows)
        self._start = of_store.position or START
        self._next_message_id = self._start.message_id
        self._next_lsn = self._start.lsn
        self._unknown_bytes = 0
        # The last message in segments that are newer than the catalog.
        self._newest_id = 0
        # Index files without a row, by path, wherever they are.
        self._unrowed: dict[str, IndexKey] = {}
        # Segments of the log, or with a row, that are not where they belong, by path; and whether
        # that is so of anything.
        self._strays: dict[str, int] = {}
        self._is_astray = False
        # What earlier starts passed over, and whether this one does.
        self._passed_over = PassedOver.read(catalog.rows)
        self._known_rows = catalog.rows
        # Numbers whose outcome this start knows: LSNs of batches, and ids that they have put in
        # queues; also those of a torn tail.
        self._done_lsns = PresentNumbers()
        self._stored_numbers = PresentNumbers()
        # Whether the catalog, or the log, is an older one.
        self._is_old = False
        # The highest id of a queue that is not in the catalog.
        self._highest_queue_id = 0
        self._present = PresentNumbers()
        # For what is missing in the log: LSNs of its batches, and ids that it has or tells of.
        self._lsns = PresentNumbers()
        self._ids = PresentNumbers()
        # Index files that cannot be read, with what the log says about their messages.
        self._unread: dict[Queue, list[IndexFile]] = {}
        # Index files that have a row, and are missing.
        self._missing_index: set[IndexKey] = set()
        self._next_compacted = of_store.next_compacted
        # None if no durable queue was created yet, or the catalog is rebuilt.
        self._next_queue_id = of_store.next_queue_id
        self._catalog_path = f"{directory}/{CATALOG}"
        self._out = Recovered(self._report, self._checkpoint_state(catalog))
        queues_then = self._out.checkpoint_state.queues.values()
        self._order = EnqueueOrder(
            {queue.id: queue.next_sequence for queue in queues_then}, self._start.message_id
        )

    def run(self) -> Recovered:
        self._list_files()
        check_prepared(self._catalog_path, self._prepared, self._queues)
        self._read_postponed()
        out = self._out
        numbers = self._expected.log
        for number in numbers:
            self._segment(number, is_open=number == self._expected.open)
        out.open_segment = self._expected.open
        out.next_segment, out.next_compacted = next_numbers(
            self._known_numbers(), self._next_compacted
        )
        self._name_newer_entries()
        self._name_shortfall()
        self._next_message_id = max(self._next_message_id, self._newest_id + 1)
        # Only now: all that was looked for above may have added to the unknown bytes.
        self._skip_numbers()
        position = self._start._replace(lsn=self._next_lsn, message_id=self._next_message_id)
        if numbers:
            last = out.segments[-1]
            position = position._replace(segment=last.number, offset=last.size)
            if last.number not in self._noted_ends:
                # A process that was killed may have synced the segment's bytes, but not its name.
                self._files.sync_directory(f"{self._directory}/{SEGMENTS}")
                if not self._is_follower:
                    end = SegmentEndRow(last.size)
                    out.changes.append(tables.SEGMENT_ENDS.put(last.number, end))
        out.changes += self._to_quarantine()
        self._pass_over(position)
        out.changes += self._left_rows()
        out.start = self._start
        out.position = position
        # Not by number: what compaction wrote has a number above all others, and ids from the
        # middle.
        out.segments.sort(key=lambda segment: (segment.first_id, segment.number))
        self._read_locked()
        self._name_unread_index()
        self._note_postponed()
        self._drop_lost()
        for queue in self._queues.values():
            queue.expiry.clear()
            queue.watch([*queue.ready, *queue.paged])
            self._report.kept[queue.id] = queue.ready_count
            delivered = sum(run.count for run in queue.ready if run.delivery_count)
            paged = [queue.index[file.number] for file in queue.paged]
            self._report.redelivered[queue.id] = delivered + sum(
                len(state.delivered) for state in paged
            )
        return out

    def _known_numbers(self) -> set[int]:
        """Return all numbers of segments that exist or existed: none of them is reused."""
        rows = (self._rows, self._offset_tables, self._noted_ends, self._quarantine)
        return {self._start.segment, *self._numbers, *chain.from_iterable(rows)}

    def _skip_numbers(self) -> None:
        """Skip all numbers that unknown records may have.

        The next start may read what this one could not: a cable was loose, a file is put back. Both
        must be valid then, and a batch that was confirmed meanwhile not be mistaken for an old
        copy. A message has one sequence per queue, and takes more than one byte; so does a batch:
        so skipping as many numbers as there are unknown bytes suffices.
        """
        if not self._unknown_bytes:
            return
        self._next_lsn += self._unknown_bytes
        self._next_message_id += self._unknown_bytes
        for queue in self._queues.values():
            self._skip_to(queue, queue.next_sequence + self._unknown_bytes)

    def _skip_to(self, queue: Queue, sequence: int) -> None:
        queue.next_sequence = sequence
        # A checkpoint moves the position past all this, and has to record the skipped numbers too.
        of_queue = self._out.checkpoint_state.queues[queue.id]
        of_queue.next_sequence = sequence
        self._out.checkpoint_state.touched.add(of_queue)

    def _name_shortfall(self) -> None:
        """Report what was durable and is missing in the log, or behind its end."""
        sequences = {queue.id: queue.next_sequence for queue in self._queues.values()}
        of_queues = self._out.checkpoint_state.queues
        heads = {queue_id: of_queues[queue_id].next_sequence for queue_id in sequences}
        operations = (one for batch in self._out.batches for one in batch.operations)
        log = ReadLog(self._start, self._lsns, self._ids, sequences, heads, operations)
        shortfall = find_shortfall(self._files, self._directory, self._seed, log)
        self._report.shortfall = shortfall
        if shortfall:
            # They may have what the log lacks.
            self._keep_all()
        if shortfall and not self._is_follower:
            # None of the missing numbers is given again; behind them, the next start finds no such.
            # How much follows what was noted is not known.
            self._unknown_bytes += _MAX_SEGMENT_BYTES
            self._out.next_segment = max(self._out.next_segment, shortfall.segment + 1)
            self._next_lsn = max(self._next_lsn, shortfall.lsn)
            self._next_message_id = max(self._next_message_id, shortfall.message_id)
            for queue_id, missing in shortfall.queues.items():
                self._skip_to(self._queues[queue_id], missing.end)

    def _name_unread_index(self) -> None:
        """Report index files that are missing, or end too early. Their messages are not ready, but
        unreadable, until they are back: see `rereading`.
        """
        named = {path for path, *_ in self._report.damage}
        for of_queue in self._out.checkpoint_state.queues.values():
            if queue := self._queues.get(of_queue.id):
                for file in of_queue.files:
                    path = index_path(self._directory, queue.id, file.state.number)
                    reason = self._why_short(path, queue.id, file.state)
                    if reason and path not in named:
                        self._name_short(queue, file.state, path, reason)

    def _name_short(self, queue: Queue, state: IndexState, path: str, reason: str) -> None:
        file = next((one for one in queue.paged if one.number == state.number), None)
        if file is None:
            self._damage(path, Gap(0, 0, f"{reason}: {_ALL_ACKED}"))
        else:
            self._cannot_read(queue, file, f"{reason}: {_UNINDEXED.format(file.live)}")

    def _why_short(self, path: str, queue_id: int, state: IndexState) -> str:
        """Return why an index file does not have all that its row counts; empty if it has."""
        if IndexKey(queue_id, state.number) in self._missing_index:
            return "the file is missing"
        try:
            size = self._files.size_of(path)
        except OSError as error:
            return str(error)
        is_short = size < state.end_bytes
        return f"it has {size} bytes, but {state.end_bytes} were written" if is_short else ""

    def _name_newer_entries(self) -> None:
        """Report messages in index files that neither the catalog nor the log has seen: in files
        without a row, and behind the end that a row counts.

        Only the last file of a queue can have been longer when a later catalog was written.
        """
        known = known_messages(self._known_rows, self._ids.ranges)
        for path in only_files(self._files, self._unrowed):
            self._name_newer(path, self._unrowed[path], 0, known)
        for queue in self._out.checkpoint_state.queues.values():
            if not queue.files:
                continue
            state = max((file.state for file in queue.files), key=attrgetter("number"))
            path = index_path(self._directory, queue.id, state.number)
            try:
                if self._files.size_of(path) <= state.end_bytes:
                    continue
            except OSError:
                continue  # its messages are named as unreadable
            key = IndexKey(queue.id, state.number)
            if self._name_newer(path, key, state.end_bytes, known):
                # It is removed once all that its row counts is acked.
                self._out.copies.append(path)

    def _name_newer(
        self, path: str, key: IndexKey, start: int, known: PresentNumbers
    ) -> NewerEntries | None:
        found = find_newer_entries(self._files, path, key, self._seed, start, known)
        if found is None:
            return None
        self._damage(path, Gap(found.offset, found.end_offset, found.text))
        # Nothing is removed beside an older catalog.
        self._is_old = True
        self._keep_all()
        self._highest_queue_id = max(self._highest_queue_id, key.queue_id)
        if not self._is_follower:
            # None of these numbers is given again.
            self._next_message_id = max(self._next_message_id, found.last_id + 1)
            if queue := self._queues.get(key.queue_id):
                self._skip_to(queue, max(queue.next_sequence, found.end_sequence))
        return found

    def _keep_all(self) -> None:
        """Remove no file that the catalog does not name: a repair may need it."""
        self._out.leftovers.clear()
        self._out.quarantined.clear()

    def _pass_over(self, position: Position) -> None:
        """Note what a repair may find, and neither this start nor any later one will have seen.

        The next checkpoint covers all numbers before `position`, so it notes them in the same
        commit. Until then the next start reads the log from the same place, and what was missing
        may be there again: nothing is passed over yet, and acks of what is found then are read.
        """
        if self._is_follower:
            return
        report = self._report
        is_part = self._unknown_bytes or self._is_astray or self._is_old or self._out.is_unread
        if is_part or report.shortfall or report.orphaned:
            self._keep_all()
            queue_ids = self._queue_ids_passed_over()
            skipped = passed_over(
                self._start, position, self._done_lsns, self._stored_numbers, queue_ids
            )
            if queue_ids:
                # The next queue gets an id behind them, whether there is a checkpoint or not.
                of_queues = PassedOverRow([], [], skipped.queue_ids)
                self._out.changes += self._note_passed_over(of_queues, position.lsn)
            if not self._passed_over.has_all(skipped):
                self._out.passed_over += self._note_passed_over(skipped, position.lsn)
                self._keep_acks()
        if self._passed_over:
            self._keep_all()
            report.passed_over = self._passed_over.text

    def _note_passed_over(self, row: PassedOverRow, lsn: int) -> list[Change]:
        """Return changes that note a row, and all that earlier starts have noted."""
        earlier = tables.PASSED_OVER.read_keys(self._known_rows)
        put = tables.PASSED_OVER.put(lsn, self._passed_over.with_row(row))
        return [*map(tables.PASSED_OVER.remove, earlier), put]

    def _keep_acks(self) -> None:
        """Keep the segments that were read: acks in them may be of messages that are found
        later.
        """
        out = self._out
        for number in self._expected.log:
            if number not in out.to_quarantine:
                out.to_quarantine.add(number)
                out.passed_over.append(tables.QUARANTINE.put(number, [KEPT_FOR_ACKS]))

    def _queue_ids_passed_over(self) -> range:
        """Return ids that others than the queues in the catalog have: none of them is given
        again.
        """
        where = self._files, self._directory, self._store_id
        # Also files that have each other's names: something is wrong, so each is looked at.
        strays = list(find_strays(*where, ()))
        segments = [(one.path, one.number) for one in strays if one.kind is FileKind.SEGMENT]
        indexed = [one.queue_id for one in strays if one.kind is FileKind.INDEX]
        of_log = evident_queues(*where, segments) - 1
        highest = max([self._highest_queue_id, of_log, *indexed])
        first = self._next_queue_id or max([0, *self._queues]) + 1
        if highest < first:
            return range(0)
        self._out.next_queue_id = highest + 1
        self._out.changes += StoreRows(next_queue_id=highest + 1).changes()
        return range(first, highest + 1)

    def _checkpoint_state(self, catalog: Catalog) -> CheckpointState:
        """Return the state of the last checkpoint, and give queues what is in index files."""
        states: dict[int, list[IndexState]] = {}
        for key, state in tables.INDEX.read(catalog.rows).items():
            states.setdefault(key.queue_id, []).append(state.recounted())
        next_sequences = tables.NEXT_SEQUENCES.read(catalog.rows)
        queues = []
        for queue_id in {*self._queues, *states, *next_sequences}:
            row = next_sequences.get(queue_id, NextSequenceRow(1))
            of_queue = states.get(queue_id, [])
            check_apart(self._catalog_path, queue_id, of_queue)
            queues.append(QueueIndex(queue_id, row.next_sequence, of_queue, self._reader))
            if queue := self._queues.get(queue_id):
                queue.next_sequence = row.next_sequence
                queue.restore_index(of_queue)
        accounts = [SegmentAccount.of_row(row) for row in self._rows.values()]
        return CheckpointState(
            SegmentAccounts(list(filter(self._has_room, accounts))), queues, self._reader
        )

    def _has_room(self, account: SegmentAccount) -> bool:
        """Tell whether a segment can have as many messages as its row says.

        One that cannot is not counted, as a number is kept for each of them.
        """
        count = account.end_id - account.first_id
        if account.ids is not None or account.references is not None or count <= _FEW_MESSAGES:
            return True
        path = segment_path(self._directory, account.number)
        size = size_of(self._files, path)
        if count <= size:
            return True
        reason = f"its {size} bytes cannot hold the {count} messages that its row counts"
        self._damage(path, Gap(0, 0, reason))
        return False

    def _list_files(self) -> None:
        """List the segments of the log to be read, those that are only kept, and leftovers."""
        directory = f"{self._directory}/{SEGMENTS}"
        names = self._files.list_directory(directory)
        others = [name for name in names if not segment_number(name)]
        spare = [name for name in others if is_spare(name)]
        unfinished = [name for name in others if is_unfinished(name)]
        self._report.unknown_files = sorted({*others}.difference(spare, unfinished))
        numbers = segment_numbers(names)
        self._find_strays(numbers)
        self._numbers = {*numbers, *self._moved_numbers(), *self._strays.values()}
        self._replaced = replaced_segments(self._files, self._directory, numbers, self._start)
        self._numbers_there = {*numbers}.difference(self._replaced)
        # The log had gone on in a segment that is found elsewhere.
        ends = {*self._noted_ends, *self._replaced, *self._strays.values()}
        self._expected = expected = ExpectedSegments.of(
            self._numbers_there, self._start.segment, self._rows.keys(), ends
        )
        self._name_missing()
        self._name_absent()
        for number in expected.rowed:
            self._out.segments.append(self._sealed(number))
        self._out.deleted = sorted(self._out.checkpoint_state.queues.keys() - self._queues.keys())
        left_index = self._list_index_files()
        left = expected.left_over
        is_old = self._is_catalog_old(left)
        misses_files = self._missing_index or self._report.absent or not expected.is_complete
        if misses_files or self._is_astray:
            # One of them may have what another one should have.
            self._out.kept_segments = set(self._rows)
            # The catalog may be an old copy, and these files have its messages under other names.
            return
        self._out.quarantined = [number for number in left if number in self._quarantine]
        if is_old:
            return
        removed = [segment_name(number) for number in left if number not in self._quarantine]
        # A follower's unfinished files may be of a copy that goes on where it was cut off.
        removed += spare if self._is_follower else [*spare, *unfinished]
        left_index += [f"{directory}/{name}" for name in removed]
        self._out.leftovers = only_files(self._files, left_index)

    def _is_catalog_old(self, left: Iterable[int]) -> bool:
        """Tell whether any compacted segment has newer messages than the catalog knows, or any
        segment is there again that a repair has given up.

        It is reported, and goes to quarantine, where a repair finds it. A number that the catalog
        knows is not looked at: its file is older.
        """
        where = self._files, self._directory
        newer_by_number = noted_newer(*where, self._quarantine, self._seed)
        new = [number for number in left if number >= (self._next_compacted or 0)]
        next_id = self._start.message_id
        for number, newer in find_newer(*where, new, self._seed, next_id).items():
            if number not in newer_by_number:
                newer_by_number[number] = newer
                if not newer.error:
                    self._quarantine[number] = [newer.row]
                    self._out.changes.append(tables.QUARANTINE.put(number, [newer.row]))
        for newer in newer_by_number.values():
            self._damage(newer.path, Gap(newer.offset, newer.end, newer.reason))
            self._newest_id = max(self._newest_id, newer.last_id)
        self._is_old |= bool(newer_by_number)
        self._name_put_back((number, segment_path(self._directory, number)) for number in left)
        return self._is_old

    def _name_put_back(self, segments: Iterable[tuple[int, str]]) -> None:
        """Report segments that nothing needs if they have what a repair has given up."""
        given_up = PassedOver.given_up(self._known_rows)
        where = self._files, self._directory
        for one in find_put_back(*where, segments, self._seed, given_up):
            self._is_old = True
            self._damage(one.path, Gap(one.offset, one.offset, one.reason))

    def _find_strays(self, numbers: Iterable[int]) -> None:
        """Find files of the store under other names: none of them is read, but each is reported,
        and none of their numbers is given again.
        """
        if self._is_follower:
            return
        at_home = {
            segment_path(self._directory, one)
            for one in numbers
            if one in self._rows or is_of_log(one, self._start.segment)
        }
        states = {
            (queue.id, file.state.number)
            for queue in self._out.checkpoint_state.queues.values()
            for file in queue.files
        }
        at_home |= {index_path(self._directory, *key) for key in states}
        for stray in find_strays(self._files, self._directory, self._store_id, at_home):
            if stray.kind is FileKind.INDEX:
                key = IndexKey(stray.queue_id, stray.number)
                is_needed = key in states
                if not is_needed:
                    self._unrowed[stray.path] = key
            else:
                is_needed = stray.number in self._rows or is_of_log(
                    stray.number, self._start.segment
                )
                if is_needed:
                    self._strays[stray.path] = stray.number
                elif newer := newer_in(self._files, stray, self._seed, self._start.message_id):
                    self._is_old = True
                    self._newest_id = max(self._newest_id, newer.last_id)
                    self._damage(stray.path, Gap(newer.offset, newer.end, newer.reason))
                else:
                    self._name_put_back([(stray.number, stray.path)])
            if is_needed:
                self._is_astray = True
                home = os.path.relpath(stray.home(self._directory), self._directory)
                self._damage(stray.path, Gap(0, 0, f"by its records it is {home}: {_ASTRAY}"))

    def _moved_numbers(self) -> list[int]:
        """Return the numbers of the segments in quarantine."""
        directory = f"{self._directory}/{QUARANTINE}"
        exists = self._files.exists(directory)
        return segment_numbers(self._files.list_directory(directory)) if exists else []

    def _list_index_files(self) -> list[str]:
        """Return index files without a row, and note rows without a file."""
        index = f"{self._directory}/{INDEX}"
        states = {
            (queue.id, file.state.number)
            for queue in self._out.checkpoint_state.queues.values()
            for file in queue.files
        }
        left = []
        for name in self._files.list_directory(index):
            if (key := index_key(name)) in states:
                states.remove(key)
            elif key:
                left.append(f"{index}/{name}")
                self._unrowed[left[-1]] = IndexKey(*key)
            elif is_unfinished(name) and not self._is_follower:
                left.append(f"{index}/{name}")
            elif not is_unfinished(name):
                self._report.unknown_files.append(name)
        self._missing_index = {IndexKey(*key) for key in states}
        return left

    def _name_missing(self) -> None:
        """Report the segments that should exist and do not."""
        for found in self._expected.missing():
            path = segment_path(self._directory, found.number)
            self._damage(path, Gap(0, 0, self._replaced.get(found.number, found.reason)))
            if is_of_log(found.number, self._start.segment):
                self._unknown_bytes += self._size_of_unknown(found.number)
                self._unknown_bytes += found.others * _MAX_SEGMENT_BYTES

    def _name_absent(self) -> None:
        """Count the messages of segments whose files are missing or too short."""
        where = self._files, self._directory
        accounts, there = list(self._out.checkpoint_state.accounts), self._numbers_there
        for found in find_absent(*where, accounts, self._offset_tables, there):
            self._report.absent.append(found)
            number, size, end, *_ = found
            if number in there and not is_of_log(number, self._start.segment):
                reason = "the file is shorter than its row in the catalog says"
                self._damage(segment_path(self._directory, number), Gap(size, end, reason))

    def _read_postponed(self) -> None:
        """Read index files with entries that were acked or delivered while they could not be read:
        until then it is unknown how many are live, or redelivered.
        """
        for queue in self._queues.values():
            for file in [*queue.paged]:
                state = queue.index[file.number]
                if state.postponed or state.postponed_deliveries:
                    self._page_in(queue, file)

    def _read_locked(self) -> None:
        """Read index files with messages that prepared transactions have locked. What was purged
        with all of its file is set aside unread, however much it is.
        """
        for row in self._prepared.values():
            for queue_id, first, count in row.locked:
                if queue := self._queues.get(queue_id):
                    end = first + count
                    for file in queue.paged_between(first, end):
                        if not row.purged or file.first < first or end < file.end:
                            self._page_in(queue, file)

    def _note_postponed(self) -> None:
        """Note what happened to messages in index files that cannot be read, for when they are
        read. The checkpoint's state has it too, and keeps it over the next start.
        """
        for queue, files in self._unread.items():
            for file in files:
                queue.index[file.state.number] = file.close()

    def _left_rows(self) -> Iterator[Change]:
        """Yield changes that remove rows of segments that the checkpoint does not know, and that
        are before it. A log segment of which a crash left nothing to adopt has no account, and its
        row is removed too.
        """
        for number in self._offset_tables:
            if self._is_left(number):
                yield tables.OFFSET_TABLES.remove(number)
        for number in self._noted_ends:
            if self._is_left(number):
                yield tables.SEGMENT_ENDS.remove(number)

    def _is_left(self, number: int) -> bool:
        return number not in self._rows and not is_of_log(number, self._start.segment)

    def _sealed(self, number: int) -> Segment:
        """Return a segment that the checkpoint knows, from its row."""
        path = segment_path(self._directory, number)
        segment = Segment(self._descriptors, path, number, self._seed, self._limits)
        segment.size = self._rows[number].end_bytes if number in self._rows else 0
        if row := self._offset_tables.get(number):
            segment.restore(row)
        self._report.segments += 1
        return segment

    def _segment(self, number: int, *, is_open: bool) -> None:
        """Read a segment of the log, from the checkpoint on."""
        start = self._start.offset if number == self._start.segment else 0
        segment = self._sealed(number)
        if not segment.table_ids:
            segment.first_id = segment.end_id = self._next_message_id
        file = segment.file()
        if is_open:
            # The process that wrote it may have been killed before its fdatasync, or have stopped
            # after a failed one. What is adopted here must not be in memory only.
            file.datasync()
            file.drop_cache()
        content, unreadable = read_around(file, file.size(), self._limits.page_bytes)
        end = self._noted_ends.get(number)
        least = max(start, end or 0)
        if len(content) < least:
            gap = Gap(len(content), least, "the file is shorter than when it was closed")
            self._damage(segment.path, gap)
            self._unknown_bytes += gap.end - gap.offset
        # Behind a noted end is what an earlier start rolled back: it must not come back.
        content = content[:end]
        segment.size = len(content)
        self._report.scanned_bytes += max(len(content) - start, 0)
        if reason := self._foreign(content, number):
            self._damage(segment.path, Gap(0, len(content), reason))
            self._unknown_bytes += self._size_of_unknown(number)
            batches = []
        else:
            before: dict[int, int] = {
                Kind.MESSAGE: self._next_message_id - 1,
                Kind.TRANSACTION: self._next_lsn - 1,
            }
            scanned = scan(content, number, self._seed, start, before)
            batches = list(in_segment(content, scanned, start))
        # In a segment that another one follows, a batch that is not whole is damage.
        torn = take_torn_tail(batches) if is_open else None
        for page in unreadable:
            if torn and page.end > torn.start:
                # It may be a whole batch, and confirmed: as a torn tail it would be lost for good.
                raise UnreadableLogError(segment.path, page.offset, page.reason)
            if page.offset < len(content):
                self._damage(segment.path, page)
                self._out.is_unread |= page.end > start
        for batch in batches:
            self._apply(segment, batch, content)
        if torn:
            self._take_back(segment, torn, content)
        self._out.segments.append(segment)

    def _size_of_unknown(self, number: int) -> int:
        """Return how many bytes a segment of the log may have that is missing or another
        store's.
        """
        return int(self._noted_ends.get(number, _MAX_SEGMENT_BYTES))

    def _foreign(self, content: bytes, number: int) -> str:
        """Return why nothing in this segment belongs to this store; empty if nothing says so."""
        found = record_at(content, 0, number, self._seed)
        if isinstance(found, Gap) or found.kind != Kind.SEGMENT:
            return ""
        try:
            header = SegmentHeader.of_payload(content[found.payload_offset : found.end])
        except ValueError as error:
            return str(error)
        return header.why_foreign(self._store_id)

    def _take_back(self, segment: Segment, torn: StoredBatch, content: bytes) -> None:
        """Leave the torn tail out: the segment ends where its last whole batch does."""
        written = torn_bytes(content[torn.start :])
        self._report.torn_bytes += written
        self._report.scanned_bytes -= torn.end - torn.start - written
        self._report.rolled_back += len(torn.messages)
        segment.size = torn.start
        # Its bytes stay in the file: nothing else may have a number that is in them.
        for record in torn.messages:
            self._next_message_id = max(self._next_message_id, record.number + 1)
        self._next_lsn = max(self._next_lsn, torn.lsn + 1)
        if torn.lsn:
            self._done_lsns.add(torn.lsn)
        for record in torn.messages:
            self._stored_numbers.add(record.number)

    def _apply(self, segment: Segment, batch: StoredBatch, content: bytes) -> None:
        for gap in batch.gaps:
            self._damage(segment.path, gap)
        sizes = self._note_messages(segment, batch, content)
        if batch.lsn != self._next_lsn and (batch.gaps or not batch.lsn):
            # Also with a TRANSACTION: the gap before it contained another, whole batch.
            self._unknown_bytes += batch.end - batch.start
        if not batch.lsn:
            self._note_ids(0, 0, sizes)
            self._report.orphaned += sizes
            return
        self._next_lsn = batch.lsn + 1
        self._lsns.add(batch.lsn)
        self._done_lsns.add(batch.lsn)
        operations, reasons = self._order.split(batch)
        for reason in reasons:
            self._damage(segment.path, Gap(batch.start, batch.end, reason))
        if reasons:
            self._report.orphaned += not_enqueued(sizes, operations)
        first_id, stop = enqueued_ids(operations)
        self._note_ids(first_id, stop, sizes)
        if stop:
            self._stored_numbers.add_range(first_id, stop)
        if not stop:
            first_id = stop = self._next_message_id
        # Also for a damaged record: no other message may get its id.
        self._next_message_id = max(self._next_message_id, stop)
        # And it is searched for in this segment, if the disk can read it again.
        segment.end_id = max(segment.end_id, stop)
        for operation in operations:
            if self._next_queue_id is not None and operation.queue_id >= self._next_queue_id:
                reason = f"the log contains queue {operation.queue_id}, which it does not know yet"
                raise DamageError(self._catalog_path, 0, f"it is older than the log: {reason}")
            # A queue that is not in the catalog was deleted, and its messages with it.
            if queue := self._queues.get(operation.queue_id):
                self._apply_to(queue, operation)
        # Nothing is known of a damaged record, and it may be whole again at the next start.
        pairs = [sizes.get(one, (0, UNKNOWN_SIZE)) for one in range(first_id, stop)]
        of_records = array("I", [size for size, _ in pairs])
        of_bodies = array("I", [size for _, size in pairs])
        self._out.batches.append(
            BatchSummary(*(operations, first_id, of_records, of_bodies), segment.number, batch.end)
        )

    def _note_ids(self, first: int, end: int, of_records: Collection[int]) -> None:
        """Note the ids of a batch: those that it puts in queues, and those of its sound records.
        They are contiguous.
        """
        if of_records:
            lowest, highest = min(of_records), max(of_records)
            first, end = min(first or lowest, lowest), max(end, highest + 1)
        if end:
            self._ids.add_range(first, end)

    def _apply_to(self, queue: Queue, operation: Operation) -> None:
        """Apply an operation to a queue. Messages in an index file have to be in memory for that,
        unless all of them are removed, or it cannot be read.
        """
        if operation.kind != OperationKind.ENQUEUE:
            first = operation.first_sequence
            end = first + operation.message_count
            files = queue.paged_between(first, end)
            if operation.kind != OperationKind.DELIVERED:
                gone = [file for file in files if first <= file.first and file.end <= end]
                queue.drop_paged(gone)
                files = [file for file in files if file.first < first or end < file.end]
            for file in files:
                self._page_in(queue, file)
            for unread in self._unread.get(queue, ()):
                if unread.state.first < end and first < unread.state.end:
                    unread.postpone(operation)
        apply(queue, operation)

    def _page_in(self, queue: Queue, file: PagedFile) -> None:
        """Read an index file into memory. One that cannot be read now, for whatever reason, is
        reported, and tried again while the store is open: see `rereading`.
        """
        state = queue.index[file.number]
        try:
            entries = self._reader.entries(queue.id, state)
            runs = live_runs(entries, state, file.first, file.end)
            queue.check_apart(runs, index_path(self._directory, queue.id, file.number))
        except (DamageError, OSError, MemoryError) as error:
            if isinstance(error, DamageError):
                self._cannot_read(queue, file, error.reason, error.offset)
            else:
                self._cannot_read(queue, file, str(error) or "out of memory")
        else:
            queue.paged_in(file, runs)

    def _cannot_read(self, queue: Queue, file: PagedFile, reason: str, offset: int = 0) -> None:
        """Report an index file that cannot be read, and count its messages as unreadable."""
        state = queue.index[file.number]
        path = index_path(self._directory, queue.id, file.number)
        self._damage(path, Gap(offset, offset, reason))
        queue.cannot_read(file)
        # Those that were acked while it could not be read are not lost. Sequences may be skipped.
        acked = sum(end - first for first, end in state.postponed)
        self._report.unindexed += max(file.live - acked, 0)
        self._unread.setdefault(queue, []).append(IndexFile(state))

    def _note_messages(
        self, segment: Segment, batch: StoredBatch, content: bytes
    ) -> dict[int, tuple[int, int]]:
        """Note where the batch's messages are. Returns the sizes of their records and bodies, by
        id.
        """
        sizes: dict[int, tuple[int, int]] = {}
        for record in batch.messages:
            segment.note(record.number, record.offset)
            self._next_message_id = record.number + 1
            try:
                body = size_of_body(content, record)
            except ValueError:
                body = UNKNOWN_SIZE
            sizes[record.number] = logical_bytes(content, record), body
            self._present.add(record.number)
        return sizes

    def _drop_lost(self) -> None:
        """Put messages without a record in quarantine, and report them."""
        if not self._report.damage:
            return
        lost = self._report.lost
        for queue in self._queues.values():
            for run in queue.ready:
                # Messages that the checkpoint knew are checked when their turn comes.
                first = max(self._start.message_id, run.first_id)
                sequence = run.first_sequence - run.first_id
                for message_id in self._present.absent(first, run.first_id + run.count):
                    lost.append((queue.id, sequence + message_id, message_id))
        for queue_id, sequence, _ in lost:
            queue = self._queues[queue_id]
            for run in queue.ready.remove(sequence, 1):
                queue.quarantined.insert(run)

    def _to_quarantine(self) -> list[Change]:
        """Return rows for the log's segments with damage: they must not be removed."""
        found: dict[int, list[DamageRow]] = {}
        by_path = {segment.path: segment.number for segment in self._out.segments}
        for path, offset, size, reason in self._report.damage:
            if path in by_path:
                found.setdefault(by_path[path], []).append(DamageRow(offset, size, reason))
        self._out.to_quarantine = {*found, *self._quarantine}
        return [
            tables.QUARANTINE.put(number, damage)
            for number, damage in found.items()
            if number not in self._quarantine
        ]

    def _damage(self, path: str, gap: Gap) -> None:
        self._report.damage.append((path, gap.offset, gap.end - gap.offset, gap.reason))


def apply(queue: Queue, operation: Operation) -> None:
    """Apply an operation to a queue whose messages are all ready and on disk."""
    first_sequence, count = operation.first_sequence, operation.message_count
    # Also for a damaged ENQUEUE: no other message may get its sequence.
    queue.next_sequence = max(queue.next_sequence, first_sequence + count)
    if operation.kind == OperationKind.ENQUEUE:
        queue.ready.append_stored(enqueued(operation))
        return
    removed = queue.ready.remove(first_sequence, count)
    if operation.kind == OperationKind.DELIVERED:
        for run in removed:
            run.delivery_count = max(run.delivery_count, operation.detail)
            queue.ready.insert(run)
