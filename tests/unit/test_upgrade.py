"""Upgrades: nothing to do, a step, several, and those that must not be tried."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

import fixtures.contents
from amqpstore import Store
from amqpstore.catalog.catalog import LmdbCatalog
from amqpstore.errors import DamageError, FormatVersionError, NotAStoreError, StoreLockedError
from amqpstore_tools.verbs.upgrade import format_version, upgrade
from fixtures.contents import contents

FIXTURES = Path(fixtures.contents.__file__).parent


@pytest.fixture
def store(data_directory: str) -> str:
    Store.open(data_directory).close()
    return data_directory


def say(directory: str, version: int) -> None:
    path = Path(directory, "STORE")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], f"format-version: {version}", *lines[2:], ""]))


def test_a_store_of_this_version_is_left_alone(store: str) -> None:
    before = Path(store, "STORE").read_bytes()
    assert upgrade(store) == (2, 2)
    with Store.open(store):
        assert upgrade(store) == (2, 2)
    assert Path(store, "STORE").read_bytes() == before


@pytest.mark.skipif(sys.byteorder != "little", reason="the catalogs are of little-endian machines")
@pytest.mark.parametrize("name", ["golden", "torn"])
def test_a_store_of_version_1_is_the_same_one_in_version_2(tmp_path: Path, name: str) -> None:
    fixture = FIXTURES / "v1" / name
    store = str(shutil.copytree(fixture / "store", tmp_path / "store"))
    with pytest.raises(DamageError, match="it has no checksum"):
        LmdbCatalog(os.path.join(store, "catalog"), False)
    assert upgrade(store) == (1, 2)
    LmdbCatalog(os.path.join(store, "catalog"), False).close()
    assert contents(store) == json.loads((fixture / "expected.json").read_text("utf-8"))
    assert upgrade(store) == (2, 2)


@pytest.mark.skipif(sys.byteorder != "little", reason="the catalogs are of little-endian machines")
def test_opening_a_store_of_version_1_upgrades_it(tmp_path: Path) -> None:
    store = str(shutil.copytree(FIXTURES / "v1" / "golden" / "store", tmp_path / "store"))
    Store.open(store).close()
    assert format_version(store) == 2
    LmdbCatalog(os.path.join(store, "catalog"), False).close()


def test_each_step_is_taken_once_and_in_order(store: str) -> None:
    taken = []

    def step(version: int) -> None:
        taken.append(version)
        say(store, version + 1)

    steps = {2: lambda _: step(2), 3: lambda _: step(3), 4: lambda _: step(4)}
    assert upgrade(store, steps, newest=4) == (2, 4)
    assert taken == [2, 3]
    assert upgrade(store, steps, newest=5) == (4, 5)
    assert taken == [2, 3, 4]


def test_an_upgrade_goes_on_where_it_failed(store: str) -> None:
    def fail(_directory: str) -> None:
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        upgrade(store, {2: lambda _: say(store, 3), 3: fail}, newest=4)
    assert format_version(store) == 3
    assert upgrade(store, {2: fail, 3: lambda _: say(store, 4)}, newest=4) == (3, 4)


def test_a_newer_store_is_refused(store: str) -> None:
    say(store, 7)
    with pytest.raises(FormatVersionError, match="has format version 7; this amqpstore reads"):
        upgrade(store)
    assert format_version(store) == 7


def test_nothing_is_begun_where_no_step_leads_to_the_end(store: str) -> None:
    with pytest.raises(FormatVersionError):
        upgrade(store, {2: lambda _: say(store, 3)}, newest=4)
    assert format_version(store) == 2


def test_a_step_that_does_not_say_so_is_an_error(store: str) -> None:
    with pytest.raises(DamageError, match="did not record it"):
        upgrade(store, {2: lambda _: None}, newest=3)


def test_a_store_that_is_open_is_refused_where_there_is_something_to_do(store: str) -> None:
    with Store.open(store), pytest.raises(StoreLockedError):
        upgrade(store, {2: lambda _: say(store, 3)}, newest=3)
    assert format_version(store) == 2


def test_what_is_no_store_is_refused(tmp_path: Path, store: str) -> None:
    with pytest.raises(NotAStoreError):
        upgrade(str(tmp_path))
    Path(store, "STORE").write_text("something else")
    with pytest.raises(DamageError):
        upgrade(store)
    assert os.path.getsize(Path(store, "STORE")) == 14
