"""Bugs of checkpoints, index files, compaction and merges, each of which is caught.

Each of them was a real mistake, or could well be one, and says which invariants it breaks.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import amqpstore.checkpoints.checkpoint_state
import amqpstore.checkpoints.compaction
import amqpstore.store
import amqpstore.upkeep.compacting
from amqpstore.catalog import tables
from amqpstore.checkpoints.checkpoint import Checkpoint
from amqpstore.checkpoints.checkpoint_state import IndexFile, QueueIndex
from amqpstore.checkpoints.compaction import Compaction
from amqpstore.checkpoints.index_merge import IndexMerger
from amqpstore.checkpoints.index_writer import IndexWriter
from amqpstore.format.records import Operation
from amqpstore.log.log import Log
from amqpstore.log.segment_accounts import SegmentAccount
from amqpstore.log.spares import Spares
from amqpstore.queues.queue import Queue
from amqpstore.system.filenames import FIRST_COMPACTED, index_path, segment_path
from amqpstore.system.files import File
from amqpstore_tools.simulation.memory_files import MemoryFile, MemoryFiles
from tests.crash.histories import DIRECTORY, merging_history, short_history
from tests.crash.violated import (
    Patch,
    after_recovery,
    first_of_each,
    housekept_history,
    recycled_history,
    violated,
)

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

    def drop_more(self: Checkpoint, changes: Any) -> Any:
        for account in self._checkpoint_state.accounts:
            if account.live_count == 1:
                account.live_count = 0
        return account_changes(self, changes)

    patch.setattr(Checkpoint, "_account_changes", drop_more)


def only_the_first_piece_of_a_segment_is_compacted(patch: Patch) -> None:
    pieces = amqpstore.checkpoints.compaction._pieces
    patch.setattr(amqpstore.checkpoints.compaction, "_pieces", lambda *args: [*pieces(*args)][:1])


def the_segment_of_the_position_is_compacted(patch: Patch) -> None:
    choose = amqpstore.checkpoints.compaction.choose

    def choose_any(accounts: Any, *, log_segment: int, **rest: Any) -> Any:
        return choose(accounts, log_segment=0, **rest)

    patch.setattr(amqpstore.upkeep.compacting, "choose", choose_any)


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
        amqpstore.checkpoints.checkpoint_state,
        "references_of",
        lambda enqueues, first_id, count: None,
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


@pytest.mark.parametrize("bug", first_of_each(HOUSEKEEPING_BUGS), ids=lambda bug: bug.__name__)
def test_a_bug_of_housekeeping_is_caught(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    invariant = HOUSEKEEPING_BUGS[bug]
    assert violated({invariant}, housekept_history, images=6, stop_after=12) == {invariant}


@pytest.mark.long
def test_references_that_a_compaction_loses_are_missed(monkeypatch: Patch) -> None:
    """A message that waits in two queues is gone with the first ack."""
    restrict = SegmentAccount.restrict

    def restrict_to_one_each(
        self: SegmentAccount, ids: array[int], references: array[int], live_bytes: int
    ) -> None:
        restrict(self, ids, array("I", [1]) * len(ids), live_bytes)

    monkeypatch.setattr(SegmentAccount, "restrict", restrict_to_one_each)
    assert violated({"I8"}, short_history, images=1, stop_after=1) == {"I8"}


# What the log may get wrong when it goes on in the files of dropped segments.


def a_spare_segment_is_not_synced(patch: Patch) -> None:
    not_synced(".spare")(patch)


def a_spare_segment_keeps_its_length(patch: Patch) -> None:
    """Zeros stay behind the last batch of a segment that another one follows."""
    blank = Spares._blank

    def blank_all(self: Spares, file: File) -> None:
        self._segment_bytes = 1 << 20
        blank(self, file)

    patch.setattr(Spares, "_blank", blank_all)


RECYCLING_BUGS: dict[Callable[[Patch], None], str] = {
    a_spare_segment_is_not_synced: "I10",
    a_spare_segment_keeps_its_length: "I10",
}


@pytest.mark.parametrize("bug", first_of_each(RECYCLING_BUGS), ids=lambda bug: bug.__name__)
def test_a_bug_of_recycling_is_caught(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    invariant = RECYCLING_BUGS[bug]
    assert violated({invariant}, recycled_history, images=60) == {invariant}


# What the merging of index files may get wrong.


def the_entry_of_a_merged_index_file_is_not_synced(patch: Patch) -> None:
    patch.setattr("amqpstore.checkpoints.index_merge.sync_directory", lambda files, path: None)


def a_merged_index_file_is_not_synced(patch: Patch) -> None:
    patch.setattr("amqpstore.checkpoints.index_merge.sync_file", lambda file: None)


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
    """Leave a merged file that the catalog does not know: all its messages are there twice."""
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


@pytest.mark.parametrize("bug", first_of_each(MERGE_BUGS), ids=lambda bug: bug.__name__)
def test_a_bug_of_merging_is_caught(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    invariant = MERGE_BUGS[bug]
    assert violated({invariant}, merging_history, images=6, stop_after=12) == {invariant}
