"""The real disk is really synced: each sync that FORMAT.md's "Write order" names, in its place.

A simulated disk knows what was synced because its own calls say so, and `kill -9` loses no page
cache. So what the operating system is asked for is counted here, on the real path.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import lmdb
import pytest

from amqpstore import Message, Options, Queue, Run, Store
from amqpstore.catalog.catalog import Change, LmdbCatalog
from amqpstore.system.filenames import FIRST_COMPACTED
from amqpstore.system.files import OsFile, OsFiles
from amqpstore.upkeep.worker import InlineWorker
from tests.small_limits import small_limits
from tests.unit.engine.stores import messages

OPTIONS = Options(
    segment_bytes=2000,
    checkpoint_bytes=1 << 60,
    checkpoint_ms=1 << 60,
    compaction_bytes_s=1 << 60,
    reserve_bytes=0,
    least_free_bytes=0,
    limits=small_limits(entries_a_file=6, max_runs=2),
)
FIRST = "segments/0000000001.segment"


class Asked:
    """The calls to the operating system and LMDB in the store's directory, in order."""

    def __init__(self, directory: str) -> None:
        self.calls: list[str] = []
        self._directory = directory

    def note(self, verb: str, path: str) -> None:
        inside = path == self._directory or path.startswith(f"{self._directory}/")
        name = os.path.relpath(path, self._directory) if inside else "above"
        self.calls.append(f"{verb} {name}")

    def since(self, start: int) -> list[str]:
        return self.calls[start:]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    asked = Asked(str(tmp_path / "store"))
    commit = LmdbCatalog.commit
    fadvise = os.posix_fadvise

    def syncing(verb: str, call: Callable[[int], None]) -> Callable[[int], None]:
        def sync(descriptor: int) -> None:
            call(descriptor)
            asked.note(verb, os.readlink(f"/proc/self/fd/{descriptor}"))

        return sync

    def committed(self: LmdbCatalog, changes: Sequence[Change]) -> None:
        flags = self._environment.flags()
        assert flags["sync"], "LMDB does not sync"
        assert flags["metasync"], "LMDB does not sync what makes a commit one"
        assert not flags["map_async"], "LMDB syncs some time"
        commit(self, changes)
        asked.note("commit", f"{asked._directory}/catalog")

    def dropped(descriptor: int, offset: int, length: int, advice: int) -> None:
        assert (offset, length, advice) == (0, 0, os.POSIX_FADV_DONTNEED)
        fadvise(descriptor, offset, length, advice)
        asked.note("drop", os.readlink(f"/proc/self/fd/{descriptor}"))

    def replaced(old: str, new: str, call: Callable[[str, str], None] = os.replace) -> None:
        call(old, new)
        asked.note("rename", new)

    monkeypatch.setattr(os, "fdatasync", syncing("fdatasync", os.fdatasync))
    monkeypatch.setattr(os, "fsync", syncing("fsync", os.fsync))
    monkeypatch.setattr(os, "posix_fadvise", dropped)
    monkeypatch.setattr(os, "replace", replaced)
    monkeypatch.setattr(LmdbCatalog, "commit", committed)
    return asked


@pytest.fixture
def store(tmp_path: Path, asked: Asked) -> Iterator[Store]:
    opened = open_store(tmp_path)
    yield opened
    opened.abandon()


def open_store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path / "store"), options=OPTIONS, worker=InlineWorker())


def publish(store: Store, asked: Asked, queue: Queue, *bodies: bytes) -> list[str]:
    """Return what was asked for before who published was told that it is on disk."""
    start = len(asked.calls)
    told: list[list[str]] = []
    store.publish([queue], messages(*bodies))
    store.log.when_durable(lambda: told.append(asked.since(start)))
    store.sync()
    (found,) = told
    return found


def in_order(calls: Sequence[str], *wanted: str) -> None:
    """Check that each of the calls is there, behind the one before it."""
    place = 0
    for one in wanted:
        assert one in calls[place:], f"{one} is missing behind {calls[:place]}, in {calls[place:]}"
        place = calls.index(one, place) + 1


def test_making_a_store(store: Store, asked: Asked) -> None:
    in_order(asked.calls, "fsync .", "commit catalog", "fsync catalog", "rename STORE", "fsync .")
    in_order(asked.calls, "fdatasync STORE.new", "rename STORE")
    assert "fsync above" in asked.calls


def test_a_batch(store: Store, asked: Asked) -> None:
    queue = store.create_queue("q")
    in_order(publish(store, asked, queue, b"one"), f"fdatasync {FIRST}", "fsync segments")
    # Zeros ahead of use, and the batch; nothing is filled for the last one of a segment.
    assert publish(store, asked, queue, b"two") == [f"fdatasync {FIRST}"] * 2
    assert publish(store, asked, queue, b"x" * 2000) == [f"fdatasync {FIRST}"]
    second = publish(store, asked, queue, b"in the next segment")
    in_order(second, "fdatasync segments/0000000002.segment", "fsync segments")


def test_a_definition(store: Store, asked: Asked) -> None:
    start = len(asked.calls)
    store.create_queue("q")
    assert asked.since(start) == ["commit catalog"]


def test_a_checkpoint(store: Store, asked: Asked) -> None:
    one, two = store.create_queue("one"), store.create_queue("two")
    for number in range(2):
        store.publish([one, two], messages(b"%d" % number))
        store.sync()
        start = len(asked.calls)
        store.upkeep.checkpoint()
        index = [f"index/{queue.id:020}-0000000001.index" for queue in (one, two)]
        for name in index:
            in_order(asked.since(start), f"fdatasync {name}", "commit catalog")
        if number == 0:
            for name in index:
                in_order(asked.since(start), f"fdatasync {name}", "fsync index", "commit catalog")


def test_the_copy_of_the_definitions(store: Store, asked: Asked) -> None:
    store.create_queue("q")
    start = len(asked.calls)
    store.upkeep.checkpoint()
    in_order(
        asked.since(start),
        "fdatasync catalog/definitions.new",
        "rename catalog/definitions",
        "fsync catalog",
    )


def test_a_compaction(store: Store, asked: Asked) -> None:
    queue = store.create_queue("q")
    for number in range(5):
        publish(store, asked, queue, b"%d" % number, b"x" * 2000)
    for sequence in range(2, 11, 2):
        run = store.take(queue, 1, first_sequence=sequence)
        assert isinstance(run, Run)
        store.ack(queue, run)
    store.sync()
    store.upkeep.checkpoint()
    start = len(asked.calls)
    for _ in range(4):
        store.upkeep.housekeep()
    new = f"segments/{FIRST_COMPACTED:010}.segment"
    in_order(asked.since(start), f"fdatasync {new}", "fsync segments", "commit catalog")


def test_a_restart_adopts_nothing_that_is_not_synced(
    store: Store, asked: Asked, tmp_path: Path
) -> None:
    """A restart does not adopt either what is in memory only because the disk failed to write
    it.
    """
    catalog = "catalog/data.mdb"
    publish(store, asked, store.create_queue("q"), b"one")
    store.abandon()
    start = len(asked.calls)
    again = open_store(tmp_path)
    calls = asked.since(start)
    in_order(calls, f"fdatasync {catalog}", f"drop {catalog}", f"fdatasync {FIRST}")
    in_order(calls, f"fdatasync {FIRST}", f"drop {FIRST}", "fsync segments", "commit catalog")
    again.abandon()


def test_an_orderly_close(store: Store, asked: Asked) -> None:
    queue = store.create_queue("q")
    store.publish([queue], [Message(messages(b"one")[0].envelope, b"one")])
    start = len(asked.calls)
    store.close()
    in_order(
        asked.since(start),
        f"fdatasync {FIRST}",
        "fsync segments",
        "commit catalog",
        "commit catalog",
    )


def no_sync(_file: OsFile) -> None:
    """A broker that syncs no file."""


def no_directory_sync(_files: OsFiles, path: str) -> None:
    """A broker that syncs no directory."""
    os.stat(path)


@pytest.mark.parametrize(
    ("where", "name", "broken"),
    [(OsFile, "datasync", no_sync), (OsFiles, "sync_directory", no_directory_sync)],
    ids=["files", "directories"],
)
def test_a_broker_that_does_not_sync_is_caught(
    asked: Asked,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: type,
    name: str,
    broken: Callable[..., None],
) -> None:
    monkeypatch.setattr(where, name, broken)
    with open_store(tmp_path) as store, pytest.raises(AssertionError, match="is missing"):
        test_a_batch(store, asked)


def test_a_catalog_that_does_not_sync_is_caught(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amqpstore.catalog.catalog.lmdb.open", unsynced)
    with pytest.raises(AssertionError, match="LMDB does not sync"):
        open_store(tmp_path)


LMDB_OPEN: Callable[..., object] = lmdb.open


def unsynced(*arguments: object, **keywords: object) -> object:
    return LMDB_OPEN(*arguments, sync=False, **keywords)
