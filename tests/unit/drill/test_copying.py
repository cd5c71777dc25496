"""Copies of data directories: the original is only read, and never while a broker has it."""

import os
from pathlib import Path

import pytest

from amqpstore import Envelope, Message, NotAStoreError, Store, StoreLockedError
from amqpstore_tools.drill.copying import copy_store, link_store, own_bytes


def contents(directory: str) -> dict[str, tuple[bytes, int]]:
    found = {}
    for root, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(root, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, directory)] = file.read(), os.stat(path).st_mtime_ns
    return found


@pytest.fixture
def store(data_directory: str) -> str:
    with Store.open(data_directory) as store:
        orders = store.create_queue({"name": "orders"})
        store.publish([orders], [Message(Envelope("", "orders", persistent=True), b"one")])
        store.sync()
    return data_directory


def test_the_original_is_as_it_was(store: str, tmp_path: Path) -> None:
    before = contents(store)
    copy_store(store, str(tmp_path / "copy"))
    assert contents(store) == before
    Store.open(str(tmp_path / "copy")).close()
    assert contents(store) == before


def test_a_store_that_is_open_is_not_copied(store: str, tmp_path: Path) -> None:
    with (
        Store.open(store),
        pytest.raises(StoreLockedError, match=f"process {os.getpid()}"),
    ):
        copy_store(store, str(tmp_path / "copy"))
    assert not (tmp_path / "copy").exists()


def test_what_is_no_store_is_not_copied(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a store")
    with pytest.raises(NotAStoreError):
        copy_store(str(tmp_path), str(tmp_path / "copy"))


def test_a_linked_copy_is_changed_without_the_store_it_is_of(store: str, tmp_path: Path) -> None:
    before = contents(store)
    copy = str(tmp_path / "linked")
    link_store(store, copy)
    Store.open(copy).close()
    (path,) = (os.path.join(copy, "segments", name) for name in os.listdir(f"{copy}/segments")[:1])
    own_bytes(path)
    with open(path, "ab") as file:
        file.write(b"more")
    assert contents(store) == before
    link_store(store, copy)
    assert contents(copy).keys() <= before.keys()
