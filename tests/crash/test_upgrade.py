"""The power is cut at every step of an upgrade from format version 1: what is left is a store of
either version, with everything in it, whose upgrade then goes on."""

import msgpack
import pytest

from amqpstore import DamageError
from amqpstore.catalog.catalog import Change
from amqpstore.catalog.rows import CHECKSUMMED, HEAD
from amqpstore.identity import marker
from amqpstore.recovery import opening
from amqpstore.system.filenames import CATALOG, MARKER
from amqpstore_tools.drill.explorer import Explorer, Result
from amqpstore_tools.drill.observation import observe
from amqpstore_tools.drill.outside import Outside
from amqpstore_tools.drill.trace import Trace
from amqpstore_tools.simulation.memory_catalog import MemoryCatalog, put_rows, stored_rows
from amqpstore_tools.simulation.memory_files import MemoryFiles
from tests.crash.histories import DIRECTORY, open_store, outside_of

CATALOG_PATH = f"{DIRECTORY}/{CATALOG}"


def make_version_1(files: MemoryFiles) -> None:
    """Take a store back to what version 1 would have written of it, durably."""
    tables = stored_rows(files, CATALOG_PATH)
    plain = {
        table: {key: stored[HEAD.size :] for key, stored in rows.items()}
        for table, rows in tables.items()
    }
    put_rows(files, CATALOG_PATH, plain)
    found = marker.read(files, DIRECTORY)
    assert found
    marker.write(files, DIRECTORY, found.store_id, 1)


def used(outside: Outside) -> None:
    """A store with a checkpoint, log behind it, acks, and a queue that was delivered from."""
    outside.open()
    outside.create_queue("orders")
    outside.create_queue("audit")
    outside.publish(["orders", "audit"], [b"one", b"two" * 400, b"three"])
    outside.sync()
    outside.take("orders", 1)
    outside.sync()
    outside.ack("orders")
    outside.sync()
    outside.checkpoint()
    outside.publish(["audit"], [b"behind the checkpoint"])
    outside.take("audit", 1)
    outside.sync()


def upgraded() -> Trace:
    """Record an upgrade: a store of version 1, whose process was killed, through two starts."""
    told = outside_of(open_store)
    used(told)
    told.kill()
    files = told.files.fork()
    make_version_1(files)
    store = open_store(files.fork())
    before = observe(store)
    store.abandon()
    outside = Outside(Trace(files.fork(), before), files, open_store)
    outside.open()
    outside.publish(["orders", "audit"], [b"in version 2"])
    outside.sync()
    outside.close()
    outside.open()
    outside.close()
    return outside.trace


def explore() -> Result:
    explorer = Explorer(open_store, "upgrade", images_an_operation=20, images_in_recovery=5)
    return explorer.explore(upgraded())


def test_every_step_of_an_upgrade() -> None:
    result = explore()
    assert [str(violation) for violation in result.violations] == []
    assert result.operations > 20


def test_a_marker_that_goes_before_the_rows_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def backwards(
        files: MemoryFiles, directory: str, catalog: MemoryCatalog, *rest: object
    ) -> None:
        found = marker.read(files, directory)
        assert found
        marker.write(files, directory, found.store_id)
        rows = [
            Change(table, key, row)
            for table in stored_rows(files, CATALOG_PATH)
            for key, row in catalog.rows(table).items()
        ]
        catalog.commit(rows)

    monkeypatch.setattr(opening, "give_rows_checksums", backwards)
    assert explore().violations


def test_what_is_between_the_two_steps_is_read_again() -> None:
    outside = outside_of(open_store)
    used(outside)
    outside.kill()
    files = outside.files
    make_version_1(files)
    # As a power cut behind the commit leaves it.
    open_store(files).abandon()
    identity = marker.read(files, DIRECTORY)
    assert identity
    marker.write(files, DIRECTORY, identity.store_id, 1)
    tables = stored_rows(files, CATALOG_PATH)
    assert {stored[0] for rows in tables.values() for stored in rows.values()} == {CHECKSUMMED}
    # And one row that is not done yet: no crash leaves that, but either form may be read.
    key, stored = next(iter(tables["heads"].items()))
    mixed = {**tables, "heads": {**tables["heads"], key: stored[HEAD.size :]}}
    put_rows(files, CATALOG_PATH, mixed)
    store = open_store(files)
    assert sum(queue.ready_count for queue in store.queues.values()) == 6
    store.abandon()
    assert files.exists(f"{DIRECTORY}/{MARKER}")
    again = marker.read(files, DIRECTORY)
    assert again
    assert again.version == 2


def test_a_reader_of_version_1_refuses_rows_with_a_checksum() -> None:
    outside = outside_of(open_store)
    used(outside)
    for rows in stored_rows(outside.files, CATALOG_PATH).values():
        for stored in rows.values():
            with pytest.raises(msgpack.FormatError):
                msgpack.unpackb(stored, strict_map_key=False)


def test_a_row_without_a_checksum_is_damage_in_version_2() -> None:
    outside = outside_of(open_store)
    used(outside)
    outside.kill()
    files = outside.files
    make_version_1(files)
    assert MemoryCatalog(files, CATALOG_PATH, False, plain=True).rows("heads")
    with pytest.raises(DamageError, match=r"row '.*': it has no checksum"):
        MemoryCatalog(files, CATALOG_PATH, False)
