"""What a failed sync leaves of a file on the simulated disk."""

from amqpstore.catalog import Change
from amqpstore_tools.simulation.memory_catalog import MemoryCatalog
from amqpstore_tools.simulation.memory_files import MemoryFile, MemoryFiles

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
    assert unsynced.writes == (bytes(4),)
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
