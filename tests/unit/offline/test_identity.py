"""Tests of which store a directory is: all readers follow one rule, however much of it is lost.

Three stores are made alike, so that marker, catalog and segments of a directory can be of different
ones.
"""

import functools
import itertools
import os
import shutil
from pathlib import Path

import pytest

from amqpstore import Envelope, Message, Options, Store
from amqpstore.catalog.catalog import LmdbCatalog
from amqpstore.catalog.definitions import DefinitionsCopy, write_copy
from amqpstore.errors import DamageError, NotAStoreError
from amqpstore.format.records import Gap
from amqpstore.identity import identity, marker
from amqpstore.system.files import OsFiles
from amqpstore_tools.check.engine import check
from amqpstore_tools.check.store import ReadableStore
from amqpstore_tools.copying.copier import CopyOptions, copy_store
from amqpstore_tools.repair.errors import UnknownStoreError
from amqpstore_tools.repair.facts import gather
from amqpstore_tools.repair.imaging import RemainingImage

MADE = ("one", "two", "three")
OPTIONS = Options(segment_bytes=1, reserve_bytes=0)
"""Each batch has a segment of its own."""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Three stores of three segments, by name."""
    root = tmp_path_factory.mktemp("stores")
    for name in MADE:
        store = Store.open(str(root / name), options=OPTIONS)
        queue = store.create_queue({"library": 1, "name": name})
        for _ in range(3):
            store.publish([queue], [Message(Envelope("", "q"), b"body")])
            store.sync()
        store.close()
    return {name: str(root / name) for name in MADE}


@functools.cache
def id_of(directory: str) -> bytes:
    return marker.require(OsFiles(), directory).store_id.bytes


class Mixed:
    """A directory whose files are of several stores; "" is none."""

    def __init__(self, directory: Path, stores: dict[str, str]) -> None:
        self.directory = str(directory)
        self._stores = stores
        for name in ("segments", "catalog", "index"):
            os.makedirs(directory / name)

    def take(self, name: str, store: str) -> None:
        """Have a file of a store."""
        path = os.path.join(self.directory, name)
        if store:
            shutil.copy(os.path.join(self._stores[store], name), path)
        elif os.path.exists(path):
            os.remove(path)

    def segments(self, *stores: str) -> None:
        for number, store in enumerate(stores, 1):
            self.take(f"segments/{number:010}.segment", store)


@pytest.fixture
def mixed(tmp_path: Path, stores: dict[str, str]) -> Mixed:
    return Mixed(tmp_path / "mixed", stores)


def readers(directory: str) -> set[bytes | None]:
    """Return what those say who look for the store in a directory that may be damaged."""
    found = set()
    try:
        with RemainingImage.open(directory) as image:
            found.add(image.store_id.bytes if image.store_id else None)
    except UnknownStoreError:
        found.add(None)
    checked = check(directory)
    found.add(checked.store_id)
    try:
        found.add(gather(ReadableStore.stopped(directory), checked, lambda *_: None).store_id)
    except UnknownStoreError:
        found.add(None)
    return found


def expected(in_marker: str, in_catalog: str, in_segments: tuple[str, ...]) -> str:
    """The rule, from FORMAT.md."""
    if in_marker and in_marker == in_catalog:
        return in_marker
    if in_segments:
        most = max(map(in_segments.count, in_segments))
        order = (in_marker, in_catalog, *in_segments)
        return next(one for one in order if one and in_segments.count(one) == most)
    return in_marker or in_catalog


SEGMENTS = [(), ("one",), ("two", "one"), ("three", "two", "two"), ("one", "two", "three")]


@pytest.mark.parametrize("in_segments", SEGMENTS, ids="+".join)
def test_all_readers_find_the_same_store(
    tmp_path: Path, stores: dict[str, str], in_segments: tuple[str, ...]
) -> None:
    for number, (in_marker, in_catalog) in enumerate(
        itertools.product(("", "one", "two"), ("", "one", "two", "three"))
    ):
        mixed = Mixed(tmp_path / str(number), stores)
        mixed.take("STORE", in_marker)
        mixed.take("catalog/data.mdb", in_catalog)
        mixed.segments(*in_segments)
        if not (in_marker or in_segments):
            with pytest.raises(NotAStoreError):
                RemainingImage.open(mixed.directory)
            continue
        wanted = stores[expected(in_marker, in_catalog, in_segments)]
        assert readers(mixed.directory) == {id_of(wanted)}, (in_marker, in_catalog)


def test_a_flipped_digit_of_the_marker_does_not_hide_the_messages(
    tmp_path: Path, stores: dict[str, str]
) -> None:
    directory = str(tmp_path / "flipped")
    shutil.copytree(stores["one"], directory)
    content = bytearray(Path(directory, "STORE").read_bytes())
    content[-2] = ord("0") if content[-2] != ord("0") else ord("1")
    Path(directory, "STORE").write_bytes(content)
    with pytest.raises(DamageError, match="the catalog belongs to another store"):
        Store.open(directory)
    assert readers(directory) == {id_of(stores["one"])}
    with RemainingImage.open(directory) as image:
        assert image.marker_reason is not None
        assert "another store" in image.marker_reason
        assert image.catalog_reason is None
        assert [queue.live_count for queue in image.queues] == [3]
    assert [one.code for one in check(directory).findings] == ["store-id-differs"]


def test_a_store_is_opened_and_copied_where_marker_and_catalog_agree(
    mixed: Mixed, tmp_path: Path, stores: dict[str, str]
) -> None:
    mixed.take("STORE", "one")
    mixed.segments("two", "two", "two")
    mixed.take("catalog/data.mdb", "two")
    with pytest.raises(DamageError, match="the catalog belongs to another store"):
        copy_store(mixed.directory, str(tmp_path / "refused"), CopyOptions())
    with pytest.raises(DamageError, match="the catalog belongs to another store"):
        Store.open(mixed.directory)
    mixed.take("catalog/data.mdb", "one")
    with Store.open(mixed.directory, options=OPTIONS) as store:
        # The others are before the checkpoint's position: what is in them is met when it is read.
        (path, _, _, reason), (index, *_) = store.recovery_report.damage
        assert path.endswith("3.segment")
        assert "another store" in reason
        assert index.endswith(".index")  # it has none of its index files
    assert readers(mixed.directory) == {id_of(stores["one"])}


def test_where_nothing_else_says_it_the_copy_of_the_definitions_does(
    mixed: Mixed, stores: dict[str, str]
) -> None:
    mixed.segments("one")
    path = Path(mixed.directory, "segments/0000000001.segment")
    path.write_bytes(bytes(10) + path.read_bytes()[10:])
    assert readers(mixed.directory) == {None}
    write_copy(OsFiles(), mixed.directory, DefinitionsCopy(id_of(stores["three"]), 1, {}))
    assert readers(mixed.directory) == {id_of(stores["three"])}


def test_a_catalog_that_does_not_say_it(tmp_path: Path) -> None:
    catalog = LmdbCatalog(str(tmp_path), True)
    assert identity.why_foreign_catalog(catalog.rows, b"1" * 16) == "the catalog is empty"
    catalog.close()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b"\0" * 100, "no record starts here"),
        (b"\xc7REC", "shorter than a record's header"),
    ],
)
def test_a_segment_that_does_not_say_it(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "0000000001.segment"
    path.write_bytes(content)
    found = identity.read_header(OsFiles(), str(path), 1)
    assert isinstance(found, Gap)
    assert found.reason == said
