"""The engine writes the files that FORMAT.md names, and the independent decoder reads them."""

import ast
import os
import re
from pathlib import Path

from amqpstore import Message, Store
from amqpstore.catalog.catalog import LmdbCatalog
from amqpstore.catalog.tables import StoreRows
from amqpstore.format.records import FORMAT_VERSION
from amqpstore.identity import marker
from amqpstore.replica.membership import Membership, write_membership
from amqpstore.system import filenames
from amqpstore.system.files import OsFiles
from amqpstore.upkeep.worker import InlineWorker
from tests.format import decoder, document
from tests.format.stores import ENVELOPE, STORE_ID, written_store
from tests.unit.engine.stores import take


def test_the_example_marker_is_what_the_engine_writes(tmp_path: Path) -> None:
    directory = str(tmp_path)
    marker.write(OsFiles(), directory, STORE_ID)
    with open(os.path.join(directory, filenames.MARKER), encoding="ascii") as file:
        assert f"```\n{file.read()}```" in document.text()
    assert os.listdir(directory) == [filenames.MARKER]


def test_the_file_of_a_member_is_as_in_the_document(tmp_path: Path) -> None:
    write_membership(OsFiles(), str(tmp_path), Membership("0123456789abcdef"))
    text = (tmp_path / filenames.MEMBER).read_text("ascii")
    assert f"```\n{text}```" in document.text()
    assert os.listdir(tmp_path) == [filenames.MEMBER]


def test_a_store_holds_only_files_that_the_document_names(tmp_path: Path) -> None:
    directory = written_store(str(tmp_path))
    written = {
        re.sub("[0-9]+", "0", os.path.relpath(os.path.join(parent, name), directory))
        for parent, _, names in os.walk(directory)
        for name in names
    }
    listed = [row.cells["name"] for row in document.table(document.text(), "The data directory")]
    names = {re.sub("%0[0-9]+d", "0", document.code(name)) for name in listed}
    made_later = {
        filenames.NEW_MARKER,
        filenames.MEMBER,
        filenames.NEW_MEMBER,
        filenames.REPLACEMENT,
        filenames.NEW_REPLACEMENT,
        "transient/0.segment",
        "catalog/definitions.new",
        "quarantine/0.segment.%d",
        "quarantine/repair-0/",
        "quarantine/rejoin-0/",
        "segments/0.segment.new",
        "segments/0.spare",
        "index/0-0.index.new",
        "kept/0-%d.segment",
        "kept/copies/%d/",
        "trails/0.trail",
    }
    assert written == names - made_later


def test_the_catalogs_rows_have_the_keys_and_values_that_the_document_names(
    tmp_path: Path,
) -> None:
    directory = written_store(str(tmp_path))
    types = {"bin": bytes, "int": int, "map": dict, "list": list, "any": object}
    catalog = LmdbCatalog(os.path.join(directory, filenames.CATALOG), False)
    for row in document.table(document.text(), "Catalog tables"):
        rows = catalog.rows(document.code(row.cells["table"]))
        kind = types[document.code(row.cells["value"])]
        is_for_members = row.cells["written when"].startswith("A member of a group")
        is_of_losses = document.code(row.cells["table"]) in ("passed_over", "given_up")
        if is_for_members or is_of_losses or not row.cells["key"].startswith("`"):
            continue
        key = document.code(row.cells["key"])
        pattern = re.sub(r"%0([0-9]+)d", r"[0-9]{\1}", key)
        of_key = [value for name, value in rows.items() if re.fullmatch(pattern, name)]
        assert of_key, row
        assert all(isinstance(value, kind) for value in of_key)
        if "%" in key:
            assert len(of_key) == len(rows)
    assert catalog.rows("store").keys() == set(StoreRows._fields) - {"term", "definitions"}
    size = os.path.getsize(filenames.segment_path(directory, 6))
    assert catalog.rows("ends") == {"0000000006": {"end": size}}
    catalog.close()


def test_the_independent_decoder_reads_what_a_store_wrote(tmp_path: Path) -> None:
    directory = os.path.join(str(tmp_path), "store")
    with Store.open(directory, worker=InlineWorker()) as store:
        queue = store.create_queue({"name": "orders"})
        store.publish([queue], [Message(ENVELOPE, body) for body in (b"one", b"two", b"three")])
        store.ack(queue, take(store, queue, 1))
        take(store, queue, 1)
        assert store.purge(queue) == 1
    with open(filenames.segment_path(directory, 1), "rb") as file:
        header, *batch = decoder.decode_segment(file.read(), 1)
    assert isinstance(header, decoder.SegmentHeader)
    assert header.version == FORMAT_VERSION
    transaction = batch.pop()
    assert batch == [
        decoder.StoredMessage(1, "logs", "eu", ENVELOPE.properties, b"one"),
        decoder.StoredMessage(2, "logs", "eu", ENVELOPE.properties, b"two"),
        decoder.StoredMessage(3, "logs", "eu", ENVELOPE.properties, b"three"),
    ]
    assert isinstance(transaction, decoder.StoredTransaction)
    assert transaction.lsn == 1
    assert transaction.operations == [
        decoder.StoredOperation("ENQUEUE", 3, 1, 1, 1),
        decoder.StoredOperation("ACK", 1, 1, 1, 0),
        decoder.StoredOperation("DELIVERED", 2, 1, 1, 0, 1),
        decoder.StoredOperation("PURGE", 1, 1, 3, 0),
    ]
    path = filenames.index_path(directory, 1, 1)
    with open(path, "rb") as file:
        ((queue_id, entries),) = decoder.decode_index(file.read(), 1, header.store_id)
    assert queue_id == 1
    assert entries == [decoder.StoredEntry(2, 2, 50, 0, 1, 0, 0, 3)]


def test_the_independent_decoder_reads_what_compaction_wrote(tmp_path: Path) -> None:
    directory = written_store(str(tmp_path))
    with open(filenames.segment_path(directory, filenames.FIRST_COMPACTED), "rb") as file:
        header, *stored = decoder.decode_segment(file.read(), filenames.FIRST_COMPACTED)
    assert isinstance(header, decoder.SegmentHeader)
    assert header.number == filenames.FIRST_COMPACTED
    messages = [one for one in stored if isinstance(one, decoder.StoredMessage)]
    assert stored == messages
    assert messages
    assert all(one.is_compressed for one in messages)
    assert all(one.exchange == "logs" for one in messages)
    catalog = LmdbCatalog(os.path.join(directory, filenames.CATALOG), False)
    row = catalog.rows("segments")[str(filenames.FIRST_COMPACTED)]
    catalog.close()
    ids = decoder.decode_column(row["ids"])
    assert ids == [one.id for one in messages]
    assert decoder.decode_column(row["references"]) == []  # one each
    assert (row["count"], row["live_count"]) == (len(ids), len(ids))
    assert (row["first_id"], row["end_id"]) == (ids[0], ids[-1] + 1)


def test_the_checksum_of_the_digits_is_the_one_in_the_document() -> None:
    assert decoder.crc32c(b"123456789") == 0xE3069283
    assert "The CRC-32C of the nine bytes `123456789` is e3069283." in document.text()


def test_the_decoder_imports_nothing_of_the_engine() -> None:
    with open(decoder.__file__, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    plain = [node.names[0].name for node in ast.walk(tree) if isinstance(node, ast.Import)]
    assert (modules, plain) == (["itertools", "typing"], ["msgpack", "zstandard"])
