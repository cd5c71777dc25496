"""A guard is trusted once it was seen to fail: bugs put into the engine, each of which is caught.

Each of them was a real mistake, or could well be one, and says which invariants it breaks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import amqpstore.format.records
import amqpstore.log.batch
import amqpstore.recovery.recovery
import amqpstore.store
from amqpstore.catalog.catalog import Change
from amqpstore.errors import DurabilityError
from amqpstore.format.enqueue_order import EnqueueOrder
from amqpstore.format.records import Operation, OperationKind
from amqpstore.format.runs import ReadyList, Run
from amqpstore.log.batch import Batch
from amqpstore.log.filling import Filling
from amqpstore.log.log import Log
from amqpstore_tools.drill.explorer import Explorer
from amqpstore_tools.drill.outside import Outside
from amqpstore_tools.simulation.memory_catalog import MemoryCatalog
from amqpstore_tools.simulation.memory_files import MemoryFile, MemoryFiles
from tests.crash.histories import DIRECTORY, open_store, record
from tests.crash.violated import (
    Patch,
    after_recovery,
    filled_history,
    first_of_each,
    history,
    housekept_history,
    open_filled_store,
    violated,
)


@pytest.mark.parametrize("told", [history, housekept_history])
def test_without_a_bug_nothing_is_violated(told: Callable[[Outside], None]) -> None:
    explorer = Explorer(open_store, "bugs", images_an_operation=8, images_in_recovery=3)
    assert explorer.explore(record(told)).violations == []


def write_without(*, datasync: bool = True, sync_directory: bool = True) -> Callable[..., None]:
    """Return `Log.write` without one of its syncs."""

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


def confirms_are_sent_before_the_sync(patch: Patch) -> None:
    def sync(self: amqpstore.store.Store) -> None:
        if batch := self.log.seal(0):
            self.log.complete(batch)
            self.log.write(batch)

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


def the_end_of_the_log_is_not_noted(patch: Patch) -> None:
    after_recovery(patch, lambda recovered, files, queues: recovered.changes.clear())


def a_torn_batch_is_taken_as_whole(patch: Patch) -> None:
    patch.setattr(amqpstore.format.batches.StoredBatch, "is_whole", lambda self: True)


def a_batch_is_whole_with_its_transaction(patch: Patch) -> None:
    patch.setattr(amqpstore.format.batches.StoredBatch, "is_whole", lambda self: self.lsn > 0)


def the_torn_tail_is_left_out_before_the_rest_is_applied(patch: Patch) -> None:
    """Numbers go on behind the torn tail, so what is before it seems to come too late."""
    batches_of = amqpstore.format.batches.in_segment

    def batches(content: bytes, scanned: Any, start: int) -> Any:
        found = list(batches_of(content, scanned, start))
        if found and not found[-1].is_whole():
            found.insert(0, dataclasses.replace(found[-1], start=start, end=start))
        return found

    patch.setattr(amqpstore.recovery.recovery, "in_segment", batches)


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
    encode = amqpstore.format.records.encode_transaction

    def encode_each(
        operations: Sequence[Operation], number: int, segment: int, ms: int, *, seed: int
    ) -> bytes:
        return b"".join(
            encode([operation], 1000 * number + place, segment, ms, seed=seed)
            for place, operation in enumerate(operations)
        )

    patch.setattr(amqpstore.log.batch, "encode_transaction", encode_each)
    # Recovery would leave out what is enqueued without messages of its own.
    patch.setattr(EnqueueOrder, "split", lambda _self, batch: (batch.operations, []))


def checksums_are_not_verified(patch: Patch) -> None:
    patch.setattr(amqpstore.format.records, "crc32c", lambda content, before=0: 0)


def a_segment_is_filled_further_than_it_is_written(patch: Patch) -> None:
    fill = MemoryFile.fill
    patch.setattr(MemoryFile, "fill", lambda self, start, stop: fill(self, start, stop + 2000))


def a_segment_is_filled_with_the_sync_of_a_batch(patch: Patch) -> None:
    fill, datasync = MemoryFile.fill, MemoryFile.datasync
    filled: set[MemoryFile] = set()

    def fill_unsynced(self: MemoryFile, start: int, stop: int) -> None:
        fill(self, start, stop)
        filled.add(self)

    def datasync_later(self: MemoryFile) -> None:
        if self in filled:
            filled.remove(self)
        else:
            datasync(self)

    patch.setattr(MemoryFile, "fill", fill_unsynced)
    patch.setattr(MemoryFile, "datasync", datasync_later)


def zeros_are_taken_for_a_later_batch(patch: Patch) -> None:
    patch.setattr(amqpstore.format.batches, "is_blank", lambda content: False)


def batches_are_appended_behind_what_was_filled(patch: Patch) -> None:
    append = MemoryFile.append

    def append_behind(self: MemoryFile, buffers: Sequence[bytes]) -> None:
        self._end = self.size()
        append(self, buffers)

    patch.setattr(MemoryFile, "append", append_behind)
    patch.setattr(Filling, "is_due", lambda self, segment, start: 0 < start < 500)


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


BUGS: dict[Callable[[Patch], None], set[str]] = {
    a_batch_is_not_synced: {"I1"},
    the_entry_of_a_segment_is_not_synced: {"I1"},
    confirms_are_sent_before_the_sync: {"I1"},
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


FILLING_BUGS: dict[Callable[[Patch], None], set[str]] = {
    a_segment_is_filled_further_than_it_is_written: {"I10"},
    a_segment_is_filled_with_the_sync_of_a_batch: {"I10"},
    zeros_are_taken_for_a_later_batch: {"I10"},
    batches_are_appended_behind_what_was_filled: {"I10"},
}


@pytest.mark.parametrize("bug", first_of_each(FILLING_BUGS), ids=lambda bug: bug.__name__)
def test_a_bug_in_filling_segments_is_caught(
    bug: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    bug(monkeypatch)
    found = violated(FILLING_BUGS[bug], filled_history, images=40, opens=open_filled_store)
    assert found == FILLING_BUGS[bug]


@pytest.mark.long
def test_without_a_bug_in_filling_segments_nothing_is_violated() -> None:
    explorer = Explorer(open_filled_store, "bugs", images_an_operation=40, images_in_recovery=3)
    trace = record(filled_history, open_filled_store)
    assert explorer.explore(trace).violations == []


@pytest.mark.parametrize("kind", [OperationKind.ACK, OperationKind.DELIVERED])
def test_an_operation_that_is_not_logged_is_caught(kind: OperationKind, monkeypatch: Patch) -> None:
    not_logged(kind)(monkeypatch)
    assert violated({"I5"}) == {"I5"}
