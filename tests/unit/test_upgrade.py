"""Upgrades: nothing to do, a step, several, and those that must not be tried."""

import os
from pathlib import Path

import pytest

from amqpstore import Store
from amqpstore.errors import DamageError, FormatVersionError, NotAStoreError, StoreLockedError
from tools.upgrade import format_version, upgrade


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
    assert upgrade(store) == (1, 1)
    with Store.open(store):
        assert upgrade(store) == (1, 1)
    assert Path(store, "STORE").read_bytes() == before


def test_each_step_is_taken_once_and_in_order(store: str) -> None:
    taken = []

    def step(version: int) -> None:
        taken.append(version)
        say(store, version + 1)

    steps = {1: lambda _: step(1), 2: lambda _: step(2), 3: lambda _: step(3)}
    assert upgrade(store, steps, newest=3) == (1, 3)
    assert taken == [1, 2]
    assert upgrade(store, steps, newest=4) == (3, 4)
    assert taken == [1, 2, 3]


def test_an_upgrade_goes_on_where_it_failed(store: str) -> None:
    def fail(_directory: str) -> None:
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        upgrade(store, {1: lambda _: say(store, 2), 2: fail}, newest=3)
    assert format_version(store) == 2
    assert upgrade(store, {1: fail, 2: lambda _: say(store, 3)}, newest=3) == (2, 3)


def test_a_newer_store_is_refused(store: str) -> None:
    say(store, 7)
    with pytest.raises(FormatVersionError, match="has format version 7; this amqpstore reads"):
        upgrade(store)
    assert format_version(store) == 7


def test_nothing_is_begun_where_no_step_leads_to_the_end(store: str) -> None:
    with pytest.raises(FormatVersionError):
        upgrade(store, {1: lambda _: say(store, 2)}, newest=3)
    assert format_version(store) == 1


def test_a_step_that_does_not_say_so_is_an_error(store: str) -> None:
    with pytest.raises(DamageError, match="did not say so"):
        upgrade(store, {1: lambda _: None}, newest=2)


def test_a_store_that_is_open_is_refused_where_there_is_something_to_do(store: str) -> None:
    with Store.open(store), pytest.raises(StoreLockedError):
        upgrade(store, {1: lambda _: say(store, 2)}, newest=2)
    assert format_version(store) == 1


def test_what_is_no_store_is_refused(tmp_path: Path, store: str) -> None:
    with pytest.raises(NotAStoreError):
        upgrade(str(tmp_path))
    Path(store, "STORE").write_text("something else")
    with pytest.raises(DamageError):
        upgrade(store)
    assert os.path.getsize(Path(store, "STORE")) == 14
