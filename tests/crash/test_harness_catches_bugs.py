"""A guard is trusted once it was seen to fail: bugs put into the engine, each of which is caught.

Every one was, or could well be, somebody's mistake; each says which invariants it breaks.
"""

from __future__ import annotations

import contextlib
import dataclasses
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import amqpstore.catalog
import amqpstore.checkpoint_state
import amqpstore.compaction
import amqpstore.files
import amqpstore.log
import amqpstore.maintenance
import amqpstore.opening
import amqpstore.records
import amqpstore.recovery
import amqpstore.store
from amqpstore import tables
from amqpstore.backing import Backing
from amqpstore.catalog import Change
from amqpstore.checkpoint import Checkpoint
from amqpstore.checkpoint_state import IndexFile, QueueIndex
from amqpstore.compaction import Compaction
from amqpstore.errors import DamageError, DurabilityError
from amqpstore.filenames import FIRST_COMPACTED, INDEX, index_path, segment_path
from amqpstore.index_merge import IndexMerger
from amqpstore.index_writer import IndexWriter
from amqpstore.log import Batch, Log
from amqpstore.queue import Queue
from amqpstore.records import Operation, OperationKind
from amqpstore.recovery import Recovered
from amqpstore.runs import ReadyList, Run
from amqpstore.segment_accounts import SegmentAccount
from amqpstore_tools.drill.explorer import Explorer
from amqpstore_tools.drill.outside import Outside
from amqpstore_tools.simulation.memory_catalog import MemoryCatalog
from amqpstore_tools.simulation.memory_files import MemoryFile, MemoryFiles
from tests.crash.histories import (
    DIRECTORY,
    merging_history,
    open_store,
    outside_of,
    record,
    short_history,
)

Patch = pytest.MonkeyPatch


def history(outside: Outside) -> None:
    outside.open()
    outside.keep_file(f"{DIRECTORY}/segments/notes.txt", b"not the store's")
    for name in ("orders", "audit"):
        outside.create_queue(name)
    for size in (10, 600, 1800, 2500):
        outside.publish(["orders", "audit"], [bytes([size % 251]) * size, b"small"])
        outside.sync()
    outside.take("orders", 3)
    outside.sync()
    outside.ack("orders")
    outside.sync()
    outside.kill()
    outside.open()
    if outside.queue_names:
        outside.publish(outside.queue_names, [b"after the restart"])
    outside.sync()


def housekept_history(outside: Outside) -> None:
    """Two checkpoints with index files and one without, a compaction, and what it leaves."""
    outside.open()
    outside.create_queue("slow")
    outside.create_queue("fast")
    for number in range(3):
        outside.publish(["slow"], [b"stays %d" % number])
        outside.publish(["slow", "fast"], [b"first in two, then in one"])
        outside.publish(["fast"], [bytes([number]) * 1000])
        outside.publish(["slow"], [b"behind what is gone"])
        outside.sync()
    outside.take("slow", 1)
    outside.sync()
    outside.checkpoint()
    outside.requeue("slow")
    outside.take("slow", 1)
    outside.take("fast", 6, acked=True)
    while outside.ready_count("fast"):
        outside.take("fast", 6, acked=True)
    outside.take("slow", 1)
    outside.sync()
    outside.checkpoint()
    outside.housekeep(4)
    outside.kill()
    outside.open()
    for number in range(5):
        outside.publish(["slow"], [b"behind what was merged"], priority=number)
    while outside.ready_count("slow") > 6:
        outside.take("slow", 1, acked=True)
    outside.sync()
    outside.checkpoint()
    outside.publish(["slow"], [b"behind the checkpoint"])
    outside.purge("slow")
    outside.sync()


def violated(
    invariants: set[str],
    told: Callable[[Outside], None] = history,
    images: int = 15,
    stop_after: int = 1_000,
) -> set[str]:
    """Which of `invariants` the engine, as it is now, violates in a history."""
    explorer = Explorer(
        open_store,
        "bugs",
        images_an_operation=images,
        images_in_recovery=3,
        stop_after=stop_after,
    )
    outside = outside_of(open_store)
    # Some bugs end the history itself; what is wanted is that they are seen before that.
    with contextlib.suppress(OverflowError, ValueError, DamageError):
        told(outside)
    violations = explorer.explore(outside.trace).violations
    return invariants & {violation.invariant for violation in violations}


@pytest.mark.parametrize("told", [history, housekept_history])
def test_without_a_bug_nothing_is_violated(told: Callable[[Outside], None]) -> None:
    explorer = Explorer(open_store, "bugs", images_an_operation=8, images_in_recovery=3)
    assert explorer.explore(record(told)).violations == []


def write_without(*, datasync: bool = True, sync_directory: bool = True) -> Callable[..., None]:
    """`Log.write`, but for one of its syncs."""

    def write(self: Log, batch: Batch) -> None:
        segment = batch.segment
        assert segment is not None
        try:
            if batch.starts_segment:
                segment.create()
            segment.writer.append(batch.buffers)
            if datasync:
                segment.writer.datasync()
            if batch.starts_segment and sync_directory:
                self._descriptors.files.sync_directory(f"{self._directory}/segments")
        except OSError as error:
            raise DurabilityError(segment.path, error) from error

    return write


def a_batch_is_not_synced(patch: Patch) -> None:
    patch.setattr(Log, "write", write_without(datasync=False))


def the_entry_of_a_segment_is_not_synced(patch: Patch) -> None:
    patch.setattr(Log, "write", write_without(sync_directory=False))


def confirms_leave_before_the_sync(patch: Patch) -> None:
    def sync(self: amqpstore.store.Store) -> None:
        if batch := self._log.seal(0):
            self._log.complete(batch)
            self._log.write(batch)

    patch.setattr(amqpstore.store.Store, "sync", sync)


def only_the_first_write_of_a_segment_is_synced(patch: Patch) -> None:
    sync_file = MemoryFiles.sync_file

    def sync_once(self: MemoryFiles, path: str, number: int) -> None:
        if not self.numbered(number).synced:
            sync_file(self, path, number)

    patch.setattr(MemoryFiles, "sync_file", sync_once)


def the_adopted_tail_is_not_synced(patch: Patch) -> None:
    def datasync(self: MemoryFile) -> None:
        if self._is_writable:
            self._files.sync_file(self.path, self._number)

    # Only recovery syncs a file that it did not create.
    patch.setattr(MemoryFile, "datasync", datasync)


def after_recovery(patch: Patch, then: Callable[..., None]) -> None:
    recover = amqpstore.recovery.recover

    def recover_and_then(backing: Backing, queues: dict[int, Queue]) -> Recovered:
        recovered = recover(backing, queues)
        then(recovered, backing.files, queues)
        return recovered

    patch.setattr(amqpstore.opening, "recover", recover_and_then)


def the_end_of_the_log_is_not_noted(patch: Patch) -> None:
    after_recovery(patch, lambda recovered, files, queues: recovered.changes.clear())


def a_torn_batch_is_taken_as_whole(patch: Patch) -> None:
    patch.setattr(amqpstore.batches.StoredBatch, "is_whole", lambda self: True)


def a_batch_is_whole_with_its_transaction(patch: Patch) -> None:
    patch.setattr(amqpstore.batches.StoredBatch, "is_whole", lambda self: self.lsn > 0)


def the_torn_tail_is_left_out_before_the_rest_is_applied(patch: Patch) -> None:
    """Numbers go on behind the torn tail, so what is before it seems to come too late."""
    batches_of = amqpstore.batches.in_segment

    def batches(content: bytes, scanned: Any, start: int) -> Any:
        found = list(batches_of(content, scanned, start))
        if found and not found[-1].is_whole():
            found.insert(0, dataclasses.replace(found[-1], start=start, end=start))
        return found

    patch.setattr(amqpstore.recovery, "in_segment", batches)


def the_transaction_is_written_before_its_messages(patch: Patch) -> None:
    seal = Log.seal

    def seal_the_other_way_round(self: Log, now_ms: int) -> Batch | None:
        batch = seal(self, now_ms)
        if batch is not None:
            transaction = batch.buffers.pop()
            batch.buffers.insert(1 if batch.starts_segment else 0, transaction)
        return batch

    patch.setattr(Log, "seal", seal_the_other_way_round)


def each_queue_has_a_transaction_of_its_own(patch: Patch) -> None:
    encode = amqpstore.records.encode_transaction

    def encode_each(
        operations: Sequence[Operation], number: int, segment: int, ms: int, *, seed: int
    ) -> bytes:
        return b"".join(
            encode([operation], 1000 * number + place, segment, ms, seed=seed)
            for place, operation in enumerate(operations)
        )

    patch.setattr(amqpstore.log, "encode_transaction", encode_each)


def checksums_are_not_verified(patch: Patch) -> None:
    patch.setattr(amqpstore.records, "crc32c", lambda content, before=0: 0)


def not_logged(kind: OperationKind) -> Callable[[Patch], None]:
    append = Log.append_operation

    def append_some(self: Log, operation: Operation) -> None:
        if operation.kind != kind:
            append(self, operation)

    return lambda patch: patch.setattr(Log, "append_operation", append_some)


def acks_and_deliveries_are_swapped(patch: Patch) -> None:
    append = Log.append_operation
    swapped = {
        OperationKind.ACK: OperationKind.DELIVERED,
        OperationKind.DELIVERED: OperationKind.ACK,
    }

    def append_other(self: Log, operation: Operation) -> None:
        kind = OperationKind(operation.kind)
        append(self, operation._replace(kind=swapped.get(kind, kind)))

    patch.setattr(Log, "append_operation", append_other)


def what_was_delivered_goes_to_the_end(patch: Patch) -> None:
    def insert(self: ReadyList, run: Run) -> None:
        self.append(run)

    patch.setattr(ReadyList, "insert", insert)


def the_marker_is_not_synced(patch: Patch) -> None:
    sync_file = MemoryFiles.sync_file

    def sync_others(self: MemoryFiles, path: str, number: int) -> None:
        if not path.endswith("STORE.new"):
            sync_file(self, path, number)

    patch.setattr(MemoryFiles, "sync_file", sync_others)


def the_entries_of_the_catalog_are_not_synced(patch: Patch) -> None:
    sync_directory = MemoryFiles.sync_directory

    def sync_others(self: MemoryFiles, path: str) -> None:
        if not path.endswith("catalog"):
            sync_directory(self, path)

    patch.setattr(MemoryFiles, "sync_directory", sync_others)


def a_queue_is_created_without_a_commit(patch: Patch) -> None:
    commit = MemoryCatalog.commit

    def commit_others(self: MemoryCatalog, changes: Sequence[Change]) -> None:
        if not any(change.table == "queues" for change in changes):
            commit(self, changes)

    patch.setattr(MemoryCatalog, "commit", commit_others)


def unknown_files_are_cleared_away(patch: Patch) -> None:
    def clear(recovered: Any, files: Any, queues: Any) -> None:
        for name in recovered.report.unknown_files:
            files.remove(f"{DIRECTORY}/segments/{name}")

    after_recovery(patch, clear)


def counts_are_off_by_one(patch: Patch) -> None:
    def miscount(recovered: Any, files: Any, queues: Any) -> None:
        for queue_id in recovered.report.kept:
            recovered.report.kept[queue_id] += 1

    after_recovery(patch, miscount)


def the_first_message_is_read_for_all(patch: Patch) -> None:
    read = Log.read

    def read_first(self: Log, first_id: int, count: int) -> Any:
        found = read(self, first_id, count)
        return found if isinstance(found, Exception) else [found[0]] * len(found)

    patch.setattr(Log, "read", read_first)


# What checkpoints, index files and compaction may get wrong.


def not_synced(path_part: str) -> Callable[[Patch], None]:
    sync_file = MemoryFiles.sync_file

    def sync_others(self: MemoryFiles, path: str, number: int) -> None:
        if path_part not in path:
            sync_file(self, path, number)

    return lambda patch: patch.setattr(MemoryFiles, "sync_file", sync_others)


def an_index_file_is_not_synced(patch: Patch) -> None:
    not_synced("/index/")(patch)


def a_compacted_segment_is_not_synced(patch: Patch) -> None:
    not_synced(f"/segments/{FIRST_COMPACTED}")(patch)


def the_entry_of_an_index_file_is_not_synced(patch: Patch) -> None:
    sync_directory = MemoryFiles.sync_directory

    def sync_others(self: MemoryFiles, path: str) -> None:
        if not path.endswith("/index"):
            sync_directory(self, path)

    patch.setattr(MemoryFiles, "sync_directory", sync_others)


def the_entry_of_a_compacted_segment_is_not_synced(patch: Patch) -> None:
    write = Compaction._write

    def write_only(self: Compaction) -> None:
        with pytest.MonkeyPatch.context() as while_writing:
            while_writing.setattr(MemoryFiles, "sync_directory", lambda self, path: None)
            write(self)

    patch.setattr(Compaction, "_write", write_only)


def the_catalog_is_committed_before_the_index_is_written(patch: Patch) -> None:
    run, sync = Checkpoint.run, IndexWriter._sync
    append = MemoryFile.append
    held: list[Callable[[], None]] = []

    def append_later(self: MemoryFile, buffers: Sequence[bytes]) -> None:
        if "/index/" in self.path:
            held.append(lambda: append(self, buffers))
        else:
            append(self, buffers)

    def sync_later(self: IndexWriter, appended: Any) -> None:
        held.append(lambda: sync(self, appended))

    def run_and_write(self: Checkpoint) -> Any:
        written = run(self)
        for call in held:
            call()
        held.clear()
        return written

    patch.setattr(MemoryFile, "append", append_later)
    patch.setattr(MemoryFile, "close", lambda self: None)
    patch.setattr(IndexWriter, "_sync", sync_later)
    patch.setattr(Checkpoint, "run", run_and_write)


def segments_are_removed_before_the_swap(patch: Patch) -> None:
    check = Compaction._check

    def check_and_remove(self: Compaction) -> None:
        check(self)
        for account in self._accounts:
            self._files.remove(segment_path(DIRECTORY, account.number))

    patch.setattr(Compaction, "_check", check_and_remove)


def a_segment_with_one_live_message_is_dropped(patch: Patch) -> None:
    account_changes = Checkpoint._account_changes

    def drop_more(self: Checkpoint, changes: Any, gone: Any) -> Any:
        for account in self._checkpoint_state.accounts:
            if account.live_count == 1:
                account.live_count = 0
        return account_changes(self, changes, gone)

    patch.setattr(Checkpoint, "_account_changes", drop_more)


def only_the_first_piece_of_a_segment_is_compacted(patch: Patch) -> None:
    pieces = amqpstore.compaction._pieces
    patch.setattr(amqpstore.compaction, "_pieces", lambda *args: [*pieces(*args)][:1])


def the_segment_of_the_position_is_compacted(patch: Patch) -> None:
    choose = amqpstore.compaction.choose

    def choose_any(accounts: Any, *, log_segment: int, **rest: Any) -> Any:
        return choose(accounts, log_segment=0, **rest)

    patch.setattr(amqpstore.maintenance, "choose", choose_any)


def a_checkpoint_skips_a_batch(patch: Patch) -> None:
    take_durable = Log.take_durable
    patch.setattr(Log, "take_durable", lambda self: take_durable(self)[:-1])


def acks_are_not_in_the_catalog(patch: Patch) -> None:
    row = tables.INDEX.row
    patch.setattr(tables.INDEX, "row", lambda state: row(state._replace(acked=b"")))


def acked_bodies_are_still_counted(patch: Patch) -> None:
    ack = IndexFile.ack

    def ack_entries(self: IndexFile, first: int, end: int, entries: Any) -> Any:
        before = self.state.body_bytes
        acked = ack(self, first, end, entries)
        self.state = self.state._replace(body_bytes=before)
        return acked

    patch.setattr(IndexFile, "ack", ack_entries)


def deliveries_are_not_in_the_catalog(patch: Patch) -> None:
    row = tables.INDEX.row
    patch.setattr(tables.INDEX, "row", lambda state: row(state._replace(delivered={})))


def deliveries_are_added_up(patch: Patch) -> None:
    deliver = IndexFile.deliver

    def add_up(self: IndexFile, first: int, end: int, entries: Any, times: int) -> None:
        self._opened()
        assert self._delivered is not None
        before = max(self._delivered.values(), default=0)
        deliver(self, first, end, entries, before + times)

    patch.setattr(IndexFile, "deliver", add_up)


def leftovers_are_left(patch: Patch) -> None:
    after_recovery(patch, lambda recovered, files, queues: recovered.leftovers.clear())


def each_message_counts_as_in_one_queue(patch: Patch) -> None:
    patch.setattr(
        amqpstore.checkpoint_state, "references_of", lambda enqueues, first_id, count: None
    )


def a_deleted_queue_releases_nothing(patch: Patch) -> None:
    patch.setattr(QueueIndex, "release_all", lambda *_: iter(()))


def garbage_is_not_counted(patch: Patch) -> None:
    release = SegmentAccount.release

    def release_messages(self: SegmentAccount, ids: Sequence[int], sizes: Sequence[int]) -> None:
        before = self.live_bytes
        release(self, ids, sizes)
        self.live_bytes = before

    patch.setattr(SegmentAccount, "release", release_messages)


def what_is_paged_is_not_purged(patch: Patch) -> None:
    append = Log.append_operation

    def purge_in_memory(self: amqpstore.store.Store, queue: Queue) -> int:
        with pytest.MonkeyPatch.context() as while_purging:
            paged = {file.first for file in queue.paged}

            def append_others(self: Log, operation: Operation) -> None:
                if operation.first_sequence not in paged:
                    append(self, operation)

            while_purging.setattr(Log, "append_operation", append_others)
            return purge(self, queue)

    purge = amqpstore.store.Store.purge
    patch.setattr(amqpstore.store.Store, "purge", purge_in_memory)


HOUSEKEEPING_BUGS: dict[Callable[[Patch], None], str] = {
    an_index_file_is_not_synced: "I1",
    the_entry_of_an_index_file_is_not_synced: "I1",
    the_catalog_is_committed_before_the_index_is_written: "I1",
    a_compacted_segment_is_not_synced: "I1",
    the_entry_of_a_compacted_segment_is_not_synced: "I1",
    segments_are_removed_before_the_swap: "I1",
    a_segment_with_one_live_message_is_dropped: "I8",
    only_the_first_piece_of_a_segment_is_compacted: "I1",
    the_segment_of_the_position_is_compacted: "I10",
    a_checkpoint_skips_a_batch: "I12",
    acks_are_not_in_the_catalog: "I5",
    deliveries_are_not_in_the_catalog: "I5",
    deliveries_are_added_up: "I5",
    leftovers_are_left: "I8",
    each_message_counts_as_in_one_queue: "I8",
    garbage_is_not_counted: "I12",
    acked_bodies_are_still_counted: "I12",
    what_is_paged_is_not_purged: "I5",
}


@pytest.mark.parametrize("bug", HOUSEKEEPING_BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_of_housekeeping_is_caught(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    invariant = HOUSEKEEPING_BUGS[bug]
    assert violated({invariant}, housekept_history, images=6, stop_after=12) == {invariant}


def test_references_that_a_compaction_loses_are_missed(monkeypatch: Patch) -> None:
    """A message that waits in two queues is gone with the first ack."""
    restrict = SegmentAccount.restrict

    def restrict_to_one_each(
        self: SegmentAccount, ids: array[int], references: array[int], live_bytes: int
    ) -> None:
        restrict(self, ids, array("I", [1]) * len(ids), live_bytes)

    monkeypatch.setattr(SegmentAccount, "restrict", restrict_to_one_each)
    assert violated({"I8"}, short_history, images=1, stop_after=1) == {"I8"}


# What the merging of index files may get wrong.


def the_entry_of_a_merged_index_file_is_not_synced(patch: Patch) -> None:
    sync = IndexMerger._sync

    def sync_the_file(self: IndexMerger, file: Any) -> None:
        with pytest.MonkeyPatch.context() as while_syncing:
            while_syncing.setattr(MemoryFiles, "sync_directory", lambda self, path: None)
            sync(self, file)

    patch.setattr(IndexMerger, "_sync", sync_the_file)


def a_merged_index_file_is_not_synced(patch: Patch) -> None:
    def sync_the_directory(self: IndexMerger, file: Any) -> None:
        self._files.sync_directory(f"{self._directory}/{INDEX}")

    patch.setattr(IndexMerger, "_sync", sync_the_directory)


def merged_index_files_are_removed_before_the_commit(patch: Patch) -> None:
    merge = IndexMerger._merge

    def merge_and_remove(self: IndexMerger, queue: QueueIndex, *rest: Any) -> Any:
        merged = merge(self, queue, *rest)
        for state in merged.old:
            self._files.remove(index_path(DIRECTORY, queue.id, state.number))
        return merged

    patch.setattr(IndexMerger, "_merge", merge_and_remove)


def delivery_counts_are_lost_in_a_merge(patch: Patch) -> None:
    live_entries = IndexFile.live_entries

    def live_entries_anew(self: IndexFile, entries: Any) -> Any:
        found = live_entries(self, entries)
        return found._replace(delivery_counts=array("I", [0]) * len(found.ids))

    patch.setattr(IndexFile, "live_entries", live_entries_anew)


def merged_index_files_keep_their_rows(patch: Patch) -> None:
    """What a merge that was not heard of left: everything in it is there twice."""
    merge = IndexMerger.merge

    def merge_unheard(self: IndexMerger, *args: Any) -> Iterator[Any]:
        yield from [*merge(self, *args)][1:]

    patch.setattr(IndexMerger, "merge", merge_unheard)


def the_last_entry_of_an_index_file_is_not_acked(patch: Patch) -> None:
    files_with = QueueIndex._files_with

    def files_with_more(self: QueueIndex, first: int, end: int) -> Iterator[IndexFile]:
        return (file for file in files_with(self, first, end) if file.state.end > first + 1)

    patch.setattr(QueueIndex, "_files_with", files_with_more)


MERGE_BUGS: dict[Callable[[Patch], None], str] = {
    the_entry_of_a_merged_index_file_is_not_synced: "I1",
    a_merged_index_file_is_not_synced: "I1",
    merged_index_files_are_removed_before_the_commit: "I1",
    delivery_counts_are_lost_in_a_merge: "I5",
    merged_index_files_keep_their_rows: "I9",
    the_last_entry_of_an_index_file_is_not_acked: "I5",
}


@pytest.mark.parametrize("bug", MERGE_BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_of_merging_is_caught(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    invariant = MERGE_BUGS[bug]
    assert violated({invariant}, merging_history, images=6, stop_after=12) == {invariant}


BUGS: dict[Callable[[Patch], None], set[str]] = {
    a_batch_is_not_synced: {"I1"},
    the_entry_of_a_segment_is_not_synced: {"I1"},
    confirms_leave_before_the_sync: {"I1"},
    only_the_first_write_of_a_segment_is_synced: {"I1"},
    the_adopted_tail_is_not_synced: {"I5"},
    the_end_of_the_log_is_not_noted: {"I10"},
    a_torn_batch_is_taken_as_whole: {"I10"},
    a_batch_is_whole_with_its_transaction: {"I10"},
    the_torn_tail_is_left_out_before_the_rest_is_applied: {"I1", "I10"},
    the_transaction_is_written_before_its_messages: {"I1"},
    each_queue_has_a_transaction_of_its_own: {"I3"},
    checksums_are_not_verified: {"I2"},
    acks_and_deliveries_are_swapped: {"I5"},
    what_was_delivered_goes_to_the_end: {"I6"},
    the_marker_is_not_synced: {"I9"},
    the_entries_of_the_catalog_are_not_synced: {"I9"},
    a_queue_is_created_without_a_commit: {"I1"},
    unknown_files_are_cleared_away: {"I11"},
    counts_are_off_by_one: {"I12"},
    the_first_message_is_read_for_all: {"I1"},
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_is_caught(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    assert violated(BUGS[bug]) == BUGS[bug]


@pytest.mark.parametrize("kind", [OperationKind.ACK, OperationKind.DELIVERED])
def test_an_operation_that_is_not_logged_is_caught(kind: OperationKind, monkeypatch: Patch) -> None:
    not_logged(kind)(monkeypatch)
    assert violated({"I5"}) == {"I5"}
