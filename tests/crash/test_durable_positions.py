"""Notes of how far the log was durable, and a power cut at every operation: whatever is left of
them, none claims what is not there.

The explorations of other modules keep all notes in each of their images, and so do the drills:
there no crash leaves a shortfall either. Here notes are lost and torn as well.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from amqpstore import Message, Options, Store
from amqpstore.catalog.tables import Position
from amqpstore.evidence.durable_positions import PositionNotes
from amqpstore.log.batch import Batch
from amqpstore.log.log import Log
from amqpstore.recovery import opening
from amqpstore.system.filenames import SEGMENTS, segment_name
from amqpstore_tools.simulation.crash_images import crash_images
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.operations import Operation
from amqpstore_tools.simulation.stores import new_disk, open_store
from tests.unit.engine.stores import ENVELOPE
from tests.unit.evidence.stores import ManualClock

IMAGES = 8
OPTIONS = Options(segment_bytes=400, reserve_bytes=0, checkpoint_ms=4000)


def opened(disk: MemoryFiles, clock: ManualClock) -> Store:
    return open_store("/data/store", disk, OPTIONS, clock=clock)


def history() -> tuple[MemoryFiles, list[Operation]]:
    """Publish and ack through two lives of a store, with a note about every other batch. Returns
    the disk before it.
    """
    disk, clock = new_disk("/data/store"), ManualClock()
    store = opened(disk, clock)
    store.create_queue({"name": "orders"})
    store.close()
    base = disk.fork()
    events: list[Operation] = []
    disk.record = events.append
    for _ in range(2):
        store = opened(disk, clock)
        (orders,) = store.queues.values()
        for number in range(5):
            store.publish([orders], [Message(ENVELOPE, bytes(100))] * (1 + number % 2))
            if number == 3:
                store.take(orders, 1, acked=True)
            store.sync()
            clock.advance(600)
        store.abandon()
    disk.record = None
    return base, events


def false_alarms() -> Iterator[str]:
    disk, events = history()
    rng = random.Random("positions")
    for event in events:
        disk.redo(event)
        for image in crash_images(disk, rng, IMAGES, notes_vary=True):
            store = opened(image.files, ManualClock())
            report = store.recovery_report
            store.abandon()
            if report.shortfall or report.lost_count:
                yield f"{image.description}: {report.shortfall}"


def test_no_crash_leaves_a_shortfall() -> None:
    assert list(false_alarms()) == []


def test_a_note_before_the_disk_has_the_batch_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    noting: list[PositionNotes] = []
    write, note = Log.write, PositionNotes.note

    def remembered(notes: PositionNotes, position: Position, now_ms: int, wall_ms: int) -> None:
        noting[:] = [notes]
        note(notes, position, now_ms, wall_ms)

    def too_early(log: Log, batch: Batch) -> None:
        if noting and batch.summary and batch.segment:
            end = Position(batch.segment.number, 0, batch.lsn + 1, batch.first_id + 1)
            note(noting[0], end, 1 << 50, 0)
        write(log, batch)

    monkeypatch.setattr(PositionNotes, "note", remembered)
    monkeypatch.setattr(Log, "write", too_early)
    assert any(false_alarms())


LAST = f"/data/store/{SEGMENTS}/{segment_name(4)}"


def put_back() -> Iterator[str]:
    """Kill a store, take its last segment away, and start it. Cut the power then, or during the
    next publish: start again, publish, and put the segment back. Yields what is wrong afterwards.
    """
    disk, clock = new_disk("/data/store"), ManualClock()
    store = opened(disk, clock)
    store.create_queue({"name": "orders"})
    for _ in range(4):
        publish(store)
        clock.advance(900)
    store.upkeep.housekeep()
    store.abandon()
    aside = disk.content(LAST)
    disk.remove(LAST)
    disk.sync_directory(f"/data/store/{SEGMENTS}")
    store = opened(disk, clock)
    assert store.recovery_report.shortfall
    base = disk.fork()
    events: list[Operation] = []
    disk.record = events.append
    publish(store)
    store.abandon()
    rng = random.Random("put back")
    for event in [None, *events]:
        if event is not None:
            base.redo(event)
        for image in crash_images(base, rng, 2 * IMAGES, notes_vary=True):
            store = opened(image.files, ManualClock())
            publish(store)
            store.abandon()
            if image.files.exists(LAST):
                yield f"{image.description}: the number of the segment was given again"
                continue
            image.files.create(LAST).append([aside])
            with opened(image.files, ManualClock()) as store:
                (orders,) = store.queues.values()
                ids = [run.id_at(place) for run in orders.ready for place in range(run.count)]
                if not store.recovery_report.is_clean or sorted({*ids}) != ids or 4 not in ids:
                    yield f"{image.description}: {ids}, {store.recovery_report}"


def publish(store: Store) -> None:
    """Publish a message to the only queue: it fills a segment."""
    (orders,) = store.queues.values()
    store.publish([orders], [Message(ENVELOPE, bytes(300))])
    store.sync()


def test_a_power_cut_after_a_start_that_missed_the_last_segment() -> None:
    assert list(put_back()) == []


def test_notes_that_are_not_synced_by_such_a_start_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening, "make_notes_durable", lambda *_: None)
    assert any("was given again" in one for one in put_back())
