"""A bit of the catalog's file flips: it is named, or nothing is other than it was written."""

import os
import random
import re
import shutil
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from amqpstore import DamageError, Envelope, Message, Options, Queue, Store
from amqpstore.catalog.catalog import TABLES, Change, LmdbCatalog, Value
from amqpstore.catalog.lmdb_pages import check_pages
from amqpstore.catalog.rows import corrected_row, decode_row, encode_row
from amqpstore.catalog.shapes import KEYS
from amqpstore.errors import CatalogDamageError
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.check.engine import check

ENVELOPE = Envelope("", "orders", b"\x10\0\2")
_META_BYTES = 160
"""The bytes of a meta page that mean something."""


def publish(store: Store, queues: list[Queue], *bodies: bytes) -> None:
    store.publish(queues, [Message(ENVELOPE, body) for body in bodies])
    store.sync()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A closed store with rows in most tables, and in one of them branch and overflow pages."""
    directory = str(tmp_path_factory.mktemp("whole") / "store")
    options = Options(segment_bytes=2000, reserve_bytes=0)
    with Store.open(directory, options=options, worker=InlineWorker()) as store:
        queues = [store.create_queue({"name": name, "vhost": "/"}) for name in ("orders", "audit")]
        store.definitions.define(
            [Change("vhosts", "/", {}), Change("users", "big", {"of": "x" * 9000})]
        )
        store.definitions.define(
            [Change("bindings", f"{number:032}", {"queue": "audit"}) for number in range(120)]
        )
        for number in range(6):
            publish(store, queues, b"%d" % number * 300, b"small")
            store.upkeep.checkpoint()
        store.take(queues[0], 3)
        store.take(queues[1], 2, acked=True)
        store.sync()
    return directory


def rows(path: str) -> dict[str, dict[str, Value]]:
    catalog = LmdbCatalog(path, False)
    try:
        return {table: catalog.rows(table) for table in TABLES}
    finally:
        catalog.close()


def offsets(content: bytes) -> Iterator[int]:
    """Offsets of bytes that mean something: mostly those that are not zero."""
    for place, byte in enumerate(content):
        if byte or place % 4096 < 16 or place < _META_BYTES or 0 <= place - 4096 < _META_BYTES:
            yield place


def check_flips(whole: str, scratch: Path, flips: list[tuple[int, int]]) -> Counter[str]:
    """Open the catalog with each of these bits flipped, and count what is said of the damage."""
    verdicts: Counter[str] = Counter()
    path = str(scratch / "catalog")
    content = Path(whole, "catalog", "data.mdb").read_bytes()
    expected = rows(str(shutil.copytree(Path(whole, "catalog"), scratch / "whole")))
    os.mkdir(path)
    for place, bit in flips:
        flipped = bytearray(content)
        flipped[place] ^= 1 << bit
        Path(path, "data.mdb").write_bytes(flipped)
        try:
            rows_read = rows(path)
        except CatalogDamageError:
            verdicts["row"] += 1
            continue
        except DamageError:
            verdicts["page"] += 1
            continue
        assert rows_read == expected, f"bit {bit} at {place}"
        verdicts["nothing"] += 1
        # Nothing that the next commits do differs either.
        catalog = LmdbCatalog(path, False)
        for number in range(2):
            catalog.commit([Change("vhosts", "new", number), Change("users", "big", None)])
        catalog.close()
        changed = {**expected, "vhosts": {**expected["vhosts"], "new": 1}, "users": {}}
        assert rows(path) == changed, f"bit {bit} at {place}"
    return verdicts


def test_a_bit_anywhere_in_the_catalog(whole: str, tmp_path: Path) -> None:
    content = Path(whole, "catalog", "data.mdb").read_bytes()
    rng = random.Random("rot")
    meta = [place for place in offsets(content) if place < 4096 + _META_BYTES]
    flips = [(place, rng.randrange(8)) for place in meta[::5]]
    flips += [(place, rng.randrange(8)) for place in rng.sample(list(offsets(content)), 150)]
    said = check_flips(whole, tmp_path, flips)
    assert min(said["row"], said["page"], said["nothing"]) > 10


def free_list_counts(content: bytes) -> Iterator[int]:
    """Offsets of the counts of the lists of free pages, which are in one leaf page."""
    newest = max(
        (0, 4096), key=lambda meta: int.from_bytes(content[meta + 144 :][:8], sys.byteorder)
    )
    (root,) = struct.unpack_from("=Q", content, newest + 80)
    page = content[root * 4096 :][:4096]
    flags, lower = struct.unpack_from("=HH", page, 10)
    assert flags == 2
    for offset in struct.unpack_from(f"={(lower - 16) // 2}H", page, 16):
        yield root * 4096 + offset + 16


def test_a_list_of_free_pages_with_another_count_is_damage(whole: str, tmp_path: Path) -> None:
    # LMDB sees only in a later commit that a count does not fit its list, and fails that.
    path = Path(shutil.copytree(Path(whole, "catalog"), tmp_path / "catalog"), "data.mdb")
    content = path.read_bytes()
    counts = list(free_list_counts(content))
    assert len(counts) > 1
    for place in counts:
        for bit in range(64):
            flipped = bytearray(content)
            flipped[place + bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            with pytest.raises(DamageError, match="a wrong count"):
                check_pages(str(path))


# Their keys have no form, and their rows are not looked at.
_OF_THE_BROKER = [table for table in TABLES if table not in ("store", *KEYS)]


def random_changes(rng: random.Random, kept: dict[tuple[str, str], bytes]) -> list[Change]:
    """Return changes to a few tables, and make them in `kept` as well. Large ones empty whole
    tables, and leave lists of free pages that have pages of their own.
    """
    count = rng.choice([1, 1, 2, 5, 5, 20, 60, 600])
    is_removing = rng.random() * 600 < len(kept)
    sizes = rng.choice([[0, 10, 200], [2000, 2040, 2050], [5, 5000, 40_000]])
    changes = []
    for _ in range(count):
        if is_removing and kept:
            table, key = next(iter(kept))
            del kept[table, key]
            changes.append(Change(table, key, None))
        else:
            table, key = (
                rng.choice(_OF_THE_BROKER),
                str(rng.randrange(9000)) * rng.choice([1, 1, 90]),
            )
            kept[table, key] = rng.randbytes(rng.choice(sizes[: 1 if count > 60 else 3]))
            changes.append(Change(table, key, kept[table, key]))
    return changes


@pytest.mark.parametrize("commits", [150, pytest.param(3000, marks=pytest.mark.long)])
def test_nothing_that_lmdb_writes_is_called_damaged(tmp_path: Path, commits: int) -> None:
    rng = random.Random(commits)
    path = str(tmp_path)
    kept: dict[tuple[str, str], bytes] = {}
    catalog = LmdbCatalog(path, True, first_map_bytes=1 << 20)
    for number in range(commits):
        catalog.commit(random_changes(rng, kept))
        if number % 4 == 0:
            check_pages(os.path.join(path, "data.mdb"))
        if rng.random() < 0.1:
            catalog.close()
            catalog = LmdbCatalog(path, False, first_map_bytes=1 << 20)
    found = {(table, key): value for table in TABLES for key, value in catalog.rows(table).items()}
    catalog.close()
    assert found == kept


@pytest.mark.long
@pytest.mark.parametrize("bit", range(8))
def test_every_bit_of_the_catalog(whole: str, tmp_path: Path, bit: int) -> None:
    content = Path(whole, "catalog", "data.mdb").read_bytes()
    check_flips(whole, tmp_path, [(place, bit) for place in offsets(content)])


def test_a_row_that_is_damaged_is_named_and_nothing_is_changed(whole: str, tmp_path: Path) -> None:
    directory = shutil.copytree(whole, tmp_path / "store")
    path = Path(directory, "catalog", "data.mdb")
    content = bytearray(path.read_bytes())
    place = content.rindex(b"next_sequence")
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        CatalogDamageError, match=r"checksum does not .* `amqpstore repair`"
    ) as raised:
        Store.open(str(directory))
    assert raised.value.table == "heads"
    assert int(raised.value.key) in (1, 2)
    assert raised.value.offset == place // 4096 * 4096
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("ends", "0000000003", {"end": 241}),
        ("queues", "00000000000000000007", {"name": "orders", "vhost": "/"}),
        ("users", "guest", {"hash": b"\xc1" * 40}),
    ],
)
def test_one_wrong_bit_of_a_row_is_found(table: str, key: str, value: Value) -> None:
    name = key.encode()
    stored = encode_row(table, name, value)
    for place in range(8 * (len(name) + len(stored))):
        both = bytearray(name + stored)
        both[place >> 3] ^= 1 << (place & 7)
        of_key, of_stored = bytes(both[: len(name)]), bytes(both[len(name) :])
        with pytest.raises(ValueError, match="checksum"):
            decode_row(table, of_key, of_stored, plain=False)
        assert corrected_row(table, of_key, of_stored) == (key, value)


def test_what_has_more_than_one_wrong_bit_is_not_guessed() -> None:
    rng = random.Random(1)
    stored = encode_row("ends", b"0000000003", {"end": 241})
    for _ in range(100):
        content = bytearray(stored)
        for place in rng.sample(range(8 * len(stored)), 2):
            content[place >> 3] ^= 1 << (place & 7)
        assert corrected_row("ends", b"0000000003", bytes(content)) is None


BAD = [
    ("heads", "00000000000000000001", {"next_sequence": 1 << 63}),
    ("heads", "00000000000000000001", {"next_sequence": "1"}),
    ("heads", "1", {"next_sequence": 1}),
    ("ends", "0000000000", {"end": 1}),
    ("ends", "9999999999", {"end": 1}),
    ("ends", "0000000001", {"end": -1}),
    ("ends", "0000000001", []),
    ("store", "position", {"segment": 1 << 40, "offset": 0, "lsn": 1, "message_id": 1}),
    ("store", "position", [1, 2, 3, 4]),
    ("store", "store_id", "text"),
    ("marks", "0000000001", {"first_id": 1, "end_id": 2, "ids": [2, 1], "offsets": [1, 2]}),
    ("marks", "0000000001", {"first_id": 1, "end_id": 2, "ids": 1, "offsets": [1]}),
    ("segments", "0000000001", {"number": 1}),
    ("index", "00000000000000000001-0000000001", {"number": 1}),
    ("prepared", "00000000000000000001", {"label": 1, "locked": [[1, 2]], "publishes": []}),
    ("quarantine", "0000000001", [[1, 2, 3]]),
    ("prepared", "00000000000000000009", {"label": 1, "locked": [], "publishes": []}),
    ("dictionaries", "0000000001", "text"),
]


@pytest.mark.parametrize(("table", "key", "value"), BAD)
def test_a_row_with_a_right_checksum_that_no_store_writes_is_refused(
    whole: str, tmp_path: Path, table: str, key: str, value: Value
) -> None:
    directory = str(shutil.copytree(whole, tmp_path / "store"))
    catalog = LmdbCatalog(os.path.join(directory, "catalog"), False)
    catalog.commit([Change(table, key, value)])
    catalog.close()
    with pytest.raises(CatalogDamageError) as raised:
        Store.open(directory)
    assert (raised.value.table, raised.value.key) == (table, key)


def test_index_files_whose_sequences_overlap_are_refused(whole: str, tmp_path: Path) -> None:
    directory = str(shutil.copytree(whole, tmp_path / "store"))
    catalog = LmdbCatalog(os.path.join(directory, "catalog"), False)
    key, row = next(iter(catalog.rows("index").items()))
    other = f"{key[:20]}-{99:010}"
    catalog.commit([Change("index", other, {**row, "number": 99})])
    catalog.close()
    with pytest.raises(CatalogDamageError, match="its first sequence, 1, is also in") as raised:
        Store.open(directory)
    assert raised.value.table == "index"
    assert "index-order" in {one.code for one in check(directory).findings}
    repair_store(directory, tmp_path)
    with Store.open(directory) as store:
        assert [queue.ready_count for queue in store.queues.values()] == [12, 10]


def repair_store(directory: str, scratch: Path) -> None:
    """Plan and apply a repair, behind which the store is clean."""
    plan = str(scratch / "plan.json")
    run = [sys.executable, "-m", "amqpstore_tools", "repair", directory]
    subprocess.run([*run, "--plan", plan], check=True, capture_output=True)
    subprocess.run([*run, "--apply", plan], check=True, capture_output=True)
    assert not check(directory).is_damaged


def contents(directory: str) -> dict[str, list[bytes]]:
    """The bodies in each queue, which stay there."""
    store = Store.open(directory, worker=InlineWorker())
    found = {
        str(queue.definition): [one.body for part in store.stored.browse(queue) for one in part]
        for queue in store.queues.values()
    }
    store.abandon()
    return found


@pytest.mark.parametrize("field", [b"next_sequence", b"acked_count", b"live_bytes"])
def test_a_row_with_one_wrong_bit_is_named_and_mended(
    whole: str, tmp_path: Path, field: bytes
) -> None:
    directory = str(shutil.copytree(whole, tmp_path / "store"))
    expected = contents(str(shutil.copytree(whole, tmp_path / "whole")))
    path = Path(directory, "catalog", "data.mdb")
    content = bytearray(path.read_bytes())
    # Pages that are not used any more have rows too: a bit there is not the catalog's.
    offsets = [one.start() for one in re.finditer(field, bytes(content))]
    for place in reversed(offsets):
        content[place] ^= 1
        path.write_bytes(content)
        damaged = [one for one in check(directory).findings if one.code == "row-damaged"]
        if damaged:
            break
        content[place] ^= 1
    assert "exactly one bit of it is wrong, and can be corrected" in damaged[0].text
    with pytest.raises(CatalogDamageError):
        Store.open(directory)
    repair_store(directory, tmp_path)
    assert contents(directory) == expected


def test_what_a_newer_version_adds_to_a_map_is_left_alone(whole: str, tmp_path: Path) -> None:
    directory = str(shutil.copytree(whole, tmp_path / "store"))
    catalog = LmdbCatalog(os.path.join(directory, "catalog"), False)
    changes = [
        Change(table, key, {**row, "newer": 1})
        for table in ("heads", "index", "segments", "marks", "ends")
        for key, row in catalog.rows(table).items()
    ]
    changes.append(Change("store", "position", {**catalog.rows("store")["position"], "newer": 1}))
    catalog.commit(changes)
    catalog.close()
    store = Store.open(directory)
    assert [queue.ready_count for queue in store.queues.values()] == [12, 10]
    store.abandon()
