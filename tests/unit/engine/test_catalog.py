"""The catalog in LMDB: all of a commit or nothing, growth, and what damage to its file does."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import lmdb
import pytest

import amqpstore.catalog.catalog
from amqpstore import DamageError, DurabilityError, Store
from amqpstore.catalog.catalog import TABLES, Change, LmdbCatalog, Value
from amqpstore.catalog.rows import decode_row
from tests.unit.engine.stores import publish_batches

OPEN = """
import sys
from amqpstore import DamageError, DurabilityError, Store
try:
    store = Store.open(sys.argv[1])
    print(sorted(queue.definition for queue in store.queues.values()) == sorted(
        f"queue {number:03}" for number in range(200)))
    store.abandon()
except DamageError as error:
    print("DamageError")
"""

DIE_IN_COMMIT = """
import os, sys
from amqpstore.catalog.catalog import Change, LmdbCatalog
catalog = LmdbCatalog(sys.argv[1], False)
catalog.commit([Change("users", "before", 1)])
def die_of_it():
    yield catalog._tables["users"], b"a", b"\\x01"
    yield catalog._tables["vhosts"], b"b", b"\\x01"
    os.kill(os.getpid(), 9)
catalog._put(die_of_it())
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "catalog")
    os.mkdir(path)
    LmdbCatalog(path, create=True).close()
    return path


def catalog_in(path: str) -> LmdbCatalog:
    return LmdbCatalog(path, create=False)


def opened(path: str, first_map_bytes: int = 64 << 20) -> dict[str, dict[str, Value]]:
    """All rows that are in the directory."""
    found = LmdbCatalog(path, create=False, first_map_bytes=first_map_bytes)
    rows = {table: found.rows(table) for table in TABLES}
    found.close()
    return {table: of_table for table, of_table in rows.items() if of_table}


def test_a_new_catalog_is_empty(path: str) -> None:
    assert opened(path) == {}


def test_rows_are_there_after_a_reopening_in_the_order_of_their_keys(path: str) -> None:
    found = catalog_in(path)
    found.commit([Change("users", key, {"k": key}) for key in ("b", "a", "ü", "c")])
    found.close()
    rows = opened(path)["users"]
    assert list(rows) == ["a", "b", "c", "ü"]
    assert rows["ü"] == {"k": "ü"}


@pytest.mark.parametrize(
    "value", [True, 0, -1, 2**63, 1.5, "text", "", b"\xff", [], [1, "a"], {}, {"a": [None]}, {1: 2}]
)
def test_a_value_comes_back_as_it_went(path: str, value: Value) -> None:
    found = catalog_in(path)
    found.commit([Change("vhosts", "key", value)])
    assert found.rows("vhosts") == {"key": value}
    found.close()


def test_none_removes_a_row_whether_it_is_there_or_not(path: str) -> None:
    found = catalog_in(path)
    found.commit([Change("users", "a", 1), Change("users", "b", 2)])
    found.commit([Change("users", "a", None), Change("users", "never", None)])
    assert found.rows("users") == {"b": 2}
    found.close()


def test_the_last_change_of_a_row_in_a_commit_holds(path: str) -> None:
    found = catalog_in(path)
    found.commit([Change("users", "a", 1), Change("users", "a", None), Change("users", "a", 3)])
    assert found.rows("users") == {"a": 3}
    found.close()


@pytest.mark.parametrize("key", ["", "x" * 512, "ü" * 256])
def test_a_key_of_no_or_too_many_bytes_is_refused_with_the_whole_commit(
    path: str, key: str
) -> None:
    found = catalog_in(path)
    with pytest.raises(ValueError, match="a catalog key has 1 to 511 bytes"):
        found.commit([Change("users", "a", 1), Change("users", key, 2)])
    assert found.rows("users") == {}
    found.close()


@pytest.mark.parametrize("key", ["x", "x" * 511, "\0", "/\0name"])
def test_a_key_of_up_to_511_bytes_is_taken(path: str, key: str) -> None:
    found = catalog_in(path)
    found.commit([Change("users", key, 1)])
    assert found.rows("users") == {key: 1}
    found.close()


def test_a_table_that_is_not_there_is_refused_with_the_whole_commit(path: str) -> None:
    found = catalog_in(path)
    with pytest.raises(KeyError):
        found.commit([Change("users", "a", 1), Change("nothing", "b", 2)])
    assert found.rows("users") == {}
    found.close()


def test_a_value_that_msgpack_does_not_take_is_refused_with_the_whole_commit(path: str) -> None:
    found = catalog_in(path)
    with pytest.raises(TypeError):
        found.commit([Change("users", "a", 1), Change("users", "b", object())])
    assert found.rows("users") == {}
    found.close()


def test_a_process_killed_within_a_commit_leaves_the_state_before_it(path: str) -> None:
    command = [sys.executable, "-c", DIE_IN_COMMIT, path]
    assert subprocess.run(command, check=False).returncode == -9
    assert opened(path) == {"users": {"before": 1}}


def test_the_map_grows_beyond_its_first_size(path: str) -> None:
    found = LmdbCatalog(path, create=False, first_map_bytes=128 << 10)
    value = "x" * 10_000
    for number in range(50):
        found.commit([Change("vhosts", f"{number:04}", value)])
    found.commit([Change("users", f"{number:04}", value) for number in range(200)])
    assert len(found.rows("vhosts")) == 50
    found.close()
    # And opens with its first size again, which is less than it has by now.
    rows = opened(path, first_map_bytes=128 << 10)
    assert rows["vhosts"] == {f"{number:04}": value for number in range(50)}
    assert len(rows["users"]) == 200


def test_a_catalog_that_grew_can_be_changed_after_a_reopening(path: str) -> None:
    for number in range(30):
        found = LmdbCatalog(path, create=False, first_map_bytes=128 << 10)
        found.commit([Change("vhosts", f"{number:04}", "x" * 20_000)])
        found.close()
    assert len(opened(path)["vhosts"]) == 30


def test_a_failing_commit_is_a_durability_error_and_changes_nothing(path: str) -> None:
    found = catalog_in(path)
    found.commit([Change("users", "a", 1)])
    readonly = LmdbCatalog.__new__(LmdbCatalog)
    readonly._file_path = path
    readonly._lock = threading.Lock()
    found.close()
    readonly._environment = lmdb.open(path, readonly=True, max_dbs=len(TABLES))
    readonly._tables = {
        table: readonly._environment.open_db(table.encode(), create=False) for table in TABLES
    }
    with pytest.raises(DurabilityError):
        readonly.commit([Change("users", "b", 2)])
    readonly.close()
    assert opened(path) == {"users": {"a": 1}}


def test_a_lack_of_memory_is_no_damage(path: str) -> None:
    LmdbCatalog(path, True).close()
    with pytest.raises(OSError, match="Cannot allocate memory") as raised:
        LmdbCatalog(path, False, first_map_bytes=1 << 47)
    assert raised.value.errno == errno.ENOMEM
    LmdbCatalog(path, False).close()


def test_closing_twice_does_nothing(path: str) -> None:
    found = catalog_in(path)
    found.close()
    found.close()


@pytest.fixture
def store_path(tmp_path: Path) -> str:
    """A store with 200 queues and a message."""
    directory = str(tmp_path / "store")
    with Store.open(directory) as store:
        queues = [store.create_queue(f"queue {number:03}") for number in range(200)]
        publish_batches(store, queues[0], [[b"one"]])
    return directory


@pytest.mark.parametrize("size", [0, 1, 100, 4096])
def test_a_catalog_cut_within_its_first_pages_is_damage(store_path: str, size: int) -> None:
    os.truncate(os.path.join(store_path, "catalog", "data.mdb"), size)
    with pytest.raises(DamageError):
        Store.open(store_path)


@pytest.mark.parametrize("fill", [b"\0", b"\xff", b"junk"])
def test_a_catalog_of_other_bytes_is_damage(store_path: str, fill: bytes) -> None:
    path = Path(store_path, "catalog", "data.mdb")
    path.write_bytes((fill * path.stat().st_size)[: path.stat().st_size])
    with pytest.raises(DamageError):
        Store.open(store_path)


@pytest.mark.parametrize("tenths", [1, 3, 5])
def test_a_catalog_cut_behind_its_first_pages_is_damage(store_path: str, tenths: int) -> None:
    path = os.path.join(store_path, "catalog", "data.mdb")
    os.truncate(path, max(8192, os.path.getsize(path) * tenths // 10))
    assert opened_by_another_process(store_path) == "DamageError"


def test_a_page_of_other_bytes_in_the_catalog_is_damage_or_means_nothing(store_path: str) -> None:
    path = Path(store_path, "catalog", "data.mdb")
    content = path.read_bytes()
    for page in range(2, len(content) // 4096):
        at = page * 4096 + 16
        path.write_bytes(content[:at] + b"\xff" * 16 + content[at + 16 :])
        assert opened_by_another_process(store_path) in ("True", "DamageError"), page


def test_a_page_number_beyond_any_offset_is_damage(store_path: str) -> None:
    path = Path(store_path, "catalog", "data.mdb")
    content = bytearray(path.read_bytes())
    for page in (0, 4096):
        # The root of the main database, and the last page: see `lmdb_pages`.
        content[page + 128 : page + 136] = (1 << 60).to_bytes(8, sys.byteorder)
        content[page + 136 : page + 144] = (1 << 61).to_bytes(8, sys.byteorder)
    path.write_bytes(content)
    with pytest.raises(DamageError, match="is not within"):
        Store.open(store_path)


@pytest.mark.parametrize("value", [b"\xc1", b"\x81\x90\x01"])
def test_a_value_that_is_no_msgpack_is_damage(path: str, value: bytes) -> None:
    found = catalog_in(path)
    found._put([(found._tables["users"], b"a", value)])
    with pytest.raises(DamageError, match="table users"):
        found.rows("users")
    found.close()


def test_a_key_that_is_not_utf_8_is_damage(path: str) -> None:
    found = catalog_in(path)
    found._put([(found._tables["users"], b"\xff", b"\x01")])
    with pytest.raises(DamageError, match="table users"):
        found.rows("users")
    found.close()


DIE_WHILE_READING = """
import os, signal, sys, lmdb
transaction = lmdb.open(sys.argv[1], readonly=True, create=False).begin()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_reader_that_was_killed_does_not_make_the_catalog_grow(path: str) -> None:
    found = catalog_in(path)
    found.commit([Change("users", f"{number}", bytes(3000)) for number in range(20)])
    subprocess.run([sys.executable, "-c", DIE_WHILE_READING, path], check=False)
    sizes = []
    for round_ in range(60):
        found.commit([Change("users", f"{number}", bytes(3000)) for number in range(20)])
        sizes.append(os.path.getsize(os.path.join(path, "data.mdb")))
        assert round_ < 20 or sizes[-1] == sizes[19]
    found.close()


def opened_by_another_process(directory: str) -> str:
    """Return what opening the store says, in a process that may die of it."""
    command = [sys.executable, "-c", OPEN, directory]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or f"died: {done.returncode}"


def test_who_reads_many_rows_does_not_hold_up_a_commit(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large table takes longer to decode than the event loop may wait."""
    catalog = catalog_in(path)
    catalog.commit([Change("users", str(number), number) for number in range(3000)])
    is_decoding, may_go_on = threading.Event(), threading.Event()

    def slow(*arguments: object, **options: object) -> tuple[str, Value]:
        is_decoding.set()
        assert may_go_on.wait(60)
        return decode_row(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(amqpstore.catalog.catalog, "decode_row", slow)
    read: list[dict[str, Value]] = []
    reader = threading.Thread(target=lambda: read.append(catalog.rows("users")))
    reader.start()
    assert is_decoding.wait(60)
    writer = threading.Thread(target=catalog.commit, args=([Change("users", "new", 1)],))
    writer.start()
    writer.join(20)
    held_up = writer.is_alive()
    may_go_on.set()
    reader.join(60)
    writer.join(60)
    assert not held_up
    assert read == [{str(number): number for number in range(3000)}]
    assert len(catalog.rows("users")) == 3001
    catalog.close()
