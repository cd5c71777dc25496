"""Snapshots of a catalog that is written to all the time: each is one commit, whole."""

import os
import tempfile
import threading

import lmdb
import msgpack
import pytest

from amqpstore.catalog.catalog import Change, LmdbCatalog
from amqpstore.catalog.lmdb_pages import last_transaction
from amqpstore.errors import DamageError
from amqpstore_tools.offline.catalog import CatalogImage
from amqpstore_tools.offline.instant import at_one_instant

PAUSE_S = 0.03
"""Longer than a copy takes, which has to be begun and ended within one, at last."""

COPIES = 30
ROWS = 300


@pytest.fixture
def catalog(data_directory: str) -> LmdbCatalog:
    path = os.path.join(data_directory, "catalog")
    os.makedirs(path)
    return LmdbCatalog(path, create=True)


def commit(catalog: LmdbCatalog, number: int) -> None:
    """Every row of two tables says the same; pages are freed and taken again and again."""
    filler = bytes([number % 256]) * (100 + 13 * number % 900)
    catalog.commit(
        [
            Change(table, f"{key:05}", {"number": number, "filler": filler})
            for table in ("users", "vhosts")
            for key in range(ROWS)
        ]
    )


def test_a_copy_is_of_one_commit(catalog: LmdbCatalog, data_directory: str) -> None:
    commit(catalog, 1)
    stop = threading.Event()

    def write() -> None:
        number = 2
        while not stop.wait(PAUSE_S):
            commit(catalog, number)
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    seen: set[int] = set()
    count = 0
    try:
        while count < COPIES or len(seen) == 1:
            count += 1
            with tempfile.TemporaryDirectory() as target:
                at_one_instant(data_directory, target, lambda: None)
                image = CatalogImage(target, plain=False)
                try:
                    assert image.reason is None
                    rows = [*image.rows("users").values(), *image.rows("vhosts").values()]
                finally:
                    image.close()
                numbers = {row["number"] for row in rows}
                assert len(rows) == 2 * ROWS
                assert len(numbers) == 1
                seen |= numbers
    finally:
        stop.set()
        writer.join()
        catalog.close()


def test_a_copy_leaves_nothing_behind(catalog: LmdbCatalog, data_directory: str) -> None:
    commit(catalog, 1)
    path = os.path.join(data_directory, "catalog")
    before = {name: os.stat(os.path.join(path, name)).st_mtime_ns for name in os.listdir(path)}
    with tempfile.TemporaryDirectory() as target:
        at_one_instant(data_directory, target, lambda: None)
        assert os.listdir(target) == ["data.mdb"]
        image = CatalogImage(target, plain=False)
        image.close()
        assert os.listdir(target) == ["data.mdb"]
    assert {
        name: os.stat(os.path.join(path, name)).st_mtime_ns for name in os.listdir(path)
    } == before
    catalog.close()


def test_commits_are_counted(catalog: LmdbCatalog, data_directory: str) -> None:
    path = os.path.join(data_directory, "catalog", "data.mdb")
    before = last_transaction(path)
    commit(catalog, 1)
    assert last_transaction(path) == before + 1
    catalog.close()
    with open(path, "r+b") as file:
        file.write(bytes(4096))
    with pytest.raises(DamageError, match="meta"):
        last_transaction(path)


def test_a_row_that_cannot_be_read_is_left_out_and_named(
    catalog: LmdbCatalog, data_directory: str
) -> None:
    catalog.commit([Change("queues", "00000000000000000001", {"name": "orders"})])
    catalog.close()
    path = os.path.join(data_directory, "catalog")
    with lmdb.open(path, max_dbs=50) as environment:
        queues = environment.open_db(b"queues")
        with environment.begin(queues, write=True) as transaction:
            transaction.put(b"cut", msgpack.packb("orders")[:-1])
            transaction.put(b"nil", msgpack.packb(None))
            transaction.put(b"\xff", msgpack.packb(1))
    image = CatalogImage(path, plain=True)
    assert image.rows("queues") == {"00000000000000000001": {"name": "orders"}}
    assert [row.key for row in image.bad_rows] == [b"cut", b"nil", b"\xff"]
    assert image.rows("nowhere") == {}
    image.close()
