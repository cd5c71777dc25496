"""Files are identified by their records, whatever their names, directories and damage."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from amqpstore import Message, Options, Store
from amqpstore.evidence import FileKind, IdentifiedFile, find_files, identify
from amqpstore.identity.identity import SegmentHeader, read_header
from amqpstore.system.filenames import INDEX, QUARANTINE, SEGMENTS, segment_name
from amqpstore.system.files import OsFiles
from amqpstore.upkeep.worker import InlineWorker
from tests.unit.engine.stores import ENVELOPE

FILES = OsFiles()


def filled(directory: Path) -> bytes:
    """Make a store of three segments and one index file. Returns its id."""
    options = Options(segment_bytes=1 << 12, reserve_bytes=0)
    with Store.open(str(directory), options=options, worker=InlineWorker()) as store:
        queue = store.create_queue({"name": "orders"})
        for number in range(3):
            store.publish([queue], [Message(ENVELOPE, bytes([number]) * 5000)])
            store.sync()
    header = read_header(FILES, str(directory / SEGMENTS / segment_name(1)), 1)
    assert isinstance(header, SegmentHeader)
    return header.store_id


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    path = tmp_path_factory.mktemp("pristine")
    return path, filled(path)


@pytest.fixture
def store(pristine: tuple[Path, bytes], tmp_path: Path) -> tuple[Path, bytes]:
    path, store_id = pristine
    return Path(shutil.copytree(path, tmp_path / "store")), store_id


def found_in(directory: Path, store_id: bytes) -> dict[str, tuple[FileKind, int]]:
    return {
        os.path.relpath(found.path, directory): (found.kind, found.number)
        for found in find_files(FILES, str(directory), store_id)
    }


def test_each_file_of_a_store_is_found_where_it_belongs(store: tuple[Path, bytes]) -> None:
    directory, store_id = store
    found = list(find_files(FILES, str(directory), store_id))
    assert [one.number for one in found if one.kind is FileKind.SEGMENT] == [1, 2, 3]
    assert [(one.queue_id, one.number) for one in found if one.kind is FileKind.INDEX] == [(1, 1)]
    for one in found:
        assert one.home(str(directory)) == one.path
        assert (one.offset, one.size) == (0, os.path.getsize(one.path))


@pytest.mark.parametrize(
    "name",
    [
        f"{SEGMENTS}/0000000002.segment.bak",
        f"{SEGMENTS}/.0000000002.segment.Xy12Zq",
        f"{QUARANTINE}/0000000002.segment",
        "lost+found/#12345",
        "0000000002.segment",
        f"{INDEX}/{1:020}-0000000009.index",
    ],
)
@pytest.mark.parametrize(
    ("original", "expected"),
    [
        (f"{SEGMENTS}/0000000002.segment", (FileKind.SEGMENT, 2)),
        (f"{INDEX}/{1:020}-0000000001.index", (FileKind.INDEX, 1)),
    ],
)
def test_a_file_under_another_name_is_still_what_it_is(
    store: tuple[Path, bytes], name: str, original: str, expected: tuple[FileKind, int]
) -> None:
    directory, store_id = store
    (directory / name).parent.mkdir(parents=True, exist_ok=True)
    (directory / original).rename(directory / name)
    found = found_in(directory, store_id)
    assert found[name] == expected
    assert len(found) == 4


def test_two_segments_that_were_swapped_say_so(store: tuple[Path, bytes]) -> None:
    directory, store_id = store
    first, second = (directory / SEGMENTS / segment_name(number) for number in (1, 2))
    first.rename(directory / "aside")
    second.rename(first)
    (directory / "aside").rename(second)
    found = found_in(directory, store_id)
    assert found[f"{SEGMENTS}/{first.name}"] == (FileKind.SEGMENT, 2)
    assert found[f"{SEGMENTS}/{second.name}"] == (FileKind.SEGMENT, 1)


def blank(content: bytes) -> bytes:
    return bytes(4096) + content[4096:]


def cut(content: bytes) -> bytes:
    return content[100:]


def broken(content: bytes) -> bytes:
    return content[:5] + b"?" + content[6:]


@pytest.mark.parametrize("damaged", [blank, cut, broken])
def test_a_segment_whose_start_is_damaged_is_known_by_the_records_behind_it(
    store: tuple[Path, bytes], damaged: Callable[[bytes], bytes]
) -> None:
    directory, store_id = store
    path = directory / SEGMENTS / segment_name(3)
    path.write_bytes(damaged(path.read_bytes()))
    found = identify(FILES, str(path), store_id)
    assert found is not None
    assert (found.kind, found.number, found.store_id) == (FileKind.SEGMENT, 3, store_id)
    assert found.offset > 0 or damaged is cut
    assert identify(FILES, str(path), bytes(16)) is None


def test_a_message_that_contains_a_file_does_not_make_its_segment_that_file(
    store: tuple[Path, bytes], tmp_path: Path
) -> None:
    _, store_id = store
    other = tmp_path / "other"
    header = (store[0] / SEGMENTS / segment_name(1)).read_bytes()
    path = tmp_path / "forged"
    path.write_bytes(bytes(10) + header[:60])
    assert identify(FILES, str(path), store_id) is None
    other.mkdir()
    other_id = filled(other)
    shutil.copy(other / SEGMENTS / segment_name(1), store[0] / SEGMENTS / "foreign")
    found = identify(FILES, str(store[0] / SEGMENTS / "foreign"), store_id)
    assert found is not None
    assert found.store_id == other_id
    assert "segments/foreign" not in found_in(*store)


def test_what_is_not_a_file_is_passed_over(store: tuple[Path, bytes], tmp_path: Path) -> None:
    directory, store_id = store
    os.mkfifo(directory / SEGMENTS / "0000000009.segment")
    (directory / "here").symlink_to(directory)
    (directory / SEGMENTS / "again").symlink_to(directory / SEGMENTS / segment_name(1))
    (directory / "nowhere").symlink_to(tmp_path / "missing")
    (directory / "circle").symlink_to(directory / "circle")
    (directory / "notes.txt").write_text("not a file of a store")
    (directory / "empty").touch()
    (directory / "elsewhere").mkdir()
    (directory / SEGMENTS).rename(tmp_path / "disk")
    (directory / SEGMENTS).symlink_to(tmp_path / "disk")
    assert found_in(directory, store_id).keys() == {
        *(f"{SEGMENTS}/{segment_name(number)}" for number in (1, 2, 3)),
        f"{INDEX}/{1:020}-0000000001.index",
    }


def test_an_index_file_says_which_queue_it_is_of(store: tuple[Path, bytes]) -> None:
    directory, store_id = store
    path = directory / INDEX / f"{1:020}-0000000001.index"
    found = identify(FILES, str(path), store_id)
    assert isinstance(found, IdentifiedFile)
    assert (found.queue_id, found.home("/data")) == (1, f"/data/{INDEX}/{path.name}")
