"""Tests of what a failed sync leaves of a file on the simulated disk."""

import random

import pytest

from amqpstore.catalog.catalog import Change
from amqpstore_tools.simulation.crash_images import crash_images
from amqpstore_tools.simulation.memory_catalog import MemoryCatalog
from amqpstore_tools.simulation.memory_files import MemoryFile, MemoryFiles
from amqpstore_tools.simulation.nodes import FileChange

PATH = "/file"


def failed() -> tuple[MemoryFiles, MemoryFile]:
    """A file with a sync that failed between two that did not."""
    files = MemoryFiles()
    file = files.create(PATH)
    files.sync_directory("/")
    file.append([b"synced"])
    file.datasync()
    file.append([b"lost"])
    file.fail_sync()
    return files, file


def test_what_was_lost_can_be_read_and_no_later_sync_writes_it() -> None:
    files, file = failed()
    file.append([b"later"])
    file.datasync()
    assert file.read(0, 100) == b"syncedlostlater"
    assert files.power_cut({}, {}).content(PATH) == b"synced\0\0\0\0later"


def test_nobody_knows_the_size_that_the_disk_has() -> None:
    files, _ = failed()
    ((unsynced,), _) = files.unsynced()
    assert unsynced.changes == (FileChange(6, bytes(4)),)
    assert files.power_cut({}, {}).content(PATH) == b"synced"


def test_what_was_lost_is_read_until_the_cache_is_dropped() -> None:
    files, _ = failed()
    killed = files.fork()
    assert killed.content(PATH) == b"syncedlost"
    assert killed.digest() != files.power_cut({}, {}).digest()
    killed.open(PATH).drop_cache()
    assert killed.content(PATH) == b"synced\0\0\0\0"


def test_a_lost_commit_is_read_until_the_cache_is_dropped() -> None:
    files = MemoryFiles()
    before = MemoryCatalog(files, "/", create=True)
    before.commit([])
    content = files.content("/data.mdb")
    key = f"{7:020}"
    before.fail_commit([Change("queues", key, {})])
    assert MemoryCatalog(files, "/", create=False).rows("queues") == {key: {}}
    files.open("/data.mdb").drop_cache()
    assert files.content("/data.mdb") == content


def test_all_of_it_can_be_done_again() -> None:
    base = MemoryFiles()
    files = base.fork()
    files.record = base.redo
    file = files.create(PATH)
    file.append([b"one"])
    file.fail_sync()
    assert base.digest() == files.digest()
    file.drop_cache()
    assert base.digest() == files.digest()
    files.replace_in_cache(PATH, b"two")
    assert base.content(PATH) == b"two"


def test_what_overwrites_zeros_survives_a_power_cut_in_any_part() -> None:
    files = MemoryFiles()
    file = files.create(PATH)
    files.sync_directory("/")
    file.append([b"a" * 500])
    file.fill(500, 1500)
    file.datasync()
    file.append([b"b" * 700])
    images = {one.files.content(PATH) for one in crash_images(files, random.Random(1), 500)}
    zeros, new = bytes(524), b"b" * 12
    assert b"a" * 500 + bytes(1000) in images
    assert b"a" * 500 + b"b" * 700 + bytes(300) in images
    # Of the three sectors that it touches, the first, the second, and the third.
    assert b"a" * 500 + new + bytes(988) in images
    assert b"a" * 500 + bytes(12) + b"b" * 512 + bytes(476) in images
    assert b"a" * 500 + zeros + b"b" * 176 + bytes(300) in images
    assert all(len(image) == 1500 and image.startswith(b"a" * 500) for image in images)


def test_a_cut_survives_a_power_cut_or_does_not_whatever_was_written_before_it() -> None:
    files = MemoryFiles()
    file = files.create(PATH)
    files.sync_directory("/")
    file.append([b"one"])
    file.fill(3, 8)
    file.datasync()
    file.append([b"two"])
    file.truncate(6)
    assert file.size() == 6
    images = {one.files.content(PATH) for one in crash_images(files, random.Random(1), 500)}
    assert {b"onetwo", b"onetwo\0\0", b"one\0\0\0\0\0", b"one\0\0\0"} <= images
    file.datasync()
    assert files.power_cut({}, {}).content(PATH) == b"onetwo"


def test_filling_and_cutting_can_be_done_again() -> None:
    base = MemoryFiles()
    files = base.fork()
    files.record = base.redo
    file = files.create(PATH)
    file.append([b"one"])
    file.fill(3, 8)
    file.append([b"two"])
    assert base.digest() == files.digest()
    assert base.content(PATH) == b"onetwo\0\0"
    file.truncate(6)
    assert base.digest() == files.digest()
    assert base.content(PATH) == b"onetwo"


def test_filled_bytes_are_overwritten_on_a_full_disk() -> None:
    files = MemoryFiles()
    files.capacity_bytes = 8
    file = files.create(PATH)
    file.append([b"one"])
    with pytest.raises(OSError, match="No space"):
        file.fill(3, 12)
    file.append([b"12345"])
    assert (file.end(), file.size()) == (8, 8)
    with pytest.raises(OSError, match="No space"):
        file.append([b"6"])
    assert (file.end(), files.content(PATH)) == (8, b"one12345")
