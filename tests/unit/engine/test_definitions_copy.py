"""The copy of the definitions: when it is written, and what it says."""

import os
import random
from pathlib import Path
from typing import Any

import msgpack
import pytest
from crc32c import crc32c

from amqpstore import Store
from amqpstore.catalog.catalog import Change
from amqpstore.catalog.definitions import (
    COPIED,
    HEADER,
    MAGIC,
    DefinitionsCopy,
    read_copy,
    write_copy,
)
from amqpstore.errors import DamageError
from amqpstore.system.files import OsFiles
from amqpstore_tools.simulation.crash_images import crash_images
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.operations import Operation

STORE_ID = bytes(range(16))
COPY = DefinitionsCopy(STORE_ID, 7, {"queues": {f"{3:020}": {"name": "orders"}}})


@pytest.fixture
def directory(tmp_path: object) -> str:
    path = os.path.join(str(tmp_path), "store")
    os.makedirs(os.path.join(path, "catalog"))
    return path


def path_of(directory: str) -> str:
    return os.path.join(directory, "catalog", "definitions")


def test_what_is_written_is_read(directory: str) -> None:
    assert read_copy(OsFiles(), directory) is None
    write_copy(OsFiles(), directory, COPY)
    write_copy(OsFiles(), directory, COPY)
    assert read_copy(OsFiles(), directory) == COPY
    assert os.listdir(os.path.join(directory, "catalog")) == ["definitions"]


def test_any_flipped_bit_is_found(directory: str) -> None:
    write_copy(OsFiles(), directory, COPY)
    with open(path_of(directory), "rb") as file:
        content = file.read()
    for place in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        with open(path_of(directory), "wb") as file:
            file.write(flipped)
        with pytest.raises(DamageError):
            read_copy(OsFiles(), directory)


def test_any_shorter_file_is_found(directory: str) -> None:
    write_copy(OsFiles(), directory, COPY)
    for size in reversed(range(os.path.getsize(path_of(directory)))):
        os.truncate(path_of(directory), size)
        with pytest.raises(DamageError):
            read_copy(OsFiles(), directory)


def test_a_close_leaves_a_copy_of_what_is_defined(tmp_path: object) -> None:
    directory = os.path.join(str(tmp_path), "store")
    with Store.open(directory) as store:
        store.definitions.define([Change("vhosts", "/", {})])
        queue = store.create_queue({"name": "orders"})
        store.create_queue({"name": "not durable"}, durable=False)
    copy = read_copy(OsFiles(), directory)
    assert copy is not None
    assert set(copy.tables) == set(COPIED)
    assert copy.tables["queues"] == {f"{queue.id:020}": {"name": "orders"}}
    assert copy.tables["vhosts"] == {"/": {}}
    assert copy.next_queue_id > queue.id


def test_a_copy_that_is_up_to_date_is_left_as_it_is(tmp_path: object) -> None:
    directory = os.path.join(str(tmp_path), "store")
    with Store.open(directory) as store:
        store.create_queue({"name": "orders"})
    before = os.stat(path_of(directory))
    Store.open(directory).close()
    after = os.stat(path_of(directory))
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_copy_that_is_damaged_is_written_again(tmp_path: object) -> None:
    directory = os.path.join(str(tmp_path), "store")
    with Store.open(directory) as store:
        store.create_queue({"name": "orders"})
    copy = read_copy(OsFiles(), directory)
    with open(path_of(directory), "wb") as file:
        file.write(b"garbage")
    Store.open(directory).close()
    assert read_copy(OsFiles(), directory) == copy


@pytest.mark.parametrize(
    ("next_queue_id", "tables"),
    [
        ([1], {}),
        (0, {}),
        (1, 5),
        (1, {"users": []}),
        (1, {"users": {"": 1}}),
        (1, {"queues": {"x": 1}}),
        (1, {"exchanges": {"x" * 512: {}}}),
        (1, {"exchanges": {"x": msgpack.unpackb(b"\x91" * 300 + b"\x90")}}),
    ],
)
def test_a_copy_with_a_right_checksum_that_no_store_writes(
    tmp_path: Path, next_queue_id: Any, tables: Any
) -> None:
    (tmp_path / "catalog").mkdir()
    payload = msgpack.packb({"next_queue_id": next_queue_id, "tables": tables})
    header = HEADER.pack(MAGIC, 1, STORE_ID, len(payload), 0)
    header = HEADER.pack(MAGIC, 1, STORE_ID, len(payload), crc32c(payload, crc32c(header)))
    (tmp_path / "catalog" / "definitions").write_bytes(header + payload)
    with pytest.raises(DamageError, match="cannot be parsed as a copy"):
        read_copy(OsFiles(), str(tmp_path))


def test_a_power_cut_leaves_the_copy_before_or_the_new_one() -> None:
    """The power is cut at every operation; a copy that was said to be written is always found."""
    files = MemoryFiles()
    files.make_directory("/store/catalog")
    write_copy(files, "/store", COPY)
    new = COPY._replace(next_queue_id=8)
    rng = random.Random(1)
    copies: list[DefinitionsCopy | None] = []

    def look(_operation: Operation | None) -> None:
        copies[:] = [read_copy(image.files, "/store") for image in crash_images(files, rng, 100)]
        assert all(copy in (COPY, new) for copy in copies)

    files.record = look
    write_copy(files, "/store", new)
    look(None)
    assert all(copy == new for copy in copies)
