"""The stores in fixtures/ are read as on the day when they were made."""

import json
import os
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import lmdb
import msgpack
import pytest
import zstandard

from amqpstore import Message, Store
from fixtures import make_v2
from fixtures.contents import contents
from tests.format import decoder

FIXTURES = Path(make_v2.__file__).parent
VERSIONS = ("v1", "v2")
STORES = [f"{version}/{name}" for version in VERSIONS for name in ("golden", "torn", "damaged")]
PAIRS = [(name, name) for name in STORES]
GOLDEN = [(name, name) for name in STORES if name.endswith("golden")]
GO_ON = [(name, name) for name in STORES if not name.endswith("damaged")]

Queue = dict[int, decoder.StoredEntry]
"""Entries by sequence."""


@pytest.fixture
def copy(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A copy of the store that the test's parameter names, to be opened and changed."""
    return str(shutil.copytree(FIXTURES / request.param / "store", tmp_path / "store"))


def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIXTURES / name / "expected.json").read_text("utf-8"))
    return found


def without_skipped(found: dict[str, Any], name: str) -> dict[str, Any]:
    """Return what a store holds, where sequences were skipped because of damage with those of the
    fixture.

    Version 1 said the first that the log does not name; now those that may be in it are skipped.
    """
    for queue_name, queue in expected(name)["queues"].items():
        seen = found["queues"][queue_name]
        assert (seen["next_sequence"] > queue["next_sequence"]) == (name == "v1/damaged")
        seen["next_sequence"] = queue["next_sequence"]
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_no_fixture_was_written_again(version: str) -> None:
    written = (FIXTURES / version / "SHA256SUMS").read_text("utf-8")
    assert "".join(make_v2.sums(str(FIXTURES / version))) == written


def test_no_fixture_was_left_open() -> None:
    assert not list(FIXTURES.rglob("lock*"))


@pytest.mark.skipif(sys.byteorder != "little", reason="the catalogs are of little-endian machines")
@pytest.mark.parametrize(("copy", "name"), PAIRS, indirect=["copy"])
def test_a_store_of_every_version_holds_what_it_held(copy: str, name: str) -> None:
    assert without_skipped(contents(copy), name) == expected(name)


@pytest.mark.skipif(sys.byteorder != "little", reason="the catalogs are of little-endian machines")
@pytest.mark.parametrize(("copy", "name"), PAIRS, indirect=["copy"])
def test_opening_a_store_twice_finds_the_same_messages(copy: str, name: str) -> None:
    contents(copy)
    again = without_skipped(contents(copy), name)
    first = expected(name)
    assert again["queues"] == first["queues"]
    assert again["definitions"] == first["definitions"]
    torn = {"torn_bytes": 0, "rolled_back": 0}
    # What was taken back is behind the segment's end by now, and is not read again.
    read = first["report"]["scanned_bytes"] - first["report"]["torn_bytes"]
    assert again["report"] == first["report"] | torn | {"scanned_bytes": read}


@pytest.mark.parametrize("copy", STORES, indirect=True)
def test_opening_a_store_changes_no_segment_and_no_index_file(copy: str) -> None:
    before = files_in(copy)
    Store.open(copy).abandon()
    assert files_in(copy) == before


@pytest.mark.skipif(sys.byteorder != "little", reason="the catalogs are of little-endian machines")
@pytest.mark.parametrize(("copy", "name"), GO_ON, indirect=["copy"])
def test_a_store_of_every_version_goes_on(copy: str, name: str) -> None:
    with Store.open(copy, options=make_v2.OPTIONS) as store:
        for queue in store.queues.values():
            store.publish([queue], [Message(make_v2.PLAIN, b"new")])
    found = contents(copy)
    assert found["report"]["damage"] == []
    for queue_name, queue in expected(name)["queues"].items():
        *before, new = found["queues"][queue_name]["messages"]
        assert before == queue["messages"]
        assert new["body"] == b"new".hex()


@pytest.mark.skipif(sys.byteorder != "little", reason="the catalogs are of little-endian machines")
@pytest.mark.parametrize(("copy", "name"), GOLDEN, indirect=["copy"])
def test_the_independent_decoder_reads_the_same_messages_from_the_golden_store(
    copy: str, name: str
) -> None:
    tables = read_catalog(copy)
    position = tables["store"]["position"]
    stored: dict[int, decoder.StoredMessage] = {}
    queues = indexed(copy, tables)
    for path in sorted(Path(copy, "segments").iterdir()):
        number = int(path.stem)
        header, *records = decoder.decode_segment(path.read_bytes(), number)
        assert isinstance(header, decoder.SegmentHeader)
        for record in records:
            if isinstance(record, decoder.StoredMessage):
                stored[record.id] = record
            elif isinstance(record, decoder.StoredTransaction) and record.lsn >= position["lsn"]:
                for operation in record.operations:
                    apply(queues[operation.queue_id], operation)
    zstd = Zstd(tables["dictionaries"])
    for queue in expected(name)["queues"].values():
        assert queue["messages"] == [
            {
                "sequence": sequence,
                "id": entry.id,
                "delivery_count": entry.delivery_count,
                "priority": entry.priority,
                "expires_ms": entry.expires_ms,
                "exchange": stored[entry.id].exchange,
                "routing_key": stored[entry.id].routing_key,
                "properties": stored[entry.id].properties.hex(),
                "body": zstd.body(stored[entry.id]).hex(),
            }
            for sequence, entry in sorted(queues[queue["id"]].items())
        ]
    assert zstd.used == {0, *map(int, tables["dictionaries"])}


@pytest.mark.skipif(sys.byteorder != "little", reason="the catalogs are of little-endian machines")
@pytest.mark.parametrize("copy", [name for name, _ in GOLDEN], indirect=True)
def test_what_is_live_is_what_the_queues_of_the_golden_checkpoint_hold(copy: str) -> None:
    tables = read_catalog(copy)
    held = Counter(entry.id for queue in indexed(copy, tables).values() for entry in queue.values())
    found: dict[int, int] = {}
    for row in tables["segments"].values():
        ids = decoder.decode_column(row["ids"]) or range(row["first_id"], row["end_id"])
        references = decoder.decode_column(row["references"]) or [1] * len(ids)
        here = dict(zip(ids, references, strict=True))
        assert row["live_count"] == sum(count > 0 for count in here.values())
        found |= here
    assert {message_id: count for message_id, count in found.items() if count} == held


def test_the_generator_still_writes_the_same_files(tmp_path: Path) -> None:
    # As long as version 2 is the one that is written; a later version drops this test.
    made = tmp_path / "v2"
    make_v2.make(str(made))
    for name in [name for name in STORES if name.startswith("v2")]:
        now = tmp_path / name
        assert files_in(str(now / "store")) == files_in(str(FIXTURES / name / "store"))
        assert sorted(os.listdir(now)) == sorted(os.listdir(FIXTURES / name))
        assert json.loads((now / "expected.json").read_text("utf-8")) == expected(name)


def files_in(store: str) -> dict[str, bytes]:
    """The content of all segments and index files."""
    return {
        str(path.relative_to(store)): path.read_bytes()
        for folder in ("segments", "index")
        for path in sorted(Path(store, folder).glob("*"))
    }


def read_catalog(store: str) -> dict[str, dict[str, Any]]:
    """The store's own tables of its catalog, without the engine."""
    is_plain = b"format-version: 1\n" in Path(store, "STORE").read_bytes()
    tables: dict[str, dict[str, Any]] = {}
    with (
        lmdb.open(os.path.join(store, "catalog"), readonly=True, lock=False, max_dbs=64) as opened,
        opened.begin() as transaction,
    ):
        for table in ("store", "queues", "index", "segments", "dictionaries"):
            rows = transaction.cursor(opened.open_db(table.encode(), transaction, create=False))
            tables[table] = {
                key.decode(): msgpack.unpackb(stored, strict_map_key=False)
                if is_plain
                else decoder.decode_row(table, key.decode(), stored)
                for key, stored in rows
            }
    return tables


def indexed(store: str, tables: dict[str, dict[str, Any]]) -> dict[int, Queue]:
    """The live entries of each queue, by sequence, as the index files have them."""
    queues: dict[int, Queue] = {int(key): {} for key in tables["queues"]}
    for key, row in tables["index"].items():
        content = Path(store, "index", f"{key}.index").read_bytes()[: row["end_bytes"]]
        blocks = decoder.decode_index(content, row["number"], tables["store"]["store_id"])
        entries = [entry for block in blocks for entry in block.entries]
        assert {block.queue_id for block in blocks} == {int(key[:20])}
        assert len(entries) == row["entries"]
        assert (entries[0].sequence, entries[-1].sequence + 1) == (row["first"], row["end"])
        acked = int.from_bytes(row["acked"], "little")
        assert acked.bit_count() == row["acked_count"]
        sizes = [one.body_size for place, one in enumerate(entries) if not acked >> place & 1]
        assert row.get("body_bytes") == (None if 0xFFFFFFFF in sizes else sum(sizes))
        for place, entry in enumerate(entries):
            if not acked >> place & 1:
                counts = [row["delivered"].get(place, 0)]
                for first, end, times in row.get("postponed_deliveries", ()):
                    counts += [times] if first <= entry.sequence < end else []
                delivered = max(counts)
                queues[int(key[:20])][entry.sequence] = entry._replace(delivery_count=delivered)
    return queues


def apply(queue: Queue, operation: decoder.StoredOperation) -> None:
    for place in range(operation.message_count):
        sequence = operation.first_sequence + place
        if operation.kind == "ENQUEUE":
            queue[sequence] = decoder.StoredEntry(
                sequence, operation.first_id + place, 0, operation.detail, 0, operation.priority, 0
            )
        elif sequence not in queue:
            continue  # acked in the same batch, mostly
        elif operation.kind == "DELIVERED":
            queue[sequence] = queue[sequence]._replace(delivery_count=operation.detail)
        else:
            del queue[sequence]


class Zstd:
    """Bodies, and the dictionaries they were compressed with."""

    def __init__(self, dictionaries: dict[str, bytes]) -> None:
        self._dictionaries = {int(key): row for key, row in dictionaries.items()}
        self.used: set[int] = set()

    def body(self, message: decoder.StoredMessage) -> bytes:
        if not message.is_compressed:
            return message.body
        number = zstandard.get_frame_parameters(message.body).dict_id
        self.used.add(number)
        trained = self._dictionaries[number] if number else b""
        dictionary = zstandard.ZstdCompressionDict(trained) if trained else None
        return zstandard.ZstdDecompressor(dict_data=dictionary).decompress(message.body)
