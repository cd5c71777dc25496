"""Opening a directory: what is made a store, what is refused, and how."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from amqpstore import (
    DamageError,
    FormatVersionError,
    NotAStoreError,
    Store,
    StoreClosedError,
    StoreLockedError,
)
from amqpstore.catalog.catalog import Change
from amqpstore.system.files import OsFiles
from tests.unit.engine.stores import Disk, messages, publish_batches, queue_named

HOLD = """
import sys
from amqpstore import Store
store = Store.open(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """A path without a store."""
    return str(tmp_path / "new" / "store")


@pytest.fixture
def store_directory(directory: str) -> str:
    """A store with one message, closed."""
    with Store.open(directory) as store:
        publish_batches(store, store.create_queue("q"), [[b"one"]])
    return directory


def test_a_missing_directory_becomes_a_store_with_its_parents(directory: str) -> None:
    Store.open(directory).close()
    names = ["STORE", "catalog", "index", "lock", "reserve", "segments"]
    assert sorted(os.listdir(directory)) == names
    marker = Path(directory, "STORE").read_text("ascii")
    assert marker.startswith("amqpstore\nformat-version: 2\nstore-id: ")


def test_an_empty_directory_becomes_a_store(tmp_path: Path) -> None:
    Store.open(str(tmp_path)).close()
    assert (tmp_path / "STORE").exists()


@pytest.mark.parametrize("left", [["lock"], ["STORE.new"], ["STORE.new", "lock"]])
def test_what_a_crash_while_a_store_was_made_left_becomes_a_store(
    tmp_path: Path, left: list[str]
) -> None:
    for name in left:
        (tmp_path / name).write_text("half a mark")
    Store.open(str(tmp_path)).close()
    names = ["STORE", "catalog", "index", "lock", "reserve", "segments"]
    assert sorted(os.listdir(tmp_path)) == names


class SyncedDirectories(OsFiles):
    """Files that note which directories were synced."""

    def __init__(self) -> None:
        self.synced: list[str] = []

    def sync_directory(self, path: str) -> None:
        self.synced.append(path)
        super().sync_directory(path)


def test_every_directory_entry_of_a_new_store_is_durable(directory: str) -> None:
    files = SyncedDirectories()
    Store.open(directory, files=files).close()
    parent = os.path.dirname(directory)
    for needed in (os.path.dirname(parent), parent, directory, os.path.join(directory, "catalog")):
        assert needed in files.synced


def test_a_directory_that_a_killed_process_made_is_durable_after_the_next_start(
    directory: str,
) -> None:
    # mkdir(2) was its last call: the entry is in the page cache, where the next process sees it.
    os.makedirs(directory)
    files = SyncedDirectories()
    Store.open(directory, files=files).close()
    assert os.path.dirname(directory) in files.synced


def test_a_store_keeps_its_id(store_directory: str) -> None:
    before = Path(store_directory, "STORE").read_bytes()
    Store.open(store_directory).close()
    assert Path(store_directory, "STORE").read_bytes() == before


def test_a_directory_of_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(NotAStoreError, match=r"it contains thesis\.tex but no file STORE"):
        Store.open(str(tmp_path))
    assert os.listdir(tmp_path) == ["thesis.tex"]


OF_SYSTEM = (
    *("lost+found", ".snapshot", ".nfs000000000123", "..data", "..2026_11_26", ".zfs"),
    *("aquota.user", ".fuse_hidden0000000a00000001", "#recycle", "._0000000001.segment"),
    *("System Volume Information", "$RECYCLE.BIN", "Thumbs.db", "desktop.ini", ".Trashes"),
)


@pytest.mark.parametrize("name", OF_SYSTEM)
@pytest.mark.parametrize("within", ["", "segments", "index"])
def test_what_a_file_system_puts_there_does_not_count(
    tmp_path: Path, name: str, within: str
) -> None:
    (tmp_path / within / name).mkdir(parents=True)
    Store.open(str(tmp_path)).close()
    Store.open(str(tmp_path)).close()
    assert (tmp_path / within / name).is_dir()


def test_segments_without_a_marker_are_what_is_left_of_a_store(store_directory: str) -> None:
    os.unlink(os.path.join(store_directory, "STORE"))
    with pytest.raises(NotAStoreError, match=r"no file STORE\. .* `amqpstore check` on it"):
        Store.open(store_directory)
    assert not os.path.exists(os.path.join(store_directory, "STORE"))


def test_a_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(NotAStoreError, match="it is a file"):
        Store.open(str(path))
    assert path.read_text() == "mine"


@pytest.mark.parametrize("rest", ["store-id: " + "0" * 32 + "\n", "whatever\n", ""])
def test_a_store_of_another_version_is_refused_and_left_alone(
    store_directory: str, rest: str
) -> None:
    marker = Path(store_directory, "STORE")
    marker.write_text(f"amqpstore\nformat-version: 3\n{rest}")
    before = files_in(store_directory)
    with pytest.raises(FormatVersionError) as raised:
        Store.open(store_directory)
    assert (raised.value.found, raised.value.supported) == (3, 2)
    assert files_in(store_directory) == before


@pytest.mark.parametrize(
    "text",
    ["", "amqpstore\n", "amqpstore\nformat-version: 1\n", "something else\n", "\0" * 70],
)
def test_a_marker_that_does_not_read_as_one_is_damage(store_directory: str, text: str) -> None:
    Path(store_directory, "STORE").write_text(text)
    with pytest.raises(DamageError, match="STORE is damaged at offset 0"):
        Store.open(store_directory)


def test_a_flipped_byte_of_the_marker_is_never_another_store(store_directory: str) -> None:
    path = Path(store_directory, "STORE")
    content = path.read_bytes()
    for offset in range(len(content)):
        altered = bytearray(content)
        altered[offset] ^= 1
        path.write_bytes(bytes(altered))
        with pytest.raises((DamageError, FormatVersionError)):
            Store.open(store_directory)
    path.write_bytes(content)
    Store.open(store_directory).close()


@pytest.fixture
def holder(store_directory: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Another process that has the store open."""
    command = [sys.executable, "-c", HOLD, store_directory]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        yield process
        process.kill()


def test_a_store_that_another_process_has_open_is_refused_by_name(
    store_directory: str, holder: "subprocess.Popen[bytes]"
) -> None:
    with pytest.raises(StoreLockedError, match=f"process {holder.pid}") as raised:
        Store.open(store_directory)
    assert raised.value.holder == f"process {holder.pid}"


def test_a_store_whose_process_was_killed_opens(
    store_directory: str, holder: "subprocess.Popen[bytes]"
) -> None:
    holder.kill()
    holder.wait()
    Store.open(store_directory).close()


def test_a_store_is_open_once_in_one_process_as_well(store_directory: str) -> None:
    store = Store.open(store_directory)
    with pytest.raises(StoreLockedError, match=f"process {os.getpid()}"):
        Store.open(store_directory)
    store.close()
    Store.open(store_directory).close()


def test_a_store_that_could_not_be_opened_is_not_locked(store_directory: str) -> None:
    marker = Path(store_directory, "STORE")
    content = marker.read_bytes()
    marker.write_text("broken")
    with pytest.raises(DamageError):
        Store.open(store_directory)
    marker.write_bytes(content)
    Store.open(store_directory).close()


def test_a_missing_catalog_is_damage_when_there_are_segments(store_directory: str) -> None:
    shutil.rmtree(os.path.join(store_directory, "catalog"))
    for _ in range(2):
        with pytest.raises(DamageError, match="the file is missing"):
            Store.open(store_directory)


def test_nothing_is_changed_when_the_catalog_is_missing(store_directory: str) -> None:
    shutil.rmtree(os.path.join(store_directory, "catalog"))
    with pytest.raises(DamageError):
        Store.open(store_directory)
    assert not os.path.exists(os.path.join(store_directory, "catalog"))


def test_a_missing_catalog_is_damage_when_there_are_no_segments_yet(directory: str) -> None:
    with Store.open(directory) as store:
        store.create_queue("q")
        store.definitions.define([Change("users", "guest", {})])
    os.remove(os.path.join(directory, "catalog", "data.mdb"))
    with pytest.raises(DamageError):
        Store.open(directory).abandon()


def test_a_catalog_of_another_store_is_damage(store_directory: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    Store.open(other).close()
    content = Path(other, "catalog", "data.mdb").read_bytes()
    Path(store_directory, "catalog", "data.mdb").write_bytes(content)
    with pytest.raises(DamageError, match="the catalog belongs to another store"):
        Store.open(store_directory)


def test_a_store_moved_to_another_place_opens(store_directory: str, tmp_path: Path) -> None:
    moved = str(tmp_path / "moved")
    os.rename(store_directory, moved)
    with Store.open(moved) as store:
        assert queue_named(store, "q").ready_count == 1
        assert store.recovery_report.is_clean


def test_a_closed_store_refuses_what_would_be_lost(store_directory: str) -> None:
    store = Store.open(store_directory)
    queue = queue_named(store, "q")
    store.close()
    store.close()
    with pytest.raises(StoreClosedError):
        store.create_queue("new")
    with pytest.raises(StoreClosedError):
        store.delete_queue(queue)
    with pytest.raises(StoreClosedError):
        store.definitions.define([Change("users", "guest", {})])
    with pytest.raises(StoreClosedError):
        store.sync()


def test_a_store_closed_in_order_has_its_end_noted(tmp_path: Path) -> None:
    disk = Disk(str(tmp_path / "store"))
    store = disk.open()
    store.publish([store.create_queue("q")], messages(b"one"))
    store.close()
    assert disk.catalog.rows("ends") == {"0000000001": {"end": disk.size(1)}}


def test_a_store_that_wrote_nothing_has_no_segment(directory: str) -> None:
    with Store.open(directory) as store:
        store.create_queue("q")
        store.sync()
    assert os.listdir(os.path.join(directory, "segments")) == []


def files_in(directory: str) -> dict[str, bytes]:
    """Every file but the lock, which each attempt to open a store writes."""
    return {
        str(path): path.read_bytes()
        for path in sorted(Path(directory).rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def test_a_store_copied_without_its_empty_directories_opens(directory: str) -> None:
    with Store.open(directory) as store:
        store.create_queue("q")
    for name in ("segments", "index"):
        os.rmdir(os.path.join(directory, name))
    with Store.open(directory) as store:
        assert len(store.queues) == 1
        assert store.recovery_report.is_clean
