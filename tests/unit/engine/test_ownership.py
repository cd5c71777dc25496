"""Tests of who owns the files that root creates in a store."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from amqpstore import Options, Store
from amqpstore.system import ownership
from amqpstore.system.files import OsFiles
from amqpstore.system.ownership import Owner, give_directory, make_directories, owner_in
from amqpstore.upkeep.worker import InlineWorker

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")

BROKER = Owner(1234, 5678)
OTHER = Owner(4321, 8765)


@pytest.fixture
def store(tmp_path: Path) -> str:
    directory = str(tmp_path / "store")
    Store.open(directory, options=Options(reserve_bytes=0), worker=InlineWorker()).close()
    return directory


def give_all(directory: str, owner: Owner) -> None:
    for folder, _, names in os.walk(directory):
        for name in (".", *names):
            os.chown(f"{folder}/{name}", *owner)


def owners(directory: str) -> set[Owner]:
    return {
        ownership.owner_of(f"{folder}/{name}")
        for folder, _, names in os.walk(directory)
        for name in (".", *names)
    }


def test_it_is_the_owner_of_the_directory(store: str) -> None:
    give_all(store, BROKER)
    os.chown(f"{store}/index", *OTHER)
    assert owner_in(f"{store}/segments") == BROKER
    assert owner_in(f"{store}/index") == OTHER


def test_in_a_directory_of_root_it_is_the_owner_of_the_store(store: str) -> None:
    os.chown(store, *BROKER)
    assert owner_in(f"{store}/segments") == BROKER
    os.makedirs(f"{store}/quarantine/repair-0000000001/new/segments")
    assert owner_in(f"{store}/quarantine/repair-0000000001/new/segments") == BROKER


def test_in_a_volume_of_root_it_is_the_owner_of_the_marker(store: str) -> None:
    give_all(store, BROKER)
    os.chown(store, 0, 5678)
    assert owner_in(store) == BROKER
    assert owner_in(f"{store}/segments") == BROKER


def test_a_store_of_root_stays_that_of_root(store: str, tmp_path: Path) -> None:
    os.chown(tmp_path, *OTHER)  # what the store is in says nothing
    assert owner_in(store) == owner_in(f"{store}/segments") == Owner(0, 0)


def test_a_directory_that_is_no_store_has_its_own_owner(tmp_path: Path) -> None:
    assert owner_in(str(tmp_path)) == Owner(0, 0)
    os.chown(tmp_path, *OTHER)
    assert owner_in(str(tmp_path)) == OTHER


def test_a_store_that_root_opens_stays_that_of_its_owner(store: str) -> None:
    give_all(store, BROKER)
    os.remove(f"{store}/lock")
    os.remove(f"{store}/catalog/lock.mdb")
    Store.open(store, options=Options(reserve_bytes=1 << 20), worker=InlineWorker()).close()
    assert os.path.exists(f"{store}/catalog/lock.mdb")
    assert os.path.exists(f"{store}/reserve")
    assert owners(store) == {BROKER}


def test_a_store_that_root_creates_belongs_to_the_owner_of_its_directory(tmp_path: Path) -> None:
    os.chown(tmp_path, *BROKER)
    Store.open(str(tmp_path), options=Options(reserve_bytes=0), worker=InlineWorker()).close()
    assert owners(str(tmp_path)) == {BROKER}


def test_lock_files_of_root_are_given_back(store: str) -> None:
    give_all(store, BROKER)
    for name in ("lock", "catalog/lock.mdb"):
        os.chown(f"{store}/{name}", 0, 0)
    Store.open(store, options=Options(reserve_bytes=0), worker=InlineWorker()).close()
    assert owners(store) == {BROKER}


def test_a_file_with_another_name_is_not_given_away(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.touch()
    directory = tmp_path / "directory"
    directory.mkdir()
    os.link(outside, directory / "linked")
    os.chown(directory, *BROKER)
    with open(directory / "linked", "rb") as file:
        ownership.give(file.fileno(), str(directory))
    assert ownership.owner_of(str(outside)) == Owner(0, 0)


def test_a_link_is_not_taken_for_the_directory(tmp_path: Path) -> None:
    os.chown(tmp_path, *BROKER)
    os.symlink("/etc", tmp_path / "linked")
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        give_directory(str(tmp_path / "linked"))


def test_directories_are_made_with_their_parents(tmp_path: Path) -> None:
    os.chown(tmp_path, *BROKER)
    for _ in range(2):
        make_directories(f"{tmp_path}/a/b")
    assert owners(str(tmp_path)) == {BROKER}
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_directories(f"{tmp_path}/file")


@pytest.mark.parametrize("number", [errno.EPERM, errno.EINVAL, errno.EDQUOT])
def test_who_may_not_give_files_away_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    os.chown(tmp_path, *BROKER)

    def refuse(descriptor: int, *_owner: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fchown", refuse)
    if number == errno.EDQUOT:  # the owner's disk space is used up
        with pytest.raises(OSError, match="quota"):
            OsFiles().create(f"{tmp_path}/file")
        assert os.listdir(tmp_path) == []
    else:
        make_directories(f"{tmp_path}/directory")
        assert os.listdir(tmp_path) == ["directory"]
