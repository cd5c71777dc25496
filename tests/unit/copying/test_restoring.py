"""A copy takes a store's place: checked before, at once, and the old one is kept."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from amqpstore.errors import NotAStoreError, StoreLockedError
from amqpstore_tools.copying import swapping
from amqpstore_tools.copying.copier import CopyOptions, copy_store
from amqpstore_tools.copying.errors import CopyError
from amqpstore_tools.copying.restoring import Restored, restore
from tests.unit.copying.stores import bodies, contents, make_store, open_store, publish

Paths = Callable[[str], str]


@pytest.fixture
def path(tmp_path: Path) -> Paths:
    return lambda name: str(tmp_path / name)


@pytest.fixture
def copy(path: Paths) -> str:
    make_store(path("original"), batches=10)
    copy_store(path("original"), path("copy"), CopyOptions(links=False))
    return path("copy")


@pytest.fixture
def target(path: Paths) -> str:
    with open_store(path("place")) as store:
        publish(store, "orders", [b"old"])
    return path("place")


def put(copy: str, directory: str, *, links: bool = False, damaged: bool = False) -> Restored:
    return restore(copy, directory, links=links, accept_damage=damaged)


def test_a_fresh_volume_is_empty(path: Paths, copy: str) -> None:
    os.makedirs(path("volume/lost+found"))
    assert not put(copy, path("volume")).kept
    assert bodies(path("volume")) == bodies(path("original"))
    os.makedirs(path("backup/lost+found"))
    copy_store(path("volume"), path("backup"), CopyOptions(links=False))
    assert bodies(path("backup")) == bodies(path("original"))


@pytest.mark.parametrize("links", [True, False])
def test_the_copy_takes_the_place_and_what_was_there_is_kept(
    path: Paths, copy: str, target: str, links: bool
) -> None:
    Path(target, "notes.txt").write_text("not the store's")
    before, of_copy = contents(target), contents(copy)
    restored = put(copy, target, links=links)
    assert restored.kept
    assert restored.kept.startswith(f"{target}.before-restore-")
    assert contents(restored.kept).keys() == before.keys()
    assert bodies(restored.kept) == {"orders": [b"old"]}
    assert bodies(target) == bodies(path("original"))
    assert contents(copy) == of_copy
    assert not os.path.exists(f"{target}/COPY.json")
    assert sorted(os.listdir(os.path.dirname(target))) == sorted(
        ["copy", "original", "place", os.path.basename(restored.kept)]
    )


@pytest.mark.parametrize("there", ["nothing", "empty", "cut off"])
def test_a_copy_is_restored_where_nothing_is(path: Paths, copy: str, there: str) -> None:
    if there != "nothing":
        os.makedirs(path("place/segments"))
        os.rmdir(path("place/segments"))
    if there == "cut off":
        shutil.copytree(copy, path("place"), dirs_exist_ok=True)
        os.unlink(path("place/STORE"))
        Path(path("place"), "COPY.incomplete").touch()
    assert put(copy, path("place")).kept is None
    assert bodies(path("place")) == bodies(path("original"))


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("segments/0000000002.segment", "0000000002.segment in .* has changed since it was copied"),
        ("index/00000000000000000001-0000000001.index", "has changed since it was copied"),
        ("catalog/data.mdb", "If a broker has run on that copy"),
    ],
)
@pytest.mark.parametrize("how", ["flipped", "cut", "missing"])
def test_a_copy_that_is_not_what_it_was_is_refused(
    path: Paths, copy: str, target: str, file: str, says: str, how: str, is_there: bool
) -> None:
    if not is_there:
        shutil.rmtree(target)
    before = contents(target)
    damaged = os.path.join(copy, file)
    if how == "missing":
        os.unlink(damaged)
        says = f"{says}|is missing"
    elif how == "cut":
        os.truncate(damaged, os.path.getsize(damaged) - 1)
    else:
        with open(damaged, "r+b") as opened:
            opened.seek(70)
            opened.write(b"\xff\xff\xff")
    with pytest.raises(CopyError, match=says):
        put(copy, target)
    assert contents(target) == before
    assert os.path.exists(target) is is_there
    assert not os.path.exists(f"{target}.restoring")


def test_a_copy_of_damage_is_restored_only_where_that_is_said(path: Paths, target: str) -> None:
    make_store(path("original"), batches=10)
    os.unlink(path("original/segments/0000000001.segment"))
    copy_store(path("original"), path("copy"), CopyOptions())
    before = contents(target)
    with pytest.raises(CopyError, match=r"accept that with --damaged"):
        put(path("copy"), target)
    assert contents(target) == before
    assert put(path("copy"), target, damaged=True).copied.damage


def test_a_copy_that_was_used_is_restored_without_its_list(
    path: Paths, copy: str, target: str
) -> None:
    with open_store(copy) as used:
        publish(used, "orders", [b"one more"])
    with pytest.raises(CopyError, match=r"remove its COPY\.json"):
        put(copy, target)
    os.unlink(f"{copy}/COPY.json")
    put(copy, target)
    assert bodies(target)["orders"][-1] == b"one more"


def test_a_store_that_is_open_is_not_replaced(copy: str, target: str) -> None:
    with open_store(target), pytest.raises(StoreLockedError, match=f"process {os.getpid()}"):
        put(copy, target)
    assert bodies(target) == {"orders": [b"old"]}


def test_what_is_no_store_is_not_replaced(path: Paths, copy: str) -> None:
    os.mkdir(path("place"))
    Path(path("place"), "notes.txt").write_text("not a store")
    with pytest.raises(NotAStoreError):
        put(copy, path("place"))
    with pytest.raises(NotAStoreError):
        put(path("place"), path("elsewhere"))
    with pytest.raises(CopyError, match="from itself"):
        put(copy, copy)
    assert contents(path("place")) == {"notes.txt": b"not a store"}


def test_what_is_in_the_way_is_left_alone(copy: str, target: str) -> None:
    os.mkdir(f"{target}.restoring")
    Path(f"{target}.restoring", "mine").touch()
    with pytest.raises(CopyError, match="is in the way"):
        put(copy, target)
    assert os.listdir(f"{target}.restoring") == ["mine"]


def test_what_a_crash_left_beside_is_removed(path: Paths, copy: str, target: str) -> None:
    os.mkdir(f"{target}.restoring")
    Path(f"{target}.restoring", "amqpstore-work").touch()
    shutil.copytree(copy, f"{target}.restoring/store")
    put(copy, target)
    assert bodies(target) == bodies(path("original"))
    assert not os.path.exists(f"{target}.restoring")


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.EACCES])
def test_a_file_system_that_cannot_exchange_names(
    path: Paths, copy: str, target: str, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: str) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(swapping, "exchange", fail)
    if number == errno.EACCES:
        with pytest.raises(OSError, match="Permission"):
            put(copy, target)
        assert bodies(target) == {"orders": [b"old"]}
        assert not [name for name in os.listdir(os.path.dirname(target)) if "restor" in name]
        return
    restored = put(copy, target)
    assert restored.kept
    assert bodies(restored.kept) == {"orders": [b"old"]}
    assert bodies(target) == bodies(path("original"))


def test_a_mount_point_is_not_replaced(
    copy: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os.path, "ismount", lambda _path: True)
    with pytest.raises(CopyError, match="mount point"):
        put(copy, target)


def test_a_link_to_a_data_directory_stays_one(path: Paths, copy: str, target: str) -> None:
    os.symlink(target, path("link"))
    put(copy, path("link"))
    assert os.path.islink(path("link"))
    assert bodies(target) == bodies(path("original"))
