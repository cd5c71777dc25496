"""The catalog may be old, or name files that are gone: nothing is lost because it is believed.

A disk that lied about a sync, or a copy that was put back, leaves it a commit behind.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from amqpstore import DamageError, Options, Queue, Store
from amqpstore.catalog.catalog import Change
from amqpstore.system.filenames import FIRST_COMPACTED
from amqpstore.system.files import OsFiles
from amqpstore.system.removal import quarantine
from tests.unit.engine.stores import (
    NO_CHECKPOINTS,
    Disk,
    RowsCatalog,
    drain,
    messages,
    publish_batches,
    queue_named,
    take,
)

KEPT = [b"keep %d" % number for number in range(4)]


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(str(tmp_path / "store"), segment_bytes=1000)


def compacting(store: Store, name: str) -> tuple[Queue, Queue]:
    """Two new queues whose messages lie among each other; those of the second are acked."""
    slow, fast = store.create_queue(f"slow {name}"), store.create_queue(f"fast {name}")
    for body in KEPT:
        publish_batches(store, slow, [[body]])
        publish_batches(store, fast, [[bytes(1000)]])
    store.ack(fast, take(store, fast))
    while fast.ready_count:
        store.ack(fast, take(store, fast))
    store.sync()
    store.upkeep.checkpoint()
    return slow, fast


def compact(store: Store) -> list[int]:
    """The numbers of the segments that compaction made."""
    return [one.segment.number for one in store.upkeep.compact()]


def test_the_number_of_a_compacted_segment_is_never_given_again(disk: Disk) -> None:
    given: list[int] = []
    for life in range(3):
        store = disk.open()
        slow, fast = compacting(store, str(life))
        given += compact(store)
        # Nothing of it is left, not even a row.
        store.delete_queue(slow, fast)
        publish_batches(store, store.create_queue(f"other {life}"), [[b"y" * 1000], [b"z"]])
        store.upkeep.checkpoint()
        store.close()
    assert len(given) >= 3
    assert given == sorted(set(given))


def test_numbers_in_quarantine_are_not_given_again_without_that_row(disk: Disk) -> None:
    """Catalogs of earlier versions lack the row."""
    store = disk.open()
    store.create_queue("q")
    store.abandon()
    os.mkdir(f"{disk.directory}/quarantine")
    for number in (7, FIRST_COMPACTED + 3):
        Path(f"{disk.directory}/quarantine/{number:010}.segment").write_bytes(b"of old")
    store = disk.open()
    publish_batches(store, queue_named(store, "q"), [[b"one"]])
    assert store.log.current
    assert store.log.current.number == 8
    compacting(store, "")
    assert compact(store)[0] == FIRST_COMPACTED + 4
    store.abandon()


def test_no_file_in_quarantine_is_replaced(tmp_path: Path) -> None:
    os.mkdir(tmp_path / "segments")
    for content in (b"one", b"two", b"three"):
        (tmp_path / "segments" / "0000000005.segment").write_bytes(content)
        quarantine(OsFiles(), str(tmp_path), 5)
    found = {path.name: path.read_bytes() for path in (tmp_path / "quarantine").iterdir()}
    assert found == {
        "0000000005.segment": b"one",
        "0000000005.segment.2": b"two",
        "0000000005.segment.3": b"three",
    }


def test_a_move_to_quarantine_is_durable_in_both_directories(tmp_path: Path) -> None:
    synced: list[str] = []

    class Noted(OsFiles):
        def sync_directory(self, path: str) -> None:
            synced.append(os.path.basename(path))
            super().sync_directory(path)

    os.mkdir(tmp_path / "segments")
    (tmp_path / "segments" / "0000000005.segment").write_bytes(b"one")
    quarantine(Noted(), str(tmp_path), 5)
    assert synced[-2:] == ["quarantine", "segments"]


def test_an_old_catalog_costs_no_file_that_it_does_not_know(disk: Disk) -> None:
    store = disk.open()
    compacting(store, "")
    newest = disk.catalog
    old = newest.clone()
    (made,) = compact(store)
    store.abandon()
    before = set(os.listdir(f"{disk.directory}/segments"))
    disk.catalog = old
    for _ in range(2):
        store = disk.open()
        reasons = {reason for _, _, _, reason in store.recovery_report.damage}
        assert reasons == {"the file is missing"}
        store.abandon()
    assert set(os.listdir(f"{disk.directory}/segments")) == before
    # Neither does the broker that runs on it.
    store = disk.open()
    publish_batches(store, queue_named(store, "fast "), [[b"x" * 1000], [b"y"]])
    store.upkeep.checkpoint()
    store.close()
    assert f"{made:010}.segment" in os.listdir(f"{disk.directory}/segments")
    disk.catalog = newest
    store = disk.open()
    assert drain(store, queue_named(store, "slow ")) == KEPT
    store.abandon()


def test_a_missing_index_file_keeps_the_others(disk: Disk) -> None:
    store = disk.open()
    publish_batches(store, store.create_queue("q"), [[b"one"]])
    store.close()
    index = Path(disk.directory, "index")
    (path,) = index.iterdir()
    other = path.with_name(path.name.replace("1.index", "2.index"))
    path.rename(other)
    store = disk.open()
    store.abandon()
    assert list(index.iterdir()) == [other]
    other.rename(path)
    store = disk.open()
    assert drain(store, queue_named(store, "q")) == [b"one"]
    store.abandon()


class Forgetful(RowsCatalog):
    """A catalog that keeps what it was before the last commit."""

    def __init__(self) -> None:
        super().__init__()
        self.before = RowsCatalog()

    def commit(self, changes: Sequence[Change]) -> None:
        self.before = RowsCatalog()
        self.before._tables = self.clone()._tables
        super().commit(changes)


def test_a_catalog_that_does_not_know_a_queue_of_the_log_is_refused(disk: Disk) -> None:
    catalog = disk.catalog = Forgetful()
    store = disk.open()
    store.create_queue("known")
    queue = store.create_queue("forgotten")
    publish_batches(store, queue, [[b"confirmed"]])
    store.abandon()
    disk.catalog = catalog.before
    with pytest.raises(DamageError, match="it is older than the log: the log contains queue 2"):
        disk.open()
    assert disk.catalog.rows("ends") == {}
    disk.catalog = catalog
    store = disk.open()
    assert drain(store, queue_named(store, "forgotten")) == [b"confirmed"]
    store.abandon()


def test_compaction_moves_what_recovery_found_damaged(tmp_path: Path) -> None:
    """The damaged bytes are those of a TRANSACTION: no live message is there any more."""
    disk = Disk(str(tmp_path / "store"), segment_bytes=1000, options=NO_CHECKPOINTS)
    store = disk.open()
    slow, fast = store.create_queue("slow"), store.create_queue("fast")
    publish_batches(store, slow, [[KEPT[0]]])
    publish_batches(store, slow, [[b"its TRANSACTION is damaged"]])
    store.publish([fast], messages(bytes(2000)))
    store.sync()
    for body in KEPT[1:]:
        publish_batches(store, slow, [[body]])
        publish_batches(store, fast, [[bytes(2000)]])
    while fast.ready_count:
        store.ack(fast, take(store, fast))
    store.sync()
    store.abandon()
    disk.note_end()
    content = disk.read(1)
    damaged = content.index(b"its TRANSACTION is damaged") + 50
    disk.flip(1, damaged)
    kept = disk.read(1)
    disk.options = Options(reserve_bytes=0)
    store = disk.open()
    assert store.recovery_report.orphaned == [2]
    publish_batches(store, store.queues[slow.id], [[b"the log goes on"]])
    store.upkeep.checkpoint()
    compact(store)
    store.abandon()
    assert not Path(disk.path(1)).exists()
    assert Path(disk.directory, "quarantine", "0000000001.segment").read_bytes() == kept
