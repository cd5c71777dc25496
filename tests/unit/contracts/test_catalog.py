"""Tests that every implementation of `Catalog` passes, wherever it keeps its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from amqpstore import DamageError, DurabilityError
from amqpstore.catalog.catalog import TABLES, Catalog, Change, LmdbCatalog, Value
from amqpstore_tools.offline import catalog as offline
from amqpstore_tools.simulation.faulty_files import Faults, FaultyCatalog
from amqpstore_tools.simulation.memory_catalog import MemoryCatalog
from amqpstore_tools.simulation.memory_files import MemoryFiles
from tests.unit.engine import stores

Open = Callable[[bool], Catalog]
"""Opens the one catalog of a test: True makes it."""


def lmdb(path: Path) -> Open:
    directory = str(path)
    return lambda create: LmdbCatalog(directory, create)


def in_memory(_path: Path) -> Open:
    files = MemoryFiles()
    files.make_directory("/catalog")
    return lambda create: MemoryCatalog(files, "/catalog", create)


def faulty(path: Path) -> Open:
    opened = in_memory(path)
    return lambda create: FaultyCatalog(opened(create), Faults(-1), "/catalog")


IMPLEMENTATIONS: dict[str, Callable[[Path], Open]] = {
    "lmdb": lmdb,
    "in memory": in_memory,
    "faulty": faulty,
}


@pytest.fixture(params=IMPLEMENTATIONS)
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """A catalog that is nowhere yet."""
    return IMPLEMENTATIONS[request.param](tmp_path)


@pytest.fixture(params=[*IMPLEMENTATIONS, "of the engine's tests"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalog]:
    if request.param in IMPLEMENTATIONS:
        found = IMPLEMENTATIONS[request.param](tmp_path)(True)
    else:
        found = stores.RowsCatalog()
    yield found
    found.close()


def test_a_new_catalog_is_empty(catalog: Catalog) -> None:
    assert all(catalog.rows(table) == {} for table in TABLES)


def test_a_missing_one_is_damage(reopen: Open) -> None:
    with pytest.raises(DamageError):
        reopen(False)


def test_it_is_as_it_was_when_it_is_opened_again(reopen: Open) -> None:
    catalog = reopen(True)
    catalog.commit([Change("users", "a", {"k": 1}), Change("vhosts", "b", 2)])
    catalog.close()
    catalog = reopen(False)
    assert catalog.rows("users") == {"a": {"k": 1}}
    assert catalog.rows("vhosts") == {"b": 2}
    catalog.close()


def test_a_new_one_is_in_the_place_of_the_old(reopen: Open) -> None:
    catalog = reopen(True)
    catalog.commit([Change("users", "a", 1)])
    catalog.close()
    catalog = reopen(True)
    assert catalog.rows("users") == {}
    catalog.close()


def test_a_closed_one_is_of_no_use_and_may_be_closed_again(reopen: Open) -> None:
    catalog = reopen(True)
    catalog.commit([Change("users", "a", 1)])
    catalog.close()
    with pytest.raises(DamageError):
        catalog.rows("users")
    with pytest.raises(DurabilityError):
        catalog.commit([Change("users", "a", 2)])
    catalog.close()
    catalog = reopen(False)
    assert catalog.rows("users") == {"a": 1}
    catalog.close()


def test_rows_come_in_the_order_of_their_keys_bytes(catalog: Catalog) -> None:
    keys = ["b", "a", "\U0001f600", "\uffff", "\u00fc", "aa", "a\0", "Z"]
    catalog.commit([Change("users", key, 1) for key in keys])
    assert list(catalog.rows("users")) == sorted(keys, key=str.encode)


@pytest.mark.parametrize(
    "value", [True, 0, -1, 2**63, 1.5, "text", "", b"\xff", [], [1, "a"], {}, {"a": [None]}, {1: 2}]
)
def test_a_value_comes_back_as_it_went(catalog: Catalog, value: Value) -> None:
    catalog.commit([Change("vhosts", "key", value)])
    assert catalog.rows("vhosts") == {"key": value}


def test_what_was_put_and_what_is_read_are_the_callers_own(catalog: Catalog) -> None:
    value = {"list": [1]}
    catalog.commit([Change("vhosts", "key", value)])
    value["list"].append(2)
    catalog.rows("vhosts")["key"]["list"].append(3)
    catalog.rows("vhosts").clear()
    assert catalog.rows("vhosts") == {"key": {"list": [1]}}


def test_none_removes_a_row_whether_it_is_there_or_not(catalog: Catalog) -> None:
    catalog.commit([Change("users", "a", 1), Change("users", "b", 2)])
    catalog.commit([Change("users", "a", None), Change("users", "never", None)])
    assert catalog.rows("users") == {"b": 2}


def test_the_last_change_of_a_row_in_a_commit_holds(catalog: Catalog) -> None:
    catalog.commit([Change("users", "a", 1), Change("users", "a", None), Change("users", "a", 3)])
    assert catalog.rows("users") == {"a": 3}


@pytest.mark.parametrize("key", ["x", "x" * 511, "\0", "/\0name"])
def test_a_key_of_up_to_511_bytes_is_taken(catalog: Catalog, key: str) -> None:
    catalog.commit([Change("users", key, 1)])
    assert catalog.rows("users") == {key: 1}


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (Change("users", "", 2), ValueError),
        (Change("users", "x" * 512, 2), ValueError),
        (Change("users", "\u00fc" * 256, None), ValueError),
        (Change("nothing", "b", 2), KeyError),
        (Change("users", "b", object()), TypeError),
    ],
    ids=[
        "no key",
        "a long key",
        "a long key to be removed",
        "no such table",
        "not of msgpack",
    ],
)
def test_what_cannot_be_kept_is_refused_with_the_whole_commit(
    catalog: Catalog, bad: Change, error: type[Exception]
) -> None:
    with pytest.raises(error):
        catalog.commit([Change("users", "a", 1), bad])
    assert catalog.rows("users") == {}


def test_no_changes_are_no_error(catalog: Catalog) -> None:
    catalog.commit([])
    assert catalog.rows("users") == {}


def kept(path: Path) -> Catalog:
    stored = LmdbCatalog(str(path), create=True)
    stored.commit([Change("users", key, {"k": key}) for key in ("b", "\uffff", "a", "\U0001f600")])
    stored.close()
    return offline.CatalogImage(str(path), plain=False)


def test_what_can_only_be_read_is_read_alike_and_not_changed(tmp_path: Path) -> None:
    catalog = kept(tmp_path)
    rows = {key: {"k": key} for key in ("a", "b", "\uffff", "\U0001f600")}
    assert list(catalog.rows("users").items()) == list(rows.items())
    assert catalog.rows("queues") == {}
    with pytest.raises(OSError, match="reading only"):
        catalog.commit([Change("users", "a", None)])
    assert catalog.rows("users") == rows
    catalog.close()
