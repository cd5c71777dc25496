"""Any bit of a store that is flipped is found, or makes no difference, or no check can find it."""

import os
import random
import shutil
from typing import Any

import pytest

from amqpstore.catalog.catalog import TABLES
from amqpstore.errors import StoreError
from amqpstore.system.filenames import index_key, segment_number
from amqpstore_tools.check.engine import check
from amqpstore_tools.drill.copying import link_store, own_bytes
from amqpstore_tools.offline.catalog import CatalogImage
from tests.unit.check.stores import History

Rows = dict[str, dict[str, Any]]

OTHERS = {"vhosts", "users", "exchanges", "bindings", "permissions", "policies", "queues"}
"""Tables that the store does not look into."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store that was closed, and whose log goes on behind the last checkpoint all the same."""
    directory = str(tmp_path_factory.mktemp("flips") / "store")
    history = History(directory, 7)
    history.steps(400)
    history.close()
    history.steps(30)
    history.abandon()
    # The end is noted: what is behind the checkpoint is no longer a torn tail.
    assert history.store.queues
    history.abandon()
    assert check(directory).findings.of_harm() == []
    assert any(number >= 1 << 31 for number in segments(directory))
    return directory


def segments(directory: str) -> list[int]:
    names = os.listdir(os.path.join(directory, "segments"))
    return [number for name in names if (number := segment_number(name))]


@pytest.mark.parametrize("seed", range(6))
def test_a_flipped_bit_of_a_record_file_is_found(whole: str, tmp_path: object, seed: int) -> None:
    copy = os.path.join(str(tmp_path), "copy")
    rng = random.Random(seed)
    parts = chunk_bytes(whole)
    for _ in range(15):
        link_store(whole, copy)
        name = rng.choice(sorted(parts))
        offset = rng.randrange(parts[name])
        flip(os.path.join(copy, name), offset, rng.randrange(8))
        assert is_found(copy), f"{name} at {offset}"


@pytest.mark.parametrize("seed", range(6))
def test_a_flipped_bit_of_the_catalog_is_found_where_it_can_be(
    whole: str, tmp_path: object, seed: int
) -> None:
    copy = os.path.join(str(tmp_path), "copy")
    rng = random.Random(seed)
    before = rows_of(whole)
    assert before
    with open(os.path.join(whole, "catalog/data.mdb"), "rb") as file:
        # Most of the file is zeros, which are never read.
        offsets = [offset for offset, byte in enumerate(file.read()) if byte]
    for _ in range(25):
        link_store(whole, copy)
        offset = rng.choice(offsets)
        flip(os.path.join(copy, "catalog/data.mdb"), offset, rng.randrange(8))
        if is_found(copy):
            continue
        after = rows_of(copy)
        assert after is not None, f"the catalog cannot be read: {offset}"
        assert list(provable(before, after)) == [], f"at {offset}"


def is_found(directory: str) -> bool:
    """Tell whether a check says that something is wrong."""
    try:
        return check(directory).is_damaged
    except StoreError:
        return True


def chunk_bytes(directory: str) -> dict[str, int]:
    """Return how many bytes of the marker, of each segment and each index file are part of the
    store."""
    rows = rows_of(directory)
    assert rows
    parts = {"STORE": os.path.getsize(os.path.join(directory, "STORE"))}
    for name in os.listdir(os.path.join(directory, "segments")):
        number = segment_number(name)
        path = os.path.join(directory, "segments", name)
        end = rows["ends"].get(f"{number:010}", {"end": os.path.getsize(path)})["end"]
        if number and (f"{number:010}" in rows["segments"] or number < 1 << 31):
            parts[f"segments/{name}"] = end
    for name in os.listdir(os.path.join(directory, "index")):
        if index_key(name) and (row := rows["index"].get(name.removesuffix(".index"))):
            parts[f"index/{name}"] = row["end_bytes"]
    return {name: size for name, size in parts.items() if size}


def rows_of(directory: str) -> Rows | None:
    """Return all rows; None if the catalog cannot be read."""
    image = CatalogImage(os.path.join(directory, "catalog"), plain=False)
    try:
        return {table: image.rows(table) for table in TABLES}
    except StoreError:
        return None
    finally:
        image.close()


def provable(before: Rows, after: Rows) -> list[str]:
    """Return what has changed, although something else in the store says what it should be."""
    found = []
    for table in TABLES:
        if table in OTHERS or table in ("dictionaries", "quarantine"):
            continue
        for key in before[table].keys() | after[table].keys():
            old, new = before[table].get(key), after[table].get(key)
            if old != new and not is_harmless(table, key, old, new):
                found.append(f"{table} {key}: {old} is {new}")
    return found


def is_harmless(table: str, key: str, old: Any, new: Any) -> bool:
    """Tell whether the change is harmless: it cannot be noticed, and no message is affected."""
    if table == "store" and key == "next_queue_id":
        return isinstance(new, int) and new > old
    if not isinstance(old, dict) or not isinstance(new, dict) or old.keys() != new.keys():
        return False
    differ = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    if table == "store" and key == "position":
        # Nothing is behind it, or that would have told: some numbers are never given.
        return differ <= {"lsn", "message_id"} and all(new[name] > old[name] for name in differ)
    if table == "heads":
        return bool(new["next_sequence"] > old["next_sequence"])
    if table == "index" and "expires_ms" in differ:
        return 0 < new["expires_ms"] < old["expires_ms"] or not old["expires_ms"]
    if table == "index":
        # Deliveries, and a message that was acked while its file could not be read.
        return differ <= {"delivered", "postponed", "postponed_deliveries"}
    return False


def flip(path: str, offset: int, bit: int) -> None:
    own_bytes(path)
    with open(path, "r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def test_the_catalog_can_be_any_bytes(whole: str, tmp_path: object) -> None:
    copy = os.path.join(str(tmp_path), "copy")
    rng = random.Random(1)
    path = os.path.join(copy, "catalog/data.mdb")
    for _ in range(6):
        shutil.rmtree(copy, ignore_errors=True)
        link_store(whole, copy)
        size = os.path.getsize(path)
        with open(path, "r+b") as file:
            for _ in range(rng.randint(2, 30)):
                file.seek(rng.randrange(size))
                file.write(rng.randbytes(rng.randint(1, 4)))
        is_found(copy)
