"""Bugs put into the store that its model sees, each in a short history: work that is done while
other work goes on, and memory that is kept without need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

import amqpstore.queues.queue
from amqpstore import Queue, Run, Store
from amqpstore.checkpoints.checkpoint import Checkpoint
from amqpstore.checkpoints.compaction import Compaction
from amqpstore.queues.body_reader import BodyReader
from amqpstore.queues.memory import Memory
from amqpstore.queues.stored_runs import StoredRuns
from amqpstore.queues.transient import FIRST_TRANSIENT
from amqpstore.system.filenames import index_path, segment_path
from tests.property.test_store import (
    StoreAgainstPlainLists,
)

Patch = pytest.MonkeyPatch
Model = StoreAgainstPlainLists


def look(model: Model) -> None:
    """Check all that must hold after each step."""
    model.the_store_has_what_the_lists_have()
    model.memory_is_what_it_says()


def everything_is_taken(model: Model) -> None:
    while any(one.ready for one in model.models.values()):
        model.take(0, 8, False)
        look(model)


# Histories.


def given_back_while_a_checkpoint_is_made(model: Model) -> None:
    for place in range(4):
        model.settle_meanwhile(place, 4)
        look(model)
    everything_is_taken(model)


def left_to_index_files(model: Model) -> None:
    for _ in range(4):
        model.publish([0], [20, 20, 20, 20], persistent=True)
        model.sync()
    for _ in range(10):
        model.work_is_due()
        look(model)
    everything_is_taken(model)


def merged_while_others_go_on(model: Model) -> None:
    """Each process has an index file of its own: with few entries, which are merged by the next."""
    for _ in range(8):
        for how in ("close", "abandon"):
            model.publish([0], [20], persistent=True)
            model.sync()
            work_goes_on(model)
            model.reopen(how, 0)


def compacted_while_others_go_on(model: Model) -> None:
    """Looked at once a process: what was read once has its file open."""
    for steps in range(1, 9):
        model.fill_and_keep_few(0)
        model.reopen("close", 0)
        for _ in range(steps):
            model.work_is_due()
        model.look_at_all(0)
        look(model)


def work_goes_on(model: Model) -> None:
    for _ in range(12):
        model.work_is_due()
        model.look_at_all(0)
        look(model)


def purged_and_deleted(model: Model) -> None:
    model.publish([0, 1], [80, 90], persistent=True)
    model.sync()
    model.purge(0)
    look(model)
    model.publish([0, 1], [80, 90], persistent=True)
    model.create_queue(durable=True)
    model.delete_queue(1)
    look(model)


def written_aside(model: Model) -> None:
    model.set_lazy(0, True)
    for _ in range(3):
        model.publish([0], [80, 90, 70], persistent=False)
        model.sync()
    model.take(0, 2, False)
    look(model)
    model.purge(0)
    look(model)


def looked_at_before_it_is_durable(model: Model) -> None:
    model.set_lazy(0, True)
    for _ in range(2):
        model.publish([0], [80], persistent=True)
        model.work_is_due()
        model.look_at_all(0)
        look(model)
        model.sync()


# Bugs.


def a_body_is_dropped_before_it_is_durable(patch: Patch) -> None:
    settle = Memory.drop_excess

    def settle_one_more(self: Memory, next_message_id: int) -> None:
        settle(self, next_message_id + 1)

    patch.setattr(Memory, "drop_excess", settle_one_more)


def a_delivery_is_forgotten_when_its_run_is_paged_out(patch: Patch) -> None:
    def is_more(run: Run) -> bool:
        return run.returned_by is not None or not 0 < run.first_id < FIRST_TRANSIENT

    patch.setattr(amqpstore.queues.queue, "_is_more_than_its_entry", is_more)


def merged_index_files_are_removed_at_once(patch: Patch) -> None:
    """Remove index files before their queue knows where their entries are now."""
    run = Checkpoint.run

    def run_and_remove(self: Checkpoint) -> Any:
        written = run(self)
        for merged in written.merged:
            for state in merged.old:
                self._files.remove(index_path(self._directory, merged.queue_id, state.number))
        return written

    patch.setattr(Checkpoint, "run", run_and_remove)


def compacted_segments_are_removed_at_once(patch: Patch) -> None:
    """Remove segments before the log knows where their messages are now."""
    run = Compaction.run

    def run_and_remove(self: Compaction) -> Any:
        compacted = run(self)
        for number in compacted.numbers:
            self._files.remove(segment_path(self._directory, number))
        return compacted

    patch.setattr(Compaction, "run", run_and_remove)


def a_merge_is_not_told_to_its_queue(patch: Patch) -> None:
    patch.setattr(Queue, "merged", lambda self, merged: None)


def what_is_paged_out_with_its_run_counts_still(patch: Patch) -> None:
    page_out = Queue.page_out

    def paged_out(self: Queue, *args: Any) -> int:
        page_out(self, *args)
        return 0

    patch.setattr(Queue, "page_out", paged_out)


def uncounted(patch: Patch, call: str) -> None:
    """Messages that a call of the store releases still count."""
    original = getattr(Store, call)

    def called(self: Store, *args: Any, **more: Any) -> Any:
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(Memory, "let_go", lambda *_: None)
            return original(self, *args, **more)

    patch.setattr(Store, call, called)


def what_is_purged_counts_still(patch: Patch) -> None:
    uncounted(patch, "purge")


def what_is_deleted_counts_still(patch: Patch) -> None:
    uncounted(patch, "delete_queue")


def what_is_purged_stays_aside(patch: Patch) -> None:
    patch.setattr(BodyReader, "release_transient", lambda self, run: None)


def what_is_read_back_stays_aside(patch: Patch) -> None:
    fill = StoredRuns.fill

    def filled(self: StoredRuns, run: Run, messages: Any) -> None:
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(BodyReader, "release_transient", lambda self, run: None)
            fill(self, run, messages)

    patch.setattr(StoredRuns, "fill", filled)


BUGS: Mapping[Callable[[Patch], None], Callable[[Model], None]] = {
    a_body_is_dropped_before_it_is_durable: looked_at_before_it_is_durable,
    a_delivery_is_forgotten_when_its_run_is_paged_out: given_back_while_a_checkpoint_is_made,
    merged_index_files_are_removed_at_once: merged_while_others_go_on,
    compacted_segments_are_removed_at_once: compacted_while_others_go_on,
    a_merge_is_not_told_to_its_queue: merged_while_others_go_on,
    what_is_paged_out_with_its_run_counts_still: left_to_index_files,
    what_is_purged_counts_still: purged_and_deleted,
    what_is_deleted_counts_still: purged_and_deleted,
    what_is_purged_stays_aside: written_aside,
    what_is_read_back_stays_aside: written_aside,
}


def told(history: Callable[[Model], None]) -> None:
    model = StoreAgainstPlainLists()
    try:
        model.two_queues()
        history(model)
    finally:
        model.teardown()


@pytest.mark.parametrize("history", dict.fromkeys(BUGS.values()), ids=lambda told: told.__name__)
def test_without_a_bug_a_history_is_as_it_should_be(history: Callable[[Model], None]) -> None:
    told(history)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_of_the_store_is_caught(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, LookupError)):
        told(BUGS[bug])
