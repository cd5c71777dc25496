"""Tests that every implementation of `Files` passes, whatever is below it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from amqpstore.system.files import Files, FileType, OsFiles
from amqpstore_tools.offline.pinning import PinnedFiles
from amqpstore_tools.offline.read_only_files import ReadOnlyFiles
from amqpstore_tools.simulation.faulty_files import (
    Faults,
    FaultyFiles,
    RottenFiles,
    UnreadableFiles,
)
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.testing.disk import Disk
from tests.unit.engine import stores

NOWHERE = "/nowhere"

IMPLEMENTATIONS: dict[str, Callable[[], Files]] = {
    "the real one": OsFiles,
    "in memory": MemoryFiles,
    "with power": Disk,
    "faulty": lambda: FaultyFiles(MemoryFiles(), Faults(-1)),
    "faulty, real": lambda: FaultyFiles(OsFiles(), Faults(-1)),
    "rotten": lambda: RottenFiles(MemoryFiles(), NOWHERE, 0, 0),
    "unreadable": lambda: UnreadableFiles(MemoryFiles(), (NOWHERE, 0, 1)),
    "failing": stores.FailingFiles,
    "unreadable, real": lambda: UnreadableFiles(OsFiles(), (NOWHERE, 0, 1)),
}
"""Implementations of `Files`; those that have faults have none that strikes here."""


ON_DISK = [name for name in IMPLEMENTATIONS if "real" in name or name == "failing"]
"""Implementations whose files are in a real file system, and so have an owner."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture(params=IMPLEMENTATIONS)
def files(request: pytest.FixtureRequest) -> Files:
    return IMPLEMENTATIONS[request.param]()


def pinned(directory: str) -> PinnedFiles:
    files = PinnedFiles()
    files.pin(directory)
    return files


READ_ONLY: dict[str, Callable[[str], Files]] = {
    "read-only": lambda _directory: ReadOnlyFiles(),
    "pinned": pinned,
}


@pytest.fixture(params=READ_ONLY)
def read_only(request: pytest.FixtureRequest, tmp_path: object) -> Iterator[tuple[Files, str]]:
    """Files that can only be read, and a directory with the file `file`: 0123456789."""
    directory = os.path.join(str(tmp_path), "directory")
    OsFiles().make_directory(directory)
    put(OsFiles(), f"{directory}/file", b"0123456789")
    files = READ_ONLY[request.param](directory)
    yield files, directory
    if isinstance(files, PinnedFiles):
        files.release()


@pytest.fixture
def directory(files: Files, tmp_path: object) -> str:
    """A directory that is there and empty."""
    path = os.path.join(str(tmp_path), "directory")
    files.make_directory(path)
    return path


def put(files: Files, path: str, content: bytes = b"") -> None:
    file = files.create(path)
    file.append([content])
    file.datasync()
    file.close()


def content_of(files: Files, path: str) -> bytes:
    file = files.open(path)
    try:
        return file.read(0, file.size())
    finally:
        file.close()


def test_a_directory_is_made_with_its_parents(files: Files, directory: str) -> None:
    files.make_directory(f"{directory}/a/b/c")
    assert files.list_directory(f"{directory}/a/b") == ["c"]
    assert files.list_directory(f"{directory}/a/b/c") == []


def test_making_a_directory_that_exists_changes_nothing(files: Files, directory: str) -> None:
    put(files, f"{directory}/file")
    files.make_directory(directory)
    assert files.list_directory(directory) == ["file"]


def test_a_directory_cannot_be_made_where_a_file_is(files: Files, directory: str) -> None:
    put(files, f"{directory}/file")
    with pytest.raises(FileExistsError):
        files.make_directory(f"{directory}/file")
    with pytest.raises(FileExistsError):
        files.make_directory(f"{directory}/file/below")


def test_names_are_listed_sorted(files: Files, directory: str) -> None:
    for name in ("b", "a", "c"):
        put(files, f"{directory}/{name}")
    files.make_directory(f"{directory}/aa")
    assert files.list_directory(directory) == ["a", "aa", "b", "c"]


def test_only_a_directory_can_be_listed(files: Files, directory: str) -> None:
    put(files, f"{directory}/file")
    with pytest.raises(NotADirectoryError):
        files.list_directory(f"{directory}/file")
    with pytest.raises(FileNotFoundError):
        files.list_directory(f"{directory}/missing")


def test_existence(files: Files, directory: str) -> None:
    put(files, f"{directory}/file")
    assert files.exists(directory)
    assert files.exists(f"{directory}/file")
    assert files.exists(f"{directory}/./file")
    assert not files.exists(f"{directory}/missing")
    assert not files.exists(f"{directory}/file/below")


def test_a_new_file_is_empty_and_grows_at_its_end(files: Files, directory: str) -> None:
    file = files.create(f"{directory}/file")
    assert file.path == f"{directory}/file"
    assert file.size() == 0
    file.append([b"one", b"", b"two"])
    file.append([])
    file.append([b"three"])
    assert file.size() == 11
    assert file.read(0, 100) == b"onetwothree"
    file.close()


def test_what_is_filled_is_zeros_behind_the_end_until_it_is_overwritten(
    files: Files, directory: str
) -> None:
    file = files.create(f"{directory}/file")
    file.append([b"one"])
    file.fill(3, 8)
    assert (file.end(), file.size()) == (3, 8)
    assert file.read(0, 100) == b"one\0\0\0\0\0"
    file.append([b"two", b"3"])
    assert (file.end(), file.size()) == (7, 8)
    assert file.read(0, 100) == b"onetwo3\0"
    file.append([b"four"])
    assert (file.end(), file.size()) == (11, 11)
    file.fill(11, 11)
    assert file.read(0, 100) == b"onetwo3four"
    file.close()


def test_what_was_filled_and_not_used_is_cut_off(files: Files, directory: str) -> None:
    file = files.create(f"{directory}/file")
    file.truncate(0)
    file.fill(0, 4)
    file.append([b"one"])
    file.fill(3, 12)
    file.truncate(3)
    assert (file.end(), file.size()) == (3, 3)
    file.append([b"two"])
    file.truncate(6)
    file.datasync()
    assert file.read(0, 100) == b"onetwo"
    file.close()


def test_many_buffers_in_one_append(files: Files, directory: str) -> None:
    buffers = [number.to_bytes(2, "big") for number in range(5000)]
    put(files, f"{directory}/file", b"start")
    file = files.create(f"{directory}/other")
    file.append(buffers)
    assert file.read(0, 20_000) == b"".join(buffers)
    file.close()


def test_a_file_is_created_once(files: Files, directory: str) -> None:
    put(files, f"{directory}/file", b"first")
    with pytest.raises(FileExistsError) as raised:
        files.create(f"{directory}/file")
    assert raised.value.filename == f"{directory}/file"
    with pytest.raises(FileExistsError):
        files.create(directory)
    assert content_of(files, f"{directory}/file") == b"first"


def test_no_file_is_created_in_a_directory_that_is_missing(files: Files, directory: str) -> None:
    with pytest.raises(FileNotFoundError):
        files.create(f"{directory}/missing/file")
    put(files, f"{directory}/file")
    with pytest.raises(NotADirectoryError):
        files.create(f"{directory}/file/below")


def test_what_is_written_is_seen_at_once_by_who_has_the_file_open(
    files: Files, directory: str
) -> None:
    writer = files.create(f"{directory}/file")
    reader = files.open(f"{directory}/file")
    writer.append([b"unsynced"])
    assert reader.read(0, 100) == b"unsynced"
    writer.datasync()
    reader.datasync()
    assert reader.size() == 8
    writer.close()
    reader.close()


def test_nothing_is_lost_with_the_cache(files: Files, directory: str) -> None:
    writer = files.create(f"{directory}/file")
    writer.append([b"synced, "])
    writer.datasync()
    writer.append([b"not yet"])
    reader = files.open(f"{directory}/file")
    reader.drop_cache()
    assert reader.read(0, 100) == b"synced, not yet"
    reader.datasync()
    reader.drop_cache()
    assert reader.read(0, 100) == b"synced, not yet"
    reader.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        reader.drop_cache()
    writer.close()


@pytest.mark.parametrize(
    ("offset", "size", "expected"),
    [(0, 4, b"0123"), (3, 2, b"34"), (8, 10, b"89"), (10, 1, b""), (20, 5, b""), (5, 0, b"")],
)
def test_reads_are_short_only_at_the_end(
    files: Files, directory: str, offset: int, size: int, expected: bytes
) -> None:
    put(files, f"{directory}/file", b"0123456789")
    file = files.open(f"{directory}/file")
    assert file.read(offset, size) == expected
    file.close()


def test_a_recycled_file_is_written_from_its_start(files: Files, directory: str) -> None:
    put(files, f"{directory}/old", b"as it was")
    file = files.recycle(f"{directory}/old", f"{directory}/new")
    assert files.list_directory(directory) == ["new"]
    assert (file.path, file.end(), file.size()) == (f"{directory}/new", 0, 9)
    file.append([b"now"])
    file.fill(3, 5)
    file.append([b","])
    file.truncate(7)
    assert (file.end(), file.size()) == (4, 7)
    assert file.read(0, 100) == b"now,\0 w"
    file.datasync()
    file.close()


def test_a_missing_file_cannot_be_recycled(files: Files, directory: str) -> None:
    with pytest.raises(FileNotFoundError):
        files.recycle(f"{directory}/old", f"{directory}/new")


def test_a_file_is_not_recycled_under_a_name_that_another_has(files: Files, directory: str) -> None:
    put(files, f"{directory}/old", b"as it was")
    put(files, f"{directory}/new", b"needed")
    files.make_directory(f"{directory}/directory")
    for new in ("new", "directory"):
        with pytest.raises(FileExistsError):
            files.recycle(f"{directory}/old", f"{directory}/{new}")
    assert files.list_directory(directory) == ["directory", "new", "old"]
    assert content_of(files, f"{directory}/new") == b"needed"
    assert content_of(files, f"{directory}/old") == b"as it was"


def test_a_file_that_was_opened_is_not_written_to(files: Files, directory: str) -> None:
    put(files, f"{directory}/file", b"as it was")
    file = files.open(f"{directory}/file")
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.append([b"more"])
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.fill(0, 4)
    with pytest.raises(OSError, match=r"Bad file descriptor|Invalid argument"):
        file.truncate(0)
    file.close()
    assert content_of(files, f"{directory}/file") == b"as it was"


def test_a_missing_file_cannot_be_opened(files: Files, directory: str) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        files.open(f"{directory}/missing")
    assert raised.value.filename == f"{directory}/missing"


def test_a_closed_file_is_of_no_use(files: Files, directory: str) -> None:
    file = files.create(f"{directory}/file")
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.append([b"more"])
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.datasync()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.read(0, 1)


def test_a_rename_replaces_what_had_the_name(files: Files, directory: str) -> None:
    put(files, f"{directory}/old", b"old")
    put(files, f"{directory}/new", b"new")
    files.rename(f"{directory}/old", f"{directory}/new")
    assert files.list_directory(directory) == ["new"]
    assert content_of(files, f"{directory}/new") == b"old"


def test_a_rename_into_another_directory(files: Files, directory: str) -> None:
    put(files, f"{directory}/file", b"moved")
    files.make_directory(f"{directory}/other")
    files.rename(f"{directory}/file", f"{directory}/other/file")
    assert files.list_directory(directory) == ["other"]
    assert content_of(files, f"{directory}/other/file") == b"moved"


def test_an_open_file_stays_the_same_through_rename_and_removal(
    files: Files, directory: str
) -> None:
    file = files.create(f"{directory}/file")
    files.rename(f"{directory}/file", f"{directory}/renamed")
    file.append([b"content"])
    assert content_of(files, f"{directory}/renamed") == b"content"
    files.remove(f"{directory}/renamed")
    file.append([b", and more"])
    assert file.read(0, 100) == b"content, and more"
    assert files.list_directory(directory) == []
    file.close()


def test_what_is_missing_can_be_neither_renamed_nor_removed(files: Files, directory: str) -> None:
    with pytest.raises(FileNotFoundError):
        files.rename(f"{directory}/missing", f"{directory}/new")
    with pytest.raises(FileNotFoundError):
        files.remove(f"{directory}/missing")


def test_a_directory_is_not_removed_like_a_file(files: Files, directory: str) -> None:
    files.make_directory(f"{directory}/inner")
    with pytest.raises(OSError, match="directory"):
        files.remove(f"{directory}/inner")
    assert files.list_directory(directory) == ["inner"]


def test_a_name_can_be_used_again(files: Files, directory: str) -> None:
    put(files, f"{directory}/file", b"first")
    files.remove(f"{directory}/file")
    put(files, f"{directory}/file", b"second")
    assert content_of(files, f"{directory}/file") == b"second"


def test_only_a_directory_can_be_synced_as_one(files: Files, directory: str) -> None:
    put(files, f"{directory}/file")
    files.sync_directory(directory)
    with pytest.raises(NotADirectoryError):
        files.sync_directory(f"{directory}/file")
    with pytest.raises(FileNotFoundError):
        files.sync_directory(f"{directory}/missing")


def test_a_lock_is_held_until_it_is_released(files: Files, directory: str) -> None:
    path = f"{directory}/lock"
    lock = files.lock(path, "the first, with a long name")
    with pytest.raises(BlockingIOError) as raised:
        files.lock(path, "the second")
    assert raised.value.strerror == "the first, with a long name"
    assert raised.value.filename == path
    lock.release()
    files.lock(path, "the third").release()
    assert files.list_directory(directory) == ["lock"]
    assert content_of(files, path) == b"the third\n"


def test_locks_on_different_files_are_different(files: Files, directory: str) -> None:
    first = files.lock(f"{directory}/first", "one")
    second = files.lock(f"{directory}/second", "two")
    first.release()
    second.release()


def test_room_is_taken_for_a_file_of_zeros(files: Files, directory: str) -> None:
    files.allocate(f"{directory}/reserve", 10_000)
    assert content_of(files, f"{directory}/reserve") == bytes(10_000)
    with pytest.raises(FileExistsError):
        files.allocate(f"{directory}/reserve", 10_000)
    with pytest.raises(FileNotFoundError):
        files.allocate(f"{directory}/missing/reserve", 10)
    assert files.list_directory(directory) == ["reserve"]


def test_more_room_than_there_is_leaves_no_file(files: Files, directory: str) -> None:
    with pytest.raises(OSError, match=r"No space left|File too large"):
        files.allocate(f"{directory}/reserve", 1 << 61)
    assert files.list_directory(directory) == []


def test_free_bytes_are_those_of_the_disk_that_something_is_on(
    files: Files, directory: str
) -> None:
    put(files, f"{directory}/file")
    assert files.free_bytes(directory) > 0
    assert files.free_bytes(f"{directory}/file") > 0
    with pytest.raises(FileNotFoundError):
        files.free_bytes(f"{directory}/missing")


def test_a_directory_is_not_opened_like_a_file(files: Files, directory: str) -> None:
    with pytest.raises(OSError, match=r"directory|regular"):
        files.open(directory)
    with pytest.raises(OSError, match="directory"):
        files.lock(directory, "nobody")


def test_a_closed_file_has_no_size_and_is_closed_once(files: Files, directory: str) -> None:
    file = files.create(f"{directory}/file")
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.size()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.close()


@needs_root
@pytest.mark.parametrize("name", ON_DISK)
def test_what_root_creates_belongs_to_the_owner_of_the_directory(name: str, tmp_path: Path) -> None:
    files = IMPLEMENTATIONS[name]()
    directory = str(tmp_path)
    os.chown(directory, 1234, 5678)
    put(files, f"{directory}/created")
    files.allocate(f"{directory}/allocated", 10)
    files.lock(f"{directory}/locked", "somebody").release()
    files.make_directory(f"{directory}/a/b")
    put(files, f"{directory}/a/b/created")
    put(files, f"{directory}/renamed.new")
    files.rename(f"{directory}/renamed.new", f"{directory}/renamed")
    with open(f"{directory}/root's", "wb"):
        pass
    files.recycle(f"{directory}/root's", f"{directory}/recycled").close()
    names = ["created", "allocated", "locked", "a", "a/b", "a/b/created", "renamed", "recycled"]
    found = {name: os.stat(f"{directory}/{name}") for name in names}
    assert {name: (one.st_uid, one.st_gid) for name, one in found.items()} == dict.fromkeys(
        names, (1234, 5678)
    )


def test_a_disk_that_takes_no_more_files_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    found = os.statvfs("/")
    blocks = [found.f_bsize, found.f_frsize, 1000, 1000, 1000]
    for files, free, is_full in ((1000, 63, True), (1000, 64, False), (0, 0, False)):
        made = os.statvfs_result([*blocks, files, free, free, 0, 255])
        monkeypatch.setattr(os, "statvfs", lambda _path, made=made: made)
        assert OsFiles().free_bytes("/") == (0 if is_full else 1000 * found.f_frsize)


@needs_root
@pytest.mark.parametrize("name", ON_DISK)
def test_what_was_locked_by_root_is_given_back(name: str, tmp_path: Path) -> None:
    files = IMPLEMENTATIONS[name]()
    put(files, f"{tmp_path}/lock")
    os.chown(tmp_path, 1234, 5678)
    files.lock(f"{tmp_path}/lock", "somebody").release()
    assert os.stat(f"{tmp_path}/lock").st_uid == 1234


@pytest.mark.parametrize("name", ON_DISK)
def test_a_lock_is_not_taken_through_a_link(name: str, tmp_path: Path) -> None:
    files = IMPLEMENTATIONS[name]()
    put(files, f"{tmp_path}/precious", b"content")
    os.symlink(f"{tmp_path}/precious", f"{tmp_path}/lock")
    with pytest.raises(OSError, match="it is a link"):
        files.lock(f"{tmp_path}/lock", "somebody")
    assert content_of(files, f"{tmp_path}/precious") == b"content"


def test_what_can_only_be_read_is_read_like_any_other(read_only: tuple[Files, str]) -> None:
    files, directory = read_only
    assert files.list_directory(directory) == ["file"]
    assert files.exists(f"{directory}/file")
    assert not files.exists(f"{directory}/missing")
    file = files.open(f"{directory}/file")
    assert file.path == f"{directory}/file"
    assert file.size() == 10
    reads = [
        (0, 4, b"0123"),
        (3, 2, b"34"),
        (8, 10, b"89"),
        (10, 1, b""),
        (20, 5, b""),
        (5, 0, b""),
    ]
    for offset, size, expected in reads:
        assert file.read(offset, size) == expected
    file.datasync()
    file.drop_cache()
    assert file.read(0, 100) == b"0123456789"
    with pytest.raises(OSError, match="reading only"):
        file.append([b"more"])
    file.close()
    with pytest.raises(FileNotFoundError) as raised:
        files.open(f"{directory}/missing")
    assert raised.value.filename == f"{directory}/missing"
    with pytest.raises(OSError, match=r"regular|snapshot"):
        files.open(directory)


def test_what_can_only_be_read_is_not_changed(read_only: tuple[Files, str]) -> None:
    files, directory = read_only
    changes: list[Callable[[], object]] = [
        lambda: files.make_directory(f"{directory}/new"),
        lambda: files.create(f"{directory}/new"),
        lambda: files.recycle(f"{directory}/file", f"{directory}/new"),
        lambda: files.rename(f"{directory}/file", f"{directory}/new"),
        lambda: files.remove(f"{directory}/file"),
        lambda: files.allocate(f"{directory}/new", 10),
        lambda: files.lock(f"{directory}/new", "nobody"),
    ]
    for change in changes:
        with pytest.raises(OSError, match="reading only"):
            change()
    files.sync_directory(directory)
    assert OsFiles().list_directory(directory) == ["file"]
    assert content_of(OsFiles(), f"{directory}/file") == b"0123456789"


def test_the_type_of_what_a_path_leads_to(files: Files, directory: str) -> None:
    put(files, f"{directory}/file")
    assert files.type_of(f"{directory}/file") is FileType.FILE
    assert files.type_of(directory) is FileType.DIRECTORY
    assert files.type_of(f"{directory}/missing") is FileType.MISSING
    assert files.type_of(f"{directory}/file/below") is FileType.MISSING
    assert not files.is_link(f"{directory}/file")


def test_the_size_of_a_file_that_is_not_open(files: Files, directory: str) -> None:
    put(files, f"{directory}/file", b"0123456789")
    file = files.open(f"{directory}/file")
    assert files.size_of(f"{directory}/file") == file.size() > 0
    file.close()
    assert files.size_of(f"{directory}/missing") == 0
    assert files.size_of(f"{directory}/file/below") == 0


def test_what_is_neither_a_file_nor_a_directory(tmp_path: Path) -> None:
    files = OsFiles()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "link").symlink_to(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        found = {name: files.type_of(str(tmp_path / name)) for name in os.listdir(tmp_path)}
    assert found == {
        "pipe": FileType.PIPE,
        "nowhere": FileType.BROKEN_LINK,
        "circle": FileType.BROKEN_LINK,
        "link": FileType.DIRECTORY,
        "socket": FileType.SOCKET,
    }
    assert files.type_of("/dev/null") is FileType.DEVICE
    assert files.is_link(str(tmp_path / "link"))
