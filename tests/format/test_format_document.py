"""FORMAT.md, the engine and the independent decoder say the same; a changed document does not."""

import ast
import os
import re
import struct
import uuid
from collections.abc import Callable, Mapping

import pytest

from amqpstore import Envelope, Message, Store, filenames, marker
from amqpstore.catalog import TABLES, Change, LmdbCatalog
from amqpstore.files import OsFiles
from amqpstore.log import FORMAT_VERSION
from amqpstore.message import HEAD
from amqpstore.records import (
    COMMIT_TIME,
    HEADER,
    MAGIC,
    OPERATION,
    SEGMENT_PAYLOAD,
    Kind,
    Operation,
    OperationKind,
    checksum_seed,
    encode_messages,
    encode_segment_header,
    encode_transaction,
)
from tests.format import decoder, document

STORE_ID = uuid.UUID("00112233445566778899aabbccddeeff")
CREATED_MS = 1_700_000_000_000
SEALED_MS = CREATED_MS + 250
ENVELOPE = Envelope("logs", "eu", bytes.fromhex("100002"))

# What the parts of the example hold, by the names that the tables give to the fields.
HEADER_FIELDS = {
    "magic": MAGIC,
    "kind": Kind.MESSAGE,
    "flags": 0,
    "batch": 9,
    "number": 12,
    "segment": 3,
    "payload_length": 19,
    "header_checksum": 0x8F41EAF6,
    "payload_checksum": 0x394F0619,
}
SEGMENT_FIELDS = {"version": FORMAT_VERSION, "store_id": STORE_ID.bytes, "created_ms": CREATED_MS}
MESSAGE_FIELDS = {
    "exchange_length": 4,
    "routing_key_length": 2,
    "properties_length": 3,
    "exchange": b"logs",
    "routing_key": b"eu",
    "properties": bytes.fromhex("100002"),
    "body": b"four",
}
TRANSACTION_FIELDS = {"time_ms": SEALED_MS}
OPERATION_FIELDS = {
    "kind": OperationKind.ENQUEUE,
    "-": 0,
    "message_count": 2,
    "queue_id": 7,
    "first_sequence": 5,
    "first_id": 11,
}


def encoded_example() -> bytes:
    """The example's segment, as the engine writes it."""
    buffers = [encode_segment_header(3, FORMAT_VERSION, STORE_ID.bytes, CREATED_MS)]
    messages = [Message(ENVELOPE, b"one"), Message(ENVELOPE, b"four")]
    seed = checksum_seed(STORE_ID.bytes)
    encode_messages(messages, 11, 3, buffers, [], seed=seed, batch=9)
    enqueue = Operation(OperationKind.ENQUEUE, 2, 7, 5, 11)
    buffers.append(encode_transaction([enqueue], 9, 3, SEALED_MS, seed=seed))
    return b"".join(buffers)


def struct_spans(layout: struct.Struct) -> list[tuple[int, int]]:
    """Offset and size of each field of a struct; padding counts as a field."""
    spans = []
    offset = 0
    for count, letter in re.findall(r"([0-9]*)([a-zA-Z])", layout.format):
        size = struct.calcsize(f">{count}{letter}")
        spans.append((offset, size))
        offset += size
    return spans


def evaluate(expression: str, sizes: dict[str, int]) -> int:
    """A size or an offset as the tables write it: sums and differences of numbers and letters."""
    terms = re.findall(r"([+-]?)([0-9a-z]+)", expression)
    assert "".join(map("".join, terms)) == expression, expression
    values = [(int(term) if term.isdecimal() else sizes[term], sign) for sign, term in terms]
    return sum(-value if sign == "-" else value for value, sign in values)


def check_layout(
    text: str,
    heading: str,
    layout: struct.Struct,
    content: bytes,
    fields: Mapping[str, object],
    sizes: dict[str, int] | None = None,
) -> None:
    """The table under a heading has the struct's spans, and finds the fields in the content.

    `sizes` are the letters in the table; rows that use them come after those of the struct.
    """
    rows = [row.cells for row in document.table(text, heading)]
    variable = {"e": 0, "k": 0, "p": 0, "n": len(content), **(sizes or {})}
    spans = [(evaluate(row["offset"], variable), evaluate(row["size"], variable)) for row in rows]
    fixed = struct_spans(layout)
    assert spans[: len(fixed)] == fixed, heading
    end = 0
    names = []
    for row, (offset, size) in zip(rows, spans, strict=True):
        assert offset == end, row
        end = offset + size
        name = row["field"].strip("`")
        names.append(name)
        if name == "operations":
            continue
        expected = fields[name]
        found = content[offset:end]
        value = found if isinstance(expected, bytes) else int.from_bytes(found, "big")
        assert value == expected, row
    assert end == len(content), heading
    assert set(fields) <= set(names), heading


def check_layouts(text: str) -> None:
    content = document.example(text)
    check_layout(text, "Record header", HEADER, content[0x6E:0x8E], HEADER_FIELDS)
    check_layout(text, "SEGMENT payload", SEGMENT_PAYLOAD, content[0x20:0x3C], SEGMENT_FIELDS)
    sizes = {"e": 4, "k": 2, "p": 3}
    check_layout(text, "MESSAGE payload", HEAD, content[0x8E:0xA1], MESSAGE_FIELDS, sizes)
    transaction = content[0xC1:]
    check_layout(text, "TRANSACTION payload", COMMIT_TIME, transaction, TRANSACTION_FIELDS)
    check_layout(text, "Operation", OPERATION, content[0xC9:], OPERATION_FIELDS)
    magic = document.table(text, "Record header")[0].cells["meaning"]
    assert bytes.fromhex(document.code(magic)) == MAGIC
    version = document.table(text, "SEGMENT payload")[0].cells["meaning"]
    assert int(version) == FORMAT_VERSION


def check_kinds(text: str) -> None:
    for heading, kinds in (("Record kinds", Kind), ("Operation kinds", OperationKind)):
        rows = [row.cells for row in document.table(text, heading)]
        listed = [(int(row["kind"]), document.code(row["name"])) for row in rows]
        assert listed == [(kind.value, kind.name) for kind in kinds], heading


def check_files(text: str) -> None:
    listed = [
        document.code(row.cells["name"]) for row in document.table(text, "The data directory")
    ]
    known = [
        filenames.MARKER,
        filenames.NEW_MARKER,
        filenames.LOCK,
        f"{filenames.CATALOG}/data.mdb",
        f"{filenames.CATALOG}/lock.mdb",
        f"{filenames.SEGMENTS}/%010d.segment",
    ]
    assert listed == known
    assert filenames.segment_path("", 12) == listed[-1] % 12


def check_catalog_tables(text: str) -> None:
    rows = [row.cells for row in document.table(text, "Catalog tables")]
    assert list(dict.fromkeys(document.code(row["table"]) for row in rows)) == list(TABLES)
    keys = [document.code(row["key"]) for row in rows if row["key"].startswith("`")]
    assert keys == ["store_id", "next_queue_id", "%020d", "%010d"]
    types = [document.code(row["value"]) for row in rows]
    assert types == ["bin", "int", "any", "map", "any", "any", "any", "any"]
    assert document.code(rows[3]["value"].split(":", 1)[1].strip()) == "end"


def check_example(text: str) -> None:
    content = document.example(text)
    assert content == encoded_example()
    assert decoder.decode_segment(content, 3) == [
        decoder.SegmentHeader(3, FORMAT_VERSION, STORE_ID.bytes, CREATED_MS),
        decoder.StoredMessage(11, "logs", "eu", ENVELOPE.properties, b"one"),
        decoder.StoredMessage(12, "logs", "eu", ENVELOPE.properties, b"four"),
        decoder.StoredTransaction(9, SEALED_MS, [decoder.StoredOperation("ENQUEUE", 2, 7, 5, 11)]),
    ]


CHECKS: list[Callable[[str], None]] = [
    check_layouts,
    check_kinds,
    check_files,
    check_catalog_tables,
    check_example,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_document_says_what_the_code_does(check: Callable[[str], None]) -> None:
    check(document.text())


def is_refused(text: str) -> bool:
    """Whether some check fails on the document."""
    for check in CHECKS:
        try:
            check(text)
        except (AssertionError, ValueError, LookupError):
            return True
    return False


def test_the_document_as_it_is_is_not_refused() -> None:
    assert not is_refused(document.text())


CHECKED_CELLS = {
    "Record header": ["offset", "size", "field"],
    "SEGMENT payload": ["offset", "size", "field"],
    "MESSAGE payload": ["offset", "size", "field"],
    "TRANSACTION payload": ["offset", "size", "field"],
    "Operation": ["offset", "size", "field"],
    "Record kinds": ["kind", "name"],
    "Operation kinds": ["kind", "name"],
    "The data directory": ["name"],
    "Catalog tables": ["table", "value"],
}


@pytest.mark.parametrize("heading", CHECKED_CELLS)
def test_a_removed_row_is_noticed(heading: str) -> None:
    lines = document.text().splitlines()
    for row in document.table(document.text(), heading):
        rest = lines[: row.line] + lines[row.line + 1 :]
        assert is_refused("\n".join(rest)), row


@pytest.mark.parametrize("heading", CHECKED_CELLS)
def test_two_rows_in_each_others_place_are_noticed(heading: str) -> None:
    rows = document.table(document.text(), heading)
    for row in rows[1:]:
        if rows[0].cells.get("table", "first") == row.cells.get("table"):
            continue  # in the order of the keys of one table nothing is said
        lines = document.text().splitlines()
        first, other = rows[0].line, row.line
        lines[first], lines[other] = lines[other], lines[first]
        assert is_refused("\n".join(lines)), row


@pytest.mark.parametrize(
    ("heading", "column"),
    [(heading, column) for heading, columns in CHECKED_CELLS.items() for column in columns],
)
def test_an_altered_cell_is_noticed(heading: str, column: str) -> None:
    for row in document.table(document.text(), heading):
        cell = row.cells[column]
        if cell.isdecimal():
            altered = str(int(cell) + 1)
        elif cell.startswith("`"):
            altered = f"`x{cell[1:]}"
        else:
            altered = f"{cell}+1"
        lines = document.text().splitlines()
        line = lines[row.line]
        cells = line.split("|")
        place = list(row.cells).index(column) + 1
        cells[place] = f" {altered} "
        lines[row.line] = "|".join(cells)
        assert lines[row.line] != line
        assert is_refused("\n".join(lines)), row


def test_a_catalog_key_that_is_altered_is_noticed() -> None:
    for key in ("`store_id`", "`next_queue_id`", "`%020d`", "`%010d`"):
        cell = f"` | {key}"
        assert document.text().count(cell) == 1
        assert is_refused(document.text().replace(cell, "` | `x`"))


def test_each_altered_byte_of_the_example_is_noticed() -> None:
    text = document.text()
    start = text.index("```hex")
    places = [
        start + line.start() + found.start()
        for line in re.finditer(r"(?m)^[0-9a-f]{4}  .*?\|", text[start:])
        for found in re.finditer(r"(?<= )[0-9a-f]{2}(?= )", line[0])
    ]
    assert len(places) == len(document.example(text))
    for place in places:
        digit = int(text[place], 16) ^ 1
        altered = f"{text[:place]}{digit:x}{text[place + 1 :]}"
        with pytest.raises(AssertionError):
            check_example(altered)


def test_an_altered_offset_of_the_example_is_noticed() -> None:
    with pytest.raises(AssertionError):
        document.example(document.text().replace("\n006b  ", "\n006c  "))


def test_the_example_marker_is_what_the_engine_writes(tmp_path: object) -> None:
    directory = str(tmp_path)
    marker.write(OsFiles(), directory, STORE_ID)
    with open(os.path.join(directory, filenames.MARKER), encoding="ascii") as file:
        assert f"```\n{file.read()}```" in document.text()
    assert os.listdir(directory) == [filenames.MARKER]


def test_a_store_holds_only_files_that_the_document_names(tmp_path: object) -> None:
    directory = _written_store(tmp_path)
    found = {
        os.path.relpath(os.path.join(parent, name), directory)
        for parent, _, names in os.walk(directory)
        for name in names
    }
    listed = [row.cells["name"] for row in document.table(document.text(), "The data directory")]
    names = {document.code(name) for name in listed} - {filenames.NEW_MARKER}
    names.remove("segments/%010d.segment")
    assert found == names | {"segments/0000000001.segment"}


def test_the_catalogs_rows_have_the_keys_and_values_that_the_document_names(
    tmp_path: object,
) -> None:
    directory = _written_store(tmp_path)
    types = {"bin": bytes, "int": int, "map": dict, "any": object}
    catalog = LmdbCatalog(os.path.join(directory, filenames.CATALOG), False)
    expected: dict[str, dict[str, str]] = {}
    for row in document.table(document.text(), "Catalog tables"):
        if row.cells["key"].startswith("`"):
            key = document.code(row.cells["key"])
            key = key % 1 if "%" in key else key
            value = document.code(row.cells["value"])
            expected.setdefault(document.code(row.cells["table"]), {})[key] = value
    for name, rows in expected.items():
        found = catalog.rows(name)
        assert found.keys() == rows.keys()
        for key, kind in rows.items():
            assert isinstance(found[key], types[kind])
    size = os.path.getsize(filenames.segment_path(directory, 1))
    assert catalog.rows("segments") == {"0000000001": {"end": size}}
    catalog.close()


def test_the_independent_decoder_reads_what_a_store_wrote(tmp_path: object) -> None:
    directory = _written_store(tmp_path)
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
        decoder.StoredOperation("DELIVERED", 1, 1, 1, 0),
        decoder.StoredOperation("PURGE", 2, 1, 2, 0),
    ]


def test_the_checksum_of_the_digits_is_the_one_in_the_document() -> None:
    assert decoder.crc32c(b"123456789") == 0xE3069283
    assert "The CRC-32C of the nine bytes `123456789` is e3069283." in document.text()


def test_the_decoder_imports_nothing_of_the_engine() -> None:
    with open(decoder.__file__, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert modules == ["typing"]
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import)]


def _written_store(tmp_path: object) -> str:
    directory = os.path.join(str(tmp_path), "store")
    with Store.open(directory) as store:
        queue = store.create_queue({"name": "orders"})
        store.define([Change("vhosts", "/", {})])
        store.publish([queue], [Message(ENVELOPE, body) for body in (b"one", b"two", b"three")])
        run = store.take(queue, 1)
        assert not isinstance(run, Exception)
        store.ack(queue, run)
        assert store.purge(queue) == 2
    return directory
