"""Copies of stopped stores: whole, verified, and no store before they are finished."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from amqpstore import Store
from amqpstore.errors import DamageError, FormatVersionError, NotAStoreError
from amqpstore.identity import marker
from amqpstore.system.files import OsFiles
from amqpstore_tools.copying import copier, linking, manifest
from amqpstore_tools.copying.copier import CopyOptions, copy_store
from amqpstore_tools.copying.errors import CopyError
from amqpstore_tools.copying.inventory import InventoryFile
from amqpstore_tools.copying.target import INCOMPLETE
from amqpstore_tools.offline.pinning import PinnedFile
from tests.unit.copying.stores import bodies, contents, make_store, open_store, publish, queue_of

Paths = Callable[[str], str]


@pytest.fixture
def path(tmp_path: Path) -> Paths:
    return lambda name: str(tmp_path / name)


@pytest.fixture
def store(path: Paths) -> str:
    make_store(path("store"))
    return path("store")


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("close", [True, False])
def test_a_copy_holds_what_the_store_holds(path: Paths, links: bool, close: bool) -> None:
    make_store(path("store"), close=close)
    before = contents(path("store"))
    copied = copy_store(path("store"), path("copy"), CopyOptions(links=links))
    assert contents(path("store")) == before
    assert not copied.damage
    assert not copied.was_running
    assert ("linked" in copied.files) is links
    assert bodies(path("copy")) == bodies(path("store"))


def test_a_linked_copy_and_its_store_go_their_own_ways(path: Paths, store: str) -> None:
    copy_store(store, path("copy"), CopyOptions())
    expected = bodies(store)["orders"]
    with open_store(path("copy")) as copy:
        copy.purge(queue_of(copy, "orders"))
        copy.upkeep.checkpoint()
    with open_store(store) as original:
        publish(original, "orders", [b"one more"])
    assert bodies(path("copy"))["orders"] == []
    assert bodies(store)["orders"] == [*expected, b"one more"]


def test_the_log_is_cut_behind_its_last_whole_batch(path: Paths) -> None:
    make_store(path("store"), close=False)
    expected = bodies(path("store"))
    tail = os.path.join(path("store"), "segments", max(os.listdir(path("store") + "/segments")))
    size = os.path.getsize(tail)
    shutil.copytree(path("store"), path("before"))
    with open_store(path("store")) as store:
        publish(store, "orders", [b"x" * 3000])
    last = os.path.join(path("store"), "segments", max(os.listdir(path("store") + "/segments")))
    with open(last, "rb") as file:
        content = file.read()
    shutil.rmtree(path("store"))
    shutil.copytree(path("before"), path("store"))
    # As if the process had been killed while it wrote that batch.
    with open(tail, "ab") as file:
        file.write(content[60:1000])
    copied = copy_store(path("store"), path("copy"), CopyOptions())
    assert (copied.log_offset, copied.damage) == (size, [])
    assert bodies(path("copy")) == expected


def test_a_segment_that_is_torn_from_its_start_is_left_out(path: Paths) -> None:
    make_store(path("store"), close=False)
    expected = bodies(path("store"))
    segments = os.path.join(path("store"), "segments")
    last = int(max(os.listdir(segments))[:10])
    Path(segments, f"{last + 1:010}.segment").write_bytes(b"\xc7REC and no more of it")
    # The end of the one before was noted by the store that was opened to look into it.
    copied = copy_store(path("store"), path("copy"), CopyOptions())
    assert copied.log_segment == last
    assert bodies(path("copy")) == expected


def test_what_was_durable_before_the_torn_tail_is_no_torn_tail_of_the_copy(path: Paths) -> None:
    """The last durable batch is damaged, and a batch after it was torn."""
    make_store(path("store"), close=False)
    with open_store(path("store")) as store:
        publish(store, "orders", [b"durable"])
        start = store.log.position.offset
        publish(store, "orders", [b"damaged"])
        publish(store, "orders", [b"torn"])
        tail = store.log.segments[-1].path
        store.abandon()
    content = bytearray(Path(tail).read_bytes())
    content[start + 40] ^= 1
    Path(tail).write_bytes(content[:-1])
    copy_store(path("store"), path("copy"), CopyOptions())
    reports = []
    for name in ("store", "copy"):
        with open_store(path(name)) as store:
            reports.append(store.recovery_report)
    assert len(reports[0].damage) == len(reports[1].damage) == 1
    assert reports[0].lost == reports[1].lost != []
    assert reports[1].torn_bytes == 0 < reports[0].torn_bytes


def test_a_segment_that_is_missing_though_its_end_is_noted_is_damage(path: Paths) -> None:
    make_store(path("store"), close=False)
    # That start notes it. No checkpoint has come so far.
    open_store(path("store")).abandon()
    last = max(os.listdir(path("store") + "/segments"))
    os.remove(f"{path('store')}/segments/{last}")
    copied = copy_store(path("store"), path("copy"), CopyOptions())
    # A note has its position, too: so the log is known to be short.
    assert [one.path for one in copied.damage] == [f"segments/{last}", "segments"]


def test_what_has_not_changed_is_shared_with_an_earlier_copy(path: Paths, store: str) -> None:
    copy_store(store, path("first"), CopyOptions(links=False))
    with open_store(store) as original:
        publish(original, "orders", [b"one more"])
    copied = copy_store(store, path("second"), CopyOptions(links=False, against=path("first")))
    shared = copied.files["earlier"]
    assert shared >= 5
    assert copied.files["copied"] == 4
    shared_files = [
        entry.path
        for folder in ("segments", "trails")
        for entry in os.scandir(f"{path('second')}/{folder}")
        if entry.stat().st_nlink == 2
    ]
    assert len(shared_files) == shared
    assert bodies(path("second")) == bodies(store)
    # The earlier copy may go.
    shutil.rmtree(path("first"))
    assert bodies(path("second")) == bodies(store)


def test_a_damaged_earlier_copy_is_found_when_all_is_verified(path: Paths, store: str) -> None:
    copy_store(store, path("first"), CopyOptions(links=False))
    _flip(path("first") + "/segments/0000000001.segment", 500)
    with pytest.raises(
        CopyError, match=r"0000000001\.segment in .*first has changed since it was copied"
    ):
        copy_store(store, path("second"), CopyOptions(against=path("first"), verify="all"))
    assert not os.path.exists(path("second"))


def test_an_earlier_copy_is_one_of_the_same_store(path: Paths, store: str) -> None:
    make_store(path("other"))
    copy_store(path("other"), path("first"), CopyOptions())
    with pytest.raises(CopyError, match="is a copy of another store"):
        copy_store(store, path("second"), CopyOptions(against=path("first")))
    assert not os.path.exists(path("second"))
    with pytest.raises(CopyError, match="is not a finished copy"):
        copy_store(store, path("second"), CopyOptions(against=store))


def test_another_segment_under_the_same_name_is_not_shared(path: Paths, store: str) -> None:
    copy_store(store, path("first"), CopyOptions(links=False))
    segment = "/segments/0000000002.segment"
    stat = os.stat(store + segment)
    with open(store + segment, "r+b") as file:
        file.seek(50)
        file.write(b"\0")
    os.utime(store + segment, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
    copied = copy_store(store, path("second"), CopyOptions(links=False, against=path("first")))
    assert copied.files["copied"] == 3
    assert [one.path for one in copied.damage] == ["segments/0000000002.segment"]


def test_damage_in_the_store_is_copied_and_named(path: Paths, store: str) -> None:
    _flip(store + "/segments/0000000003.segment", 300)
    _flip(store + "/index/" + os.listdir(store + "/index")[0], 100)
    copied = copy_store(store, path("copy"), CopyOptions())
    assert {one.path[:6] for one in copied.damage} == {"segmen", "index/"}
    found = manifest.read(path("copy"))
    assert found
    assert found.damage == copied.damage
    assert (
        contents(path("copy"))["segments/0000000003.segment"]
        == contents(store)["segments/0000000003.segment"]
    )


def test_a_missing_file_is_damage(path: Paths, store: str) -> None:
    os.unlink(store + "/segments/0000000003.segment")
    copied = copy_store(store, path("copy"), CopyOptions())
    assert [(one.path, one.reason) for one in copied.damage] == [
        ("segments/0000000003.segment", "it is missing")
    ]


def test_what_is_removed_while_it_is_copied_is_copied_all_the_same(
    path: Paths, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker's compaction may remove a segment that the copy has pinned before."""
    expected = bodies(store)
    removed = "segments/0000000002.segment"
    shutil.copytree(store, path("busy"))
    copy = linking._Linker.copy

    def remove_first(
        linker: linking._Linker, stored: InventoryFile, file: PinnedFile
    ) -> linking.FileCopy:
        if stored.path == removed:
            os.unlink(file.path)
        return copy(linker, stored, file)

    monkeypatch.setattr(linking._Linker, "copy", remove_first)
    copied = copy_store(path("busy"), path("copy"), CopyOptions())
    assert not os.path.exists(f"{path('busy')}/{removed}")
    assert not copied.damage
    assert bodies(path("copy")) == expected


def test_of_damage_no_copy_is_made_where_that_is_refused(path: Paths, store: str) -> None:
    os.unlink(store + "/segments/0000000003.segment")
    with pytest.raises(CopyError, match=r"damaged in 1 place,.*0000000003\.segment at 0"):
        copy_store(store, path("copy"), CopyOptions(refuse_damage=True))
    assert not os.path.exists(path("copy"))


@pytest.mark.parametrize("break_it", ["missing", "cut", "zeros"])
def test_of_a_store_without_its_catalog_no_copy_is_made(
    path: Paths, store: str, break_it: str
) -> None:
    catalog = store + "/catalog/data.mdb"
    if break_it == "missing":
        os.unlink(catalog)
    elif break_it == "cut":
        os.truncate(catalog, 10_000)
    else:
        Path(catalog).write_bytes(bytes(os.path.getsize(catalog)))
    with pytest.raises(DamageError):
        copy_store(store, path("copy"), CopyOptions())
    assert not os.path.exists(path("copy"))


def test_only_stores_are_copied(path: Paths, store: str) -> None:
    with pytest.raises(NotAStoreError):
        copy_store(path("nowhere"), path("copy"), CopyOptions())
    os.mkdir(path("notes"))
    Path(path("notes"), "notes.txt").write_text("not a store")
    with pytest.raises(NotAStoreError, match="no file STORE"):
        copy_store(path("notes"), path("copy"), CopyOptions())
    Path(store, "STORE").write_text("amqpstore\nformat-version: 3\nstore-id: 0\n")
    with pytest.raises(FormatVersionError):
        copy_store(store, path("copy"), CopyOptions())
    assert not os.path.exists(path("copy"))


def test_nothing_is_written_where_something_is(path: Paths, store: str) -> None:
    make_store(path("other"))
    before = contents(path("other"))
    with pytest.raises(CopyError, match="is a store"):
        copy_store(store, path("other"), CopyOptions())
    assert contents(path("other")) == before
    os.unlink(path("other") + "/STORE")
    with pytest.raises(CopyError, match="not empty"):
        copy_store(store, path("other"), CopyOptions())
    with pytest.raises(CopyError, match="not a directory"):
        copy_store(store, path("other") + "/lock", CopyOptions())


def test_a_copy_that_was_cut_off_is_no_store_and_is_begun_anew(
    path: Paths, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended at each of its steps, without the clearing away that an orderly end has."""

    class PowerLostError(Exception):
        pass

    steps = [
        (copier, "make_folders"),
        (copier, "open_source"),
        (copier._Copy, "_file"),
        (copier._Copy, "_catalog"),
        (copier._Copy, "_finish"),
        (copier._Copy, "_write_manifest"),
        (marker, "write"),
    ]
    expected = bodies(store)
    for number, (owner, name) in enumerate(steps):
        target = path(f"copy{number}")

        def fail(*_: object, **__: object) -> None:
            raise PowerLostError

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            patch.setattr(copier, "clear", lambda _target: (_ for _ in ()).throw(OSError()))
            os.mkdir(target)
            Path(target, INCOMPLETE).touch()
            patch.setattr(copier, "_take", lambda _target: False)
            with pytest.raises(PowerLostError):
                copy_store(store, target, CopyOptions())
        assert os.path.exists(os.path.join(target, INCOMPLETE))
        assert marker.read(OsFiles(), target) is None
        with pytest.raises(NotAStoreError):
            Store.open(target)
        copy_store(store, target, CopyOptions())
        assert bodies(target) == expected
        assert not os.path.exists(os.path.join(target, INCOMPLETE))


def test_an_error_leaves_nothing(path: Paths, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(copier, "write_tables", fail)
    with pytest.raises(OSError, match="No space"):
        copy_store(store, path("copy"), CopyOptions())
    assert not os.path.exists(path("copy"))
    os.mkdir(path("empty"))
    with pytest.raises(OSError, match="No space"):
        copy_store(store, path("empty"), CopyOptions())
    assert os.listdir(path("empty")) == []


def test_a_store_that_this_process_has_open_is_copied(path: Paths, store: str) -> None:
    expected = bodies(store)
    with open_store(store):
        assert copy_store(store, path("copy"), CopyOptions()).was_running
    assert bodies(path("copy")) == expected


def _flip(path: str, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def test_what_a_repair_keeps_is_not_copied(path: Paths, store: str) -> None:
    os.makedirs(store + "/quarantine/repair-0000000001/old")
    copy_store(store, path("copy"), CopyOptions())
    assert not os.path.exists(path("copy") + "/quarantine")
